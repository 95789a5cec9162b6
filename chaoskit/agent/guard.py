"""
The server's side of the fuse: start it before the first arming, have it confirm what it watches, replace it when it dies.

Standard library only, Python 3.8.
"""

import select
import socket
import threading
import time
from typing import Callable, Optional

from chaoskit.agent.detach import agent_command, reap, start_detached
from chaoskit.agent.identity import Process
from chaoskit.agent.paths import Paths
from chaoskit.agent.protocol import LineBuffer, decode, encode
from chaoskit.agent.wakeup import Wakeup
from chaoskit.errors import AgentError, ProtocolError

START_TIMEOUT = 30.0
"""Seconds for a fuse to come up on a node under full load; nothing is armed before it has."""
ANSWER_TIMEOUT = 5.0


class Guard:
    """
    The fuse as the server sees it: a connection that the fuse made to our socket.

    Args:
        archive: This agent's zipapp.
        paths: Its roots.
        agent: Its hash.
        me: The server's identity.
        group: The server's cgroup or unit.
    """

    def __init__(self, archive: str, paths: Paths, agent: str, me: Process, group: str) -> None:
        self._archive = archive
        self._paths = paths
        self._agent = agent
        self._me = me
        self._group = group
        self._connection: Optional[socket.socket] = None
        self._asking = threading.Lock()
        self._arrived = Wakeup()
        self._count = 0

    def adopt(self, connection: socket.socket) -> None:
        """Take the connection of a fuse that has just come up."""
        connection.setblocking(True)
        connection.settimeout(ANSWER_TIMEOUT)
        old, self._connection = self._connection, connection
        if old is not None:
            old.close()
        self._arrived.set()

    def watch(self) -> None:
        """
        Return when a living fuse has confirmed that it read ledger and leases as they are now.

        Raises:
            AgentError: No fuse could be started, or none answered: arm nothing.
        """
        with self._asking:
            if self._connection is not None and self._confirmed():
                return
            self._start()
            if not self._confirmed():
                raise AgentError("the fuse does not answer", hint="see {}".format(self._paths.server(self._agent).log))

    def alive(self) -> bool:
        """Say whether the fuse's connection still stands, without waiting."""
        connection = self._connection
        if connection is None:
            return False
        poll = select.poll()
        try:
            poll.register(connection, select.POLLRDHUP)
            return not poll.poll(0)
        except (OSError, ValueError):
            return False  # closed by `watch` just now

    def nudge(self, failed: Callable[[BaseException], None]) -> None:
        """Have the fuse read the leases again, or start another, on a thread of its own: the loop must not wait."""

        def run() -> None:
            try:
                self.watch()
            except Exception as error:  # noqa: BLE001 - a thread's border: the caller hears of it
                failed(error)

        if not self._asking.locked():
            threading.Thread(target=run, name="guard", daemon=True).start()

    def _start(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        reap()
        self._arrived.clear()
        self._count += 1
        name = "chaoskit-fuse-{}-{}-{}".format(self._agent[:16], self._me.pid, self._count)
        watched = "{}:{}:{}".format(self._me.pid, self._me.start_time, self._group)
        command = agent_command(self._archive, "fuse", [*self._paths.arguments(), "--name", name, "--server", watched])
        start_detached(command, name, self._paths.server(self._agent).log)
        if not self._arrived.wait(START_TIMEOUT):
            raise AgentError("the fuse did not come up", hint="see {}".format(self._paths.server(self._agent).log))

    def _confirmed(self) -> bool:
        connection = self._connection
        if connection is None:
            return False
        token = self._count = self._count + 1
        try:
            connection.sendall(encode({"watch": token}))
            return _read_until(connection, token)
        except (OSError, ProtocolError):
            return False


def _read_until(connection: socket.socket, token: int) -> bool:
    buffer = LineBuffer()
    until = time.monotonic() + ANSWER_TIMEOUT
    while time.monotonic() < until:
        data = connection.recv(4096)
        if not data:
            return False
        if any(decode(line).get("watching") == token for line in buffer.feed(data)):
            return True
    return False
