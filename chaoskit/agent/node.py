"""
What one server knows and does on its node: slots, leases, ledger, fuse; prepare and arm in the order that keeps the node safe.

Standard library only, Python 3.8.
"""

import json
import threading
import time
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional

from chaoskit.agent import boot
from chaoskit.agent.checks import check_site
from chaoskit.agent.contract import Refusal, Site
from chaoskit.agent.debts import is_live, open_entries
from chaoskit.agent.entries import Reply, Slot, from_ledger
from chaoskit.agent.entry import in_common
from chaoskit.agent.guard import Guard
from chaoskit.agent.host import Host
from chaoskit.agent.identity import Process
from chaoskit.agent.lease import Leases, checked_length, read_lease, write_lease
from chaoskit.agent.ledger import Entry, Ledger, entry_name
from chaoskit.agent.paths import Paths
from chaoskit.agent.registry import Registry
from chaoskit.agent.reverting import record
from chaoskit.agent.wakeup import Wakeup
from chaoskit.errors import RefusedError

TURN = 15.0
"""Seconds that one entry's revert may take, at a lease's end, before the next one gets its turn beside it."""

KEPT = 16
"""Closed entries that are kept at hand; older ones are read from the ledger."""


class Node:
    """
    The server's view of its node.

    Args:
        paths: The agent's roots.
        archive: This agent's zipapp.
        agent: Its hash.
        guard: The fuse's keeper.
        me: This server's identity.
    """

    def __init__(self, paths: Paths, archive: str, agent: str, guard: Guard, me: Process) -> None:
        self.paths = paths
        self.archive = archive
        self.agent = agent
        self.guard = guard
        self.me = me
        self.host = Host(Site(""))
        self.boot_id = self.host.boot_id()
        self.registry = Registry()
        self.ledger = Ledger(paths.ledger, boot.unit_of(paths))
        self.leases = Leases(lambda run, lease: write_lease(paths, run, lease))
        self.lock = threading.RLock()
        self.leaving = False
        """True once the agent was purged: the server ends with its last connection."""
        self._slots: Dict[str, Slot] = {}

    # -- slots -----------------------------------------------------------------------------------------------------

    def slot(self, name: str) -> Slot:
        """Return an entry's slot: ours, or one made from the ledger when no server works on it. Raises RefusedError."""
        slot = self._slots.get(entry_name(name))
        if slot is not None:
            return slot
        written = self.ledger.read(name)
        if written is None:
            raise RefusedError("entry {} is not known on this node".format(name), hint="prepare it first")
        if written.open and written.server != self.me.to_json() and is_live(written, self.boot_id):
            raise RefusedError("entry {} belongs to another agent that is alive".format(name), hint="connect with that version")
        return from_ledger(written, self.ledger, self.registry)

    def open_slots(self, run: Optional[str] = None) -> List[Slot]:
        """Return the slots that owe a revert, newest first."""
        slots = [slot for slot in list(self._slots.values()) if slot.open and run in (None, slot.entry.run)]
        return sorted(slots, key=lambda slot: slot.entry.order, reverse=True)

    def unwritten(self) -> List[Slot]:
        """Return the slots that have ended, proven, and whose end the ledger's disk has refused; none that is busy."""
        return [slot for slot in list(self._slots.values()) if slot.unwritten and not slot.busy]

    # -- prepare ---------------------------------------------------------------------------------------------------

    def prepare(self, entry: Entry, accounts: FrozenSet[int], reply: Reply) -> None:
        """Capture the prior state on the entry's own thread, and answer with it."""
        fault = self.registry.make(entry.fault, entry.params)
        host = Host(Site.from_json(entry.site))
        old = self._slots.get(entry.entry)
        if self.ledger.read(entry.entry) is not None or (old is not None and old.entry.state != "planned"):
            raise RefusedError("entry {} stands in the ledger already".format(entry.entry), hint="an entry is used once")
        self._forget_closed()
        slot = Slot(entry, fault, host, self.ledger, self.require_lease)
        self._slots[entry.entry] = slot
        slot.ask(reply, lambda: self._capture_or_forget(slot, accounts))

    def _forget_closed(self) -> None:
        """Let go of the oldest entries that are closed: the ledger knows them, and a server may live through thousands."""
        closed = [name for name, slot in list(self._slots.items()) if slot.over]
        for name in closed[:-KEPT]:
            self._slots.pop(name, None)

    def _capture_or_forget(self, slot: Slot, accounts: FrozenSet[int]) -> Dict[str, Any]:
        try:
            return self._capture(slot, accounts)
        except BaseException:
            self._slots.pop(slot.entry.entry, None)
            raise

    def _capture(self, slot: Slot, accounts: FrozenSet[int]) -> Dict[str, Any]:
        fault, host = slot.fault, slot.host
        check_site(host.site, host, self.paths, accounts, slot.entry.fault)
        undo = _as_json(fault.prepare(host), slot.entry)
        holds = [[float(start), float(end)] for start, end in fault.holds()]
        resources = list(fault.resource(undo))
        slot.entry = Entry(
            **{
                **slot.entry.__dict__,
                "undo": undo,
                "resources": resources,
                "holds": holds,
                "lifetime": fault.lifetime.value,
                "boot_id": self.boot_id,
                "agent": self.agent,
                "server": self.me.to_json(),
                "planned_at": time.time(),
            }
        )
        self.refuse_taken(slot.entry)
        return {"undo": undo, "resources": resources, "holds": holds}

    def refuse_taken(self, entry: Entry) -> None:
        """Refuse when an open entry of anybody holds one of the same resources. Raises Refusal."""
        for other in open_entries(self.ledger, self.registry, self.boot_id):
            shared = in_common(other.resources, entry.resources)
            if shared and other.entry != entry.entry:
                raise Refusal(
                    "{} is taken by run {} of {} since {} UTC ({} {})".format(
                        ", ".join(shared),
                        other.run,
                        other.controller or "an unknown controller",
                        time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(other.planned_at)),
                        other.fault,
                        other.state,
                    ),
                    where=entry.site.get("node", ""),
                    hint=self._advice(other),
                )

    def _advice(self, other: Entry) -> str:
        if not is_live(other, self.boot_id):
            return "nobody is at it any more: run `chaoskit heal`"
        lease = read_lease(self.paths, other.run)
        left = (other.lease if lease is None else lease.deadline) - self.host.boottime()
        return "wait for that run to end; {:.0f} s of its lease are left".format(max(0.0, left))

    # -- arm -------------------------------------------------------------------------------------------------------

    def arm(self, slot: Slot, length: float, controller: str) -> Dict[str, Any]:
        """
        Make the undo durable and start the lease, watched by a fuse, before any harm.

        Raises:
            RefusedError: The entry is not prepared, its resource is taken, or the ledger cannot be written.
            NodeError: No fuse; the entry is closed again.
        """
        if slot.entry.state != "planned" or not slot.entry.server:
            raise RefusedError("entry {} is {}, expected prepared".format(slot.entry.entry, slot.entry.state))
        checked_length(length)
        self.guard.watch()
        with self.ledger.resources_lock():
            self.refuse_taken(slot.entry)
            self._write_armed(slot, length, controller)
        try:
            self.guard.watch()
        except BaseException:
            slot.revert("an arming without a fuse")
            raise
        lease = self.leases.get(slot.entry.run)
        return {"deadline": lease.deadline if lease is not None else slot.entry.lease}

    def _write_armed(self, slot: Slot, length: float, controller: str) -> None:
        entry = Entry(**{**slot.entry.__dict__, "controller": controller})
        self._refuse_expired(entry.run)
        entry = self.ledger.plan(entry)
        with self.lock:
            self._refuse_expired(entry.run)  # again, since the disk may have taken longer than the lease had left
            lease = self.leases.begin(entry.run, length, self.host.boottime())
        try:
            with boot.announced(self.ledger, entry):
                self.ledger.append(entry.entry, "armed", lease=lease.deadline)
        except RefusedError:
            # The line may be readable though its fsync failed: a fuse would end this server for an entry that nobody works on.
            record(self.ledger, entry.entry, "reverted", says="it was never armed")
            boot.match(self.ledger)
            raise
        slot.entry = Entry(**{**entry.__dict__, "state": "armed", "lease": lease.deadline})

    def _refuse_expired(self, run: str) -> None:
        """A run whose lease ran out arms nothing new before the old is reverted: a new lease would revive the old one's entries."""
        with self.lock:
            self.expire()
            late = set(self.leases.expired(run)) & {slot.entry.entry for slot in self.open_slots(run)}
        if late:
            raise RefusedError("the lease of run {} ran out and {} is not reverted yet".format(run, ", ".join(sorted(late))))

    # -- leases ----------------------------------------------------------------------------------------------------

    def require_lease(self, run: str, at: float) -> None:
        """Refuse when less than half of a run's lease remains at boottime `at`. Raises RefusedError."""
        with self.lock:
            lease = self.leases.get(run)
        if lease is None or not lease.enough(at):
            raise RefusedError("less than half of the lease of run {} remains".format(run), hint="renew it, then inject")

    def renew(self, run: str, length: float) -> Dict[str, Any]:
        """Move a living lease's deadline; name the entries that it had already ended."""
        with self.lock:
            self.expire()
            lease = self.leases.renew(run, length, self.host.boottime())
            return {"deadline": lease.deadline if lease is not None else None, "expired": self.leases.expired(run)}

    def expire(self) -> None:
        """
        Revert, newest first, what belongs to runs whose lease is over, and once more what a revert has not brought back.

        Returns at once; the reverts run on threads.
        """
        with self.lock:
            for run in self.leases.over(self.host.boottime()):
                slots = self.open_slots(run)
                if slots:
                    self.leases.expire(run, [slot.entry.entry for slot in slots])
                    threading.Thread(target=self._end_all, args=(slots,), name="expire " + run, daemon=True).start()
            for slot in self.open_slots():
                slot.try_again()

    def _end_all(self, slots: List[Slot]) -> None:
        for number, slot in enumerate(slots):
            for waiting in slots[number:]:
                if not waiting.busy:  # tells the fuse that we are at it; who hangs in a fault's code is left to the fuse
                    record(self.ledger, waiting.entry.entry, "reverting", durable=False)
            done = Wakeup()
            slot.post(_then(slot, "the lease's end", done))
            if done.wait(TURN):
                done.close()

    def next_deadline(self) -> float:
        """Seconds until the next lease is over; never more than a minute."""
        deadline = self.leases.next_deadline()
        return 60.0 if deadline is None else max(0.0, deadline - self.host.boottime())


def _then(slot: Slot, who: str, done: Wakeup) -> Callable[[], None]:
    def run() -> None:
        try:
            slot.revert(who)
        finally:
            done.set()

    return run


def _as_json(undo: Mapping[str, Any], entry: Entry) -> Dict[str, Any]:
    """Return the undo as it will come back from the ledger. Raises Refusal when it would not come back the same."""
    try:
        data: Dict[str, Any] = json.loads(json.dumps(undo, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise Refusal("the undo of {} cannot be written as JSON: {}".format(entry.fault, error)) from error
    return data
