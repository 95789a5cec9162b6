"""What one log line tells, before anybody has said when it happened or which life it belongs to."""

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


class EventKind(enum.StrEnum):
    """The moments that a log can tell; the names are those of `format: {regex: ...}`."""

    STEP = "step"
    DETECT = "detect"
    """The stack's own first sign of trouble."""
    OLD_GONE = "old_gone"
    """The old workers of this log have ended."""
    BORN = "born"
    """Worker processes of this log were started."""
    GROUP_UP = "group_up"
    """The process group exists."""
    LOADED = "loaded"
    """A checkpoint was loaded."""
    EXIT = "exit"
    """The whole training ended; nothing will start it again."""


@dataclass(frozen=True, slots=True)
class LogEvent:
    """
    One moment as its line tells it.

    Args:
        kind: What happened.
        says: The line, shortened; evidence for the report.
        step: The step done, or the step loaded.
        time: The line's own stamp in seconds, on whatever clock wrote it; only differences on one log mean anything.
        batch: Global batch of the step.
        session: The life's name, when the line itself says it.
        rank: Global rank of the process that was born; None when the line doesn't say.
        world: Ranks of the process group.
        source: Which of the writers of this log wrote the line (`0: `, `[rank3]:`); empty when there is one.
        by_agent: A birth that the elastic agent tells; the new process's own first line then adds nothing.
    """

    kind: EventKind
    says: str = ""
    step: int | None = None
    time: float | None = None
    batch: int | None = None
    session: str = ""
    rank: int | None = None
    world: int | None = None
    source: str = ""
    by_agent: bool = False


class LineReader(Protocol):
    """Reads the lines of one log, in order."""

    def feed(self, line: str) -> Iterable[LogEvent]:
        """Return what a cleaned line tells, mostly nothing."""


class LogFormat(Protocol):
    """A way to read logs."""

    def reader(self) -> LineReader:
        """Return a reader for one more log."""
