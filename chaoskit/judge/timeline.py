"""
What the judge is given: everything that was observed in one run, on the controller's monotonic clock, in seconds.

Pure values. The engine fills a `Timeline` from the journal; the judge turns it into a `Verdict`; nothing here does I/O
or reads a clock. `measures.md` (its text stands in `chaoskit.judge`) defines every number.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from chaoskit.model.experiment import Budgets, Expect
from chaoskit.model.interval import Interval


@dataclass(frozen=True, slots=True)
class Sample:
    """
    One finished step, as a log line told it.

    `session` names the life of the training's processes that logged it (pid and start time, restart count, job
    attempt); a step that falls back inside one session begins a new incarnation as well.
    """

    t: Interval
    step: int
    session: str = ""


class MarkKind(enum.StrEnum):
    """Moments of the training's own life that its logs or its launcher tell."""

    DETECT = "detect"
    """The stack's own first sign: worker failure line, restart, launcher or Slurm state change."""
    OLD_GONE = "old processes gone"
    BORN = "new process"
    GROUP_UP = "process group up"
    LOADED = "checkpoint loaded"
    """`step` is the step resumed from."""
    EXIT = "exit"
    """The whole training ended; nothing will start it again."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One such moment; `session` is the life it belongs to (for DETECT, OLD_GONE and EXIT the life that ended)."""

    t: Interval
    kind: MarkKind
    session: str = ""
    step: int | None = None
    node: str = ""
    says: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """
    What the watcher of a training saw since it was last asked.

    `blind` are spans in which nobody watched, ended or going on; a span that was told before is told again, by the same
    start, when its end has moved, with its end at its start when it has been explained (the node was rebooting) and is none.
    `batch` and `gpus` are by session, as in `Timeline`.
    """

    samples: tuple[Sample, ...] = ()
    marks: tuple[Mark, ...] = ()
    blind: tuple[tuple[float, float], ...] = ()
    batch: Mapping[str, int] | None = None
    gpus: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """A yes, a no or an unknown (None), with the sentence that says why."""

    holds: bool | None
    says: str = ""


@dataclass(frozen=True, slots=True)
class InjectionFacts:
    """
    What is known of one injection, over all of its targets.

    `t0` is the earliest first effect over the nodes, `t1` the latest end; None when it never happened (yet).
    `present`, `exposed`, `gone` are over all targets: one node not proven gone makes `gone` false.
    """

    fault: str
    detail: str
    targets: tuple[str, ...]
    one_shot: bool
    t0: Interval | None = None
    t1: Interval | None = None
    spread: float | None = None
    """Seconds between the first and the last node's first effect."""
    present: Fact = Fact(None)
    exposed: Fact = Fact(None)
    gone: Fact = Fact(None)
    armed: bool = False
    """The undo was made durable on some target: harm may have been done even when its stamp never came back."""
    refused: bool = False
    """A target refused to be armed, so that nobody was asked to begin."""
    expect: Expect | None = None
    """What the training must feel while it is applied, where the experiment states it."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What the run is judged by, from the experiment and the inventory. `band` is a share; times are seconds."""

    budgets: Budgets
    band: float = 0.10
    for_: float = 10.0
    checkpoint_every: int | None = None
    """Steps from one checkpoint to the next; a window covers at least one such interval."""
    may_shrink: bool = False
    gpus: int = 1
    """GPUs allocated while nothing has shrunk."""
    price_per_gpu_hour: float | None = None
    min_window_steps: int = 20


@dataclass(frozen=True, slots=True)
class Timeline:
    """
    All that was observed.

    Args:
        samples, marks: In any order; the judge sorts them by time.
        baseline: Start and end of the baseline, before the first injection; None when it never became steady.
        injections: In the plan's order.
        blind: Spans in which the observer saw nothing (no heartbeat of the tailer, agent lost, and no end of the
            training that would explain it).
        watched_until: The last moment at which the observer was alive.
        batch: Global batch by session, where known; throughput counts samples when it is.
        gpus: GPUs allocated by session, where it differs from `Spec.gpus`.
        aborted: Why an abort condition or a signal ended the run; empty when none did.
        trouble: Why the run could not be judged as planned (zero targets, a refusal, set-up failed); empty when none.
        denied: What a test stated of the training and what did not hold; empty when nothing was.
    """

    samples: tuple[Sample, ...] = ()
    marks: tuple[Mark, ...] = ()
    baseline: tuple[float, float] | None = None
    injections: tuple[InjectionFacts, ...] = ()
    blind: tuple[tuple[float, float], ...] = ()
    watched_until: float = 0.0
    batch: Mapping[str, int] = field(default_factory=dict)
    gpus: Mapping[str, int] = field(default_factory=dict)
    aborted: str = ""
    trouble: str = ""
    denied: str = ""

    @property
    def cut_short(self) -> bool:
        """Whether the watch ended before its time: what had not come by then might still have."""
        return bool(self.aborted or self.trouble or self.denied)


Unit = Literal["s", "steps", "", "share", "GPU-h", "cost"]

__all__ = [
    "Fact",
    "InjectionFacts",
    "Interval",
    "Mark",
    "MarkKind",
    "Observed",
    "Sample",
    "Spec",
    "Timeline",
    "Unit",
]
