"""
A small simulated cluster for the engine's tests: nodes with ledgers, leases and faults, and a training that steps.

Time is a number: `SimClock.sleep` advances it and lets everything that is due happen, so a test of minutes takes
milliseconds. Nodes heal themselves when their lease ends, as real ones do; channels can be cut, nodes can be lost.
"""

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from chaoskit.agent.contract import Evidence, Fault, Site, duration_of
from chaoskit.engine.ports import Observed
from chaoskit.errors import AgentError, DeadlineError, UnreachableError
from chaoskit.judge.timeline import Interval, Mark, MarkKind, Sample
from chaoskit.model.wire import Ended, Held, LedgerEntry, Prepared, Strays


class SimClock:
    """A clock that only `sleep` moves."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.parts: list[Any] = []

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        end = self.time + seconds
        while self.time < end - 1e-9:
            self.time = min(end, self.time + 0.05)
            for part in self.parts:
                part.tick(self.time)


@dataclass(frozen=True)
class Slow(Fault):
    """Make a simulated node slow for a while."""

    hold: float = 5.0

    def holds(self):
        return ((0.0, self.hold),)


@dataclass(frozen=True)
class Kill(Fault):
    """Take a simulated node away; it boots again by itself."""

    takes_agent_away = True


def done(value):
    future = Future()
    future.set_result(value)
    return future


def failed(error):
    future = Future()
    future.set_exception(error)
    return future


@dataclass
class SimEntry:
    fault: Fault
    state: str = "prepared"
    begins: float | None = None
    ends: float | None = None
    t0: float | None = None
    t1: float | None = None
    harmed: bool = False
    waiting: list[Future] = field(default_factory=list)


class SimNode:
    """One node: what is owed, until when, and whether anybody can talk to it."""

    def __init__(self, name: str, clock: SimClock, faults: Mapping[str, type]) -> None:
        self.name = name
        self.clock = clock
        self.faults = faults
        self.entries: dict[str, SimEntry] = {}
        self.deadline: dict[str, float] = {}
        self.up_at = 0.0
        self.boots = 0
        self.cut_until = 0.0
        self.refuses = ""
        self.refuses_at = "prepare"
        """The verb that fails with `refuses`: prepare, arm, inject, witness, exposed, entries or audit."""
        self.never_gone = False
        self.witnessed = True
        """What the witness says of a fault that was applied."""
        self.findings = {}
        """What a check finds here: its name -> Findings, or a function that takes its arguments."""
        self.dies_silently = False
        """As a real machine does: no connection is closed, requests run into their deadlines, and only later is the loss noticed."""
        self.exposed = True
        self.renewals = 0
        self.renewed_by: set[int] = set()
        """Threads that renewed a lease."""
        self.notes = ()
        self.frailties = ()
        self.holder = None
        self.strays = []
        self.unread = []
        self.closed_by = ""
        """Who reverted an entry, as the ledger says."""
        self.hangs_on = None
        """The entry that `heal` never answers for."""
        self.journals = []
        """Entries that were healed from a journal."""
        self.machine_id = f"machine-of-{name}"
        clock.parts.append(self)

    @property
    def reachable(self) -> bool:
        return self.clock.time >= max(self.up_at, self.cut_until)

    @property
    def slow(self) -> bool:
        return any(entry.harmed for entry in self.entries.values())

    def tick(self, now: float) -> None:
        for name, entry in self.entries.items():
            run = name.split("/")[0]
            if entry.begins is not None and now >= entry.begins - 1e-6 and entry.t0 is None:
                self.harm(entry)
            if entry.state == "injected" and (now >= self.deadline[run] or (entry.ends is not None and now >= entry.ends)):
                self.undo(entry)

    def harm(self, entry: SimEntry) -> None:
        entry.state, entry.t0 = "injected", self.clock.time
        if isinstance(entry.fault, Kill):
            self.up_at, self.boots = self.clock.time + 4.0, self.boots + 1
        else:
            entry.harmed = True
            entry.ends = self.clock.time + duration_of(entry.fault)

    def undo(self, entry: SimEntry) -> None:
        if not self.never_gone:
            entry.harmed = False
        if entry.state == "injected":
            entry.state, entry.t1 = "reverted", self.clock.time
        for future in entry.waiting:
            future.set_result(self.ended(entry))
        entry.waiting = []

    def ended(self, entry: SimEntry) -> Ended:
        at = self.clock.time if entry.t1 is None else entry.t1
        return Ended(Interval.at(at), Evidence(not entry.harmed, "back as it was" if not entry.harmed else "still harmed"))


class SimAgent:
    """A connection to a SimNode; it dies with the node or the channel, as a real one does."""

    def __init__(self, node: SimNode) -> None:
        self.node = node
        self.name = node.name
        self.born = node.boots
        self.notes = node.notes
        self.frailties = node.frailties
        self.machine_id = node.machine_id
        self.boot_id = f"{node.name}-boot-{node.boots}"
        self.lost = False

    @property
    def connected(self) -> bool:
        if self.node.dies_silently and self.node.clock.time < self.node.up_at - 2.0:
            return not self.lost
        if not self.node.reachable or self.born != self.node.boots:
            self.lost = True
            for entry in self.node.entries.values():
                for future in entry.waiting:
                    future.set_exception(UnreachableError("connection lost", node=self.name))
                entry.waiting = []
        return not self.lost

    def _ask(self, answer, verb=""):
        if self.node.refuses and verb == self.node.refuses_at:
            return failed(AgentError(self.node.refuses, node=self.name, kind="Refusal"))
        if self.connected and not self.node.reachable:
            return failed(DeadlineError("no answer within 10 s; whether it took effect is unknown", node=self.name))
        return done(answer()) if self.connected else failed(UnreachableError("connection lost", node=self.name))

    def prepare(self, run, entry, fault, params, site):
        if self.node.refuses and self.node.refuses_at == "prepare":
            return failed(AgentError(self.node.refuses, node=self.name, fault=fault, kind="Refusal"))
        instance = self.node.faults[fault](**params)
        return self._ask(lambda: self.node.entries.setdefault(entry, SimEntry(instance)) and Prepared({"was": "fast"}, ("cpu",)))

    def exposed(self, entry):
        return self._ask(lambda: Evidence(self.node.exposed, "busy" if self.node.exposed else "idle"), "exposed")

    def arm(self, entry, lease):
        def answer():
            self.node.entries[entry].state = "armed"
            self.node.deadline[entry.split("/")[0]] = self.node.clock.time + lease

        return self._ask(answer, "arm")

    def inject(self, entry, at):
        if not self.connected:
            return failed(UnreachableError("connection lost", node=self.name))
        if self.node.refuses and self.node.refuses_at == "inject":
            return self._ask(lambda: None, "inject")
        mine = self.node.entries[entry]
        if at is None:
            self.node.harm(mine)
        else:
            mine.begins = at
            self.node.clock.sleep(at - self.node.clock.time)
            if mine.t0 is None:  # the clock stood at T0 already when the node was told
                self.node.harm(mine)
        return self._ask(lambda: Interval.at(mine.t0, 0.001))

    def finish(self, entry):
        mine = self.node.entries[entry]
        if mine.state == "reverted":
            return self._ask(lambda: self.node.ended(mine))
        mine.waiting.append(Future())
        return mine.waiting[-1]

    def renew(self, run, lease):
        def answer():
            self.node.renewals += 1
            self.node.renewed_by.add(threading.get_ident())
            if self.node.clock.time < self.node.deadline.get(run, 0.0):
                self.node.deadline[run] = self.node.clock.time + lease
            return tuple(name for name, entry in self.node.entries.items() if entry.state == "reverted")

        return self._ask(answer)

    def witness(self, entry):
        return self._ask(lambda: Evidence(self.node.entries[entry].t0 is not None and self.node.witnessed, "it happened"), "witness")

    def gone(self, entry):
        return self._ask(lambda: self.node.ended(self.node.entries[entry]).gone)

    def revert(self, entry):
        def answer():
            mine = self.node.entries[entry]
            self.node.undo(mine)
            return self.node.ended(mine)

        return self._ask(answer)

    def entries(self, run):
        return self._ask(
            lambda: tuple(
                LedgerEntry(
                    name,
                    entry.state,
                    None if entry.t0 is None else Interval.at(entry.t0),
                    None if entry.t1 is None else Interval.at(entry.t1),
                    {"fault": "slow", "by": self.node.closed_by},
                )
                for name, entry in self.node.entries.items()
                if name.startswith(run + "/") and entry.state != "prepared"
            ),
            "entries",
        )

    def examine(self, site, parts):
        checks = {name: args for part in parts for name, args in part["checks"].items()}
        found = {name: self.node.findings.get(name, ()) for name in checks}
        return self._ask(lambda: tuple(one for name, told in found.items() for one in (told(checks[name]) if callable(told) else told)))

    def audit(self):
        return self._ask(
            lambda: tuple(
                LedgerEntry(name, entry.state, None, None, {"fault": "slow"})
                for name, entry in self.node.entries.items()
                if entry.state in ("armed", "injected")
            ),
            "audit",
        )

    def heal(self, entries, debts, *, live=False):
        if self.node.hangs_on in (entries or ()):
            return failed(DeadlineError("no answer within 60 s; whether it took effect is unknown", node=self.name))

        def answer():
            results = []
            for name, entry in self.node.entries.items():
                if entry.state in ("armed", "injected") and (entries is None or name in entries):
                    self.node.undo(entry)
                    results.append({"entry": name, "healed": not entry.harmed, "says": "mended", "held": False})
            self.node.journals += [debt["entry"] for debt in debts]
            results += [{"entry": debt["entry"], "healed": True, "says": "mended", "held": False} for debt in debts]
            return tuple(results)

        return self._ask(answer)

    def hold(self, run, lease, instead_of):
        def answer():
            held = self.node.holder
            if held is not None and held.run not in (run, instead_of):
                return held
            self.node.holder = Held(run, "tester@sim:1", 0.0, lease)
            return None

        return self._ask(answer)

    def release(self, run):
        def answer():
            if self.node.holder is not None and self.node.holder.run == run:
                self.node.holder = None

        return self._ask(answer)

    def strays(self, site):
        return self._ask(lambda: Strays(tuple(self.node.strays), tuple(self.node.unread)))

    def purge(self, site):
        if any(entry.state in ("armed", "injected") for entry in self.node.entries.values()):
            return failed(AgentError("still owed", node=self.name, kind="Refusal"))
        return self._ask(lambda: ("/var/lib/chaoskit",))

    def sweep(self, site):
        def answer():
            ours = [one for one in self.node.strays if one.ours]
            self.node.strays = [one for one in self.node.strays if not one.ours]
            return tuple({"fault": one.fault, "resource": one.resource, "healed": True, "says": "swept"} for one in ours), ()

        return self._ask(answer)


class SimFleet:
    """The simulated nodes by name."""

    warnings = ()

    def __init__(self, nodes: Mapping[str, SimNode]) -> None:
        self.nodes = dict(nodes)

    def connect(self, names):
        missing = [name for name in names if not self.nodes[name].reachable]
        if missing:
            raise ExceptionGroup("connect", [UnreachableError("no answer on port 22 within 10 s", node=name) for name in missing])
        return {name: SimAgent(self.nodes[name]) for name in names}

    def reconnect(self, name):
        node = self.nodes[name]
        return done(SimAgent(node)) if node.reachable else failed(UnreachableError("no answer", node=name))

    def unpush(self, name):
        return done((f"/home/{name}/agent.pyz",))

    def site(self, name):
        return Site(node=name)

    def close(self) -> None:
        pass


class SimTraining:
    """One step every `pace` seconds, `slowed` times longer while a node is slow; a lost node restarts it from a checkpoint."""

    def __init__(self, clock: SimClock, nodes: Mapping[str, SimNode], pace: float = 0.25, slowed: float = 2.0) -> None:
        self.clock = clock
        self.all = nodes
        self.log_nodes = tuple(nodes)
        self.run_id = "sim"
        self.launches = True
        self.pace = pace
        self.slowed = slowed
        self.step = 0
        self.life = 0
        self.next_at = float("inf")
        self.out: list[Any] = []
        self.dies_at = float("inf")
        self.stopped = False
        self.down = False

    @property
    def nodes(self):
        return tuple(self.all)

    def start(self, agents, meanwhile) -> None:
        self.next_at = self.clock.time + self.pace
        self.clock.parts.append(self)

    def tick(self, now: float) -> None:
        if now >= self.dies_at:
            if self.next_at != float("inf"):
                self.out.append(Mark(Interval.at(now), MarkKind.EXIT, f"life-{self.life}", says="exit code 1"))
            self.next_at = float("inf")
            return
        if not all(now >= node.up_at for node in self.all.values()):
            if not self.down:
                self.out.append(Mark(Interval.at(now), MarkKind.DETECT, f"life-{self.life}", says="worker failed"))
            self.down, self.next_at = True, now + 2.0
            return
        if self.down:
            self.down, self.life = False, self.life + 1
            self.step = self.step // 10 * 10
            self.out.append(Mark(Interval.at(now), MarkKind.LOADED, f"life-{self.life}", step=self.step))
        if now >= self.next_at:
            self.step += 1
            self.out.append(Sample(Interval.at(now, 0.01), self.step, f"life-{self.life}"))
            self.next_at += self.pace * (self.slowed if any(node.slow for node in self.all.values()) else 1.0)

    def poll(self, now: float) -> Observed:
        out, self.out = self.out, []
        return Observed(tuple(item for item in out if isinstance(item, Sample)), tuple(item for item in out if isinstance(item, Mark)))

    def rejoin(self, agent) -> None:
        pass

    def stop(self) -> None:
        self.stopped = True
