"""
The server: one loop over one root-only unix socket. It never waits for a fault, a disk or a child.

It holds `server.lock` for as long as it lives, which is what the fuse waits for. Standard library only, Python 3.8.
"""

import fcntl
import heapq
import os
import selectors
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any, Deque, Dict, List, Optional, Tuple

from chaoskit.agent import cgroups
from chaoskit.agent.boot import match
from chaoskit.agent.connections import Connection, listen, peer_of, require_root
from chaoskit.agent.entries import Reply
from chaoskit.agent.guard import Guard
from chaoskit.agent.identity import Process
from chaoskit.agent.kin import IDLE_EXIT
from chaoskit.agent.node import Node
from chaoskit.agent.paths import Paths, private_directory
from chaoskit.agent.protocol import Message, answer, decode, encode, failure, need
from chaoskit.agent.streams import Streams
from chaoskit.agent.verbs import VERBS, Request
from chaoskit.agent.wakeup import Wakeup
from chaoskit.errors import PrivilegeError, ProtocolError

TICK = 0.5
"""Seconds between looks at the fuse while something is owed."""

AGAIN = 5.0
"""Seconds between tries to tell the ledger what its disk has refused."""

REAP = 0.1
"""Seconds between looks at ended tails that are not collected yet."""


class _WireReply(Reply):
    """Sends the answer to the connection that asked, from whichever thread it comes."""

    def __init__(self, server: "Server", connection: Connection, ident: Any) -> None:
        self._server = server
        self._connection = connection
        self._ident = ident

    def ok(self, data: Dict[str, Any], delay: float = 0.0) -> None:
        self._server.post(self._connection, answer(self._ident, data), delay)

    def error(self, error: BaseException) -> None:
        self._server.post(self._connection, failure(self._ident, error))


