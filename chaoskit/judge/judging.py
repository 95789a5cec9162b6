"""From a timeline to a verdict."""

from chaoskit.judge.budgets import judge_budgets
from chaoskit.judge.disruptions import breaks
from chaoskit.judge.episodes import Course, course, steady_before
from chaoskit.judge.intervals import EPS
from chaoskit.judge.ledger import phases, spans
from chaoskit.judge.outcome import Reason, circumstances, decide, ends, leaks, misses, proofs, unwatched
from chaoskit.judge.quantities import of_disruptions, of_run, unknown
from chaoskit.judge.step_time import expectations, sizes, unmeasured
from chaoskit.judge.timeline import Interval, Spec, Timeline
from chaoskit.judge.track import Track, track
from chaoskit.judge.verdict import Outcome, Verdict
from chaoskit.judge.watch import phase, settled, watched
from chaoskit.judge.words import figure

UNSURE = Outcome.INCONCLUSIVE


def judge(timeline: Timeline, spec: Spec) -> Verdict:
    """
    Return the verdict as it would be if the watch ended now.

    Pure: no clock, no I/O; the order of samples and marks means nothing. The engine calls it again and again on a
    timeline that grows, and stops watching when the verdict is `settled`.
    """
    prepared = track(timeline, spec)
    if isinstance(prepared, str):
        return _unjudged(timeline, spec, prepared, "baseline")
    found = course(prepared, timeline.injections)
    if not found.injected:
        return _unjudged(timeline, spec, "no fault had an effect", "steady", prepared)
    return _judged(timeline, spec, prepared, found)


def is_steady(timeline: Timeline, spec: Spec, now: float) -> bool:
    """Say whether a first fault that began at `now` would be judged: the pace is in the band, and no disruption is under way."""
    prepared = track(timeline, spec)
    if isinstance(prepared, str):
        return False
    under_way = [one for one in breaks(prepared) if one.after is None or one.after.hi > now + EPS]
    return steady_before(prepared, Interval.at(now), under_way)


def _judged(timeline: Timeline, spec: Spec, prepared: Track, found: Course) -> Verdict:
    before = "not steady before the fault: the throughput had left the band, or a disruption was under way"
    quantities = of_run(prepared, timeline, found) if found.steady_before else unknown(before)
    budgets = judge_budgets(spec.budgets, quantities, prepared.baseline, spec.gpus, spec.price_per_gpu_hour)
    disruptions = of_disruptions(prepared, timeline, found.episodes)
    absorbed = _absorbed(prepared, timeline, found)
    felt_as = expectations(prepared, timeline, found) if found.steady_before else unmeasured(timeline, before)
    judged = [*ends(prepared, timeline, found), *misses(budgets), *sizes(timeline, felt_as), *unwatched(prepared, found)]
    told = judged if found.steady_before else [(UNSURE, before)]
    reasons: list[Reason] = [*leaks(timeline.injections), *circumstances(timeline), *proofs(timeline), *told]
    notes = [one.says for one in disruptions if one.says]
    notes += ["absorbed: the training's throughput never left the band"] if absorbed else []
    notes += _widened(prepared)
    outcome, says = decide(reasons, notes)
    return Verdict(
        outcome=outcome,
        reasons=says,
        baseline=prepared.baseline,
        quantities=quantities,
        budgets=budgets,
        disruptions=disruptions,
        ledger=phases(prepared, spans(found.episodes)) if found.steady_before else (),
        injections=timeline.injections,
        felt={one.index: one.felt for one in found.injected},
        expectations=felt_as,
        absorbed=absorbed,
        settled=settled(prepared, timeline, found),
        phase=phase(prepared, found),
    )


def _widened(prepared: Track) -> list[str]:
    """Say it where the band is not the stated one: what is smaller than the noise does not show."""
    stated, band = prepared.spec.band, prepared.baseline.band
    if figure(stated, "share") == figure(band, "share"):
        return []
    return [f"the band was widened from {figure(stated, 'share')} to {figure(band, 'share')}: the training's own noise before the fault"]


def _absorbed(prepared: Track, timeline: Timeline, found: Course) -> bool:
    """Say whether every fault was there and hit what the training used, and nothing was felt in a whole window after its end."""
    if not all(watched(prepared, one) for one in found.injected):
        return False
    proven = all(one.t0 is not None and one.present.holds and one.exposed.holds for one in timeline.injections)
    return proven and found.steady_before and not found.episodes and not any(one.felt for one in found.injected)


def _unjudged(timeline: Timeline, spec: Spec, why: str, now: str, prepared: Track | None = None) -> Verdict:
    """Return the verdict of a run whose training cannot be judged: no baseline, or no fault that had an effect."""
    quantities = unknown(why)
    baseline = prepared.baseline if prepared else None
    budgets = judge_budgets(spec.budgets, quantities, baseline, spec.gpus, spec.price_per_gpu_hour)
    told = [(UNSURE, why), *proofs(timeline)]
    if timeline.trouble and timeline.baseline is None and not any(one.armed or one.t0 for one in timeline.injections):
        told = []  # refused before anything was done: what did not come of it is no further reason
    reasons: list[Reason] = [*leaks(timeline.injections), *circumstances(timeline), *told]
    outcome, says = decide(reasons, ())
    dead = prepared is not None and prepared.dead is not None
    return Verdict(
        outcome=outcome,
        reasons=says,
        baseline=baseline,
        quantities=quantities,
        budgets=budgets,
        disruptions=(),
        ledger=(),
        injections=timeline.injections,
        expectations=unmeasured(timeline, why),
        settled=dead,
        phase="dead" if dead else now,
    )
