"""
The bridge: the SSH channel's end on the node. It finds the server or starts one, and hands it its own input and output.

Then it only waits, since sshd takes the end of this process for the end of the command: no process stands between sshd
and the server, which makes requests faster by a third. The end of the input closes this one connection and nothing else.
Standard library only, Python 3.8.
"""

import fcntl
import os
import signal
import socket
import stat
import struct
import sys
import time
from contextlib import suppress
from typing import Optional

from chaoskit.agent.paths import Paths, ServerPaths, private_directory
from chaoskit.errors import AgentError

START_TIMEOUT = 30.0
"""Seconds for the server to come up on a node under full load."""
READ = 1 << 16
LATE = 1.0
"""Seconds after the last lease by which a fuse has ended a server that is stopped."""
LEASE_PATIENCE = 10.0
"""Seconds that the last lease of a stopped server is waited for, well below what who asks waits."""


def bridge(archive: str, paths: Paths, agent: str) -> None:
    """Connect standard input and output to the server. Raises AgentError: no server could be started."""
    if not all(_can_be_waited_for(fd) for fd in (0, 1)):
        raise AgentError("standard input and output must be pipes or sockets", hint="as sshd makes them for a command")
    files = paths.server(agent)
    wire = _connect(files)
    if wire is not None and _ended_as_stopped(wire, paths):
        wire = _after(wire, files)
    wire = wire or _started(archive, paths, agent, files)
    try:
        hand_over(wire)
    finally:
        wire.close()


def hand_over(wire: socket.socket) -> None:
    """Give standard input and output to the server, and wait for the end of the connection."""
    wire.sendmsg([b"\n"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("2i", 0, 1))])
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in (0, 1):
        os.dup2(null, fd)  # our copies would keep the other side from seeing the end
    while wire.recv(READ):
        pass


def _can_be_waited_for(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _connect(files: ServerPaths) -> Optional[socket.socket]:
    wire = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        wire.connect(files.socket)
    except (FileNotFoundError, ConnectionRefusedError):
        wire.close()
        return None
    return wire


def _ended_as_stopped(wire: socket.socket, paths: Paths) -> bool:
    """
    Say whether the server was stopped, and has been ended: it would never answer.

    It is ended when no lease holds any more, as its fuse does; until then it may be let go on, and its leases count. Raises
    AgentError: they last for longer than whoever asks can wait.
    """
    pid = _peer(wire)
    if not _is_stopped(pid):
        return False
    from chaoskit.agent.identity import Process  # noqa: PLC0415 - see below
    from chaoskit.agent.lease import last_deadline  # noqa: PLC0415 - see below

    left = last_deadline(paths) + LATE - time.clock_gettime(time.CLOCK_BOOTTIME)
    if left > LEASE_PATIENCE:
        what = "the agent's server (process {}) is stopped, and its leases last for another {:.0f} s".format(pid, left)
        raise AgentError(what, hint="ask again then, or let it go on: kill -CONT {}".format(pid))
    time.sleep(max(0.0, left))
    if not _is_stopped(pid):
        return False
    with suppress(ProcessLookupError):
        Process.of(pid).kill(signal.SIGKILL)
    return True


def _after(wire: socket.socket, files: ServerPaths) -> Optional[socket.socket]:
    """Return a connection to the next server, or None: the socket of one that was killed is open until its last thread is gone."""
    dead, until = _peer(wire), time.monotonic() + START_TIMEOUT
    wire.close()
    fresh = _connect(files)
    while fresh is not None and _peer(fresh) == dead and time.monotonic() < until:
        fresh.close()
        time.sleep(0.005)
        fresh = _connect(files)
    return fresh


def _peer(wire: socket.socket) -> int:
    """Return the pid of the server at the other end."""
    pid: int = struct.unpack("3i", wire.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return pid


def _is_stopped(pid: int) -> bool:
    """As `stopped.is_stopped`, which takes longer to import than to do."""
    try:
        with open("/proc/{}/stat".format(pid), "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in b"Tt"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _started(archive: str, paths: Paths, agent: str, files: ServerPaths) -> socket.socket:
    # Imported only here: most bridges find a living server and need none of it.
    from chaoskit.agent.detach import agent_command, start_detached  # noqa: PLC0415 - see above

    private_directory(files.directory)
    lock = os.open(files.starting, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wire = _connect(files)
        if wire is None:
            name = "chaoskit-agent-{}-{}-{}".format(agent[:16], os.getpid(), os.urandom(2).hex())
            start_detached(agent_command(archive, "serve", [*paths.arguments(), "--name", name]), name, files.log)
            wire = _wait_for_server(files)
    finally:
        os.close(lock)
    return wire


def _wait_for_server(files: ServerPaths) -> socket.socket:
    until = time.monotonic() + START_TIMEOUT
    while time.monotonic() < until:
        wire = _connect(files)
        if wire is not None:
            return wire
        time.sleep(0.005)
    raise AgentError("the agent's server did not come up: {}".format(_last_words(files.log)), hint="see {}".format(files.log))


def _last_words(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read()[-500:].decode("utf-8", "replace").strip() or "it said nothing"
    except OSError as error:
        return str(error)


def report(error: BaseException) -> None:
    """Send an error that no request can be blamed for, as the protocol's line and in words."""
    from chaoskit.agent.protocol import encode, failure  # noqa: PLC0415 - only a failing bridge needs it

    sys.stdout.buffer.write(encode(failure(None, error)))
    sys.stdout.flush()
    print(error, file=sys.stderr)
