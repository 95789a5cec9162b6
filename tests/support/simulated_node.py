"""
A node without a machine: the real ledger, slots, leases, fuse rules and debts over a pretended clock, boot and harm.

Servers, fuses and reboots come and go in one process, so that thousands of interleavings can be tried. Only what makes
threads, sleeps or reads the real machine is replaced. A crash is an exception that no product code catches, and once it
struck, nothing of the dying process reaches the disk any more.
"""

import math
import os
import shutil
import tempfile
import types
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from chaoskit.agent import boot, debts, entries, fuse, ledger, node
from chaoskit.agent.contract import Evidence, Fault, Lifetime, Refusal
from chaoskit.agent.entries import Reply
from chaoskit.agent.host import Host
from chaoskit.agent.identity import Process
from chaoskit.agent.lease import read_lease
from chaoskit.agent.ledger import Entry, Ledger, fold
from chaoskit.agent.node import Node
from chaoskit.agent.paths import Paths
from chaoskit.errors import LeakedError, RefusedError

ROOT = "/dev/shm" if os.path.isdir("/dev/shm") else None


@contextmanager
def replaced(owner, name, value):
    """Let an attribute be another for a while."""
    old = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, old)


@lru_cache(maxsize=4096)
def folded(raw):
    """Return what these lines tell of: the same files are read hundreds of times."""
    return fold(raw)


class CrashError(BaseException):
    """A process was killed here."""


class World:
    """What is true of the pretended machine, whatever anybody wrote about it."""

    def __init__(self):
        self.now = 1000.0
        self.wall = 1.7e9
        self.boots = 1
        self.living = set()
        self.harmed = {}  # file -> the entry that harmed it
        self.persisting = set()  # files whose harm no reboot clears
        self.proven = {}  # entry -> whether the last look found its state back
        self.doubly = []  # entries that harmed what was harmed already
        self.harms = []  # (entry, span) in order
        self.reverts = []  # entries in order, of the pass that goes on
        self.failing = {}  # entry -> reverts that will fail yet
        self.strike = None  # (state, how): what becomes of the next record of that state
        self.struck = False  # the process that writes now is dying: nothing more reaches the disk
        self.crashed = False  # somebody died at a record: the boot unit may stand without a debt until a server comes up
        self.unwritten = set()  # entries whose end did not reach the disk

    @property
    def boot_id(self):
        return f"boot-{self.boots}"

    def passes(self, seconds):
        self.now += max(0.0, seconds)


class Clock:
    """Stands for the module `time`, with each reading a little later than the one before."""

    CLOCK_BOOTTIME = 7

    def __init__(self, world):
        self._world = world

    def monotonic(self):
        self._world.passes(1e-6)
        return self._world.now

    def clock_gettime(self, _):
        return self.monotonic()

    def time(self):
        return self._world.wall

    def sleep(self, seconds):
        self._world.passes(seconds)


class Inline:
    """Stands for a thread: it has run when it has started."""

    def __init__(self, target, args=(), **_):
        self._run = lambda: target(*args)

    def start(self):
        self._run()


@dataclass(frozen=True)
class Toy(Fault):
    """Harms a pretended file for its spans."""

    world: ClassVar[World]

    entry: str = ""
    file: str = ""
    down: float = 5.0
    times: int = 1

    def holds(self):
        return tuple((2 * number * self.down, (2 * number + 1) * self.down) for number in range(self.times))

    def resource(self, undo):
        return ("file:" + self.file,)

    def prepare(self, host):
        if self.file in self.world.harmed:
            raise Refusal("it is harmed already")
        return {"content": "whole"}

    def inject(self, host, undo):
        self.world.doubly += [self.entry] if self.file in self.world.harmed else []
        self.world.harms.append(self.entry)
        self.world.harmed[self.file] = self.entry
        self.world.proven[self.entry] = False
        if self.lifetime is Lifetime.PERSISTENT:
            self.world.persisting.add(self.file)

    def witness(self, host, undo):
        return Evidence(self.entry in self.world.harms, "harmed")

    def gone(self, host, undo):
        whole = self.file not in self.world.harmed
        self.world.proven[self.entry] = whole
        return Evidence(whole, "whole" if whole else "harmed")

    def revert(self, host, undo):
        self.world.reverts.append(self.entry)
        if self.world.failing.get(self.entry, 0):
            self.world.failing[self.entry] -= 1
            raise OSError("not this time")
        if self.world.harmed.get(self.file) == self.entry:
            del self.world.harmed[self.file]
            self.world.persisting.discard(self.file)

    def exposed(self, host, undo):
        return Evidence(True, "always")


@dataclass(frozen=True)
class Staying(Toy):
    """Its harm survives a reboot."""

    lifetime: ClassVar[Lifetime] = Lifetime.PERSISTENT


class Toys:
    """The registry."""

    def make(self, name, params):
        return {"toy": Toy, "staying": Staying}[name](**params)


class FuseKeeper:
    """The guard, as the server sees it: a fuse is there."""

    def watch(self):
        """It is."""


