"""
What an experiment file says, as frozen types.

Times are seconds (float), sizes bytes (int), shares fractions (0.1 is 10 %); `chaoskit.model.units` reads them from
text with units, and `chaoskit.model.typed` builds these dataclasses. A trailing underscore of a field is not in the
file, where `for` and `with` are no keywords. Nothing here does I/O.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

from chaoskit.model.units import Amount, Count, Duration, Pick, Positive, Ratio, Share, show_share

CONFIG: dict[str, object] = {"extra": "forbid", "strict": True}
"""For pydantic, which writes the JSON Schema; a plain dict needs no import."""

AT_MOST = "at most"
AT_LEAST = "at least"


@dataclass(frozen=True)
class Band:
    """How close to its baseline pace the training must stay to be called steady."""

    __pydantic_config__: ClassVar[Any] = CONFIG
    within: Share = 0.10
    """Half width of the band, as a share of the baseline."""
    for_: Duration = 10.0
    """Shortest window that must stay in the band; the judge widens it to 20 steps and one checkpoint interval."""


@dataclass(frozen=True)
class SteadyState:
    """Measured normal, before the method and again after it."""

    __pydantic_config__: ClassVar[Any] = CONFIG
    throughput: Band = field(default_factory=Band)
    """The band of the throughput around its baseline."""
    within: Duration = 300.0
    """Longest wait for a steady baseline after the training is up; later the run is inconclusive."""


@dataclass(frozen=True)
class Target:
    """Which nodes an injection touches: a group or named nodes, and how many of them."""

    __pydantic_config__: ClassVar[Any] = CONFIG
    group: str | None = None
    """A group of the inventory."""
    nodes: str | None = None
    """A host list such as `node[01-04]`, instead of a group."""
    pick: Pick = 1
    """How many: a number, a share such as 25 %, or `all`; chosen by the seed."""
    avoid: tuple[str, ...] = ()
    """Nodes never chosen: names, or `rendezvous` for the node that hosts the training's rendezvous."""


@dataclass(frozen=True)
class Expect:
    """
    What the training must feel while the fault is applied.

    The strongest witness of a fault that slows is the training itself: a fault that is not felt as stated was hidden, or
    is not of the size that it claims, and the run then proves something else.
    """

    __pydantic_config__: ClassVar[Any] = CONFIG
    step_time: Ratio
    """Step time while the fault is applied, as a multiple of the baseline's: 1.5 is half as long again."""
    within: Share = 0.15
    """How far the measured ratio may be off the stated one, as a share of it."""

    @property
    def least(self) -> float:
        """The smallest ratio that is still as stated."""
        return self.step_time * (1 - self.within)

    @property
    def most(self) -> float:
        """The largest."""
        return self.step_time * (1 + self.within)

    def __str__(self) -> str:
        return f"{self.step_time:g} ±{show_share(self.within)}"


@dataclass(frozen=True)
class Injection:
    """One entry of the method: a fault, on whom, with what, and when."""

    __pydantic_config__: ClassVar[Any] = CONFIG
    fault: str
    """Name of the fault, as in `chaoskit faults`."""
    target: Target
    """Whom it touches."""
    with_: Mapping[str, Any] = field(default_factory=dict)
    """The fault's parameters."""
    after: Duration = 0.0
    """Seconds after the steady baseline."""
    together: bool = False
    """One T0 on all targets, instead of one after another."""
    expect: Expect | None = None
    """What the training must feel while this fault, a held one, is applied."""
    allow: tuple[Literal["control_path", "replacement"], ...] = ()
    """
    What is refused otherwise.

    `control_path`: a held fault may cut what the node hangs by (its SSH connection, gateway, scheduler, name servers, home).
    `replacement`: a remediator on the node may take the fault for broken hardware, and have the machine replaced.
    """


@dataclass(frozen=True)
class Slump:
    """A throughput that ends the run."""

    __pydantic_config__: ClassVar[Any] = CONFIG
    below: Share
    """Share of the baseline's throughput."""
    for_: Duration
    """How long it must have been below that, after the baseline; time in which no log could be read does not count."""


@dataclass(frozen=True)
class Command:
    """A program on the controller that ends the run by its exit code. No shell, no input."""

    __pydantic_config__: ClassVar[Any] = CONFIG
    argv: tuple[str, ...]
    """The program and its arguments: it exits with 0 when the run may go on, and with anything else when it must end."""
    every: Duration = 10.0
    """From one start to the next."""
    within: Duration = 5.0
    """How long it may take; then it is killed with all that it started, and has not answered."""
    tries: Positive = 3
    """How often in a row it may not answer in time: then the run ends, since nobody watches it."""


@dataclass(frozen=True)
class Query:
    """A question to a Prometheus that ends the run by its answer: without `above` and `below`, by any value that is not 0."""

    __pydantic_config__: ClassVar[Any] = CONFIG
    query: str
    """PromQL; each value of its result counts. No value at all is no answer where `above` or `below` is given, and else well."""
    above: float | None = None
    """The run ends when a value is above this."""
    below: float | None = None
    """The run ends when a value is below this."""
    url: str | None = None
    """Where Prometheus is, such as `http://prometheus:9090`; that of the inventory when not given."""
    token_env: str | None = None
    """With `url`: the environment variable that holds a bearer token for it."""
    every: Duration = 15.0
    """From one question to the next."""
    within: Duration = 5.0
    """How long an answer may take."""
    tries: Positive = 3
    """How often in a row there may be no answer: then the run ends, since nobody watches it."""

    @property
    def says(self) -> str:
        """What ends the run, for a person."""
        limits = [f"{word} {limit:g}" for word, limit in (("above", self.above), ("below", self.below)) if limit is not None]
        return f"{self.query} is {' or '.join(limits) or 'other than 0'}"


