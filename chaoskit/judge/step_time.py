"""
Whether a fault was felt as the experiment states: the median step time while it was applied, over the baseline's.

Only whole steps count, those that began and ended while the fault was applied, so that a step under way at either edge
is on neither side; and of their times the median, so that a pause on fewer than half of them (a checkpoint, a stall)
moves nothing. `chaoskit.judge` defines the figure and its interval.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from chaoskit.judge.baseline import MOST_WINDOWS, percentile, within
from chaoskit.judge.episodes import Course, Injected
from chaoskit.judge.incarnations import Point
from chaoskit.judge.intervals import EPS
from chaoskit.judge.outcome import Reason, named
from chaoskit.judge.timeline import Interval, Timeline
from chaoskit.judge.track import Track
from chaoskit.judge.verdict import BudgetState, Expectation, Outcome, Quantity
from chaoskit.judge.words import EXACT, figure, measured
from chaoskit.model.experiment import Expect

NAME = "step_time"
SURE = 0.02
"""Share of a step time by which its stamps may widen it; where they are coarser, times are taken over several steps."""
Z = 1.96
"""Standard deviations that hold 95 % of a normal distribution: for the ranks between which a median lies."""
MOST_STRETCHES = 100
"""Stretches at most whose median is looked for all through the baseline: its noise only falls with more, and its cost rises."""


class Stretch(NamedTuple):
    """Seconds a step over some consecutive steps: the best estimate, and what the stamps allow."""

    at: float
    lo: float
    hi: float


def expectations(track: Track, timeline: Timeline, found: Course) -> tuple[Expectation, ...]:
    """Return how each injection that states what must be felt was felt."""
    begun = {one.index: one for one in found.injected}
    stated = [(index, facts.expect) for index, facts in enumerate(timeline.injections) if facts.expect is not None]
    return tuple(_expectation(track, index, expect, begun.get(index)) for index, expect in stated)


def unmeasured(timeline: Timeline, why: str) -> tuple[Expectation, ...]:
    """Return every stated expectation as undecided: nothing could be measured."""
    stated = [(index, facts.expect) for index, facts in enumerate(timeline.injections) if facts.expect is not None]
    return tuple(Expectation(index, expect, _none(why), BudgetState.UNDECIDED) for index, expect in stated)


def sizes(timeline: Timeline, told: Sequence[Expectation]) -> Iterator[Reason]:
    """Name every fault that was not felt as stated, or of which that cannot be told; one that never began is named elsewhere."""
    for one in told:
        facts = timeline.injections[one.index]
        if facts.t0 is None or one.state is BudgetState.MET:
            continue
        undecided = "undecided: " if one.state is BudgetState.UNDECIDED else ""
        yield Outcome.INCONCLUSIVE, f"{undecided}{named(facts)}: {_says(one)}"


def _says(one: Expectation) -> str:
    stated = f"the experiment states {figure(one.expect.step_time, '', EXACT)} ±{figure(one.expect.within, 'share', EXACT)}"
    value = one.measured.value
    if value is None:
        return f"how far step time moved is not known, {stated}: {one.measured.note}"
    if one.state is BudgetState.UNDECIDED and not one.measured.beyond:
        return f"step time moved between {figure(value.lo, '')} and {figure(value.hi, '')} times, {stated}"
    note = f" ({one.measured.note})" if one.measured.note else ""
    moved = f"step time moved {measured(one.measured)} times{note}, {stated}"
    if one.state is BudgetState.UNDECIDED:
        return moved
    hidden = "the fault was hidden, or" if value.hi < one.expect.step_time and not one.measured.beyond else "the fault"
    return f"{moved}: {hidden} is not of the size it claims"


def _expectation(track: Track, index: int, expect: Expect, one: Injected | None) -> Expectation:
    ratio = step_time_ratio(track, one) if one else _none("it was never injected")
    return Expectation(index, expect, ratio, _state(expect, ratio))


def _state(expect: Expect, ratio: Quantity) -> BudgetState:
    value = ratio.value
    if value is None:
        return BudgetState.UNDECIDED
    low, high = value.lo, math.inf if ratio.beyond else value.hi
    if low >= expect.least - EPS and high <= expect.most + EPS:
        return BudgetState.MET
    return BudgetState.MISSED if high < expect.least - EPS or low > expect.most + EPS else BudgetState.UNDECIDED


def step_time_ratio(track: Track, one: Injected) -> Quantity:
    """Return the median step time from t0 to t1 (to the end of what was seen while it is held) over the baseline's."""
    end = one.t1 or Interval.at(track.alive_until)
    held = _lines(track, one.t0.hi, end.lo)
    size = _stretch_size(track, held)
    during = list(_stretches(track, held, size))
    if not during:
        return _no_whole_step(track, one.t0.hi, end.lo)
    base = list(_stretches(track, _lines(track, track.baseline.start, track.baseline.end), size))
    if not base:
        return _none("its stamps are coarser than the baseline is long")
    noise = _noise(base, len(during))
    low, high = _median(during)
    least, most = _middle([each.lo for each in base]), _middle([each.hi for each in base])
    ratio = max(low / most * (1 - noise), 0.0)
    if least <= 0:
        return Quantity(NAME, Interval.at(ratio), beyond=True, note="the stamps of the baseline are too coarse to say how far")
    return Quantity(NAME, Interval(ratio, high / least * (1 + noise)))


