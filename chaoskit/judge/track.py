"""
The course of the training over one run, prepared for questions: lives, steps in order of time, windows, GPUs.

Built once from a `Timeline` whose baseline is known; every other module of the judge asks it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from chaoskit.judge.baseline import measure, spread, too_noisy, within
from chaoskit.judge.incarnations import Life, Point, lives
from chaoskit.judge.intervals import EPS
from chaoskit.judge.progress import Curve, Normal, curve
from chaoskit.judge.timeline import Mark, MarkKind, Spec, Timeline
from chaoskit.judge.verdict import Baseline


@dataclass(frozen=True, slots=True)
class Track:
    """
    The prepared course.

    Args:
        spec, marks: As given; the marks in order of time.
        lives: In order of their beginning.
        points, times, tops: Every step in order of time; its best estimate; the highest step so far.
        baseline: Measured normal.
        work: The work curve, and what it is measured by.
        alive_until: The last moment at which the observer was alive and saw.
        blind: Spans in which it saw nothing; `blind_end` when the last one lasts to the end of the watch.
        dead: The training ended and nothing started it again.
        shares: Life -> its part of the baseline's world; below 1 for a world that shrank.
    """

    spec: Spec
    marks: Sequence[Mark]
    lives: Sequence[Life]
    points: Sequence[Point]
    times: Sequence[float]
    tops: Sequence[int]
    baseline: Baseline
    normal: Normal
    work: Curve
    alive_until: float
    blind: Sequence[tuple[float, float]]
    blind_end: bool
    dead: Mark | None
    shares: Mapping[int, float]
    gpus: Mapping[int, int]
    steady_steps: dict[int, bool] = field(default_factory=dict)
    """Remembered answers of `steady_at` by step index: several episodes ask for the same windows."""

    def index_at(self, t: float) -> int:
        """Return the index of the last step at or before t (the first step when there is none)."""
        return max(bisect_right(self.times, t + EPS) - 1, 0)

    def index_from(self, t: float) -> int | None:
        """Return the index of the first step at or after t."""
        index = bisect_left(self.times, t - EPS)
        return index if index < len(self.points) else None

    def index_beyond(self, step: int) -> int | None:
        """Return the index of the first step beyond this one."""
        index = bisect_right(self.tops, step)
        return index if index < len(self.points) else None

    def share_of_pace(self, start: float, end: float) -> float:
        """Return the throughput over [start, end] as a share of the baseline's."""
        return self.work.rate(start, end) * self.baseline.pace

    def in_band(self, start: float) -> bool:
        """Say whether the whole window from start on was seen and does not fall below the baseline's band."""
        end = start + self.baseline.window
        return end <= self.last + EPS and self.share_of_pace(start, end) >= 1 - self.baseline.band - EPS

    def steady_at(self, start: float) -> bool:
        """Say the same of the world that trains: a shrunk one is steady only where the experiment lets it shrink."""
        end = start + self.baseline.window
        share = self.shares.get(self.points[self.index_at(end)].life, 1.0)
        if share >= 1:
            return self.in_band(start)
        if not self.spec.may_shrink or end > self.last + EPS:
            return False
        return self.share_of_pace(start, end) >= share * (1 - self.baseline.band) - EPS

    def next_steady(self, start: float) -> int | None:
        """Return the index of the first step at or after start from which a whole window is steady."""
        first = self.index_from(start)
        for index in range(len(self.points) if first is None else first, len(self.points)):
            if index not in self.steady_steps:
                self.steady_steps[index] = self.steady_at(self.times[index])
            if self.steady_steps[index]:
                return index
        return None

    @property
    def last(self) -> float:
        """When the last step was seen."""
        return self.times[-1]

    @property
    def shrunk(self) -> bool:
        """Say whether the world that trains now is smaller than the baseline's."""
        return self.shares.get(self.points[-1].life, 1.0) < 1

    def gpus_at(self, t: float) -> int:
        """Return the GPUs allocated at t: those of the latest life that had begun."""
        begun = [life.index for life in self.lives if life.begin <= t + EPS]
        return self.gpus.get(begun[-1], self.spec.gpus) if begun else self.spec.gpus

    def noise_over(self, length: float) -> float:
        """Return the baseline's noise in windows of this length, as a share."""
        inner = min(length, (self.baseline.end - self.baseline.start) / 2)
        return spread(self.work, self.baseline.start, self.baseline.end, inner)

    def was_blind(self, start: float, end: float) -> bool:
        """Say whether the observer was blind at some moment of [start, end]."""
        return any(dark < end and start < light for dark, light in self.blind)


