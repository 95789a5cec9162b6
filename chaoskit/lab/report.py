"""What people read of a lab."""

from chaoskit.lab.control import Lab
from chaoskit.lab.status import LabStatus


def up_text(lab: Lab, seconds: float) -> str:
    """Return what `up` says: what there is now, and what to do next."""
    option = "" if lab.name == "lab" else f" --name {lab.name}"
    return "\n".join(
        (
            f"lab {lab.name}: {lab.says} ({lab.plan.workers} nodes and store1, {seconds:.1f} s)",
            f"  inventory   {lab.inventory_path}",
            f"  look inside chaoskit lab ssh{option} node1",
            f"  break it    chaoskit run experiments/plane_loss.yaml --inventory {lab.inventory_path}",
            f"  remove it   chaoskit lab down{option}",
        )
    )


def status_text(status: LabStatus) -> str:
    """Return a lab's state and one line a node."""
    lines = [f"lab {status.name}: {status.state}"]
    if status.state == "half-up":
        lines[0] += f" (not up: {', '.join(status.down_nodes())}; `chaoskit lab up` boots them)"
    if status.state == "broken":
        lines[0] += " (its supervisor is dead: `chaoskit lab down` removes what is left)"
    width = max((len(node.name) for node in status.nodes), default=0)
    lines += [f"  {node.name:<{width}}  {node.state:<8}  boot {node.boot}  {node.boot_id}  {node.says}".rstrip() for node in status.nodes]
    return "\n".join(lines)
