"""Watches a training through its logs: from what the tailers read to what the judge is given."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from chaoskit.judge.timeline import Observed
from chaoskit.model.interval import Interval
from chaoskit.training.cleaning import clean
from chaoskit.training.events import EventKind, LineReader, LogEvent, LogFormat
from chaoskit.training.lives import Lives
from chaoskit.training.ports import Lines, TrainingNode
from chaoskit.training.sight import Sight
from chaoskit.training.stamps import Stamper
from chaoskit.training.tailing import Tailer

STREAM = "training"
LAST_LINES = 12
"""Lines of each log that are kept for error texts."""


@dataclass
class Follow:
    """How one node's log is read."""

    reader: LineReader
    stamper: Stamper
    whole: bool
    last: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))
    words: tuple[str, ...] = ()
    """The lines up to the first failure since the last step: what the workers said, before launchers wrote their long reports."""


class Watch:
    """
    Follows the logs of one training.

    Args:
        log_format: How its lines are read.
        user: The account that reads the logs.
        batch: Global batch, where the inventory says it; the log's own word beats it.
    """

    def __init__(self, log_format: LogFormat, user: str | None, batch: int | None) -> None:
        self.lives = Lives()
        self._format = log_format
        self._batch = batch
        self._tailer = Tailer(STREAM, user)
        self._sight = Sight()
        self._follows: dict[str, Follow] = {}
        self._session: str | None = None

    def follow(self, node: TrainingNode, path: str, *, whole: bool, now: float) -> None:
        """Follow a node's log, from its start when `whole`."""
        self._follows[node.name] = Follow(self._format.reader(), Stamper(now), whole)
        self._tailer.follow(node, path, whole=whole, now=now)

    def again(self, node: TrainingNode, *, rebooted: bool, now: float) -> None:
        """A lost node is connected again."""
        if node.name not in self._follows:
            return
        if rebooted:
            if self._follows[node.name].whole:  # else what was logged between its boot and now is lost
                self._sight.rebooted(node.name, now)
            self.lives.rebooted(node.name)
        self._tailer.again(node)

    def poll(self, now: float) -> Observed:
        """Return what came in since the last call; never waits."""
        for event in self._tailer.drain(now):
            if isinstance(event, Lines):
                self._read(event)
            self._sight.heard(event.node, event.at)
        told = self.lives.take()
        sessions = {sample.session for sample in told.samples}
        batch: Mapping[str, int] = told.batch if self._batch is None else dict.fromkeys(sessions, self._batch) | told.batch
        blind = self._sight.spans(now, self.lives.idle)
        return Observed(tuple(told.samples), tuple(told.marks), blind, batch, told.world)

    def _read(self, read: Lines) -> None:
        follow = self._follows[read.node]
        events = [event for line in read.lines for event in self._events(follow, line)]
        steps = len({event.step for event in events if event.kind is EventKind.STEP})
        stamps = follow.stamper.stamp(read.since, read.at, steps, [event.time for event in events])
        for event, t in zip(events, stamps, strict=True):
            if self.lives.feed(read.node, event, t):
                session = self.lives.told.samples[-1].session
                self._sight.carries(read.node, new_life=session != self._session)
                self._session = session

    def _events(self, follow: Follow, line: str) -> list[LogEvent]:
        found = []
        for source, text in clean(line):
            follow.last.append(text)
            for event in follow.reader.feed(text):
                found.append(replace(event, source=source))
                if event.kind is EventKind.DETECT:
                    follow.words = follow.words or tuple(follow.last)
                elif event.kind is EventKind.STEP:
                    follow.words = ()
        return found

    def exited(self, at: float, since: float, says: str) -> None:
        """Note that the whole training ended at some moment in (since, at]."""
        self.lives.exited(Interval(since, at), says)

    def last_lines(self) -> str:
        """Return the end of each log and why one is not followed, for error texts."""
        parts = [f"{node} | {line}" for node, follow in self._follows.items() for line in follow.words or follow.last]
        return "\n".join([*parts, *(f"{why} (log not followed)" for why in self._tailer.trouble())])

    def stop(self) -> None:
        """Follow nothing any more."""
        self._tailer.stop()
