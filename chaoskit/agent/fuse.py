"""
The fuse: the second process, which pays what the server owes when the server cannot.

It waits for a lock that the server holds, so that the server's death wakes it without polling, and then reverts the
server's open entries at once. When a lease or a fault's absolute end is over and the entry is still open, the server
hangs: the fuse kills it and reverts. Standard library only, Python 3.8.
"""

import fcntl
import math
import os
import select
import signal
import socket
import sys
import threading
import time
from typing import Dict, List, Optional

from chaoskit.agent import cgroups
from chaoskit.agent.boot import unit_of
from chaoskit.agent.contract import Site
from chaoskit.agent.debts import pay
from chaoskit.agent.host import Host
from chaoskit.agent.identity import Process
from chaoskit.agent.impatient import Impatient
from chaoskit.agent.lease import read_lease
from chaoskit.agent.ledger import Entry, oldest_first
from chaoskit.agent.paths import Paths, ServerPaths
from chaoskit.agent.protocol import LineBuffer, decode, encode
from chaoskit.agent.registry import Registry
from chaoskit.agent.reverting import GRACE, PAUSES
from chaoskit.agent.stopped import is_stopped
from chaoskit.agent.wakeup import Wakeup

SLACK = 0.3
"""Seconds after a deadline that the server has to begin its own revert."""

BUSY = 0.3
"""Seconds more for a server that is not stopped: on a node under full load it may only be late."""

MIDWAY = 0.25
"""Seconds between looks at a server that is reverting: it may be stopped in the middle."""

LETS_GO = 2.0
"""Seconds from SIGKILL until a server that still holds its lock is taken for dead."""


def owed_to(entries: List[Entry], server: Process) -> List[Entry]:
    """Return the open entries of a server, newest first."""
    return [entry for entry in reversed(entries) if entry.open and entry.server == server.to_json()]


def due(entry: Entry, lease: Optional[float], *, stopped: bool = False) -> Optional[float]:
    """
    Return the boottime at which the server must have begun to revert an entry; None when it tried and told.

    Args:
        entry: An open entry.
        lease: The deadline in the lease file; None when it cannot be read, then the ledger's counts.
        stopped: The server is stopped, so that what it began it does not end.
    """
    if entry.reverting is not None and not stopped:
        return entry.reverting + GRACE  # also where it tries once more: who hangs in that does not tell any more
    if entry.failures and not stopped:
        return None
    deadline = entry.lease if lease is None else lease
    if entry.ends is not None:
        deadline = min(deadline, entry.ends)
    return deadline + SLACK