def track(timeline: Timeline, spec: Spec) -> Track | str:
    """Prepare a timeline, or return the sentence why it cannot be judged."""
    if timeline.baseline is None:
        return "not steady before the fault: no baseline was found"
    marks = sorted(timeline.marks, key=_order)
    found = lives(timeline.samples, marks)
    points = sorted(point for life in found for point in life.points)
    base_points = within(points, *timeline.baseline)
    if len(base_points) < 2 or base_points[-1].step <= base_points[0].step:
        return "not steady before the fault: the baseline holds fewer than two steps"
    life = found[base_points[-1].life]
    batches = {one.index: timeline.batch.get(one.session) for one in found}
    baseline = _with_batch(measure(base_points, spec), batches[life.index])
    if noisy := too_noisy(baseline, spec):
        return f"not steady before the fault: {noisy}"
    normal = _normal(found, marks, baseline, batches, batches[life.index])
    dark, alive_until, blind_end = _sight(timeline, points[-1].at)
    gpus = {one.index: timeline.gpus.get(one.session, spec.gpus) for one in found}
    return Track(
        spec=spec,
        marks=marks,
        lives=found,
        points=points,
        times=[point.at for point in points],
        tops=list(accumulate((point.step for point in points), max)),
        baseline=baseline,
        normal=normal,
        work=curve(points, normal),
        alive_until=alive_until,
        blind=dark,
        blind_end=blind_end,
        dead=_death(marks, found),
        shares=_shares(found, normal.weight, gpus, gpus[life.index]),
        gpus=gpus,
    )


def _order(mark: Mark) -> tuple[float, float, str, str, str, int, str]:
    """Order marks by time, and equal times by all else, so that the order of arrival means nothing."""
    return mark.t.mid, mark.t.lo, mark.kind, mark.session, mark.node, -1 if mark.step is None else mark.step, mark.says


def resumed_from(life: Life, found: Sequence[Life], marks: Sequence[Mark]) -> int | None:
    """Return the step that a life loaded, as its log told it before its first step and after the life before it stepped."""
    first = life.points[0]
    since = max((one.points[0].lo for one in found[: life.index] if one.points), default=float("-inf"))
    told = [
        mark.step
        for mark in marks
        if mark.kind is MarkKind.LOADED and mark.session == life.session and mark.t.lo <= first.hi and mark.t.hi >= since
    ]
    fits = [step for step in told if step is not None and step < first.step]
    return fits[-1] if fits else None


def _with_batch(baseline: Baseline, batch: int | None) -> Baseline:
    return replace(baseline, rate=baseline.rate * batch) if batch else baseline


def _normal(
    found: Sequence[Life], marks: Sequence[Mark], baseline: Baseline, batches: Mapping[int, int | None], batch: int | None
) -> Normal:
    weight = {index: own / batch for index, own in batches.items() if own and batch}
    resumed = {life.index: step for life in found if life.points and (step := resumed_from(life, found, marks)) is not None}
    return Normal(baseline.pace, baseline.gap_limit, baseline.stride, weight, resumed)


def _shares(found: Sequence[Life], weight: Mapping[int, float], gpus: Mapping[int, int], base: int) -> dict[int, float]:
    """A world shrank when it has fewer GPUs, or where they are not known, a smaller global batch."""
    by_gpus = {index: own / base for index, own in gpus.items() if base and own != base}
    return {life.index: min(1.0, by_gpus.get(life.index, weight.get(life.index, 1.0))) for life in found}


def _sight(timeline: Timeline, last: float) -> tuple[list[tuple[float, float]], float, bool]:
    """Return the blind spans in order, the last moment that was seen, and whether blindness ended the watch."""
    dark = sorted(span for span in timeline.blind if span[1] > span[0])
    until = max(timeline.watched_until, last)
    ends = [start for start, end in dark if end >= until - EPS and start > last - EPS]
    return dark, min(ends, default=until), bool(ends)


def _death(marks: Sequence[Mark], found: Sequence[Life]) -> Mark | None:
    """Return the end of the training, unless a life began or a step was done after it."""
    exits = [mark for mark in marks if mark.kind is MarkKind.EXIT]
    if not exits or any(life.begin > exits[-1].t.hi + EPS for life in found):
        return None
    stepped_on = any(life.points and life.points[-1].lo > exits[-1].t.hi + EPS for life in found)
    return None if stepped_on else exits[-1]
