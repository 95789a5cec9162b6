"""Elastic agents: alive, ended or unknown; started again on a node that came back, unless they live."""

from concurrent.futures import Future

import pytest

from chaoskit.errors import AgentError, TrainingError, UnreachableError
from chaoskit.training.agents import RETRY_EVERY, TRIES, Liveness, Restart
from chaoskit.training.ports import Spawned


class Node:
    """A node with at most one process; `broken` ones cannot start it; answers come when `slow` ones are told to."""

    def __init__(self, name="n1", *, process=None, broken=False, slow=False):
        self.name, self.connected, self.process, self.broken, self.slow = name, True, process, broken, slow
        self.asked, self.log = [], []

    def _answer(self, what, value):
        future = Future()
        self.log.append(what)
        if not self.connected:
            value = UnreachableError("connection lost", node=self.name)
        self.asked.append((future, value))
        if not self.slow:
            self.answer()
        return future

    def answer(self):
        for future, value in self.asked:
            future.set_exception(value) if isinstance(value, Exception) else future.set_result(value)
        self.asked.clear()

    def spawned(self, key):
        unknown = AgentError("nothing was started", node=self.name)
        return self._answer("spawned", unknown if self.process is None else Spawned(self.process, 7, 1))

    def stop(self, key, grace):
        self.process = None
        return self._answer("stop", True)

    def spawn(self, node):
        assert node is self
        self.process = None if self.broken else True
        return self._answer("spawn", AgentError("no space", node=self.name) if self.broken else Spawned(True, 8, 2))


def looks(restart, *moments):
    return [restart.look(moment) for moment in moments]


@pytest.mark.parametrize("process", [None, False])
def test_an_agent_that_is_gone_is_started_again_once_what_is_left_of_it_is_cleared(process):
    node = Node(process=process)
    restart = Restart(node, "k", node.spawn)
    assert looks(restart, 0.0) == [True]
    assert restart.spawned
    assert node.log == ["spawned", "stop", "spawn"]


def test_an_agent_that_lives_is_left_alone():
    node = Node(process=True)
    restart = Restart(node, "k", node.spawn)
    assert looks(restart, 0.0) == [True]
    assert not restart.spawned
    assert node.log == ["spawned"]


def test_it_never_waits_for_an_answer():
    node = Node(slow=True)
    restart = Restart(node, "k", node.spawn)
    for expected in ("spawned", "stop", "spawn"):
        assert looks(restart, 0.0, 0.1) == [False, False]
        assert node.log[-1] == expected
        node.answer()
    assert looks(restart, 0.2) == [True]


def test_what_fails_is_tried_again_and_given_up_with_the_reason():
    node = Node(broken=True)
    restart = Restart(node, "k", node.spawn)
    for attempt in range(TRIES - 1):
        assert not restart.look(attempt * RETRY_EVERY)
    with pytest.raises(TrainingError, match="n1: came back, but its part of the training could not be started again: n1: no space"):
        restart.look(TRIES * RETRY_EVERY)
    assert node.log.count("spawn") == TRIES


def test_a_node_that_is_lost_again_is_left_to_its_next_return():
    node = Node(slow=True)
    restart = Restart(node, "k", node.spawn)
    restart.look(0.0)
    node.connected = False
    node.answer()
    assert restart.look(0.1)
    assert "spawn" not in node.log


def test_alive_ended_and_unknown_are_three_things():
    nodes = {name: Node(name, process=True) for name in ("n1", "n2", "n3")}
    liveness = Liveness("k", 0.0, nodes)
    nodes["n2"].process = False
    nodes["n3"].connected = False
    for now in (1.0, 2.0):
        liveness.look(now)
    assert (liveness.ended, liveness.lives, liveness.ended_after) == (("n2",), True, 0.0)
    nodes["n1"].process = False
    for now in (3.0, 4.0):
        liveness.look(now)
    assert (liveness.ended, liveness.lives, liveness.ended_after) == (("n1", "n2"), False, 2.0)
    nodes["n2"].connected = nodes["n1"].connected = False
    liveness.look(5.0)
    assert (liveness.ended, liveness.lives) == ((), False)
    nodes["n2"].connected, nodes["n2"].process = True, None
    for now in (6.0, 7.0):
        liveness.look(now)
    assert liveness.ended == ()  # it came up anew and was started nothing yet
    again = Node("n3", process=True)
    liveness.connected(again)
    for now in (8.0, 9.0):
        liveness.look(now)
    assert liveness.lives