class Fuse:
    """
    The watch over one server.

    Args:
        paths: The agent's roots.
        files: The files of the watched server.
        server: Its identity.
        group: Its cgroup, or its unit under systemd.
    """

    def __init__(self, paths: Paths, files: ServerPaths, server: Process, group: str) -> None:
        self._paths = paths
        self._files = files
        self._server = server
        self._group = group
        self._ledger = Impatient(paths.ledger, unit_of(paths))
        self._registry = Registry()
        self._dead = Wakeup()
        self._lines = LineBuffer()
        self._wire: Optional[socket.socket] = None
        self._known: Dict[str, Entry] = {}

    def run(self) -> None:
        """Watch until the server is gone, pay what it left, and return."""
        fd = os.open(self._files.lock, os.O_RDWR | os.O_CLOEXEC)
        threading.Thread(target=self._await_death, args=(fd,), name="lock", daemon=True).start()
        self._connect()
        killed: Optional[float] = None
        while not self._wait(self._next_due()):
            if killed is not None and time.monotonic() - killed > LETS_GO:
                self._ledger.widowed = True
                break  # a thread of it hangs in the kernel, and dies before it can do anything more
            if killed is None and self._overdue():
                self._server.kill(signal.SIGKILL)
                killed = time.monotonic()
        self._stop_leftovers()
        self._pay_all()

    def _connect(self) -> None:
        try:
            wire = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            wire.connect(self._files.socket)
            wire.sendall(encode({"do": "fuse"}))
            self._wire = wire
        except OSError as error:
            # The server may have died while we came up; the lock will tell, and what it owes is paid all the same.
            print("fuse: no connection to the server: {}".format(error), file=sys.stderr)

    def _await_death(self, fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX)
        os.close(fd)  # at once: a new server needs it, and its entries are not ours
        self._dead.set()

    def _wait(self, seconds: float) -> bool:
        """Wait for death, a word of the server, or the deadline; say whether the server is dead."""
        poll = select.poll()
        poll.register(self._dead.fileno(), select.POLLIN)
        if self._wire is not None:
            poll.register(self._wire.fileno(), select.POLLIN)
        ready = {fd for fd, _ in poll.poll(max(0.0, seconds) * 1000)}
        if self._wire is not None and self._wire.fileno() in ready:
            self._hear(self._wire)
        return self._dead.fileno() in ready

    def _hear(self, wire: socket.socket) -> None:
        try:
            data = wire.recv(4096)
            for line in self._lines.feed(data):
                self._owed()  # read now what the answer says that we watch
                wire.sendall(encode({"watching": decode(line).get("watch")}))
        except (BrokenPipeError, ConnectionResetError):
            data = b""  # it died before it had read our answer: the lock tells, and what it owes is to be paid
        if not data:
            wire.close()
            self._wire = None

    def _owed(self) -> List[Entry]:
        """Return what the server owes, newest first: by the ledger, and by our memory should its file (or its disk) be gone."""
        try:
            entries = self._ledger.open_entries()
        except OSError as error:
            print("fuse: {}".format(error), file=sys.stderr)
            entries = []
        there = {entry.entry for entry in entries}
        lost = [entry for name, entry in self._known.items() if name not in there and self._ledger.read_if_it_can(name) is None]
        owed = owed_to(oldest_first(lost + entries), self._server)
        self._known = {entry.entry: entry for entry in owed}
        return owed

    def _deadlines(self, owed: List[Entry], *, stopped: bool) -> List[float]:
        found = []
        for entry in owed:
            lease = read_lease(self._paths, entry.run)
            found.append(due(entry, None if lease is None else lease.deadline, stopped=stopped))
        return [deadline for deadline in found if deadline is not None]

    def _next_due(self) -> float:
        """Seconds to wait: a second at most while something is owed, because a suspended node counts no timeouts, and less in a revert."""
        owed = self._owed()
        if not owed:
            return 3600.0
        longest = MIDWAY if any(entry.reverting is not None for entry in owed) else 1.0
        deadlines = self._deadlines(owed, stopped=is_stopped(self._server.pid))
        left = min(deadlines, default=math.inf) - time.clock_gettime(time.CLOCK_BOOTTIME)
        return min(longest, max(left, 0.05))

    def _overdue(self) -> bool:
        stopped = is_stopped(self._server.pid)
        patience = 0.0 if stopped else BUSY
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        return any(now >= deadline + patience for deadline in self._deadlines(self._owed(), stopped=stopped))

    def _stop_leftovers(self) -> None:
        """End the server's children: a command that it was running could harm again after our revert."""
        for group in (self._group, "system.slice/{}.service".format(self._group)):
            for process in cgroups.members(group):
                process.kill(signal.SIGKILL)
        cgroups.remove(self._group)

    def _pay_all(self) -> None:
        pauses = iter(PAUSES)
        while True:
            for entry in self._owed():
                if pay(self._ledger, self._registry, entry, "the fuse").healed:
                    del self._known[entry.entry]
            left, hangs = self._owed(), self._ledger.hangs
            if not left and not hangs:
                return
            pause = next(pauses, PAUSES[-1] if hangs else None)  # what was paid is told to the disk when it is back
            if pause is None:
                break
            time.sleep(pause)
        names = ", ".join(entry.entry for entry in left)
        Host(Site("")).syslog("chaoskit: {} NOT GONE after {} rounds; run `chaoskit heal`".format(names, len(PAUSES)))
