"""What each node of a lab is doing, as one small file a node, written by the supervisor and read by everybody."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from chaoskit.lab.plan import LabPlan, NodePlan


@dataclass(frozen=True)
class NodeStatus:
    """One node: `up`, `booting` or `down`; `boot` counts from 1; `says` is the reason when it is not up."""

    name: str
    state: str
    boot: int = 0
    boot_id: str = ""
    pid: int | None = None
    says: str = ""


@dataclass(frozen=True)
class LabStatus:
    """
    A whole lab.

    `state` is `absent`, `booting`, `up`, `half-up` (some nodes are not up, and none is booting) or `broken` (its supervisor is
    dead, and what is left can only be taken down).
    """

    name: str
    state: str
    nodes: tuple[NodeStatus, ...] = ()
    state_dir: Path | None = None

    def down_nodes(self) -> tuple[str, ...]:
        """Return the names of the nodes that are not up."""
        return tuple(node.name for node in self.nodes if node.state != "up")


def write_status(plan: LabPlan, status: NodeStatus) -> None:
    """Replace a node's status file in one step."""
    path = plan.node_dir(plan.node(status.name)) / "status.json"
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(asdict(status)), encoding="utf-8")
    fresh.replace(path)


def read_status(plan: LabPlan, node: NodePlan) -> NodeStatus:
    """Return a node's status; a node that never began to boot is down."""
    try:
        text = (plan.node_dir(node) / "status.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        return NodeStatus(node.name, "down", says="never booted")
    return NodeStatus(**json.loads(text))


def summarise(nodes: tuple[NodeStatus, ...], *, supervised: bool) -> str:
    """Return the state of a lab from its nodes and from whether its supervisor lives."""
    states = {node.state for node in nodes}
    if not supervised:
        return "broken"
    if states == {"up"}:
        return "up"
    return "booting" if "booting" in states else "half-up"
