"""
One connection to the server: bytes in and out, requests cut from them, answers put on the wire in order.

A bridge hands its own standard input and output over the socket, so that no process stands between sshd and the server;
the socket then only tells when the bridge has ended. Standard library only, Python 3.8.
"""

import os
import selectors
import socket
import struct
from contextlib import suppress
from typing import Dict, Iterator, NamedTuple, Optional, Tuple

from chaoskit.agent.protocol import LineBuffer, Message, encode, failure
from chaoskit.errors import PrivilegeError, ProtocolError

READ = 1 << 16

FULL = 1 << 20
"""Bytes waiting to go out at which tails are no longer read for this connection."""

LIMIT = 8 << 20
"""Bytes waiting to go out at which the other side is given up."""


_TWO = struct.Struct("2i")


class Peer(NamedTuple):
    """Who is on the other end, by the kernel's word."""

    pid: int
    uid: int


def peer_of(connection: socket.socket) -> Peer:
    """Return the process and user on the other end of a unix socket."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", raw)
    return Peer(pid, uid)


def require_root(peer: Peer) -> None:
    """Refuse everybody but root. Raises PrivilegeError."""
    if peer.uid != 0:
        raise PrivilegeError("uid {} asked; the agent answers root only".format(peer.uid), hint="use sudo")


def ssh_account(peer: Peer) -> Optional[int]:
    """Return the user id that sudo came from on the other end; None without sudo."""
    try:
        with open("/proc/{}/environ".format(peer.pid), "rb") as file:
            variables = dict(item.split(b"=", 1) for item in file.read().split(b"\0") if b"=" in item)
        return int(variables[b"SUDO_UID"])
    except (OSError, KeyError, ValueError):
        return None


class Connection:
    """A connection in the server's loop; only the loop's thread touches it."""

    def __init__(self, sock: socket.socket, peer: Peer) -> None:
        self.sock = sock
        self.peer = peer
        self.account = ssh_account(peer)
        self.closing = False
        self.watched: Dict[int, int] = {}
        """What the loop watches for this connection: descriptor -> events."""
        self._wire = sock.fileno()
        self._ends: Tuple[int, ...] = ()
        self._in = LineBuffer()
        self._out = bytearray()

    @property
    def wanted(self) -> Dict[int, int]:
        """What the loop must watch: the socket always, the input that was handed over, the output while bytes wait."""
        wanted = dict.fromkeys((self._wire, *self._ends[:1]), selectors.EVENT_READ)
        if self._out:
            wanted[self._writes] = wanted.get(self._writes, 0) | selectors.EVENT_WRITE
        return wanted

    @property
    def _writes(self) -> int:
        return self._ends[1] if self._ends else self._wire

    @property
    def waiting(self) -> int:
        """Bytes that wait to go out."""
        return len(self._out)

    def receive(self, fd: int) -> Iterator[bytes]:
        """Yield the lines that have come in. Ends the connection (`closing`) at end of file or after an oversize line."""
        try:
            data = os.read(fd, READ) if self._ends else self._receive_wire()
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.closing = True
            return
        try:
            for line in self._in.feed(data):
                yield line
        except ProtocolError as error:
            self.send(failure(None, error))
            self.closing = True

    def _receive_wire(self) -> bytes:
        """Receive from the socket. Raises BlockingIOError, also when what came were the two ends."""
        data, extras, _, _ = self.sock.recvmsg(READ, socket.CMSG_SPACE(_TWO.size))
        for level, kind, payload in extras:
            if (level, kind, len(payload)) == (socket.SOL_SOCKET, socket.SCM_RIGHTS, _TWO.size):
                self._ends = _TWO.unpack(payload)
                for end in self._ends:
                    os.set_inheritable(end, False)
                    os.set_blocking(end, False)
                raise BlockingIOError
        return data

    def send(self, message: Message) -> None:
        """Put a message on the wire, as far as it goes; the rest waits."""
        try:
            self._out += encode(message)
        except ProtocolError as error:
            self._out += encode(failure(message.get("id"), error))
        self.flush()
        if self.waiting > LIMIT:
            self.closing = True

    def flush(self) -> None:
        """Send what waits, as far as it goes."""
        try:
            while self._out:
                del self._out[: os.write(self._writes, self._out)]
        except BlockingIOError:
            return
        except OSError:
            self._out.clear()
            self.closing = True

    def close(self) -> None:
        """Close the socket, and the ends that were handed over."""
        self.sock.close()
        ends, self._ends = self._ends, ()
        for end in ends:
            os.close(end)


def listen(path: str) -> socket.socket:
    """Return a listening unix socket that only root can open; the caller holds the server's lock, so an old one is dead."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listener.bind(path)  # the process's umask is 077, so there is no moment at which others could connect
    os.chmod(path, 0o600)
    listener.listen(64)
    listener.setblocking(False)
    return listener
