"""Arming: the undo durable, the lease running and a fuse watching, or nothing is armed at all."""

import errno
import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chaoskit.agent import account, debts, purge, spawn
from chaoskit.agent.contract import NODE, Refusal, Site
from chaoskit.agent.entries import Reply
from chaoskit.agent.identity import Process
from chaoskit.agent.ledger import Entry, Ledger
from chaoskit.agent.node import Node
from chaoskit.agent.paths import Paths
from chaoskit.agent.wakeup import Wakeup
from chaoskit.errors import NodeError, RefusedError

TOY = Path(__file__).parent / "toys" / "toy_file.py"


class Toys:
    """A registry that carries the toy alone, and one that takes the whole node."""

    def __init__(self):
        spec = importlib.util.spec_from_file_location("toy_file", TOY)
        module = importlib.util.module_from_spec(spec)
        sys.modules["toy_file"] = module
        spec.loader.exec_module(module)
        self.kinds = {"toy_file": module.ToyFile, "toy_node": type("ToyNode", (module.ToyFile,), {"resource": lambda *_: (NODE,)})}

    def make(self, name, params):
        return self.kinds[name](**params)


class FuseKeeper:
    """Stands for the fuse's keeper: confirms `confirms` times, then no fuse can be had any more."""

    def __init__(self):
        self.confirms = 1000

    def watch(self):
        self.confirms -= 1
        if self.confirms < 0:
            raise NodeError("systemd-run did not start it")


class Sickly(Ledger):
    """A ledger on a disk that takes `slow` seconds for a plan, fails the fsync of what is in `sick`, takes nothing of what is in `full`."""

    slow = 0.0
    sick = ()
    full = ()
    dead = False

    def _all_names(self):
        return self._or_dead(super()._all_names)

    def read(self, entry):
        return self._or_dead(lambda: super(Sickly, self).read(entry))

    def _or_dead(self, read):
        if self.dead:
            raise OSError(errno.EIO, "Input/output error")
        return read()

    def plan(self, entry):
        entry = super().plan(entry)
        time.sleep(self.slow)
        return entry

    def append(self, entry, state, /, **more):
        if state in self.full or self.dead:
            raise RefusedError("the ledger cannot be written: ENOSPC")
        super().append(entry, state, **more)
        if state in self.sick:
            raise RefusedError("the ledger cannot be written: EIO")


class Answer(Reply):
    """Keeps the answer."""

    def __init__(self):
        self.came = Wakeup()
        self.failed = None

    def ok(self, data, delay=0.0):
        self.came.set()

    def error(self, error):
        self.failed = error
        self.came.set()


@pytest.fixture
def keeper():
    return FuseKeeper()


@pytest.fixture
def node(tmp_path, keeper):
    paths = Paths(*(str(tmp_path / name) for name in ("state", "run", "etc")))
    made = Node(paths, "no archive", "0" * 64, keeper, Process.of(os.getpid()))
    made.registry = Toys()
    made.ledger = Sickly(paths.ledger)
    yield made
    del sys.modules["toy_file"]


@pytest.fixture
def prepared(node, tmp_path):
    """Return a function that prepares a toy and returns its slot."""
    count = 0

    def prepare(fault="toy_file"):
        nonlocal count
        count += 1
        path = tmp_path / f"file{count}"
        path.write_text("whole")
        name, answer = f"run/{count}/n1", Answer()
        node.prepare(Entry(name, "run", fault, {"path": str(path)}, {}, {"node": "n1"}), frozenset(), answer)
        assert answer.came.wait(5.0)
        assert answer.failed is None
        return node.slot(name)

    return prepare


def test_without_a_fuse_at_the_end_nothing_is_armed(node, keeper, prepared):
    """Whatever kept the fuse away, the entry is closed again and no lease has to run out for it."""
    slot = prepared()
    keeper.confirms = 1

    with pytest.raises(NodeError, match="systemd-run"):
        node.arm(slot, 30.0, "tester")
    assert not node.ledger.read("run/1/n1").open
    assert not slot.open


def test_an_arming_that_the_disk_refuses_late_owes_nothing(node, prepared):
    """The line may be readable though its fsync failed: then it is closed, or a fuse would end the server for it."""
    slot = prepared()
    node.ledger.sick = ("armed",)

    with pytest.raises(RefusedError, match="EIO"):
        node.arm(slot, 30.0, "tester")
    assert not node.ledger.read("run/1/n1").open
    assert not slot.open


