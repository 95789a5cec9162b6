"""
What each fault and each disruption did to the training, from its start until the pace was steady again.

An episode is one disruption, or a fault that was felt without one (a slow-down). It spans [a, b]: the last step at or
before its start, the first step at or after it was steady again.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise, takewhile

from chaoskit.judge.disruptions import Break, breaks, causes, onset
from chaoskit.judge.intervals import EPS, later, positive
from chaoskit.judge.progress import curve
from chaoskit.judge.timeline import InjectionFacts, Interval
from chaoskit.judge.track import Track

SLOW = "slow-down"

Outage = tuple[float, float]
"""From the last step before a break to the first new step after it; the end is infinite while there is none."""


@dataclass(frozen=True, slots=True)
class Injected:
    """One injection that had its first effect: when, until when (None while it is held), and what became of it."""

    index: int
    t0: Interval
    t1: Interval | None
    held: bool
    """A fault with an end, as against a one-shot."""
    until: float
    """When the next injection begins, or the watch ended."""
    during: Interval | None
    """Throughput while held, as a share of the baseline; None for a one-shot."""
    felt: bool

    @property
    def end(self) -> Interval | None:
        """When its effect was over: t1, or t0 for a one-shot; None while it is held."""
        return self.t1 if self.held else self.t0


@dataclass(frozen=True, slots=True)
class Episode:
    """
    One disruption or slow-down.

    Args:
        start: t0 of its injection, or the last step before it.
        kind: `restart`, `stall`, `death` or `slow-down`.
        broken: The break, None for a slow-down.
        cause: Index of the injection it starts at, None when it came by itself.
        resume, recover: When steps were done again; when the first new step was. None when not seen.
        steady: When the pace was in the band again for a whole window, None when not seen.
        settle: Seconds from the end of the held faults to `steady`; None without such an end.
        pending: Whether `steady` may still come: there was not yet a whole window to see it in.
        begin, end: Indices of the steps a and b; `end` is None when it goes on.
        lost_steps: S - R, None when it is not known yet.
    """

    start: Interval
    kind: str
    broken: Break | None
    cause: int | None
    resume: Interval | None
    recover: Interval | None
    recovered_at: float | None
    steady: Interval | None
    settle: Interval | None
    pending: bool
    begin: int
    end: int | None
    lost_steps: Interval | None

    @property
    def certain(self) -> bool:
        """False when the stamps allow that nothing happened."""
        return self.broken is None or self.broken.certain


@dataclass(frozen=True, slots=True)
class Course:
    """The injections that had an effect, the episodes they led to, and whether the training was steady before the first."""

    injected: Sequence[Injected]
    episodes: Sequence[Episode]
    steady_before: bool


def course(track: Track, injections: Sequence[InjectionFacts]) -> Course:
    """Return what happened from the first injection on."""
    starts = {index: one.t0 for index, one in enumerate(injections) if one.t0 is not None}
    if not starts:
        return Course((), (), steady_before=True)
    first = min(starts.values(), key=lambda t0: t0.mid)
    found = [one for one in breaks(track) if one.after is None or one.after.hi > first.lo + EPS]
    caused = causes(track, found, starts)
    injected = _injected(track, injections, starts, found, caused)
    outages = [_outage(track, one) for one in found if one.likely]
    episodes = [_disruption(track, one, caused.get(place), injected, outages) for place, one in enumerate(found)]
    struck = set(caused.values())
    episodes += [_slow(track, one, outages) for one in injected if one.felt and one.index not in struck]
    episodes.sort(key=lambda one: (one.begin, one.start.mid))
    return Course(injected, episodes, steady_before(track, first, found))


def steady_before(track: Track, first: Interval, found: Sequence[Break]) -> bool:
    """Say whether the last window before the first injection was in the band, and no break was under way."""
    if any(one.certain and onset(track, one) < first.lo - EPS for one in found[:1]):
        return False
    last = track.times[track.index_at(first.mid)]
    start = max(last - track.baseline.window, track.baseline.start)
    return last - start < track.baseline.window / 2 or abs(track.share_of_pace(start, last) - 1) <= track.baseline.band + EPS


def _injected(
    track: Track,
    injections: Sequence[InjectionFacts],
    starts: Mapping[int, Interval],
    found: Sequence[Break],
    caused: Mapping[int, int],
) -> list[Injected]:
    order = sorted(starts, key=lambda index: (starts[index].mid, index))
    limits = [starts[after].mid for _, after in pairwise(order)] + [track.alive_until]
    struck = {cause for place, cause in caused.items() if found[place].likely}
    return [
        _one(track, index, injections[index], starts[index], until, index in struck) for index, until in zip(order, limits, strict=True)
    ]


def _one(track: Track, index: int, facts: InjectionFacts, t0: Interval, until: float, struck: bool) -> Injected:
    t1 = None if facts.one_shot else facts.t1
    during = None if facts.one_shot else _during(track, t0, t1)
    end = t0.mid if facts.one_shot else t1.mid if t1 else track.alive_until
    felt = struck or _left(track, t0.mid, end, until)
    if during is not None and not felt and end > t0.mid:
        slower = 1 - track.share_of_pace(t0.mid, end)
        felt = slower > max(track.spec.band, track.noise_over(end - t0.mid)) + EPS
    return Injected(index, t0, t1, not facts.one_shot, until, during, felt)


def _left(track: Track, start: float, end: float, until: float) -> bool:
    """Say whether a window that touches [start, end] left the band, before the next injection had its own effect."""
    window = track.baseline.window
    first = bisect_right(track.times, track.times[track.index_at(start)] - window + EPS)
    latest = min(end, track.last - window, until - window if until < track.last else track.last)
    return any(not track.in_band(t) for t in takewhile(lambda t: t <= latest + EPS, islice(track.times, first, None)))


def _during(track: Track, t0: Interval, t1: Interval | None) -> Interval | None:
    """
    Return the throughput over [t0, t1] as a share of the baseline's, within what the stamps and the baseline's noise allow.

    The noise is a share of what was measured: a baseline that is 5 % off makes 60 % of it 3 % off, not 5.
    """
    end = t1 or Interval.at(track.alive_until)
    if end.lo - t0.hi <= 0:
        return None
    stop = next((place for place in range(track.index_at(end.hi), len(track.points)) if track.points[place].lo > end.hi), None)
    begin = next((place for place in range(track.index_at(t0.lo), -1, -1) if track.points[place].hi <= t0.lo), 0)
    near = track.points[begin : None if stop is None else stop + 1]
    early, late = (curve(near, track.normal, edge) for edge in ("lo", "hi"))
    least = (late.at(end.lo) - early.at(t0.hi)) / (end.hi - t0.lo)
    most = (early.at(end.hi) - late.at(t0.lo)) / (end.lo - t0.hi)
    noise = track.noise_over(end.mid - t0.mid)
    return positive(Interval(least * track.baseline.pace * (1 - noise), most * track.baseline.pace * (1 + noise)))


def _beyond(track: Track, one: Break) -> int | None:
    """Return the index of the first step beyond the highest before a break."""
    return track.index_beyond(track.tops[one.before]) if one.after else None


def _outage(track: Track, one: Break) -> Outage:
    """Return the time from the last step before a break to the first new one; without end while there is none."""
    beyond = _beyond(track, one)
    return track.points[one.before].at, math.inf if beyond is None else track.points[beyond].at


def _disruption(track: Track, one: Break, cause: int | None, injected: Sequence[Injected], outages: Sequence[Outage]) -> Episode:
    last = track.points[one.before]
    own = next((each for each in injected if each.index == cause), None)
    start = own.t0 if own else last.t
    beyond = _beyond(track, one)
    recover = None if beyond is None else _first_new(track, beyond, one)
    at = None if beyond is None else track.points[beyond].at
    ends, held = _ends(start.mid, at, injected, own)
    begin = min(track.index_at(start.mid), one.before) if own else one.before
    steady, settle, index, pending = _steady(track, recover, at, ends, held, outages)
    return Episode(start, one.kind, one, cause, one.first, recover, at, steady, settle, pending, begin, index, _lost_steps(track, one))


def _first_new(track: Track, index: int, one: Break) -> Interval:
    """Return when the first new step was done; it may have been any moment since the step before it when lines are missing."""
    point, before = track.points[index], track.points[index - 1]
    if one.kind != "restart" and one.after == point and one.first is not None:
        return one.first
    missing = point.life == before.life and point.step - before.step > track.baseline.stride
    return Interval(min(before.hi, point.lo), point.hi) if missing else point.t


def _ends(start: float, recovered: float | None, injected: Sequence[Injected], own: Injected | None) -> tuple[list[Interval], bool]:
    """Return the ends of the faults that were held meanwhile, and whether one is held still."""
    until = recovered if recovered is not None else float("inf")
    held = [one for one in injected if one.held and (one is own or _overlaps(one, start, until))]
    return [one.t1 for one in held if one.t1], any(one.t1 is None for one in held)


def _overlaps(one: Injected, start: float, end: float) -> bool:
    return one.t0.mid < end - EPS and (one.t1 is None or one.t1.mid > start + EPS)


def _slow(track: Track, one: Injected, outages: Sequence[Outage]) -> Episode:
    """A fault that was felt though nothing broke: steps went on, so it resumed and recovered at once."""
    ends = [one.t1] if one.t1 else []
    steady, settle, index, pending = _steady(track, one.t0, one.t0.mid, ends, one.held and one.t1 is None, outages)
    begin = track.index_at(one.t0.mid)
    return Episode(one.t0, SLOW, None, one.index, one.t0, one.t0, one.t0.mid, steady, settle, pending, begin, index, Interval.at(0.0))


def _steady(
    track: Track, recover: Interval | None, recovered: float | None, ends: Sequence[Interval], held: bool, outages: Sequence[Outage]
) -> tuple[Interval | None, Interval | None, int | None, bool]:
    """Return T, T minus t1, the index of the step b, and whether T may still come."""
    if recover is None or recovered is None or held:
        return None, None, None, held
    end = max(ends, key=lambda t1: t1.mid, default=None)
    base = max(recovered, end.mid) if end else recovered
    if not _during_outage(base, outages) and track.steady_at(base):
        steady = later(recover, end) if end else recover
        return steady, positive(recover - end) if end else None, track.index_from(base), False
    index = _next_steady(track, base, outages)
    if index is not None:
        steady = track.points[index].t
        return steady, positive(steady - end) if end else None, index, False
    may_be = track.spec.may_shrink or not track.shrunk
    return None, None, None, may_be and track.alive_until - base < track.baseline.window - EPS


def _next_steady(track: Track, start: float, outages: Sequence[Outage]) -> int | None:
    """Return the index of the first step from which a whole window is steady, outside every outage."""
    index = track.next_steady(start)
    while index is not None and (outage := _during_outage(track.times[index], outages)):
        index = None if math.isinf(outage[1]) else track.next_steady(outage[1])
    return index


def _during_outage(t: float, outages: Sequence[Outage]) -> Outage | None:
    """Return the outage that t lies in: a training that stands still, or repeats steps, is not steady, however short it is."""
    return next((one for one in outages if one[0] + EPS < t < one[1] - EPS), None)


def _lost_steps(track: Track, one: Break) -> Interval | None:
    """Return S - R: S the highest step of the old life, whenever its line came, R the step resumed from."""
    if one.kind == "stall":
        return Interval.at(0.0) if one.after else None
    if one.new is None:
        return None
    highest = track.points[one.before].step
    told = track.normal.resumed.get(one.new.index)
    first = one.new.points[0].step
    least, most = (told, told) if told is not None else (first - track.baseline.stride, first - 1)
    return positive(Interval(float(highest - most), float(highest - least)))
