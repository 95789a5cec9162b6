"""
What a run looks at before the training starts: the part of `chaoskit doctor` that this plan needs, in one question a node.

Only targets are refused for, and only for what their faults need: programs, rights, kernel features, room for the ledger,
the site's consent. That the nodes of the training differ is a remark: it spoils figures, and harms nobody.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chaoskit.engine.doctor_alike import ALIKE, alike_findings, facts_in
from chaoskit.engine.gather import gather
from chaoskit.engine.plan import PlannedInjection
from chaoskit.engine.ports import Fleet, NodeAgent
from chaoskit.errors import NodeError, RefusedError
from chaoskit.model.hostlist import fold

WITHIN = 15.0
"""Seconds that the nodes have to answer; one that does not is a remark, since its faults are prepared later anyway."""
TRAINING = "the training"


@dataclass(frozen=True, slots=True)
class Preflight:
    """
    What was found: remarks, and what stands against the faults on their targets, with what to do about the first of it.

    `failures` are nodes that did not answer, each with its error, which is one of the remarks.
    """

    says: tuple[str, ...]
    defects: tuple[str, ...]
    do: str = ""
    failures: Mapping[str, NodeError] = field(default_factory=dict)

    def refuse(self) -> None:
        """Raise RefusedError when a fault cannot be trusted on one of its targets."""
        if self.defects:
            raise RefusedError("; ".join(self.defects), hint=self.do or "`chaoskit doctor` says more")


def preflight(
    fleet: Fleet,
    agents: Mapping[str, NodeAgent],
    planned: Sequence[PlannedInjection],
    training: Sequence[str],
    meanwhile: Callable[[], None] = lambda: None,
) -> Preflight:
    """
    Examine the targets of these injections, and compare the nodes of the training.

    Args:
        fleet: The nodes.
        agents: Those that are connected.
        planned: What will be injected.
        training: The nodes that train.
        meanwhile: Called while it waits; what it raises ends the wait.
    """
    orders = {name: _checks(name, fleet, planned, training) for name in agents}
    asked = {name: [{"user": None, "checks": checks}] for name, checks in orders.items() if checks}
    got = gather({name: agents[name].examine(fleet.site(name), parts) for name, parts in asked.items()}, WITHIN, meanwhile)
    defects = [(name, one) for name, found in got.answers.items() for one in found if one.state == "defect"]
    unsure = [(name, one.says) for name, found in got.answers.items() for one in found if one.state == "unknown"]
    unsure += [(name, f"could not be examined: {error.what.removeprefix(f'{name}: ')}") for name, error in got.failures.items()]
    says = [*_folded(unsure), *_odd({name: facts_in(got.answers[name]) for name in training if name in got.answers})]
    do = next((one.do for _, one in defects if one.do), "")
    return Preflight(tuple(says), tuple(_folded([(name, one.says) for name, one in defects])), do, got.failures)


def _checks(node: str, fleet: Fleet, planned: Sequence[PlannedInjection], training: Sequence[str]) -> dict[str, Any]:
    needs = {one.fault: one.instance.needs.to_json() for one in planned if node in one.targets}
    checks: dict[str, Any] = {ALIKE: {}} if node in training and len(training) > 1 else {}
    if needs:
        checks |= {"disk": {}, "tools": {"faults": needs, "state": "defect"}}
        checks |= {"consent": {"faults": sorted(needs), "state": "defect"}} if fleet.site(node).require_allow_file else {}
    return checks


def _odd(facts: Mapping[str, Mapping[str, Mapping[str, str]]]) -> list[str]:
    nodes, whole = alike_findings(TRAINING, facts)
    told = [(name, one.says) for name, found in nodes.items() for one in found if one.state == "defect"]
    return [*_folded(told), *(one.says for one in whole if one.state == "defect")]


def _folded(said: Sequence[tuple[str, str]]) -> list[str]:
    """Return each sentence once, with all of its nodes."""
    nodes: dict[str, list[str]] = {}
    for name, says in said:
        nodes.setdefault(says, []).append(name)
    return [f"{fold(names)}: {says}" for says, names in nodes.items()]
