"""
When a line's moment was, on the controller's clock, as an interval that contains the truth.

Three sources, the best first. A stamp inside the line, from whatever clock: its offset to the controller's clock is
learned from the lines themselves, so no clock has to be right, only to run evenly. The read in which the line appeared:
it was written in (since, at]. And, for a writer that buffers, the read before: when more steps arrive in one read than
can have happened in it, each may be as old as the last line that was seen.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chaoskit.model.interval import Interval

LINE_DELAY = 0.05
"""
Seconds that may pass between the end of a step and its line in the log, on a busy node: print, flush, the write. A line
read in (since, at] tells of a moment in (since - LINE_DELAY, at].
"""
DRIFT = 200e-6
"""How far a clock may drift from ours, seconds a second, between the lines that its offset is learned from."""
MEMORY = 64
"""Reads that a clock's offset and the pace are learned from."""
JUMP = 1.0
"""Seconds beyond which a contradiction is a clock that was set, not drift: everything learned is forgotten."""


def median(values: Iterable[float]) -> float:
    """Return the middle value (the upper of two); the statistics module takes longer to load than all of this."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


@dataclass(frozen=True, slots=True)
class Bound:
    """What one read said of the offset (controller's clock minus the line's clock): at least `lo`, at most `hi`."""

    at: float
    lo: float
    hi: float


class ClockOffset:
    """Learns how a log's own stamps map to the controller's clock."""

    def __init__(self) -> None:
        self._bounds: deque[Bound] = deque(maxlen=MEMORY)

    def learn(self, stamp: float, since: float | None, at: float) -> None:
        """Take in a line: it was written by `at`, and, when it cannot have waited in a buffer, after `since`."""
        lo = float("-inf") if since is None else since - stamp
        known = self._range(at)
        if known is not None and (known.lo > at - stamp + JUMP or lo > known.hi + JUMP):
            self._bounds.clear()
        self._bounds.append(Bound(at, lo, at - stamp))

    def _range(self, now: float) -> Interval | None:
        if not self._bounds:
            return None
        lo = max(bound.lo - DRIFT * abs(now - bound.at) for bound in self._bounds)
        hi = min(bound.hi + DRIFT * abs(now - bound.at) for bound in self._bounds)
        return Interval(min(lo, hi), max(lo, hi))

    def map(self, stamp: float, now: float) -> Interval | None:
        """Return the stamp on the controller's clock; None while nothing bounds it from below."""
        known = self._range(now)
        if known is None or known.lo == float("-inf"):
            return None
        return Interval(stamp + known.lo, stamp + known.hi)


class Stamper:
    """Stamps the lines of one log. `began` is a moment before its first line."""

    def __init__(self, began: float) -> None:
        self._last = began
        self._last_steps: float | None = None
        self._gaps: deque[float] = deque(maxlen=MEMORY)
        self._offset = ClockOffset()

    def stamp(self, since: float, at: float, steps: int, times: Sequence[float | None]) -> list[Interval]:
        """
        Return when each event of one read happened.

        Args:
            since: The latest moment at which the log was known to hold none of these lines, controller's clock.
            at: When they were read.
            steps: How many of its events are steps.
            times: Each event's own stamp, None without one, in the order of the lines.
        """
        waited = self._waited_in_a_buffer(at - since, steps)
        earliest = min(self._last, since) - LINE_DELAY if waited else since - LINE_DELAY
        stamps = [time for time in times if time is not None]
        for time in stamps:
            self._offset.learn(time, None, at)
        if stamps and not waited:
            self._offset.learn(stamps[-1], earliest, at)
        if steps:
            self._note_pace(at, steps)
        self._last = at
        return [self._place(time, earliest, at) for time in times]

    def _waited_in_a_buffer(self, length: float, steps: int) -> bool:
        """More steps than the read has room for, at half the usual gap, have waited somewhere."""
        if steps < 2:
            return False
        return not self._gaps or (steps - 1) * median(self._gaps) / 2 > length + LINE_DELAY

    def _note_pace(self, at: float, steps: int) -> None:
        if self._last_steps is not None:
            self._gaps.append((at - self._last_steps) / steps)
        self._last_steps = at

    def _place(self, time: float | None, earliest: float, at: float) -> Interval:
        read = Interval(min(earliest, at), at)
        own = None if time is None else self._offset.map(time, at)
        if own is None or own.hi < read.lo or own.lo > read.hi:
            return read
        return Interval(max(own.lo, read.lo), min(own.hi, read.hi))