class Disk(Ledger):
    """The ledger on a disk that the world can strike."""

    world: ClassVar[World]

    def append(self, entry, state, /, **more):
        world = self.world
        if world.struck:
            raise CrashError
        how = world.strike[1] if world.strike and world.strike[0] == state else ""
        if how:
            world.strike = None
        if how in ("crash before", "torn", "full", "short") and state == "reverted":
            world.unwritten.add(entry)
        if how == "crash before":
            self._die()
        if how == "full":
            raise RefusedError("the ledger cannot be written: ENOSPC")
        super().append(entry, state, **more)
        if how in ("torn", "short"):
            size = os.path.getsize(self.path(entry))
            with open(self.path(entry), "rb") as file:
                last = file.read().rstrip(b"\n").rpartition(b"\n")[2]
            os.truncate(self.path(entry), size - 1 - len(last) // 2)
        if how in ("crash after", "torn"):
            self._die()
        if how in ("short", "sick"):
            raise RefusedError("the ledger cannot be written: EIO")

    def _die(self):
        self.world.struck = self.world.crashed = True
        raise CrashError


STRIKES = ("crash before", "crash after", "torn", "full", "short", "sick")


class Answer(Reply):
    """Keeps the answer."""

    def __init__(self):
        self.said = None
        self.failed = None

    def ok(self, data, delay=0.0):
        self.said = data

    def error(self, error):
        self.failed = error


class SimulatedNode:
    """One node: at most one server of each of two agent versions, and the fuse of each."""

    def __init__(self):
        self.world = World()
        self.root = tempfile.mkdtemp(dir=ROOT)
        self.units = os.path.join(self.root, "units")
        os.mkdir(self.units)
        self.paths = Paths(*(os.path.join(self.root, name) for name in ("state", "run", "etc")), units=self.units)
        self.servers = {}
        self.hung = set()
        self.fuses = set()
        self.count = 0
        self._read = ((), [])
        self._patches = ExitStack()
        for made in self._replaced():
            self._patches.enter_context(made)
        self.ledger = self.a_ledger()

    def _replaced(self):
        world, clock = self.world, Clock(self.world)
        Toy.world = Disk.world = world
        yield replaced(entries, "time", clock)
        yield replaced(node, "time", clock)
        yield replaced(ledger, "time", clock)
        yield replaced(ledger, "fold", lambda raw: folded(tuple(raw)))
        yield replaced(ledger, "os", self._dying_os())
        yield replaced(boot, "os", self._dying_os())
        yield replaced(node, "threading", types.SimpleNamespace(Thread=Inline, RLock=node.threading.RLock))
        yield replaced(node, "Ledger", Disk)
        yield replaced(node, "Registry", Toys)
        yield replaced(node, "check_site", lambda *_: None)
        yield replaced(debts, "Ledger", Disk)
        yield replaced(debts, "Registry", Toys)
        yield replaced(debts, "run_within", lambda job, *_: job() or True)
        yield replaced(entries.Slot, "post", lambda _, job: job())
        yield replaced(Host, "boot_id", lambda _: world.boot_id)
        yield replaced(Host, "boottime", lambda _: clock.monotonic())
        yield replaced(Host, "monotonic", lambda _: clock.monotonic())
        yield replaced(Host, "sleep", lambda _, seconds: clock.sleep(seconds))
        yield replaced(Host, "syslog", lambda *_: None)
        yield replaced(Process, "alive", lambda self: self in world.living)

    def _dying_os(self):
        """Return the module `os`, in which a process that dies removes nothing on its way out."""
        dying = types.ModuleType("os")
        dying.__dict__.update(os.__dict__)

        def unlink(path):
            if self.world.struck:
                raise CrashError
            os.unlink(path)

        dying.unlink = unlink
        return dying

    def close(self):
        """Take it away."""
        self._patches.close()
        shutil.rmtree(self.root)

    def a_ledger(self):
        """Return a ledger of its own, as each process has one."""
        return Disk(self.paths.ledger, boot.unit_of(self.paths))

    def entries(self):
        """Return what the ledger says, oldest first; read again only when one of its files has changed."""
        with os.scandir(self.paths.ledger) as found:
            key = tuple(sorted((one.name, one.stat().st_size, one.stat().st_mtime_ns) for one in found if one.name.endswith(".jsonl")))
        if key != self._read[0]:
            self._read = (key, self.ledger.entries())
        return self._read[1]

    # -- processes -------------------------------------------------------------------------------------------------

    def start(self, version):
        """Start a server of this version, with its fuse."""
        self.count += 1
        me = Process(self.count, self.count)
        self.world.living.add(me)
        made = Node(self.paths, "archive", version * 64, FuseKeeper(), me)
        made.ledger.prune(self.world.wall)
        boot.match(made.ledger)
        self.world.crashed = False
        self.servers[version] = made
        self.fuses.add(version)

    @contextmanager
    def dying(self, version):
        """Whatever happens inside may kill this server, whatever it would catch; then its fuse pays, unless it was killed before."""
        try:
            yield
        except BaseException:
            if not self.world.struck:
                raise
        if self.world.struck:
            self.kill(version)

    def kill(self, version):
        """Kill a server; its fuse pays, if it lives."""
        server = self.servers.pop(version)
        self.hung.discard(version)
        self.world.living.discard(server.me)
        self.world.struck = False
        if version in self.fuses:
            self.fuses.discard(version)
            try:
                self.pay_all(server.me)
            except CrashError:  # the strike was the fuse's: nobody is left
                self.world.struck = False

    def pay_all(self, me):
        """What a fuse does for its dead server: as many rounds as it has."""
        book = self.a_ledger()
        for pause in fuse.PAUSES:
            owed = fuse.owed_to(book.entries(), me)
            if not owed:
                return
            with self.newest_first([entry.entry for entry in sorted(owed, key=lambda entry: -entry.order)]):
                for entry in owed:
                    debts.pay(book, Toys(), entry, "the fuse")
            self.world.passes(pause)

    @contextmanager
    def newest_first(self, wanted):
        """Assert that what is reverted inside is reverted in this order, each as often as it takes."""
        self.world.reverts = []
        yield
        assert list(dict.fromkeys(self.world.reverts)) == [name for name in wanted if name in self.world.reverts]

    def reboot(self):
        """Every process ends, /run is empty, what is volatile is as it was; the boot unit runs if it is enabled."""
        self.world.living.clear()
        self.servers.clear()
        self.hung.clear()
        self.fuses.clear()
        self.world.boots += 1
        self.world.now = 5.0 + self.world.boots
        self.world.harmed = {file: entry for file, entry in self.world.harmed.items() if file in self.world.persisting}
        shutil.rmtree(self.paths.run, ignore_errors=True)
        if boot.unit_of(self.paths).there and os.path.exists(self.paths.ledger):
            try:
                debts.pay_at_boot(self.paths)
            except CrashError:
                self.world.struck = False
            except LeakedError:
                assert [entry for entry in self.a_ledger().entries() if entry.open and boot.persists(entry)], "it leaked nothing"

    def forget_ledger(self):
        """Lose the disk that the ledger stands on; harm that persists is elsewhere."""
        shutil.rmtree(self.paths.state)

    # -- time ------------------------------------------------------------------------------------------------------

    def live_through(self, seconds):
        """Let time pass, and each server and fuse do what it has to, in the order in which it is due."""
        until = self.world.now + seconds
        while True:
            moment, version, act = min(self._agenda(), key=lambda one: one[0], default=(math.inf, None, None))
            until = max(until, self.world.now)  # what was done took time, in which more became due
            if moment > until:
                break
            self.world.now = max(self.world.now, moment)
            with self.dying(version):
                act()
        self.world.now = max(self.world.now, until)

    def _agenda(self):
        for version, server in self.servers.items():
            if version in self.hung:
                if version in self.fuses:
                    yield from ((at, version, lambda version=version: self.kill(version)) for at in self._overdue(server))
                continue
            for slot in server._slots.values():
                if slot._acts:
                    yield slot._acts[0].at, version, lambda slot=slot: slot._act(slot._acts.pop(0))
            deadline = server.leases.next_deadline()
            if deadline is not None:
                yield deadline, version, lambda server=server: self._expire(server)

    def _overdue(self, server):
        for entry in fuse.owed_to(self.entries(), server.me):
            lease = read_lease(self.paths, entry.run)
            at = fuse.due(entry, None if lease is None else lease.deadline)
            if at is not None:
                yield at + fuse.BUSY

    def _expire(self, server):
        runs = [run for run, lease in server.leases._leases.items() if lease.over(self.world.now)]
        for run in runs:
            every = sorted(server.open_slots(), key=lambda slot: -slot.entry.order)
            # The lease's own first; then what has failed before is tried once more, which real time decides.
            every.sort(key=lambda slot: slot.entry.run != run)
            wanted = [slot.entry.entry for slot in every if slot.entry.run == run or slot._failures]
            lease = {run: server.leases._leases.pop(run)}
            others, server.leases._leases = server.leases._leases, lease
            try:
                with self.newest_first(wanted):
                    server.expire()
            finally:
                server.leases._leases = {**others, **server.leases._leases}

    # -- what a controller asks ------------------------------------------------------------------------------------

    def ask(self, version, do):
        """Ask a server something; returns what it raised or answered, None when it died of it."""
        answer = Answer()
        with self.dying(version):
            do(self.servers[version], answer)
        self.live_through(0.0)
        return answer if version in self.servers else None

    def prepare_and_arm(self, version, run, fault, lease, **params):
        """Return the entry's name, and the error if it was refused."""
        self.count += 1
        name = f"{run}/{self.count}/n1"
        entry = Entry(name, run, fault, {"entry": name, **params}, {}, {"node": "n1"})
        answer = self.ask(version, lambda server, answer: server.prepare(entry, frozenset(), answer))
        if answer is None or answer.failed is not None:
            return name, answer and answer.failed
        try:
            self.ask(version, lambda server, _: server.arm(server.slot(name), lease, "tester"))
        except RefusedError as error:
            return name, error
        return name, None
