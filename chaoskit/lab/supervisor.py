"""
The process that keeps a lab's nodes: boots them, boots them again when they reboot, and leaves them down when they halt.

Started by `control.up` with the plan on standard input. End of file before a whole plan means that `up` died: it ends
without having touched anything. It joins the lab's cgroup (done by `up` before the plan is sent) before it makes
anything that could be left behind.
"""

import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path

from chaoskit.lab import namespaces, network
from chaoskit.lab.boot import Boot, Ending
from chaoskit.lab.plan import LabPlan, NodePlan
from chaoskit.lab.prepare import prepare
from chaoskit.lab.status import NodeStatus, write_status

LOG = logging.getLogger("chaoskit.lab")


class Keeper(threading.Thread):
    """Keeps one node: a life after another while it reboots, and waits for the power button when it is down."""

    def __init__(self, plan: LabPlan, node: NodePlan) -> None:
        super().__init__(name=node.name, daemon=True)
        self.plan = plan
        self.node = node
        self.power = threading.Event()

    def run(self) -> None:
        """Keep the node for ever; the process ends by a signal."""
        count = 0
        while True:
            count += 1
            boot = Boot(self.plan, self.node, count)
            boot.start()
            boot.join()
            LOG.info("%s: boot %d ended: %s %s", self.node.name, count, boot.ending.name, boot.says)
            if boot.ending is not Ending.REBOOT:
                self.power.clear()
                write_status(self.plan, NodeStatus(self.node.name, "down", count, boot.boot_id, None, boot.says))
                self.power.wait()


def mount_roots(plan: LabPlan) -> None:
    """Mount every node's overlay; they live in this process's mount namespace and vanish with it."""
    for node in plan.nodes:
        home = plan.node_dir(node)
        for name in ("work", "root"):
            (home / name).mkdir(exist_ok=True)
        options = f"lowerdir=/,upperdir={home / 'upper'},workdir={home / 'work'}"
        namespaces.mount("chaoskit-lab", str(home / "root"), "overlay", data=options)


def supervise(plan: LabPlan) -> None:
    """Build the fabric, start all nodes, and keep them until killed."""
    host = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    namespaces.unshare(namespaces.CLONE_NEWNS | namespaces.CLONE_NEWNET)
    namespaces.mount("", "/", flags=namespaces.MS_REC | namespaces.MS_PRIVATE)
    network.build_switches(plan, f"/proc/{os.getpid()}/fd/{host}")
    os.close(host)
    mount_roots(plan)
    keepers = [Keeper(plan, node) for node in sorted(plan.nodes, key=lambda node: node.group)]  # store1 first

    def power_on(*_: object) -> None:
        for keeper in keepers:
            keeper.power.set()

    signal.signal(signal.SIGUSR1, power_on)
    for keeper in keepers:
        keeper.start()
    while True:
        signal.pause()


def main() -> None:
    """Read the plan, leave the caller behind, supervise."""
    text = sys.stdin.readline()
    if not text.endswith("\n"):
        sys.exit("the plan never came: `lab up` ended early")
    plan = LabPlan.from_json(json.loads(text))
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    os.umask(0o022)
    log = os.open(plan.state_dir / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open("/dev/null", os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    (plan.state_dir / "supervisor.pid").write_text(f"{os.getpid()}\n", encoding="ascii")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        prepare(plan)
        supervise(plan)
    except Exception as error:
        LOG.exception("the supervisor failed")
        Path(plan.state_dir / "supervisor.failed").write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
        raise


if __name__ == "__main__":
    main()
