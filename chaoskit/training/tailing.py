"""Follows the logs of a training on its nodes: what the tailers tell, from their reader threads to whoever polls."""

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from chaoskit.errors import NodeError
from chaoskit.training.ports import Beat, Lines, TailEnd, TailEvent, TrainingNode
from chaoskit.training.rereading import Reread

RETRY = 2.0
"""Seconds until a tailer that ended on a connected node is started again."""


@dataclass
class Tail:
    """One log being followed. `round` tells the events of this tailer from those of an earlier one."""

    node: TrainingNode
    path: str
    whole: bool
    seen: float
    """Up to when everything in the log is known."""
    floor: float = 0.0
    """`seen` when this round began: no line that is new since then is older."""
    reread: Reread = field(default_factory=Reread)
    round: int = 0
    asked: Future[None] | None = None
    ended: float | None = None
    why: str = ""


class Tailer:
    """Follows one log a node; `user` reads it."""

    def __init__(self, stream: str, user: str | None) -> None:
        self._stream = stream
        self._user = user
        self._events: SimpleQueue[tuple[int, TailEvent]] = SimpleQueue()
        self._tails: dict[str, Tail] = {}

    def follow(self, node: TrainingNode, path: str, *, whole: bool, now: float) -> None:
        """Follow a log from now on, from its start when `whole`."""
        self._tails[node.name] = Tail(node, path, whole, now)
        self._start(self._tails[node.name])

    def again(self, node: TrainingNode) -> None:
        """
        A node is connected again: read its log once more, or from now on when its beginning was never ours.

        What an attached training's log got in between is lost; nobody beat meanwhile, so that span is blind.
        """
        if tail := self._tails.get(node.name):
            tail.node = node
            self._start(tail)

    def _start(self, tail: Tail) -> None:
        tail.round += 1
        tail.floor = tail.seen
        tail.ended = None
        if tail.whole:
            tail.reread.begin()
        this = tail.round
        tail.asked = tail.node.tail(self._stream, tail.path, self._user, tail.whole, lambda event: self._events.put((this, event)))

    def __contains__(self, node: object) -> bool:
        return node in self._tails

    def trouble(self) -> Iterator[str]:
        """Yield why a log is not followed, for each that is not."""
        for name, tail in self._tails.items():
            if tail.ended is not None:
                yield f"{name}: {tail.why}"

    def drain(self, now: float) -> Iterator[Lines | Beat]:
        """Yield what came in, new lines only, and start tailers again that ended."""
        while True:
            try:
                this, event = self._events.get_nowait()
            except Empty:
                break
            tail = self._tails[event.node]
            if this == tail.round:
                yield from self._taken(tail, event)
        for tail in self._tails.values():
            self._care(tail, now)

    def _taken(self, tail: Tail, event: TailEvent) -> Iterator[Lines | Beat]:
        if isinstance(event, TailEnd):
            tail.ended, tail.why = event.at, event.why
            return
        tail.seen = max(tail.seen, event.at)
        if isinstance(event, Beat):
            yield event
            return
        lines, since = tail.reread.fresh(event.lines, max(event.since, tail.floor))
        yield Lines(event.node, event.stream, lines, since, event.at)

    def _care(self, tail: Tail, now: float) -> None:
        if tail.asked is not None and tail.asked.done():
            error = tail.asked.exception()
            tail.asked = None
            if isinstance(error, NodeError):
                tail.ended, tail.why = now, str(error)
            elif error is not None:
                raise error
        if tail.ended is not None and tail.node.connected and now - tail.ended >= RETRY:
            self._start(tail)

    def stop(self) -> None:
        """Follow nothing any more."""
        asked = [tail.node.untail(self._stream) for tail in self._tails.values() if tail.node.connected]
        self._tails.clear()
        for future in asked:
            future.add_done_callback(lambda done: done.exception())  # a node that is lost no longer tails either
