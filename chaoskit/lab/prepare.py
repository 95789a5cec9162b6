"""
Everything of a lab that does not run: keys, node roots, tools, and the files for others.

Done by the supervisor and not by `up`, so that whatever is at work here stands in the lab's cgroup and dies at `down`.
"""

import subprocess
from pathlib import Path

from chaoskit.errors import ChaosError
from chaoskit.lab import inventory, rootfs
from chaoskit.lab.plan import LabPlan
from chaoskit.lab.requirements import program


def prepare(plan: LabPlan) -> None:
    """Fill the lab's state folder. Raises ChaosError or OSError."""
    for node in plan.nodes:
        plan.node_dir(node).mkdir(parents=True)
    keys = {node.name: plan.node_dir(node) / "host_key" for node in plan.nodes}
    public = make_keys({**keys, "client": plan.state_dir / "id_ed25519", "storage": plan.state_dir / "storage_key"})
    for node in plan.nodes:
        rootfs.Upper(plan, node).build(client_key=public["client"], storage_key=public["storage"], host_keys=public)
    rootfs.write_tools(plan)
    inventory.write_files(plan, public)


def make_keys(files: dict[str, Path]) -> dict[str, str]:
    """Make all key pairs at once, and return the public halves by name. Raises ChaosError."""
    makers = [
        subprocess.Popen([program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path)])
        for name, path in files.items()
    ]
    if sum(maker.wait() for maker in makers):
        raise ChaosError("ssh-keygen failed", where="lab up", hint="its message stands above")
    return {name: " ".join(path.with_suffix(".pub").read_text(encoding="ascii").split()[:2]) for name, path in files.items()}
