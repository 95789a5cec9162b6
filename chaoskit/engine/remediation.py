"""
Before a fault: who else acts on its nodes, and what this would make them do.

What would be sent back as broken hardware is refused, unless the experiment allows it. Where a node cannot say, that is a
remark: nothing is known to be at risk.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from chaoskit.agent.contract import REPLACEMENT
from chaoskit.agent.remediators import REPLACES
from chaoskit.engine.gather import gather
from chaoskit.engine.plan import PlannedInjection
from chaoskit.engine.ports import Fleet, NodeAgent
from chaoskit.errors import NodeError, RefusedError
from chaoskit.model.hostlist import fold
from chaoskit.model.wire import Finding

CHECK = "remediators"
LOOK_WITHIN = 15.0
"""Seconds that nodes have to say who acts on them."""
HINT = "take them away from these nodes for the time, or say `allow: [replacement]` beside the fault"


@dataclass(frozen=True, slots=True)
class Reactions:
    """
    What the nodes said of their remediators: sentences, and which faults would cost a machine (a sentence for each).

    `failures` are nodes that did not answer, each with its error, which is told in one of the sentences.
    """

    says: tuple[str, ...]
    replaced: tuple[str, ...]
    failures: Mapping[str, NodeError] = field(default_factory=dict)

    def refuse(self) -> None:
        """Raise RefusedError when a machine would be replaced that the experiment does not give up."""
        if self.replaced:
            raise RefusedError(f"a remediator would replace hardware: {'; '.join(self.replaced)}", hint=HINT)


def reactions(
    fleet: Fleet,
    agents: Mapping[str, NodeAgent],
    planned: Sequence[PlannedInjection],
    meanwhile: Callable[[], None] = lambda: None,
) -> Reactions:
    """Ask the targets of these injections who acts on them, and what the faults would make them do."""
    faults = {node: {one.fault: [sign.value for sign in one.instance.signs] for one in planned if node in one.targets} for node in agents}
    asked = {node: told for node, told in faults.items() if any(told.values())}
    parts = {node: [{"user": None, "checks": {CHECK: {"faults": told}}}] for node, told in asked.items()}
    got = gather({node: agents[node].examine(fleet.site(node), parts[node]) for node in asked}, LOOK_WITHIN, meanwhile)
    found = {node: list(findings) for node, findings in got.answers.items()}
    found |= {node: [Finding(CHECK, "unknown", f"who acts on this node is unknown: {error}")] for node, error in got.failures.items()}
    allowed = {(node, one.fault) for one in planned for node in one.targets if REPLACEMENT in one.allow}
    replaced = [
        (node, one.says)
        for node, findings in found.items()
        for one in findings
        if one.readings.get("does") == REPLACES and (node, one.readings.get("fault")) not in allowed
    ]
    told = [(node, one.says) for node, findings in found.items() for one in findings if one.state != "ok" and one.says]
    return Reactions(tuple(_folded(told)), tuple(_folded(replaced)), got.failures)


def _folded(said: Iterable[tuple[str, str]]) -> list[str]:
    """Return each sentence once, with all of its nodes."""
    nodes: dict[str, list[str]] = {}
    for node, says in said:
        nodes.setdefault(says, []).append(node)
    return [f"{fold(names)}: {says}" for says, names in nodes.items()]
