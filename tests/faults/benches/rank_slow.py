"""Where `rank_slow` is tried."""

import os

from bench import RUN, controller_mount, drop_rights, group_snapshot, processes, put, trainer

from chaoskit.agent import ranks
from chaoskit.agent.contract import Site, TrainingFacts
from chaoskit.agent.host import Host
from chaoskit.faults import load
from chaoskit.testing import Bench

CGROUPS = ("cpu",)


def bench():
    """Two ranks of the run, and one of another run, each with a helper that inherits its rank; one stands below a quota."""
    for rank, run in ((4, RUN), (5, RUN), (4, "another-run")):
        trainer(rank, rank - 4, run)
    below_a_quota(4)
    return load("rank_slow", {"rank": 4, "cpu": 0.3, "hold": 1.0}), Bench(host(), lambda: (processes(), group_snapshot()))


def below_a_quota(rank):
    """Put a rank into a group with a quota, as the lab does to simulate its GPU."""
    point, kind, _ = controller_mount("cpu")
    if kind == "cgroup2":
        return  # the topmost group has processes, and so no group with a quota but a threaded one
    group = os.path.join(point, "gpu0")
    os.mkdir(group)
    put(os.path.join(group, "cpu.cfs_period_us"), "5000")
    put(os.path.join(group, "cpu.cfs_quota_us"), "4000")
    for process in ranks.family(RUN, rank):
        put(os.path.join(group, "cgroup.procs"), str(process.pid))


def host():
    """Return a node with the training's facts."""
    return Host(Site("bench", training=TrainingFacts(run_id=RUN, user="root")))


def unprivileged():
    """A rank of root's, and nobody's rights."""
    trainer(4, 0)
    drop_rights()
    return {"rank": 4}, host(), ("SYS_PTRACE", "as root")


def foreign_group():
    """A group of our name, with somebody in it."""
    trainer(4, 0)
    group = os.path.join(controller_mount("cpu")[0], "chaoskit-rank_slow-1234")
    os.mkdir(group)
    put(os.path.join(group, "cgroup.procs"), str(trainer(5, 1).pid))
    return {"rank": 4}, host(), (group, "is in the way", "chaoskit heal")


REFUSALS = {
    "wrong parameters": lambda: ({"cpu": 1.0}, host(), ("cpu must be from 1% to 95%",)),
    "missing tools": "it writes to the control groups itself, without any program",
    "no rights": unprivileged,
    "in the way": foreign_group,
}
