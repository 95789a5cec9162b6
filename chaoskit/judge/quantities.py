"""
The figures: of each disruption by itself, and of the run.

The run's times are the worst over its episodes, each from its own start; its counts and losses are the totals.
"""

from collections.abc import Mapping, Sequence

from chaoskit.judge.disruptions import RESTART, STALL, first_sign
from chaoskit.judge.episodes import SLOW, Course, Episode, Injected
from chaoskit.judge.intervals import hull, later, positive, scaled, total
from chaoskit.judge.ledger import Loss, loss, spans
from chaoskit.judge.timeline import Interval, Timeline, Unit
from chaoskit.judge.track import Track
from chaoskit.judge.verdict import Disruption, Quantity
from chaoskit.judge.words import figure
from chaoskit.model.experiment import BUDGET_SENSE

ZERO = Interval(0.0, 0.0)
BLIND_END = "the observer was blind at the end of the watch"
UNSEEN = "lines of a time when the observer was blind never came, and a restart may be hidden there"
UNITS: Mapping[str, Unit] = {
    **dict.fromkeys(("time_to_detect", "time_to_resume", "time_to_recover", "time_to_steady", "settle_time", "lost_time"), "s"),
    "lost_steps": "steps",
    "restarts": "",
    "boots": "",
    "lost_gpu_hours": "GPU-h",
    "lost_cost": "cost",
    "throughput_during": "share",
    "window_goodput": "share",
}


def of_run(track: Track, timeline: Timeline, found: Course) -> dict[str, Quantity]:
    """Return every quantity of the run, in the order of the budgets."""
    episodes, injected = found.episodes, found.injected
    broken = [one for one in episodes if one.broken]
    hidden = _hidden(track, broken)
    each = [
        _detected(track, timeline, injected),
        *(_worst(name, [_elapsed(track, timeline, name, one) for one in episodes]) for name in MOMENTS),
        _settle(track, timeline, found),
        _lost_steps(track, broken),
        _count("restarts", sum(one.broken is not None and one.broken.new is not None for one in broken), hidden),
        _count("boots", sum(one.broken.boots for one in broken if one.broken), hidden),
        *_losses(track, timeline, loss(track, spans(episodes))),
        _during(injected),
    ]
    named = {one.name: one for one in each}
    return {name: named[name] for name in BUDGET_SENSE}


def of_disruptions(track: Track, timeline: Timeline, episodes: Sequence[Episode]) -> tuple[Disruption, ...]:
    """Return each disruption with its own quantities."""
    return tuple(_disruption(track, timeline, one) for one in episodes if one.broken is not None)


def unknown(why: str) -> dict[str, Quantity]:
    """Return every quantity without a value."""
    return {name: _none(name, why) for name in BUDGET_SENSE}


MOMENTS = ("time_to_resume", "time_to_recover", "time_to_steady")


def _disruption(track: Track, timeline: Timeline, one: Episode) -> Disruption:
    boots, hidden = one.broken.boots if one.broken else 0, _hidden(track, [one])
    restarts = int(one.kind == RESTART and one.resume is not None)
    each = [
        _sign(track, timeline, one.start, one.recovered_at),
        *(_elapsed(track, timeline, name, one) for name in MOMENTS),
        *([_settled(track, timeline, one)] if one.settle is not None else []),
        _lost_steps(track, [one]),
        _count("restarts", restarts, hidden),
        _count("boots", boots, hidden),
        *_losses(track, timeline, loss(track, spans([one]))),
    ]
    return Disruption(one.start, one.kind, {each_one.name: each_one for each_one in each}, boots, _says(one, boots))


def _says(one: Episode, boots: int) -> str:
    if not one.certain:
        return "the observer did not see enough to say whether the training stood still"
    if boots > 1:
        lived = "none of them made a step" if one.resume is None else f"{boots - 1} died without a step"
        return f"restart storm: {boots} boots for one restart, {lived}; {boots} of the launcher's restarts are consumed"
    return ""


def _elapsed(track: Track, timeline: Timeline, name: str, one: Episode) -> Quantity:
    """Return the time from the episode's start to one of its moments."""
    moment = {"time_to_resume": one.resume, "time_to_recover": one.recover, "time_to_steady": one.steady}[name]
    if one.kind == SLOW and name != "time_to_steady":
        return Quantity(name, ZERO, "s")
    if moment is None:
        return _never(track, timeline, name, one.start, one.pending and name == "time_to_steady", one.recovered_at, _later(timeline, one))
    elapsed = positive(moment - one.start)
    return Quantity(name, elapsed if one.certain else hull(elapsed, ZERO), "s")


def _later(timeline: Timeline, one: Episode) -> str:
    """Say what the times of an episode count from that did not begin with a fault; empty for one that did."""
    began = [each.t0.mid for each in timeline.injections if each.t0 and each.t0.mid <= one.start.mid]
    return f" after the last step, {figure(one.start.mid - began[0], 's')} after the fault" if one.cause is None and began else ""


def _never(
    track: Track,
    timeline: Timeline,
    name: str,
    start: Interval,
    pending: bool = False,
    recovered: float | None = None,
    since: str = "",
) -> Quantity:
    """Return the lower bound of a time whose moment did not come; `since` says what it counts from where that is no fault."""
    seen = recovered if pending and recovered is not None else track.alive_until
    watched = positive(Interval.at(seen) - start)
    cut = track.dead is None and (timeline.cut_short or track.blind_end)
    if pending:
        note = "watched for less than a whole window since"
    elif track.blind_end:
        note = BLIND_END
    else:
        note = f"it did not come in the {figure(watched.lo, 's')} watched{since}"
    return Quantity(name, watched, "s", beyond=True, note=note, open=pending or cut)


