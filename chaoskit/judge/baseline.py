"""
Measured normal: the pace, its noise and its gaps.

`measure` takes a span that is known to be the baseline; `find_baseline` looks for one in a training that runs.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

from chaoskit.judge.incarnations import Life, Point, lives
from chaoskit.judge.intervals import EPS
from chaoskit.judge.progress import Curve, Normal, curve
from chaoskit.judge.timeline import Sample, Spec
from chaoskit.judge.verdict import Baseline

WINDOWS = 5
"""Windows that a baseline covers at least."""
MOST_NOISE, MOST_BANDS = 0.5, 2.0
"""Noise beyond this share of the pace, or beyond this many stated bands, is no baseline: a fault as large would not show."""
MOST_WINDOWS = 400
"""Windows that the noise is read from at most, spread evenly: enough for a 99th percentile, and it bounds the cost."""


def find_baseline(samples: Iterable[Sample], spec: Spec, now: float) -> Baseline | str:
    """
    Return the baseline in the latest steady span, or the reason why there is none yet.

    A span of 5 windows is steady when every window in it stays within the stated band of its mean. A training whose
    windows scatter more than that is steady when 10 windows show no drift: their halves agree within the stated band;
    its noise then widens the band, up to what `too_noisy` allows.

    Args:
        samples: Everything seen so far, in any order.
        spec: The band, the window's parts.
        now: The present moment, seconds.
    """
    life = _current(lives(samples))
    if life is None or len(life.points) < 3:
        return "fewer than three steps were seen"
    points = _latest(life.points, WINDOWS, spec)
    if points is None:
        return _too_short(life.points, spec)
    found = measure(points, spec)
    if now - found.end > max(found.gap_limit, found.gap_widest):
        return f"no step for {now - found.end:.1f} s, where {found.pace:.3g} s is the pace"
    if _stays(points, found, spec):
        return found
    longer = _latest(life.points, 2 * WINDOWS, spec)
    if longer is not None and _has_no_drift(longer, noisy := measure(longer, spec), spec):
        return too_noisy(noisy, spec) or noisy
    return _unsteady(points, found, spec)


def measure(points: Sequence[Point], spec: Spec) -> Baseline:
    """Measure the baseline over these points of one or more lives, at least two, in order of time."""
    first, last = points[0], points[-1]
    steps = _steps(points)
    length = last.at - first.at
    pace = length / steps
    window = window_of(pace, spec)
    gaps = sorted(after.at - before.at for before, after in pairwise(points))
    noise = spread(curve(points, _even(pace)), first.at, last.at, window)
    return Baseline(
        start=first.at,
        end=last.at,
        steps=steps,
        pace=pace,
        rate=1 / pace,
        noise=noise,
        band=max(spec.band, noise),
        window=window,
        gap_p99=percentile(gaps, 0.99),
        gap_max=gaps[-1],
        gap_widest=max(after.hi - before.at for before, after in pairwise(points)),
        stride=_stride(points),
    )


def too_noisy(found: Baseline, spec: Spec) -> str:
    """Return the sentence why a baseline is too noisy to judge anything by; empty where it is not."""
    most = min(MOST_NOISE, MOST_BANDS * spec.band)
    if found.noise <= most + EPS:
        return ""
    scatter = f"its windows of {found.window:.1f} s scatter by ±{found.noise:.0%} around the mean pace"
    return f"{scatter}, at most ±{most:.0%} can be judged with a band of {spec.band:.0%}"


def within(points: Sequence[Point], start: float, end: float) -> Sequence[Point]:
    """Return the points, in order of time, whose estimates lie in [start, end]."""
    times = [point.at for point in points]
    return points[bisect_left(times, start - EPS) : bisect_right(times, end + EPS)]


def window_of(pace: float, spec: Spec) -> float:
    """Return the window in seconds: the longest of `for`, 20 steps, one checkpoint interval."""
    return max(spec.for_, pace * max(spec.min_window_steps, spec.checkpoint_every or 0))


def spread(work: Curve, start: float, end: float, length: float) -> float:
    """Return how far 99 % of the windows of this length stay from the mean pace over [start, end], as a share of it."""
    mean = work.rate(start, end)
    first, last = bisect_left(work.times, start), bisect_right(work.times, end - length + EPS)
    every = max(1, math.ceil((last - first) / MOST_WINDOWS))
    starts = work.times[first:last:every]
    return percentile(sorted(abs(work.rate(t, t + length) / mean - 1) for t in starts), 0.99)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the ordered values do not exceed; 0 when there are none."""
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else 0.0


def _steps(points: Sequence[Point]) -> int:
    """Return the steps done from the first point to the last; what a new life does again counts as its own steps."""
    pairs = pairwise(points)
    return sum(after.step - before.step if after.life == before.life else 1 for before, after in pairs)


def _stride(points: Sequence[Point]) -> int:
    """Return the usual distance from one logged step to the next."""
    jumps = sorted(after.step - before.step for before, after in pairwise(points) if after.life == before.life)
    return max(1, jumps[len(jumps) // 2]) if jumps else 1


def _even(pace: float) -> Normal:
    return Normal(pace, math.inf)


def _current(found: Sequence[Life]) -> Life | None:
    """Return the life that makes the latest steps: what came before it is another training's pace."""
    return max((life for life in found if life.points), key=lambda life: life.points[-1].at, default=None)


def _latest(points: Sequence[Point], windows: int, spec: Spec) -> Sequence[Point] | None:
    """Return the shortest latest span of this many windows, at its own pace; None when the life is too short."""
    low, high = 0, len(points) - 2
    if not _covers(points, windows, spec):
        return None
    while low < high:  # a longer span is more windows, save for noise: take the shortest that bisection finds
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _covers(points[middle:], windows, spec) else (low, middle - 1)
    return points[low:]


def _covers(points: Sequence[Point], windows: int, spec: Spec) -> bool:
    length = points[-1].at - points[0].at
    return length >= windows * window_of(length / _extent(points), spec) - EPS


def _extent(points: Sequence[Point]) -> int:
    return points[-1].step - points[0].step


def _stays(points: Sequence[Point], found: Baseline, spec: Spec) -> bool:
    return max(_deviations(points, found)) <= spec.band + EPS


def _has_no_drift(points: Sequence[Point], found: Baseline, spec: Spec) -> bool:
    work = curve(points, _even(found.pace))
    middle = (found.start + found.end) / 2
    return abs(work.rate(found.start, middle) - work.rate(middle, found.end)) * found.pace <= spec.band


def _deviations(points: Sequence[Point], found: Baseline) -> list[float]:
    work = curve(points, _even(found.pace))
    last = found.end - found.window + EPS
    return [abs(work.rate(t, t + found.window) * found.pace - 1) for t in work.times if t <= last]


def _too_short(points: Sequence[Point], spec: Spec) -> str:
    length = points[-1].at - points[0].at
    window = window_of(length / _extent(points), spec)
    return f"{length / window:.1f} of {WINDOWS} windows of {window:.1f} s were seen"


def _unsteady(points: Sequence[Point], found: Baseline, spec: Spec) -> str:
    worst = max(_deviations(points, found))
    return f"the pace still moves: windows of {found.window:.1f} s are up to {worst:.0%} off their mean, at most {spec.band:.0%} is steady"
