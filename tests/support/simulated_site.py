"""
A simulated site for pytests of their own: four nodes, a training, and a clock that only waiting moves.

A conftest sets `config.stash[REACH] = SITE.reach`; a test may change `SITE` before its experiment begins, as a real site
might be found.
"""

import time
from contextlib import nullcontext

from simulated import Kill, SimClock, SimFleet, SimNode, SimTraining, Slow

from chaoskit.wiring import Reach

INVENTORY = """\
name: simulated
allow: lab
nodes:
  "node[1-4]": {group: workers, gpus: 1, rails: [{netdev: rail0, plane: A}, {netdev: rail1, plane: B}]}
trainings: {default: {launcher: attach, log: /var/log/train.log, checkpoints: {every: 10}}}
limits: {nodes_lost: 99} # several experiments here lose one on purpose
"""
CONFTEST = """\
import pytest
from simulated_site import SITE
from chaoskit.pytest_plugin import REACH

def pytest_configure(config):
    config.stash[REACH] = SITE.reach

@pytest.fixture
def site():
    yield SITE
    SITE.idle = SITE.never_gone = SITE.unreachable = SITE.never_steady = False
"""
FAULTS = {
    "link_flap": lambda **given: Slow(hold=given["down"]),
    "node_kill": lambda **_: Kill(),
    "rank_hang": lambda **given: Slow(hold=1e6),
}


class StartedNow(SimClock):
    """As `SimClock`, but it begins when this machine's does, so that the moments of a report make sense."""

    def __init__(self) -> None:
        super().__init__()
        self.time = time.monotonic()


class Site:
    """What the simulated site is like when the next run comes to it."""

    def __init__(self) -> None:
        self.clock = StartedNow()
        self.reach = Reach(self._open, self._train, self.clock)
        self.idle = False
        self.never_gone = False
        self.unreachable = False
        self.never_steady = False
        self.interrupted = False
        self.nodes = {}
        self.training = None

    def _open(self, inventory):
        if self.interrupted:
            raise KeyboardInterrupt
        self.clock.parts = []
        self.nodes = {name: SimNode(name, self.clock, FAULTS) for name in inventory.nodes}
        for node in self.nodes.values():
            node.exposed, node.never_gone = not self.idle, self.never_gone
        if self.unreachable:
            self.nodes["node2"].cut_until = float("inf")
        return nullcontext(SimFleet(self.nodes))

    def _train(self, *_):
        self.training = SimTraining(self.clock, self.nodes)
        if self.never_steady:
            self.training.dies_at = self.clock.time + 5.0
        return self.training

    @property
    def harmed(self):
        """Nodes on which a fault is in force."""
        return [name for name, node in self.nodes.items() if node.slow]


SITE = Site()
