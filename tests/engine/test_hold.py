"""Two controllers at one site: the second is refused before anything is touched, and a run that was not renewed gives way."""

import os
import socket

import pytest
from simulated import SimClock, SimFleet, SimNode, Slow

from chaoskit.agent.identity import stat_of
from chaoskit.engine.hold import EVERY, Hold
from chaoskit.errors import AbortedError, RefusedError
from chaoskit.model.controller import is_dead, this_controller
from chaoskit.model.wire import Held

pytestmark = pytest.mark.row("R10", "L8")


class Site:
    """Two nodes, and the agents of one controller."""

    def __init__(self):
        self.clock = SimClock()
        self.nodes = {name: SimNode(name, self.clock, {"slow": Slow}) for name in ("n1", "n2")}
        self.fleet = SimFleet(self.nodes)

    def hold(self, run):
        """Let a controller take both nodes; it gives back what it got when it is refused."""
        hold, agents = Hold(run, self.clock), self.fleet.connect(list(self.nodes))
        try:
            hold.take(agents, agents)
        except RefusedError:
            hold.release()
            raise
        return hold

    def holders(self):
        return [node.holder and node.holder.run for node in self.nodes.values()]


@pytest.fixture
def site():
    return Site()


def test_the_second_controller_is_refused_with_the_firsts_name_time_and_host(site):
    """Nothing of the first one's is changed."""
    site.hold("first")
    with pytest.raises(RefusedError) as caught:
        site.hold("second")

    told = str(caught.value)
    assert told.startswith("n[1-2] belong to run first of tester@sim:1 since 1970-01-01 00:00:00 UTC; ")
    assert told.endswith("s of its lease are left: `chaoskit stop first` ends it")
    assert told.count("first") == 2, "said once for all nodes"
    assert site.holders() == ["first", "first"]


def test_who_is_refused_on_one_node_keeps_none_of_the_others(site):
    """Somebody else may have them at once."""
    site.nodes["n2"].holder = Held("first", "ada@laptop:7", 0.0, 60.0)
    with pytest.raises(RefusedError, match="n2 belongs to run first"):
        site.hold("second")
    assert site.holders() == [None, "first"]


def test_a_run_that_is_over_gives_its_nodes_back(site):
    """The next one begins at once."""
    site.hold("first").release()
    site.hold("second")
    assert site.holders() == ["second", "second"]


def test_a_run_whose_hold_lapsed_and_was_taken_ends(site):
    """Nobody renewed in time (the controller stood still), and another run has begun: two would spoil each other."""
    hold = site.hold("first")
    site.nodes["n2"].holder = Held("second", "bob@desk:8", 0.0, 60.0)
    site.clock.sleep(EVERY + 0.1)
    hold.keep()

    with pytest.raises(AbortedError, match="n2 in time, and now it belongs to run second of bob@desk:8"):
        hold.keep()


def test_renewing_goes_on_beside_a_node_that_is_away(site):
    """What is owed there has its own lease."""
    hold = site.hold("first")
    site.nodes["n1"].cut_until = float("inf")
    for _ in range(5):
        site.clock.sleep(EVERY + 0.1)
        hold.keep()
    hold.release()
    assert site.holders() == ["first", None]


HOST, SELF = socket.gethostname(), this_controller().rpartition(":")[2]
START, NAMESPACE = SELF.split(".")[1:]


@pytest.mark.parametrize(
    ("controller", "over"),
    [
        (f"ada@{HOST}:4194999.5.{NAMESPACE}", True),
        (f"ada@{HOST}:{os.getpid()}.1.{NAMESPACE}", True),
        (f"ada@{HOST}:{SELF}", False),
        (f"ada@{HOST}:1.{stat_of(1).start_time}.{NAMESPACE}", False),
        (f"ada@{HOST}:4194999.5.7", False),
        (f"ada@{HOST}:{os.getpid()}.{START}.7", False),
        (f"ada@{HOST}:4194999", False),
        (f"ada@elsewhere:4194999.5.{NAMESPACE}", False),
        ("nonsense", False),
    ],
    ids=[
        "dead",
        "pid used again",
        "another thread's",
        "alive",
        "dead in a container",
        "our pid in a container",
        "old",
        "elsewhere",
        "nonsense",
    ],
)
def test_only_a_controller_that_is_seen_to_be_dead_is_taken_over(site, controller, over):
    """A process of this machine and this PID namespace that ended; of anybody else nobody knows."""
    site.nodes["n1"].holder = Held("old", controller, 0.0, 60.0)
    if over:
        site.hold("new")
    else:
        with pytest.raises(RefusedError, match="belongs to run old"):
            site.hold("new")
    assert site.nodes["n1"].holder.run == ("new" if over else "old")


def test_a_process_that_is_not_to_be_seen_is_alive(monkeypatch):
    """Where /proc hides other users' processes, only the kernel's answer to a signal tells."""
    monkeypatch.setattr("chaoskit.model.controller.stat_of", lambda pid: None)
    assert not is_dead(f"ada@{HOST}:1.5.{NAMESPACE}")
    assert is_dead(f"ada@{HOST}:4194999.5.{NAMESPACE}")


def test_an_earlier_run_of_this_very_process_gives_way_once_it_is_over(site):
    """It was released, but a node that was away then has not heard of it."""
    hold = site.hold("before")
    hold.release()
    site.nodes["n1"].holder = Held("before", this_controller(), 0.0, 60.0)
    site.hold("after")
    assert site.holders() == ["after", "after"]