class Server:
    """
    The loop.

    Args:
        archive: This agent's zipapp.
        paths: Its roots.
        agent: Its hash.
        group: Its cgroup or unit.
        notes: Sentences for `hello`, from the start.
        frailties: What would keep it from staying alive and awake, for `hello` as well.
    """

    def __init__(self, archive: str, paths: Paths, agent: str, group: str, notes: List[str], frailties: List[str]) -> None:
        me = Process.of(os.getpid())
        self._notes = notes
        self._frailties = frailties
        self._files = paths.server(agent)
        self._guard = Guard(archive, paths, agent, me, group)
        self._node = Node(paths, archive, agent, self._guard, me)
        self._selector = selectors.DefaultSelector()
        self._streams = Streams(archive, self._selector, self._send)
        self._thread = threading.get_ident()
        self._wakeup = Wakeup()
        self._outbox: Deque[Tuple[Connection, Message, float]] = deque()
        self._timers: List[Tuple[float, int, Connection, Message]] = []
        self._order = 0
        self._connections: List[Connection] = []
        self._idle_since = time.monotonic()
        self._again_at = 0.0

    def begin(self, now: float) -> None:
        """Forget what was closed long before the wall clock's `now`, and let the boot unit be there only if it is needed."""
        self._node.ledger.prune(now)
        match(self._node.ledger)

    def run(self) -> None:
        """Serve until idle for `IDLE_EXIT` seconds."""
        listener = listen(self._files.socket)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._woken)
        while not self._idle():
            for key, events in self._selector.select(self._patience()):
                key.data(key.fileobj, events)
            self._send_due()
            self._node.expire()
            self._write_again()
            self._keep_fuse()
        with suppress(FileNotFoundError):  # it was purged
            os.unlink(self._files.socket)

    def post(self, connection: Connection, message: Message, delay: float = 0.0) -> None:
        """Send a message from any thread, `delay` seconds from now."""
        if not delay and threading.get_ident() == self._thread:
            self._send(connection, message)
            return
        self._outbox.append((connection, message, delay))
        self._wakeup.set()

    # -- the loop's parts ------------------------------------------------------------------------------------------

    def _patience(self) -> float:
        now = time.monotonic()
        waits = [60.0, self._node.next_deadline()]
        if self._timers:
            waits.append(self._timers[0][0] - now)
        if self._node.open_slots():
            waits.append(TICK)
        if self._node.unwritten():
            waits.append(AGAIN)
        if self._streams.reap():
            waits.append(REAP)
        return max(0.0, min(waits))

    def _idle(self) -> bool:
        if self._node.leaving and not self._connections and not self._node.open_slots():
            return True
        if self._connections or self._node.open_slots() or self._node.unwritten():
            self._idle_since = time.monotonic()
        return time.monotonic() - self._idle_since > IDLE_EXIT

    def _write_again(self) -> None:
        if time.monotonic() >= self._again_at:
            self._again_at = time.monotonic() + AGAIN
            for slot in self._node.unwritten():
                slot.post(slot.write_again)

    def _keep_fuse(self) -> None:
        if self._node.open_slots() and not self._guard.alive():
            self._guard.nudge(lambda error: print("fuse: {}".format(error), file=sys.stderr, flush=True))

    def _woken(self, _: Any, __: int) -> None:
        self._wakeup.clear()
        while self._outbox:
            connection, message, delay = self._outbox.popleft()
            if delay:
                self._order += 1
                heapq.heappush(self._timers, (time.monotonic() + delay, self._order, connection, message))
            else:
                self._send(connection, message)

    def _send_due(self) -> None:
        while self._timers and self._timers[0][0] <= time.monotonic():
            _, _, connection, message = heapq.heappop(self._timers)
            self._send(connection, message)

    def _send(self, connection: Connection, message: Message) -> None:
        if connection in self._connections:
            connection.send(message)
            self._update(connection)

    # -- connections -----------------------------------------------------------------------------------------------

    def _accept(self, listener: Any, _: int) -> None:
        sock, _address = listener.accept()
        sock.setblocking(False)
        peer = peer_of(sock)
        try:
            require_root(peer)
        except PrivilegeError as error:
            print("refused: {}".format(error), file=sys.stderr, flush=True)
            sock.send(encode(failure(None, error)))
            sock.close()
            return
        connection = Connection(sock, peer)
        self._connections.append(connection)
        self._update(connection)

    def _ready(self, connection: Connection, fd: int, events: int) -> None:
        if connection not in self._connections:
            return  # another of its descriptors ended it in this same turn
        if events & selectors.EVENT_WRITE:
            connection.flush()
        if events & selectors.EVENT_READ:
            for line in connection.receive(fd):
                if self._request(connection, line):
                    return
        self._update(connection)

    def _update(self, connection: Connection) -> None:
        if connection.closing:
            self._close(connection)
            return
        self._watch(connection, connection.wanted)
        self._streams.pace(connection)

    def _watch(self, connection: Connection, wanted: Dict[int, int]) -> None:
        if wanted == connection.watched:
            return
        for fd in connection.watched.keys() - wanted.keys():
            self._selector.unregister(fd)
        for fd, events in wanted.items():
            if fd not in connection.watched:
                self._selector.register(fd, events, lambda fd, events: self._ready(connection, fd, events))
            elif events != connection.watched[fd]:
                self._selector.modify(fd, events, self._selector.get_key(fd).data)
        connection.watched = wanted

    def _close(self, connection: Connection) -> None:
        self._forget(connection)
        self._streams.drop(connection)
        connection.close()

    def _forget(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self._watch(connection, {})

    # -- requests --------------------------------------------------------------------------------------------------

    def _request(self, connection: Connection, line: bytes) -> bool:
        """Handle one line; say whether the connection is no longer the loop's (it became the fuse's)."""
        ident: Any = None
        try:
            message = decode(line)
            ident = message.get("id")
            if message.get("do") == "fuse":
                self._forget(connection)
                self._guard.adopt(connection.sock)
                return True
            self._dispatch(connection, message, _WireReply(self, connection, ident))
        except Exception as error:  # noqa: BLE001 - the border of the wire: the error becomes the answer
            connection.send(failure(ident, error))
        return False

    def _dispatch(self, connection: Connection, message: Message, reply: Reply) -> None:
        verb = need(message, "do", str)
        if verb in ("tail", "untail"):
            self._streams.ask(connection, verb, message)
            reply.ok({})
            return
        if verb not in VERBS:
            raise ProtocolError("verb {!r} is not known".format(verb), hint="this agent has: {}".format(", ".join(sorted(VERBS))))
        accounts = frozenset() if connection.account is None else frozenset([connection.account])
        VERBS[verb](Request(self._node, message, reply, accounts, self._notes, self._frailties))


def hold_lock(path: str) -> Optional[int]:
    """Take the server's lock for the life of this process; None when a server has it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def serve(archive: str, paths: Paths, agent: str, group: str, notes: List[str], frailties: List[str]) -> None:
    """Run the server, or return at once when one of this hash is alive."""
    files = paths.server(agent)
    private_directory(files.directory)
    lock = hold_lock(files.lock)
    if lock is None:
        return
    cgroups.sweep()
    server = Server(archive, paths, agent, group, notes, frailties)
    server.begin(time.time())
    server.run()
    cgroups.leave(group)
    os.close(lock)
