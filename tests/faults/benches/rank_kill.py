"""Where `rank_kill` is tried."""

from bench import RUN, drop_rights, processes, trainer

from chaoskit.agent.contract import Site, TrainingFacts
from chaoskit.agent.host import Host
from chaoskit.faults import load
from chaoskit.testing import Bench


def bench():
    """Two ranks of the run, and one of another run, each with a helper that inherits its rank."""
    for rank, run in ((4, RUN), (5, RUN), (4, "another-run")):
        trainer(rank, rank - 4, run)
    site = Site("bench", training=TrainingFacts(run_id=RUN, user="root"))
    return load("rank_kill", {"rank": 4}), Bench(Host(site), processes)


def host():
    """Return a node with the training's facts."""
    return Host(Site("bench", training=TrainingFacts(run_id=RUN, user="root")))


def unprivileged():
    """A rank of root's, and nobody's rights."""
    trainer(4, 0)
    drop_rights()
    return {"rank": 4}, host(), ("KILL",)


def twice():
    """Two processes that claim to be one rank."""
    trainer(4, 0)
    trainer(4, 0)
    return {"rank": 4}, host(), ("rank 4 is more than one process",)


REFUSALS = {
    "wrong parameters": lambda: ({"rank": 4, "local_rank": 0}, host(), ("not both",)),
    "missing tools": "it speaks to the kernel itself, without any program",
    "no rights": unprivileged,
    "in the way": twice,
}