def _lines(track: Track, start: float, end: float) -> list[list[Point]]:
    """Return the steps that surely lie in [start, end], apart by life: what lies between two lives is no step."""
    by_life: dict[int, list[Point]] = {}
    for point in within(track.points, start, end):
        if point.lo >= start - EPS and point.hi <= end + EPS:
            by_life.setdefault(point.life, []).append(point)
    return list(by_life.values())


def _stretch_size(track: Track, lines: Sequence[Sequence[Point]]) -> int:
    """Return over how many lines a step time is taken: one, or as many as make it sure; at most as many as there are."""
    widths = [point.hi - point.lo for line in lines for point in line]
    if not widths:
        return 1
    need = math.ceil(2 * _middle(widths) / (SURE * track.baseline.pace * track.baseline.stride) - EPS)
    longest = max(len(line) for line in lines) - 1
    return max(1, min(need, longest))


def _stretches(track: Track, lines: Sequence[Sequence[Point]], size: int) -> Iterator[Stretch]:
    """Yield seconds a step of the baseline's global batch, over stretches that do not overlap."""
    for line in lines:
        for before, after in pairwise(line[::size]):
            done = (after.step - before.step) * track.normal.weight.get(after.life, 1.0)
            if done > 0:
                yield Stretch((after.at - before.at) / done, max(after.lo - before.hi, 0.0) / done, (after.hi - before.lo) / done)


def _median(during: Sequence[Stretch]) -> tuple[float, float]:
    """
    Return between what the median lies: from one rank to another with 95 % certainty, whatever the distribution.

    The ranks are those of the sign test, by the normal approximation with its continuity correction; fewer than six
    stretches are not enough for that, and all of them is what is known.
    """
    count = len(during)
    drop = max(math.floor((count - Z * math.sqrt(count) - 1) / 2), 0)
    return sorted(each.lo for each in during)[drop], sorted(each.hi for each in during)[count - 1 - drop]


def _noise(base: Sequence[Stretch], count: int) -> float:
    """Return how far 99 % of the medians of this many consecutive stretches stay from that of the whole baseline, as a share."""
    times = [each.at for each in base]
    inner = max(1, min(count, MOST_STRETCHES, len(times) // 2))
    every = max(1, math.ceil((len(times) - inner + 1) / MOST_WINDOWS))
    middle = _middle(times)
    medians = (_middle(times[first : first + inner]) for first in range(0, len(times) - inner + 1, every))
    return percentile(sorted(abs(each / middle - 1) for each in medians), 0.99)


def _no_whole_step(track: Track, start: float, end: float) -> Quantity:
    """Return the lower bound that the longest time without a logged step gives, or nothing where nobody watched."""
    note = "no whole step was done while it was applied"
    if track.was_blind(start, end) or end <= start:
        return _none(note)
    longest, since = 0.0, start
    for point in track.points:
        if point.hi > start and point.lo < end:
            longest, since = max(longest, point.lo - since), max(since, point.hi)
    least = max(longest, end - since) / (track.baseline.stride * track.baseline.pace)
    return Quantity(NAME, Interval.at(least), beyond=True, note=note)


def _middle(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _none(why: str) -> Quantity:
    return Quantity(NAME, None, note=why)
