"""The agent on its way to a node: pushed once by SFTP, taken over by root, and held as a channel."""

import contextlib
import re
import secrets
import shlex
import threading
from collections.abc import Callable

import paramiko
from paramiko.buffered_pipe import BufferedPipe

from chaoskit.agent.bundle import Bundle
from chaoskit.agent.loader import ONE_LINE
from chaoskit.errors import UnreachableError
from chaoskit.fleet.connection import RUN_TIMEOUT, Connection, Facts

FOLDER = ".cache/chaoskit"
"""Where the agent lies below the account's home."""
PUSHED = re.compile(r"agent-[0-9a-f]{64}\.pyz(\.[0-9a-f]{8})?")
"""Names of pushed agents, and of those whose push was torn."""
PUSH_AGAIN = "push it again"
"""What the loader says when the pushed file is not what it should be."""
SEND_TIMEOUT = 10.0
"""Seconds that a send may be held up."""
WINDOW = 16 << 20
"""Bytes that a node may send before it is granted more; more than all logs of a second, since a grant goes out with a ping."""
GRANT = WINDOW // 8
"""Bytes received after which more is granted."""
_LAST_WORDS = 4096


def file_name(bundle: Bundle) -> str:
    """Return the name of the agent's file on the nodes."""
    return f"agent-{bundle.sha256}.pyz"


def push(connection: Connection, facts: Facts, bundle: Bundle, *, again: bool = False) -> str:
    """
    Put the agent on the node unless it is there, and return its path.

    The size decides, since root hashes what it takes over; a file of the right size and the wrong content is pushed
    `again` when root has refused it.

    Raises:
        UnreachableError: SFTP failed; the text says at what.
    """
    path = f"{facts.home}/{FOLDER}/{file_name(bundle)}"
    if facts.agent_size == bundle.path.stat().st_size and not again:
        return path
    sftp = connection.sftp()
    part = f"{path}.{secrets.token_hex(4)}"
    try:
        _make_folders(sftp, facts.home)
        sftp.put(str(bundle.path), part, confirm=True)
        sftp.posix_rename(part, path)
    except (OSError, EOFError, paramiko.SSHException) as error:
        raise UnreachableError(
            f"pushing the agent to {path}: {error}", node=connection.node, hint="is there room in that folder?"
        ) from error
    return path


def unpush(connection: Connection, facts: Facts) -> tuple[str, ...]:
    """
    Remove the agents of all versions from the account's folder, and the folder when nothing else is in it; return their paths.

    Raises:
        UnreachableError: SFTP failed.
    """
    folder = f"{facts.home}/{FOLDER}"
    sftp = connection.sftp()
    removed = []
    try:
        for name in sorted(sftp.listdir(folder)):
            if PUSHED.fullmatch(name):
                sftp.remove(f"{folder}/{name}")
                removed.append(f"{folder}/{name}")
        if not sftp.listdir(folder):
            sftp.rmdir(folder)
            removed.append(folder)
    except FileNotFoundError:
        pass  # it was never pushed there, or somebody else has removed it
    except (OSError, EOFError, paramiko.SSHException) as error:
        raise UnreachableError(f"removing the agent from {folder}: {error}", node=connection.node) from error
    return tuple(removed)


def _make_folders(sftp: paramiko.SFTPClient, home: str) -> None:
    folder = home
    for part in FOLDER.split("/"):
        folder = f"{folder}/{part}"
        try:
            sftp.stat(folder)
        except FileNotFoundError:
            sftp.mkdir(folder, 0o700)


def command(path: str, facts: Facts, bundle: Bundle, become: str) -> str:
    """Return the command line that runs the agent's bridge: constants and checked values, each quoted as one word."""
    sudo = ["sudo", "-n", "--"] if become == "sudo" else []
    return shlex.join([*sudo, *agent_command(path, facts, bundle)])


def agent_command(path: str, facts: Facts, bundle: Bundle) -> tuple[str, ...]:
    """Return what root runs, as its arguments; `chaoskit.fleet.sudoers` writes the very same down."""
    return (facts.python, "-I", "-S", "-c", ONE_LINE, path, bundle.sha256, "bridge")


class _Feed(BufferedPipe):  # type: ignore[type-arg]  # generic in its stubs only
    """
    Hands a paramiko channel's data on from the thread that received it, instead of keeping it for a reader.

    What is read from it then is only a count of the bytes that were handed on: paramiko grants the node new window for
    what was read, and may do so on any thread but that one.
    """

    def __init__(self, on_data: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        super().__init__()
        self._on_data = on_data
        self._on_end: Callable[[], None] | None = on_end
        self._counting = threading.Lock()
        self.owed = 0

    def feed(self, data: bytes) -> None:
        """Hand data on."""
        with self._counting:
            self.owed += len(data)
        self._on_data(data)

    def read(self, nbytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002 - paramiko's signature
        """Return as many bytes as were handed on since the last call, at most `nbytes`, and nothing of their content."""
        with self._counting:
            count = min(nbytes, self.owed)
            self.owed -= count
        return bytes(count)

    def close(self) -> None:
        """Tell the end, once."""
        super().close()
        end, self._on_end = self._on_end, None
        if end is not None:
            end()


class HeldChannel:
    """A paramiko channel as a `Stream`, whose last words on standard error can be read."""

    def __init__(self, channel: paramiko.Channel, node: str) -> None:
        channel.settimeout(SEND_TIMEOUT)
        self._node = node
        self._channel = channel
        self._feed: _Feed | None = None

    def start(self, on_data: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        """Call `on_data` on the transport's own thread; to be called before the command starts."""
        self._feed = self._channel.in_buffer = _Feed(on_data, on_end)

    def run(self, line: str) -> None:
        """Start the command. Raises UnreachableError."""
        try:
            self._channel.exec_command(line)
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise UnreachableError(f"the agent could not be started: {error}", node=self._node) from error

    def sendall(self, data: bytes) -> None:
        """Send all of it. Raises OSError."""
        try:
            self._channel.sendall(data)
            if self._feed is not None and self._feed.owed > GRANT:
                self._channel.recv(self._feed.owed)
        except (paramiko.SSHException, EOFError) as error:
            raise OSError(str(error)) from error

    def close(self) -> None:
        """Close it."""
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):  # a connection that is gone is closed
            self._channel.close()

    def epitaph(self) -> str:
        """Return what was written to standard error, and the exit status when there is one."""
        words = self._channel.recv_stderr(_LAST_WORDS).decode("utf-8", "replace") if self._channel.recv_stderr_ready() else ""
        status = f"exit status {self._channel.recv_exit_status()}" if self._channel.exit_status_ready() else ""
        return " ".join(filter(None, (words.strip(), status)))


def hold(connection: Connection) -> HeldChannel:
    """
    Open a session for a command whose input and output stay open.

    Raises:
        UnreachableError: The node opened no session.
    """
    connection.open()
    try:
        return HeldChannel(connection.transport.open_session(window_size=WINDOW, timeout=RUN_TIMEOUT), connection.node)
    except (OSError, EOFError, paramiko.SSHException) as error:
        raise UnreachableError(f"no session for the agent: {error}", node=connection.node) from error