def test_no_arming_revives_a_lease_that_ran_out_while_the_disk_was_slow(node, prepared):
    """It was alive when the arming began; what counts is whether it still is when it would be renewed."""
    first, second = prepared(), prepared()
    node.arm(first, 0.5, "tester")
    node.ledger.slow = 0.6

    with pytest.raises(RefusedError, match="ran out"):
        node.arm(second, 30.0, "tester")
    assert node.leases.get("run") is None


@pytest.mark.parametrize(("first", "second"), [("toy_file", "toy_node"), ("toy_node", "toy_file")])
def test_a_fault_that_takes_the_node_shares_it_with_nobody(node, prepared, first, second):
    """A reboot in the middle of somebody's flap would end it unread; a flap in the middle of a reboot would never begin."""
    one, other = prepared(first), prepared(second)
    node.arm(one, 30.0, "tester")

    with pytest.raises(Refusal, match="node is taken by run run of tester"):
        node.arm(other, 30.0, "another")
    assert node.ledger.read("run/2/n1") is None


@pytest.mark.row("R3", "L2")
def test_an_end_that_the_disk_refused_is_told_once_the_disk_takes_it(node, prepared):
    """Until then it is a debt that nobody holds, tried again and again by its server; then it is closed."""
    slot = prepared()
    node.arm(slot, 30.0, "tester")
    node.ledger.full = ("reverted",)

    assert "ENOSPC" in slot.revert("the controller").note
    written = node.ledger.read("run/1/n1")
    assert (written.open, node.unwritten(), slot.over, account.holder(node, written)) == (True, [slot], False, None)
    slot.write_again()
    assert node.unwritten() == [slot]

    node.ledger.full = ()
    slot.write_again()
    assert (node.ledger.read("run/1/n1").open, node.unwritten()) == (False, [])


@pytest.mark.row("R3", "L2")
def test_a_ledger_that_cannot_be_read_stops_no_heal(node, prepared, tmp_path):
    """What this server remembers is paid; of the rest nobody says that nothing is owed."""
    slot = prepared()
    node.arm(slot, 30.0, "tester")
    (tmp_path / "file1").write_text("harmed")
    node.ledger.dead = True

    (unread, kept) = account.heal(node, None, [], live=False)
    assert (unread["entry"], unread["healed"], kept["entry"], kept["held"]) == (debts.LEDGER, False, "run/1/n1", True)
    healed = {one["entry"]: one["healed"] for one in account.heal(node, None, [], live=True)}
    assert (healed, (tmp_path / "file1").read_text()) == ({debts.LEDGER: False, "run/1/n1": True}, "whole")
    assert {one["entry"]: one["healed"] for one in account.heal(node, ["run/9/n1"], [], live=False)}["run/9/n1"] is False


@pytest.mark.row("R13")
def test_of_closed_entries_only_the_looks_of_their_files_are_asked_again(node, prepared):
    """A node that has seen a thousand injections arms the next one as fast; whatever is written to a file is read."""
    for _ in range(3):
        slot = prepared()
        node.arm(slot, 30.0, "tester")
        slot.revert("the controller")
    node.ledger.open_entries()
    read, old = [], node.ledger.read
    node.ledger.read = lambda name: read.append(name) or old(name)

    assert (node.ledger.open_entries(), read) == ([], [])
    node.ledger.append("run/2/n1", "failed")
    assert (node.ledger.open_entries(), read) == ([], ["run/2/n1"])
    del node.ledger.read
    slot = prepared()
    node.arm(slot, 30.0, "tester")
    assert (slot.entry.order, [one.entry for one in node.ledger.open_entries()]) == (4, ["run/4/n1"])


@pytest.mark.row("R10")
def test_a_purge_that_fails_half_way_leaves_a_server_that_stays(node, tmp_path, monkeypatch):
    """It may owe something again before its last connection is closed; one that has left everything goes with it."""
    node.registry.kinds = dict
    monkeypatch.setattr(spawn, "running", list)  # of the whole machine
    obstacle = tmp_path / "run" / "busy" / "mount"
    obstacle.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", str(obstacle)], check=True)
    try:
        with pytest.raises(OSError, match="busy"):
            purge.purge(node, Site("n1"))
        assert not node.leaving
    finally:
        subprocess.run(["umount", str(obstacle)], check=True)

    assert str(tmp_path / "run") in purge.purge(node, Site("n1"))
    assert node.leaving
