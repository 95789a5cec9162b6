"""Whoever dies when, and in whatever order things happen: what is owed is exact, and what was harmed is mended."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from simulated_node import STRIKES, SimulatedNode, Toys

from chaoskit.agent import boot, debts

FILES = ("eth0", "eth1", "disk")
RUNS = ("run1", "run2")
VERSIONS = ("a", "b")
STATES = ("planned", "armed", "injecting", "injected", "reverting", "released", "failed", "reverted")

versions = st.sampled_from(VERSIONS)
runs = st.sampled_from(RUNS)
moments = st.sampled_from([0.0, 0.1, 0.7, 3.0, 12.0, 70.0])
files = st.sampled_from(FILES)
shapes = st.tuples(
    st.sampled_from(["toy", "toy", "staying"]),  # the fault
    st.sampled_from([1.0, 5.0, 30.0]),  # seconds of its lease
    st.sampled_from([0.5, 4.0, 60.0]),  # seconds of each span
    st.integers(1, 2),  # spans
    st.sampled_from([0, 0, 0, 1, 4]),  # reverts that fail
)


class Interleavings(RuleBasedStateMachine):
    """Two agent versions on one node, two controllers, and a machine that reboots: against what is true of it."""

    def __init__(self):
        super().__init__()
        self.node = SimulatedNode()
        self.world = self.node.world
        self.journal = {}  # what the controllers remember: fsynced before each arming
        self.lost = set()  # entries whose ledger was lost with its disk

    @initialize()
    def begin(self):
        self.node.start("a")

    # -- what happens ----------------------------------------------------------------------------------------------

    @rule(version=versions, run=runs, file=files, shape=shapes)
    def arm(self, version, run, file, shape):
        self.armed(version, run, file, *shape)

    @rule(version=versions, run=runs, file=files, shape=shapes)
    def harm(self, version, run, file, shape):
        """Arm and inject, as a controller does."""
        name = self.armed(version, run, file, *shape)
        if name and self.answers(version) and self.node.ledger.read(name) is not None:
            self.node.ask(version, lambda server, answer: self.asked(server, name, answer, "inject"))

    def armed(self, version, run, file, fault, lease, down, times, failing):
        """A controller asks, whoever starts the server for it; return the entry's name unless nobody answered or it was refused."""
        self.start(version)
        if not self.answers(version):
            return ""
        taken = [entry.entry for entry in self.node.entries() if entry.open and entry.params["file"] == file]
        volatile = [name for name in taken if self.is_of_an_earlier_boot(name)]
        params = {"file": file, "down": down, "times": times}
        name, error = self.node.prepare_and_arm(version, run, fault, lease, **params)
        self.world.failing[name] = failing
        self.journal[name] = {
            "entry": name,
            "run": run,
            "fault": fault,
            "params": {"entry": name, **params},
            "undo": {"content": "whole"},
            "site": {"node": "n1"},
            "boot_id": self.world.boot_id,
        }
        assert error is not None or not taken or volatile == taken or version not in self.node.servers, "its resource was taken"
        return "" if error else name

    def start(self, version):
        if version not in self.node.servers:
            self.node.start(version)

    @precondition(lambda self: self.mine("armed"))
    @rule(data=st.data())
    def inject(self, data):
        entry = data.draw(st.sampled_from(self.mine("armed")))
        self.node.ask(self.owner(entry), lambda server, answer: self.asked(server, entry.entry, answer, "inject"))

    def asked(self, server, name, answer, verb):
        slot = server.slot(name)
        if verb == "inject":
            slot.ask(answer, lambda: slot.inject(None, answer))
        else:
            slot.ask(answer, lambda: slot.revert("the controller").to_json())

    @precondition(lambda self: self.mine())
    @rule(data=st.data())
    def revert(self, data):
        entry = data.draw(st.sampled_from(self.mine()))
        self.node.ask(self.owner(entry), lambda server, answer: self.asked(server, entry.entry, answer, "revert"))

    @precondition(lambda self: self.mine())
    @rule(version=versions, run=runs, length=st.sampled_from([1.0, 5.0, 30.0]))
    def renew(self, version, run, length):
        if not self.answers(version):
            return
        lease = self.node.servers[version].leases.get(run)
        alive = lease is not None and not lease.over(self.world.now)
        got = []
        self.node.ask(version, lambda server, _: got.append(server.renew(run, length)))
        for answer in got:
            assert (answer["deadline"] is not None) == alive, "a renewal revived what was over"
            entries = {name: self.node.ledger.read(name) for name in answer["expired"]}
            assert not [
                name
                for name, entry in entries.items()
                if entry is not None and entry.open and not entry.failures and name not in self.world.unwritten
            ]

    @rule(seconds=moments)
    def wait(self, seconds):
        self.node.live_through(seconds)

    @rule(hours=st.sampled_from([-9000.0, -1.0, 1.0, 9000.0]))
    def wall_clock_jumps(self, hours):
        self.world.wall += 3600 * hours

    @precondition(lambda self: self.mine())
    @rule(version=versions, fuse_too=st.booleans())
    def kill(self, version, fuse_too):
        if fuse_too:
            self.node.fuses.discard(version)
        if version in self.node.servers:
            self.node.kill(version)
            self.node.live_through(0.0)

    @precondition(lambda self: self.mine())
    @rule(version=versions)
    def stop(self, version):
        """SIGSTOP: neither dead nor alive."""
        if version in self.node.servers:
            self.node.hung.add(version)

    @precondition(lambda self: self.node.hung)
    @rule(version=versions)
    def go_on(self, version):
        self.node.hung.discard(version)
        self.node.live_through(0.0)

    @rule(state=st.sampled_from(STATES), how=st.sampled_from(STRIKES))
    def strike(self, state, how):
        """The next record of this state meets a death or a disk."""
        self.world.strike = (state, how)

    @precondition(lambda self: self.open_entries())
    @rule()
    def reboot(self):
        self.node.reboot()

    @precondition(lambda self: self.open_entries())
    @rule(
        data=st.data(),
        tail=st.sampled_from([b'{"v":1,"state":"rever', b"\0" * 64, b"\xff\xfe\n", b'{"v":1,"state":"reverted","sum":"00000000"}\n']),
    )
    def scribble(self, data, tail):
        """What a disk may leave after the last record."""
        entry = data.draw(st.sampled_from(self.open_entries()))
        with open(self.node.ledger.path(entry.entry), "ab") as file:
            file.write(tail)

    @precondition(lambda self: self.open_entries() or self.lost)
    @rule(version=versions)
    def heal(self, version):
        if version in self.node.hung:
            return
        self.start(version)
        self.world.strike = None
        self.pay(version)
        self.node.live_through(0.0)

    @precondition(lambda self: self.open_entries())
    @rule()
    def lose_the_disk(self):
        """A stateless node comes up without its ledger."""
        self.world.crashed = True
        self.lost |= {entry.entry for entry in self.node.entries() if entry.open}
        self.node.forget_ledger()
        self.node.reboot()
        self.node.ledger = self.node.a_ledger()

    # -- what is true at any moment --------------------------------------------------------------------------------

    @invariant()
    def the_debt_is_exact(self):
        entries = {entry.entry: entry for entry in self.node.entries()}
        for file, name in self.world.harmed.items():
            assert name in self.lost or entries[name].open, f"{file} is harmed and nobody owes it"
        for entry in entries.values():
            proven = self.world.proven.get(entry.entry)
            assert not entry.open or not proven or entry.entry in self.world.unwritten, f"{entry.entry} is owed though it is proven gone"
        for server in self.node.servers.values():
            assert server.ledger.open_entries() == [entry for entry in entries.values() if entry.open], "what is remembered is not what is"

    @invariant()
    def nothing_is_harmed_twice(self):
        assert not self.world.doubly
        for name, count in Counter(self.world.harms).items():
            assert count <= self.journal.get(name, {"params": {"times": 2}})["params"]["times"]

    @invariant()
    def no_lease_is_outlived(self):
        for version, server in self.node.servers.items():
            for slot in server.open_slots() if version not in self.node.hung else ():
                lease = server.leases.get(slot.entry.run)
                assert slot.result is not None or (lease is not None and lease.deadline > self.world.now - 0.01)

    @invariant()
    def the_boot_unit_is_there_exactly_while_it_is_needed(self):
        owed = [entry for entry in self.node.entries() if entry.open and boot.persists(entry)]
        there = boot.unit_of(self.node.paths).there
        assert there or not owed
        assert owed or not there or self.world.crashed

    def teardown(self):
        """At last somebody heals, with the journals in hand: all is whole, and nothing is owed."""
        try:
            self.world.strike = None
            self.world.failing.clear()
            self.node.reboot()
            self.node.start("a")
            self.pay("a")
            assert self.world.harmed == {}
            assert not [entry for entry in self.node.ledger.entries() if entry.open], self.node.ledger.entries()
            assert not boot.unit_of(self.node.paths).there
        finally:
            self.node.close()

    # -- helpers ---------------------------------------------------------------------------------------------------

    def answers(self, version):
        return version in self.node.servers and version not in self.node.hung

    def open_entries(self):
        return [entry for entry in self.node.entries() if entry.open]

    def mine(self, *states):
        """Return the open entries that a server answers for."""
        return [entry for entry in self.open_entries() if self.owner(entry) and (not states or entry.state in states)]

    def owner(self, entry):
        """Return the version of the server that answers for an entry."""
        return next((one for one, server in self.node.servers.items() if server.me.to_json() == entry.server and self.answers(one)), None)

    def is_of_an_earlier_boot(self, name):
        entry = self.node.ledger.read(name)
        return entry.boot_id != self.world.boot_id and entry.lifetime == "V"

    def pay(self, version):
        server = self.node.servers[version]
        owed = debts.open_entries(server.ledger, Toys(), self.world.boot_id)
        names = [entry.entry for entry in reversed(owed) if not debts.is_live(entry, self.world.boot_id)]
        lost = [debt for name, debt in self.journal.items() if name in self.lost]
        with self.node.newest_first([*names, *(debt["entry"] for debt in reversed(lost))]):
            paid = debts.heal(server.ledger, Toys(), server.host, names, lost)
        for one in paid:
            if one.healed:
                self.lost.discard(one.entry)
                self.world.unwritten.discard(one.entry)


def machine(name, **kwargs):
    made = type(name, (Interleavings.TestCase,), {})
    made.settings = settings(
        stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much], **kwargs
    )
    return made


TestSome = pytest.mark.row("R1", "R2", "R7", "R8", "R9", "R10", "L2", "L3", "L6", "L12", "L21")(machine("TestSome", max_examples=60))
TestThousand = pytest.mark.prove(machine("TestThousand", max_examples=1000))