def _worst(name: str, values: Sequence[Quantity]) -> Quantity:
    """Return the largest; a moment that never came is worse than any that did."""
    never = [one for one in values if one.beyond]
    if never:
        return max(never, key=lambda one: (not one.open, one.value.mid if one.value else 0.0))
    worst = ZERO
    for one in values:
        worst = later(worst, one.value or ZERO)
    return Quantity(name, worst, UNITS[name])


def _detected(track: Track, timeline: Timeline, injected: Sequence[Injected]) -> Quantity:
    """Return the slowest first sign over the injections."""
    return _worst("time_to_detect", [_sign(track, timeline, one.t0, one.until) for one in injected])


def _sign(track: Track, timeline: Timeline, start: Interval, until: float | None) -> Quantity:
    name, end = "time_to_detect", until if until is not None else track.alive_until
    if (sign := first_sign(track, start, end)) is not None:
        return Quantity(name, positive(sign.t - start), "s")
    seen = _never(track, timeline, name, start)
    return Quantity(name, None, "s", beyond=True, note="no sign of the stack was seen", open=seen.open or track.was_blind(start.lo, end))


def _settle(track: Track, timeline: Timeline, found: Course) -> Quantity:
    """Return the slowest settling over the faults with an end."""
    name = "settle_time"
    held = [one for one in found.injected if one.held]
    if not held:
        return _none(name, "no fault of this run has an end that the node was told to make")
    if any(one.t1 is None for one in held):
        return Quantity(name, None, "s", note="a fault is held still", open=True)
    after = [one for one in found.episodes if one.settle is not None or (one.steady is None and _touches(one, held))]
    return _worst(name, [_settled(track, timeline, one, held) for one in after])


def _touches(one: Episode, held: Sequence[Injected]) -> bool:
    """Say whether a fault with an end was held, or had been, when the episode began."""
    return any(each.t0.mid <= one.start.mid for each in held)


def _settled(track: Track, timeline: Timeline, one: Episode, held: Sequence[Injected] = ()) -> Quantity:
    if one.settle is not None:
        return Quantity("settle_time", one.settle if one.certain else hull(one.settle, ZERO), "s")
    ends = [each.t1 for each in held if each.t1 is not None and each.t0.mid <= one.start.mid]
    end = max(ends, key=lambda t1: t1.mid)
    if timeline.cut_short and track.alive_until - end.mid < track.baseline.pace:
        return Quantity("settle_time", None, "s", beyond=True, note="the watch ended with the fault", open=True)
    return _never(track, timeline, "settle_time", end, one.pending, one.recovered_at)


def _lost_steps(track: Track, broken: Sequence[Episode]) -> Quantity:
    known = total([one.lost_steps for one in broken if one.lost_steps is not None])
    if any(one.broken and one.broken.unseen for one in broken):
        return Quantity("lost_steps", known, "steps", beyond=True, note=UNSEEN, open=True)
    if all(one.lost_steps is not None for one in broken):
        return Quantity("lost_steps", known, "steps")
    may_rise = any(one.lost_steps is None and one.kind != STALL for one in broken) or track.blind_end
    note = "the step resumed from is not known: no new life made a step"
    return Quantity("lost_steps", known, "steps", beyond=may_rise, note=note if may_rise else "", open=may_rise)


def _losses(track: Track, timeline: Timeline, lost: Loss) -> list[Quantity]:
    """Return lost time, GPU-hours and cost, lower bounds while they grow, and the goodput of [a, b]."""
    cut = track.dead is None and (timeline.cut_short or track.blind_end)
    note = "still lost at the end of the watch" if lost.open else ""
    hours = scaled(lost.gpu_seconds, 1 / 3600)
    price = track.spec.price_per_gpu_hour
    cost = None if price is None else scaled(hours, price)
    each: list[tuple[str, Interval | None]] = [("lost_time", lost.time), ("lost_gpu_hours", hours), ("lost_cost", cost)]
    figures = [
        _none(name, "the inventory gives no price")
        if value is None
        else Quantity(name, value, UNITS[name], lost.open, note, lost.open and cut)
        for name, value in each
    ]
    return [*figures, Quantity("window_goodput", lost.goodput, "share", note="up to the end of the watch" if lost.open else "")]


def _during(injected: Sequence[Injected]) -> Quantity:
    """Return the lowest throughput over the faults with a duration."""
    held = [one for one in injected if one.held]
    shares = [one.during for one in held if one.during is not None]
    if not held:
        return _none("throughput_during", "no fault of this run was held")
    if len(shares) < len(held):
        return _none("throughput_during", "a fault was held for less time than its stamps are sure to")
    return Quantity("throughput_during", Interval(min(one.lo for one in shares), min(one.hi for one in shares)), "share")


def _hidden(track: Track, broken: Sequence[Episode]) -> str:
    """Return why more restarts than were seen may have come; empty when none can have."""
    if any(one.broken and one.broken.unseen for one in broken):
        return UNSEEN
    return BLIND_END if track.blind_end and any(one.resume is None for one in broken) else ""


def _count(name: str, value: int, hidden: str) -> Quantity:
    """Return a count; a lower bound where more may have come, for the reason given."""
    return Quantity(name, Interval.at(float(value)), UNITS[name], bool(hidden), hidden, bool(hidden))


def _none(name: str, why: str) -> Quantity:
    return Quantity(name, None, UNITS[name], note=why)
