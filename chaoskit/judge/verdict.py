"""What the judge says: outcomes, quantities with their uncertainty, budgets, phases. Pure values."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from chaoskit.judge.timeline import InjectionFacts, Interval, Unit
from chaoskit.model.experiment import Expect


class Outcome(enum.StrEnum):
    """The outcome of a run; the worst one wins."""

    PASSED = "PASSED"
    INCONCLUSIVE = "INCONCLUSIVE"
    ABORTED = "ABORTED"
    FAILED = "FAILED"
    LEAKED = "LEAKED"

    @property
    def exit_code(self) -> int:
        """The exit code of the command line."""
        return {"PASSED": 0, "FAILED": 1, "INCONCLUSIVE": 3, "ABORTED": 4, "LEAKED": 5}[self.value]

    @classmethod
    def worst(cls, outcomes: "list[Outcome]") -> "Outcome":
        """Return the worst of the outcomes; PASSED when there are none."""
        order = list(cls)
        return max(outcomes, key=order.index, default=cls.PASSED)


@dataclass(frozen=True, slots=True)
class Quantity:
    """
    A measured figure.

    `value` is None when it cannot be said (`note` says why). `beyond` marks a lower bound: the event never came while
    the observer was alive, shown as "> 300 s". `open` says of a lower bound that the event may still have come: the
    watch was cut short before anything was wrong, or the observer was blind at its end.
    """

    name: str
    value: Interval | None
    unit: Unit = ""
    beyond: bool = False
    note: str = ""
    open: bool = False


class BudgetState(enum.StrEnum):
    """How one budget came out."""

    MET = "met"
    MISSED = "missed"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class BudgetResult:
    """One budget against what was measured; `says` is one line such as "time_to_steady 41.2 s, at most 30 s"."""

    name: str
    sense: str
    limit: float
    measured: Quantity
    state: BudgetState
    says: str


@dataclass(frozen=True, slots=True)
class Expectation:
    """
    What an injection was stated to do to the step time, and what it did.

    `measured` is a multiple of the baseline's step time; its state is `missed` when the fault was not felt as stated.
    """

    index: int
    """Index of the injection."""
    expect: Expect
    measured: Quantity
    state: BudgetState


END_OF_WATCH = "end of the watch"
"""What ends a phase in which no moment came any more."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One segment of the ledger: it ends with the moment `ends`; `loss` is its length minus its new steps' time."""

    ends: str
    start: float
    end: float
    new_steps: int
    loss: float


@dataclass(frozen=True, slots=True)
class Disruption:
    """One disruption: an incarnation change or a stall, with its own quantities, and the storm it may have been."""

    start: Interval
    kind: str
    """`restart`, `stall`, or `death` when the training ended and nothing started it again."""
    quantities: Mapping[str, Quantity]
    boots: int
    says: str = ""


@dataclass(frozen=True, slots=True)
class Baseline:
    """
    Measured normal.

    `pace` is d0 in seconds a step, `rate` throughput (samples or steps a second), `noise` how far 99 % of its windows stay from
    the mean pace at most (share), `band` the larger of that and the stated one, `window` seconds.
    `gap_max` is its longest gap between steps, `gap_widest` the longest that its stamps allow, `stride` the steps from
    one logged step to the next.
    """

    start: float
    end: float
    steps: int
    pace: float
    rate: float
    noise: float
    band: float
    window: float
    gap_p99: float
    gap_max: float = 0.0
    gap_widest: float = 0.0
    stride: int = 1

    @property
    def gap_limit(self) -> float:
        """Seconds without a step that are a disruption: 5 x `gap_p99`, and more than the baseline itself ever took."""
        return max(5 * self.gap_p99, self.gap_max)


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    The judgement of one run.

    `reasons` are sentences, worst first. `ledger` is empty where nothing was measured, as without a steady training before.
    `settled` is true once more watching could not change any figure: recovered and steady again, or dead; the engine stops
    watching then. `phase` is what a live view shows now: "baseline", "steady", "held", "blind", "dead", "stalled", "recovering"
    (steps are done again, or not yet), "settling" (new steps, not yet steady) or "reduced" (a smaller world goes on).
    """

    outcome: Outcome
    reasons: tuple[str, ...]
    baseline: Baseline | None
    quantities: Mapping[str, Quantity]
    budgets: tuple[BudgetResult, ...]
    disruptions: tuple[Disruption, ...]
    ledger: tuple[Phase, ...]
    injections: tuple[InjectionFacts, ...]
    felt: Mapping[int, bool] = field(default_factory=dict)
    """Index of the injection -> whether the throughput left the band because of it."""
    expectations: tuple[Expectation, ...] = ()
    """Of each injection that states what must be felt, in the plan's order."""
    absorbed: bool = False
    settled: bool = False
    phase: str = ""
