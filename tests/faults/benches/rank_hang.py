"""Where `rank_hang` is tried."""

import os
import signal

from bench import RUN, drop_rights, processes, shown, trainer

from chaoskit.agent import ranks
from chaoskit.agent.contract import Site, TrainingFacts
from chaoskit.agent.host import Host
from chaoskit.faults import load
from chaoskit.testing import Bench


def states():
    """Return the living processes, and whether each is stopped."""
    return processes(), [line for line in shown("ps -eo pid,stat").splitlines() if line.split()[1].startswith("T")]


def bench():
    """Two ranks of the run, and one of another run, each with a helper that inherits its rank."""
    for rank, run in ((4, RUN), (5, RUN), (4, "another-run")):
        trainer(rank, rank - 4, run)
    return load("rank_hang", {"rank": 4, "hold": 1.0}), Bench(host(), states)


def host():
    """Return a node with the training's facts."""
    return Host(Site("bench", training=TrainingFacts(run_id=RUN, user="root")))


def unprivileged():
    """A rank of root's, and nobody's rights."""
    trainer(4, 0)
    drop_rights()
    return {"rank": 4}, host(), ("KILL", "as root")


def stopped():
    """A rank that somebody else has stopped."""
    trainer(4, 0)
    os.kill(ranks.heads(RUN)[0].process.pid, signal.SIGSTOP)
    return {"rank": 4}, host(), ("of rank 4 is stopped already", "kill -CONT")


REFUSALS = {
    "wrong parameters": lambda: ({"rank": 4, "local_rank": 0}, host(), ("not both",)),
    "missing tools": "it speaks to the kernel itself, without any program",
    "no rights": unprivileged,
    "in the way": stopped,
}