@dataclass(frozen=True)
class Abort:
    """Conditions that end the run early and revert everything; any one of them is enough."""

    __pydantic_config__: ClassVar[Any] = CONFIG
    no_progress: Duration | None = None
    """No new step for this long."""
    nodes_unreachable: Count | None = None
    """More than this many nodes unreachable that no fault explains."""
    throughput: Slump | None = None
    """Throughput below a share of the baseline's for this long."""
    commands: tuple[Command, ...] = ()
    """Programs on the controller that are asked again and again, from before the training starts to the last revert."""
    queries: tuple[Query, ...] = ()
    """Questions to a Prometheus that are asked again and again."""


@dataclass(frozen=True)
class BlastRadius:
    """The most nodes that may ever be touched, over the whole experiment."""

    __pydantic_config__: ClassVar[Any] = CONFIG
    nodes: Pick = 1
    """A number, a share of the group, or `all`."""
    per_group: Mapping[str, Pick] = field(default_factory=dict)
    """Group -> the most of its nodes: a number, a share of the group, or `all`."""


@dataclass(frozen=True)
class Budgets:
    """The limits that the run is judged by; `chaoskit/judge` and `measures.md` define each quantity."""

    __pydantic_config__: ClassVar[Any] = CONFIG
    time_to_detect: Duration | None = None
    """At most: t0 to the stack's own first sign."""
    time_to_resume: Duration | None = None
    """At most: t0 to the first step of the new incarnation."""
    time_to_recover: Duration | None = None
    """At most: t0 to the first step beyond the highest before."""
    time_to_steady: Duration | None = None
    """At most: t0 until the pace stays in the band again."""
    settle_time: Duration | None = None
    """At most: end of the fault until the pace stays in the band again."""
    lost_steps: Count | None = None
    """At most: steps done twice."""
    restarts: Count | None = None
    """At most: new incarnations that reached a step."""
    boots: Count | None = None
    """At most: new incarnations, also those that died without a step."""
    lost_time: Duration | None = None
    """At most: time that produced no new step at the baseline's pace."""
    lost_gpu_hours: Amount | None = None
    """At most: lost time times the GPUs allocated."""
    lost_cost: Amount | None = None
    """At most: lost GPU-hours times the inventory's price."""
    throughput_during: Share | None = None
    """At least: throughput while the fault was held, as a share of the baseline."""
    window_goodput: Share | None = None
    """At least: unique new steps at the baseline's pace over the time that passed."""


BUDGET_SENSE: Mapping[str, str] = {
    item.name: AT_LEAST if item.name in ("throughput_during", "window_goodput") else AT_MOST for item in fields(Budgets)
}
"""Each budget's direction."""


@dataclass(frozen=True)
class Experiment:
    """One experiment: steady state, method, budgets."""

    __pydantic_config__: ClassVar[Any] = CONFIG
    title: str
    """One line: the claim under test."""
    method: tuple[Injection, ...]
    """The timed list of faults."""
    why: str = ""
    """What is at stake, for whoever reads the report."""
    seed: int = 0
    """Seed of every choice in the plan."""
    training: str = "default"
    """Which training of the inventory is under test."""
    steady_state: SteadyState = field(default_factory=SteadyState)
    """What normal means."""
    abort: Abort = field(default_factory=Abort)
    """When to stop early."""
    blast_radius: BlastRadius = field(default_factory=BlastRadius)
    """The most that may ever be touched."""
    budgets: Budgets = field(default_factory=Budgets)
    """What the run is judged by."""
    world: Literal["fixed", "may_shrink"] = "fixed"
    """Whether going on with fewer ranks counts as recovered to steady."""
    watch: Duration | None = None
    """Longest watch for recovery after the last fault; twice the largest time budget, at least 60 s, when not given."""


@dataclass(frozen=True)
class Position:
    """Where something stands in a file; line and column count from 1."""

    file: str
    line: int
    col: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.col}"


@dataclass(frozen=True)
class LoadedExperiment:
    """An experiment together with where it came from."""

    name: str
    """The file's stem; names the run."""
    path: Path
    experiment: Experiment
    faults: tuple[Any, ...]
    """The fault instance of each injection, in the method's order."""
    positions: Mapping[str, Position]
    """Position of each value by its path, such as `budgets.lost_steps` or `method.0.with.down`."""

    def at(self, path: str) -> Position:
        """Return the position of a value, or of the nearest thing around it that the file has."""
        return nearest(path, self.positions, str(self.path))


def nearest(path: str, positions: Mapping[str, Position], file: str) -> Position:
    """Return the position of the value at a dotted path, or of the nearest thing around it."""
    while path and path not in positions:
        path = path.rpartition(".")[0]
    return positions.get(path, Position(file, 1, 1))
