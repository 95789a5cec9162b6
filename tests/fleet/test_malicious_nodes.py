"""Malicious nodes behind a real sshd: each is told as unknown with its name and cause, fills no memory, and costs the others no time."""

from pathlib import Path

import evil_python
import pytest
from fair_watch import FairWatch

from chaoskit.errors import DeadlineError, NodeError, ProtocolError
from chaoskit.fleet import agent_client
from chaoskit.fleet.fleet import SshFleet
from chaoskit.model.inventory import Inventory, InventoryFile, Node

pytestmark = pytest.mark.row("S9", "L31")

MOST = 100 << 10
"""kB that all of them together may add to the controller."""


def memory(key):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1])


@pytest.fixture(scope="module")
def evil(tmp_path_factory):
    """Return a function from a case to the interpreter that plays it."""
    folder = tmp_path_factory.mktemp("evil")

    def make(case):
        path = folder / case
        path.write_text(f'#!/bin/sh\nexec /usr/bin/python3 {folder}/evil_python.py {case} "$@"\n')
        path.chmod(0o755)
        return str(path)

    (folder / "evil_python.py").write_text(Path(evil_python.__file__).read_text())
    return make


@pytest.fixture
def fleet_of(sshd, tmp_path):
    made = []

    def make(pythons):
        nodes = {name: Node(name, "workers", 1, (), "127.0.0.1", None, (), python, False) for name, python in pythons.items()}
        file = InventoryFile("test", {}, ssh=sshd.ssh(), allow="lab", shared="accept")
        made.append(SshFleet(Inventory("test", str(tmp_path / "site.yaml"), nodes, file)))
        return made[-1]

    yield make
    for fleet in made:
        fleet.close()


def test_nodes_that_answer_nonsense_are_named_and_the_good_one_is_served(evil, fleet_of, monkeypatch):
    """All kinds of nonsense at once, the endless kinds too: every bad node is an error of its own, and memory stays bounded."""
    pythons = {"good": None, **{case: evil(case) for case in evil_python.AT_HELLO}}
    fleet = fleet_of(pythons)
    good = fleet.connect(["good"])["good"]
    monkeypatch.setattr(agent_client, "HELLO_WITHIN", 6.0)
    monkeypatch.setattr(agent_client.AgentClient._ask, "__defaults__", (6.0,))
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts here
    before = memory("VmRSS")

    with pytest.raises(ExceptionGroup) as caught:
        fleet.connect(list(pythons))
    watch = FairWatch()
    good.tick().result(15)

    told = {error.node: error for error in caught.value.exceptions}
    assert set(told) == set(evil_python.AT_HELLO)
    assert all(isinstance(error, NodeError) and 10 < len(str(error)) < 5000 for error in told.values())
    slow = {"drip", "silence", "stderr", "mute-clock", "json-noise"}
    assert {name for name, error in told.items() if isinstance(error, DeadlineError)} <= slow
    assert memory("VmHWM") - before < MOST
    assert watch.took() < 10
    assert good.connected


@pytest.mark.parametrize("case", [case for case in evil_python.AFTER_HELLO if case != "events"])
def test_a_node_that_greets_and_then_lies_proves_nothing(evil, fleet_of, case):
    """Stamps from elsewhere, answers without content, texts for truth: no injection, no end and no evidence comes of them."""
    agent = fleet_of({"n1": evil(case)}).connect(["n1"])["n1"]
    asked = [agent.inject("r/1/n1", None), agent.witness("r/1/n1"), agent.entries("r"), agent.revert("r/1/n1"), agent.finish("r/1/n1")]
    worthless = {"inject", "entries"} if case.endswith("-stamps") else {"inject", "witness", "entries", "revert", "finish"}
    failed = {
        name
        for name, future in zip(("inject", "witness", "entries", "revert", "finish"), asked, strict=True)
        if isinstance(future.exception(15), ProtocolError)
    }

    assert worthless <= failed


def test_events_that_nobody_asked_for_are_dropped(evil, fleet_of):
    """Four megabytes of them before each answer: the answer still comes, and nothing is kept."""
    agent = fleet_of({"n1": evil("events")}).connect(["n1"])["n1"]

    for _ in range(3):
        agent.renew("r", 30.0).exception(15)
    assert agent.connected
