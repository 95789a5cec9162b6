"""
When the observer was blind.

Silence has an owner. A log's tailer beats once a second; while the logs that carry the steps have live tailers, no new
line means no new step. Without a beat for longer than `SILENCE` nobody knows, and that span is blind, unless something
explains it: the workers were known, from another log, to have ended; or the node turns out to have rebooted, so that
nothing can have run there.
"""

from collections.abc import Iterable, Sequence

SILENCE = 2.5
"""Seconds without a beat after which nobody is watching; beats come each second."""

Span = tuple[float, float]


class Sight:
    """Knows when each log was last seen, and tells the blind spans as they begin, grow, end or are explained."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}
        self._carriers: set[str] = set()
        self._past: list[Span] = []
        self._told: dict[float, float] = {}

    def heard(self, node: str, at: float) -> None:
        """A node's tailer has read everything up to `at`."""
        before = self._last()
        self._seen[node] = max(self._seen.get(node, at), at)
        after = self._last()
        if before is not None and after is not None and after - before > SILENCE:
            self._past.append((before, after))

    def carries(self, node: str, *, new_life: bool) -> None:
        """A node's log told a step; the first of a life settles anew which logs carry them."""
        if new_life:
            self._carriers.clear()
        self._carriers.add(node)

    def rebooted(self, node: str, now: float) -> None:
        """A node is back after a reboot: nothing ran there in the meantime, and its log is read again, so nobody was blind."""
        self._seen[node] = now

    def _watched(self) -> Iterable[str]:
        return self._carriers or self._seen

    def _last(self) -> float | None:
        """Return the last moment up to which everything is known: any live log that carries steps will do."""
        return max((self._seen[node] for node in self._watched() if node in self._seen), default=None)

    def spans(self, now: float, idle: Sequence[Span]) -> tuple[Span, ...]:
        """
        Return the blind spans that are new or have changed since the last call, as `Observed.blind` tells them.

        Args:
            now: The present, controller's clock.
            idle: Spans in which no worker ran, known from logs that were seen.
        """
        last = self._last()
        raw = list(self._past)
        if last is not None and now - last > SILENCE:
            raw.append((last, now))
        current = dict(piece for span in raw for piece in _without(span, idle) if piece[1] - piece[0] > SILENCE)
        changed = {start: end for start, end in current.items() if self._told.get(start) != end}
        explained = {start: start for start, end in self._told.items() if start not in current and end > start}
        self._told.update(changed | explained)
        return tuple(sorted((changed | explained).items()))


def _without(span: Span, holes: Sequence[Span]) -> Iterable[Span]:
    """Cut sorted holes out of a span."""
    start, end = span
    for lo, hi in sorted(holes):
        if hi <= start or lo >= end:
            continue
        if lo > start:
            yield start, lo
        start = max(start, hi)
    if start < end:
        yield start, end
