"""
The work done as a function of time, from which every throughput is read.

Between two logged steps work is done evenly. A step that ends a stall, and the first step of a life, did its work in its
last `pace` seconds: a training that stands still does no part of the step that comes after.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from chaoskit.judge.incarnations import Point


@dataclass(frozen=True, slots=True)
class Normal:
    """What an increment is measured by: seconds a step, the gap that is a stall, steps from one logged step to the next."""

    pace: float
    gap_limit: float
    stride: int = 1
    weight: Mapping[int, float] = field(default_factory=dict)
    """Life -> its global batch over the baseline's; 1 when unknown."""
    resumed: Mapping[int, int] = field(default_factory=dict)
    """Life -> the step it resumed from, where told."""


class Curve:
    """Cumulative work, in steps of the baseline's global batch, piecewise linear in time."""

    def __init__(self, times: Sequence[float], work: Sequence[float]) -> None:
        self.times = times
        self.work = work

    def at(self, t: float) -> float:
        """Return the work done up to t; flat before the first and after the last step."""
        right = bisect_right(self.times, t)
        if right in (0, len(self.times)):
            return self.work[right - 1 if right else 0]
        start, end = self.times[right - 1], self.times[right]
        done, next_done = self.work[right - 1], self.work[right]
        return done + (next_done - done) * (t - start) / (end - start)

    def rate(self, start: float, end: float) -> float:
        """Return the work a second over [start, end]."""
        return (self.at(end) - self.at(start)) / (end - start)


def curve(points: Iterable[Point], normal: Normal, edge: str = "at") -> Curve:
    """Build the curve from points in order of time; `edge` takes their estimates (`at`), or their bounds (`lo`, `hi`)."""
    place = Point._fields.index(edge)
    times: list[float] = []
    work: list[float] = []
    reached: dict[int, int] = {}
    now, done = -math.inf, 0.0
    for point in points:
        before = reached.get(point.life)
        steps = _first_steps(point, normal) if before is None else max(point.step - before, 0)
        reached[point.life] = point.step
        t = max(float(point[place]), now)
        if times:
            gap = t - now
            if before is None or (gap > normal.gap_limit and gap * normal.stride > normal.gap_limit * steps):
                times.append(max(t - normal.pace * steps, now))
                work.append(done)
            done += steps * normal.weight.get(point.life, 1.0)
        now = t
        times.append(now)
        work.append(done)
    return Curve(times, work)


def _first_steps(point: Point, normal: Normal) -> int:
    """Return the steps that the first line of a life stands for."""
    return max(point.step - normal.resumed.get(point.life, point.step - normal.stride), 0)
