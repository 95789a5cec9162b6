"""Where `node_kill` is tried."""

import os
import subprocess
import sys
import tempfile

from bench import RUN, drop_rights, net_snapshot, processes, trainer, wires

from chaoskit.agent.contract import Rail, Site, TrainingFacts
from chaoskit.agent.host import Host
from chaoskit.faults import load
from chaoskit.faults.node_kill import INITIAL_PID_NAMESPACE
from chaoskit.testing import Bench

BOOT_ID = "/proc/sys/kernel/random/boot_id"

REBOOT = """
import os, sys
from chaoskit.agent.contract import Site
from chaoskit.agent.host import Host
from chaoskit.faults import load
# Only the first process of a namespace made for this may reboot: the call then ends that namespace.
if os.getpid() != 1 or os.stat("/proc/self/ns/pid").st_ino == {initial}:
    sys.exit("not in a process namespace of its own")
load("node_kill", {{}}).inject(Host(Site("bench")), {{}})
"""


def own_boot_id(text):
    """Give this mount namespace a boot id of its own, as a lab node has."""
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(text)
        file.flush()
        subprocess.run(["mount", "--bind", file.name, BOOT_ID], check=True)


def reboot_stand_in(fault, undo):
    """Make the very call in a namespace below ours, see that it ended by it, and boot anew: another boot id."""
    stand_in = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", REBOOT.format(initial=INITIAL_PID_NAMESPACE)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(stand_in, stderr=subprocess.PIPE, timeout=30, env=env, check=False)
    # reboot(2): the namespace's first process ends by SIGHUP, which unshare passes on by raising it on itself.
    if done.returncode != -1:
        raise AssertionError("the stand-in ended with {}: {}".format(done.returncode, done.stderr.decode()))
    subprocess.run(["umount", BOOT_ID], check=True)
    own_boot_id("22222222-2222-2222-2222-222222222222")


def bench():
    """A namespace that stands in for the node, with a boot id, a mount and a link."""
    if os.stat("/proc/self/ns/pid").st_ino == INITIAL_PID_NAMESPACE:
        raise AssertionError("run this inside a process namespace")
    own_boot_id("11111111-1111-1111-1111-111111111111")
    subprocess.run(["mount", "-t", "tmpfs", "bench", "/mnt"], check=True)
    wires("ra", ipv6=False)
    trainer(0, 0)
    site = Site("bench", rails=(Rail(0, "ra"),), mounts=("/mnt",), training=TrainingFacts(run_id=RUN))
    return load("node_kill", {}), Bench(Host(site), lambda: (net_snapshot(), processes()), reboot_stand_in)


def unprivileged():
    """Nobody's rights."""
    drop_rights()
    return {}, Host(Site("bench")), ("SYS_BOOT",)


REFUSALS = {
    "wrong parameters": lambda: ({"how": "power"}, Host(Site("bench")), ("how must be reboot or sysrq",)),
    "missing tools": "it speaks to the kernel itself, without any program",
    "no rights": unprivileged,
    "in the way": "a reboot asks nobody",
}
