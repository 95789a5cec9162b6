"""A dry run: connect, audit and prepare, and inject nothing."""

from collections.abc import Mapping
from dataclasses import replace

from chaoskit.engine.events import Event, Listener
from chaoskit.engine.gather import gather, sentence
from chaoskit.engine.injector import ANSWER_WITHIN, SILENCED
from chaoskit.engine.leftovers import connect, refuse_leftovers
from chaoskit.engine.plan import Plan, PlannedInjection
from chaoskit.engine.ports import Fleet, NodeAgent
from chaoskit.engine.preflight import preflight
from chaoskit.engine.remediation import reactions
from chaoskit.errors import NodeError, RefusedError


def dry_run(plan: Plan, fleet: Fleet, nodes: tuple[str, ...], *, run_id: str, listener: Listener = lambda _: None) -> None:
    """
    Do everything that a run does before harm, short of starting the training.

    Args:
        plan: What a run would do.
        fleet: The nodes; the caller closes it.
        nodes: The nodes that train.
        run_id: TORCHELASTIC_RUN_ID of an attached training; empty when a run would launch it, and then the faults that
            look for its processes cannot be prepared yet.
        listener: Told of every step.

    Raises:
        RefusedError: A node cannot be reached or answers no more, owes something from an earlier run, or refuses a fault.
    """
    agents = connect(fleet, [*plan.touched, *nodes])
    listener(Event(0.0, "connected", f"{len(agents)} nodes"))
    for says in refuse_leftovers(fleet, agents, faults=[one.fault for one in plan.planned]):
        listener(Event(0.0, "note", says))
    if plan.empty:
        raise RefusedError(plan.empty)
    ground = preflight(fleet, agents, plan.planned, nodes)
    _refuse_silence(ground.failures)
    for says in ground.says:
        listener(Event(0.0, "note", says))
    ground.refuse()
    found = reactions(fleet, {name: agents[name] for name in plan.touched}, plan.planned)
    _refuse_silence(found.failures)
    for says in found.says:
        listener(Event(0.0, "note", says))
    found.refuse()
    for planned in plan.planned:
        if planned.instance.needs_training and not run_id:
            listener(Event(0.0, "stage", f"{planned.detail}: can be prepared only once the training is up"))
        else:
            _prepare(plan, planned, fleet, agents, run_id)
            listener(Event(0.0, "stage", f"{planned.detail}: prepared on {', '.join(planned.targets)}, nothing injected"))


def _refuse_silence(failures: Mapping[str, NodeError]) -> None:
    """End at the first stage that a node does not answer: each later one would tell of the same silence, as of another cause."""
    if silent := {node: error for node, error in failures.items() if isinstance(error, SILENCED)}:
        raise RefusedError(sentence(silent))


def _prepare(plan: Plan, planned: PlannedInjection, fleet: Fleet, agents: dict[str, NodeAgent], run_id: str) -> None:
    facts = plan.facts(run_id)
    sites = {node: replace(fleet.site(node), training=facts, allow=planned.allow) for node in planned.targets}
    got = gather(
        {
            node: agents[node].prepare("dry", f"dry/{planned.number}/{node}", planned.fault, planned.params, site)
            for node, site in sites.items()
        },
        ANSWER_WITHIN,
    )
    if got.failures:
        raise RefusedError(sentence(got.failures))
