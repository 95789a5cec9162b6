"""
What comes back from a node, as plain values: the answers of its agent and the events of its tailer.

The fleet makes them; the engine and the training read them. They stand here, below all three, because none of those
may import the other. All times are seconds on the controller's monotonic clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from chaoskit.agent.contract import Evidence
from chaoskit.model.interval import Interval


@dataclass(frozen=True, slots=True)
class Prepared:
    """What `prepare` captured on a node: the undo, and the names of what it locks."""

    undo: Mapping[str, Any]
    resources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """A held fault's end on one node: when the reverting call ran, and whether the captured state is back."""

    t1: Interval
    gone: Evidence


@dataclass(frozen=True, slots=True)
class Held:
    """Who holds something on a node: a run, its controller, since when (the node's wall clock), and the seconds left of its lease."""

    run: str
    controller: str
    since: float
    left: float

    def __str__(self) -> str:
        at = f"{datetime.fromtimestamp(max(0.0, self.since), UTC):%Y-%m-%d %H:%M:%S} UTC"
        return f"run {self.run} of {self.controller or 'an unknown controller'} since {at}; {self.left:.0f} s of its lease are left"


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """
    One entry of a node's ledger: its state (planned, armed, injected, reverted) and, when known, its stamps.

    In an audit `held` says whose run goes on; there the state is `unreadable` for an entry of which nobody can say what it
    owes, and `says` why.
    """

    entry: str
    state: str
    t0: Interval | None
    t1: Interval | None
    raw: Mapping[str, Any]
    held: Held | None = None
    says: str = ""


UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Stray:
    """
    What stands on a node as a fault leaves it, and no entry of its ledger explains.

    `ours` is true when it bears our own tag: then it was leaked, and can be swept. `do` is what a person could do.
    `held` is whose it is when that run goes on, as with a training: then it is nothing left.
    """

    fault: str
    resource: str
    says: str
    ours: bool
    do: str = ""
    held: Held | None = None


@dataclass(frozen=True, slots=True)
class Strays:
    """The strays of a node, and a sentence for each look that failed: what it would have found is unknown."""

    found: tuple[Stray, ...]
    unread: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lines:
    """Log lines of one read, complete ones only. The lines were written in (since, at], controller time in seconds."""

    node: str
    stream: str
    lines: tuple[str, ...]
    since: float
    at: float


@dataclass(frozen=True, slots=True)
class Beat:
    """The tailer is alive and had read everything up to `at`, controller time in seconds."""

    node: str
    stream: str
    at: float


@dataclass(frozen=True, slots=True)
class TailEnd:
    """The tailer ended or was lost."""

    node: str
    stream: str
    at: float
    why: str


TailEvent = Lines | Beat | TailEnd


@dataclass(frozen=True, slots=True)
class Finding:
    """
    What was found when a node, or the site, was examined: by which check, one sentence, and what to do about it.

    `state` is `ok`, `note` (worth knowing, nothing to mend), `unknown` (could not be found out) or `defect`.
    """

    check: str
    state: str
    says: str
    do: str = ""
    readings: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Spawned:
    """A process that the agent started: alive or not, its pid and its start time (clock ticks after boot)."""

    alive: bool
    pid: int
    start_time: int
