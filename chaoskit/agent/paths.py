"""
Where the agent keeps things on a node: debts on disk, sockets and leases in memory, both root's alone.

Several agent versions may run side by side: each hash has its own server directory, and all share ledger and leases.
"""

import errno
import os
import re
import stat
from contextlib import suppress
from typing import NamedTuple

from chaoskit.errors import PrivilegeError, ProtocolError

STATE = "/var/lib/chaoskit"
RUN = "/run/chaoskit"
ETC = "/etc/chaoskit"

PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
"""One part of a name that becomes a file name: never empty, never a dot first, no separator."""

NAME_LIMIT = 230
"""Characters of a whole name: a file name of 255 with our endings."""


class Paths(NamedTuple):
    """
    The roots of one agent: `state` survives a reboot, `run` does not, `etc` is the site's word.

    `units` is where systemd's units of this machine stand; empty for its own place, where systemd is the init.
    """

    state: str = STATE
    run: str = RUN
    etc: str = ETC
    units: str = ""

    @property
    def ledger(self) -> str:
        """Directory of the ledger, one file an entry."""
        return os.path.join(self.state, "ledger")

    @property
    def allow(self) -> str:
        """The file by which a site allows faults on this node."""
        return os.path.join(self.etc, "allow")

    def lease(self, run: str) -> str:
        """Lease file of a run."""
        return os.path.join(self.run, "runs", checked_part(run), "lease")

    def server(self, agent: str) -> "ServerPaths":
        """Return the files of the server of this agent hash."""
        return ServerPaths(os.path.join(self.run, agent[:16]))

    def spawned(self, key: str) -> str:
        """Record of a process that was spawned under this key."""
        return os.path.join(self.run, "spawned", checked_part(key) + ".json")

    def arguments(self) -> "list[str]":
        """Return the command-line arguments that make another process of the agent use the same roots."""
        units = ["--units", self.units] if self.units else []
        return ["--state", self.state, "--run", self.run, "--etc", self.etc, *units]


class ServerPaths(NamedTuple):
    """Files of one server, in a directory of its own."""

    directory: str

    @property
    def socket(self) -> str:
        """The unix socket."""
        return os.path.join(self.directory, "agent.sock")

    @property
    def lock(self) -> str:
        """The file whose lock the living server holds."""
        return os.path.join(self.directory, "server.lock")

    @property
    def starting(self) -> str:
        """The file that a bridge locks while it starts a server."""
        return os.path.join(self.directory, "starting.lock")

    @property
    def log(self) -> str:
        """Standard error of server and fuse."""
        return os.path.join(self.directory, "agent.log")


def checked_part(text: str) -> str:
    """Return `text` when it can be part of a file name. Raises ProtocolError."""
    if not isinstance(text, str) or not PART.match(text):
        raise ProtocolError("{!r} cannot be a name: letters, digits, dot, underscore and dash, at most 100".format(text))
    return text


def private_directory(path: str) -> str:
    """
    Make a directory (and those above it) that only root can enter, and return its path.

    Raises:
        PrivilegeError: It or one above it is a link, or is not root's, so somebody else could swap it.
    """
    parts = os.path.abspath(path).split("/")[1:]
    so_far = ""
    for part in parts:
        so_far += "/" + part
        with suppress(FileExistsError):
            os.mkdir(so_far, 0o700)
        _refuse_foreign(so_far)
    if stat.S_IMODE(os.lstat(so_far).st_mode) != 0o700:  # a disk that has become read only still gives what is there
        os.chmod(so_far, 0o700)
    return so_far


def refuse_foreign_parents(path: str) -> None:
    """Refuse a directory that somebody else could swap: it and all above it exist and are root's. Raises OSError, PrivilegeError."""
    so_far = ""
    for part in os.path.abspath(path).split("/")[1:]:
        so_far += "/" + part
        _refuse_foreign(so_far)


def _refuse_foreign(path: str) -> None:
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise PrivilegeError("{} is not a directory (or is a link); expected root's own".format(path), hint="move it away")
    if found.st_uid != 0:
        raise PrivilegeError("{} belongs to uid {}; expected root".format(path, found.st_uid), hint="move it away")
    if found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
        raise PrivilegeError("others may write in {}".format(path), hint="chmod go-w {}".format(path))


def write_atomically(path: str, data: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
    """
    Replace a file of root's at once: a reader sees the old content or the new, and a full disk leaves the old.

    Args:
        path: The file; its directory must exist.
        data: The new content.
        mode: Its permissions.
        durable: Return only when content and name are on the disk.

    Raises:
        OSError: The disk did not take all of it.
    """
    temporary = "{}.{}.{}".format(path, os.getpid(), os.urandom(4).hex())
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        try:
            os.fchmod(fd, mode)
            written = os.write(fd, data)
            if written != len(data):
                raise OSError(errno.ENOSPC, "short write, {} of {} bytes".format(written, len(data)), path)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        fsync_directory(os.path.dirname(path))


def fsync_directory(path: str) -> None:
    """Make a new name in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
