"""What is run against the simulated cluster: a plan for its training, one injection of it, and the head of its run."""

from collections.abc import Mapping
from datetime import UTC, datetime

from simulated import SimClock, Slow

from chaoskit.agent.contract import Fault, duration_of
from chaoskit.engine.plan import Plan, PlannedInjection
from chaoskit.engine.result import RunInfo
from chaoskit.judge.timeline import Spec
from chaoskit.model.experiment import Abort, Budgets, Expect, Position
from chaoskit.model.inventory import TrainingSpec

LEASE = 30.0


def injection_of(
    fault: Fault,
    targets: tuple[str, ...],
    number: int = 0,
    after: float = 0.0,
    *,
    together: bool = False,
    expect: Expect | None = None,
    allow: tuple[str, ...] = (),
) -> PlannedInjection:
    """Return one injection of a simulated fault, which is known by the name of its class."""
    name = type(fault).__name__.lower()
    params = {"hold": fault.hold} if isinstance(fault, Slow) else {}
    one_shot = not fault.holds()
    return PlannedInjection(number, name, name, params, fault, targets, after, together, one_shot, duration_of(fault), expect, allow)


def plan_of(
    *injections: PlannedInjection,
    budgets: Budgets | None = None,
    abort: Abort | None = None,
    gpus: int = 3,
    watch: float = 60.0,
    steady_within: float = 120.0,
    empty: str = "",
) -> Plan:
    """Return a plan of these injections for a training that is there already and saves every ten steps."""
    return Plan(
        name="sim",
        seed=1,
        training_name="default",
        training=TrainingSpec(launcher="attach"),
        planned=injections,
        touched=tuple(dict.fromkeys(node for one in injections for node in one.targets)),
        spec=Spec(budgets or Budgets(), for_=5.0, gpus=gpus, checkpoint_every=10),
        abort=abort or Abort(),
        steady_within=steady_within,
        watch=watch,
        lease=LEASE,
        empty=empty,
    )


def info_of(clock: SimClock, run: str = "sim-run", gpus: int = 3, positions: Mapping[str, Position] | None = None) -> RunInfo:
    """Return the head of a run that begins now, one GPU on each node."""
    now = datetime.now(UTC)
    return RunInfo(run, "sim", "t", "", "x.yaml", "sim", "inv.yaml", 1, gpus, gpus, now, clock.now(), positions or {})
