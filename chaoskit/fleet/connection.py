"""
Short commands and files on a node: fabric's Connection over a link of ours, and what one probe finds out.

fabric opens connections that accept any host key. Ours never lets it open one: it is handed an authenticated
transport and refuses to go on when that is gone.
"""

import ipaddress
import re
import shlex
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import fabric
import invoke
import paramiko

from chaoskit.errors import NodeError, PrivilegeError, ProtocolError, UnreachableError
from chaoskit.fleet.link import Link

RUN_TIMEOUT = 15.0
"""Seconds for a short command."""
OUTPUT_CAP = 256 * 1024
"""Bytes of output after which a short command is given up."""
PYTHONS = ("/usr/bin/python3", "/usr/libexec/platform-python", "python3")
"""Where a Python 3.8 is looked for when the inventory names none."""

_MARK = "chaoskit:"
_PATH = re.compile(r"/[\w./+@-]{1,4000}", re.ASCII)

# Constant, and quoted as one word: whatever varies comes in as an argument ($1 = Python's own probe, $2 = name of the
# agent's file, $3 = sudo or none, then the interpreters). Lines start with a mark, the first on a new one, since
# login shells print things. It is one line in the end, since csh ends a quoted word at a newline.
_PROBE = """
python_probe=$1 agent=$2 become=$3 use=; shift 3; echo;
say() { printf "chaoskit:%s\\n" "$*"; };
say "ssh $SSH_CONNECTION";
say "home $HOME";
say "uid $(id -u)";
size=$(stat -c %s -- "$HOME/.cache/chaoskit/$agent" 2>/dev/null) && say "agent $size";
for name in "$@"; do
  if found=$("$name" -I -S -c "$python_probe" 2>/dev/null); then say "python $found"; use=$found; break; fi;
  if [ -n "$found" ]; then say "old $found"; use=$found; fi;
done;
if [ "$become" = sudo ] && [ -n "$use" ]; then
  if answer=$(sudo -n -- "${use#* }" -I -S -c pass 2>&1 </dev/null); then say "sudo yes"; else say "sudo no $answer"; fi;
fi
""".strip().replace("\n", " ")
_PYTHON_PROBE = (
    'import sys; print("%d.%d %s" % (sys.version_info[0], sys.version_info[1], sys.executable)); sys.exit(sys.version_info < (3, 8))'
)


class Connection(fabric.Connection):  # type: ignore[misc]  # fabric ships no types
    """A fabric Connection over a link that is open already, and that never opens one itself."""

    node = ""
    _session: paramiko.SFTPClient | None = None

    def __init__(self, link: Link, node: str) -> None:
        config = fabric.Config(
            overrides={"load_ssh_configs": False, "runners": {"remote": _Capped}}, ssh_config=paramiko.SSHConfig(), lazy=True
        )
        super().__init__(link.options.hostname, user=link.options.user, port=link.options.port, config=config)
        self.client.set_missing_host_key_policy(paramiko.RejectPolicy())
        self.transport = link.transport
        self.node = node

    def open(self) -> None:
        """Do nothing when connected. Raises UnreachableError otherwise: opening is the link's work, with its checks."""
        if not self.is_connected:
            raise UnreachableError("the connection was lost", node=self.node)

    def sftp(self) -> paramiko.SFTPClient:
        """
        Return the SFTP session, opened at the first call.

        Raises:
            UnreachableError: The node offers none.
        """
        self.open()
        if self._session is None:
            try:
                self._session = _open_sftp(self.transport)
            except (paramiko.SSHException, OSError, EOFError) as error:
                raise UnreachableError(f"SFTP: {error}", node=self.node, hint="enable sshd's sftp subsystem on the node") from error
        return self._session

    def ask(self, argv: list[str], timeout: float = RUN_TIMEOUT, *, why_late: Callable[[str], str] = lambda _: "") -> str:
        """
        Run a short command, for at most `timeout` seconds, and return its standard output, whatever its exit status.

        Args:
            argv: The command.
            timeout: Seconds.
            why_late: Returns a hint from what a command had printed when its time was over.

        Raises:
            UnreachableError: The connection broke, or the command took too long or printed too much.
        """
        begun = time.monotonic()
        try:
            result = self.run(shlex.join(argv), hide=True, warn=True, in_stream=False, timeout=timeout)
        except invoke.exceptions.ThreadException as error:
            # Its own text would hold all that was read.
            raise UnreachableError(f"a command broke off: {error.exceptions[0].value}", node=self.node) from None
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise UnreachableError(f"a command broke off: {error}", node=self.node) from error
        except invoke.exceptions.CommandTimedOut as error:
            hint = why_late(str(error.result.stdout))
            raise UnreachableError(f"a command took longer than {timeout:g} s", node=self.node, hint=hint) from error
        if result.exited < 0:  # no exit status came; also how invoke, now and then, tells of a command that it has just ended itself
            late = time.monotonic() - begun >= timeout
            what = f"took longer than {timeout:g} s" if late else "broke off without an exit status"
            raise UnreachableError(f"a command {what}", node=self.node, hint=why_late(str(result.stdout)) if late else "")
        return str(result.stdout)


def _open_sftp(transport: paramiko.Transport) -> paramiko.SFTPClient:
    session = paramiko.SFTPClient.from_transport(transport)
    channel = session.get_channel() if session is not None else None
    if session is None or channel is None:
        raise OSError("the session was refused")
    channel.settimeout(RUN_TIMEOUT)
    return session


class _Capped(fabric.runners.Remote):  # type: ignore[misc]  # fabric ships no types
    """fabric keeps all that a command prints; a node must not be able to fill our memory with it."""

    seen = 0

    def read_proc_stdout(self, num_bytes: int) -> bytes:
        """Read standard output. Raises OSError beyond the cap."""
        return self._counted(super().read_proc_stdout(num_bytes))

    def read_proc_stderr(self, num_bytes: int) -> bytes:
        """Read standard error. Raises OSError beyond the cap."""
        return self._counted(super().read_proc_stderr(num_bytes))

    def kill(self) -> None:
        """End the command; on a broken connection, where nobody can be told, it is ended all the same, and `ask` says so."""
        with suppress(paramiko.SSHException, OSError, EOFError):  # it would be shown as a traceback of the timer's thread
            super().kill()

    def _counted(self, data: Any) -> bytes:
        self.seen += len(data)
        if self.seen > OUTPUT_CAP:
            self.channel.close()
            raise OSError(f"more than {OUTPUT_CAP} bytes of output")
        return bytes(data)


@dataclass(frozen=True, slots=True)
class Facts:
    """
    What the probe found on a node.

    `python` is the interpreter for the agent; `client_address` is ours as the node sees it (the jump host's when there
    is one), `server_address` the node's own that carries the connection; `agent_size` the bytes of the agent's file
    when it was pushed before.
    """

    home: str
    uid: int
    python: str
    client_address: str
    server_address: str
    agent_size: int | None


def probe(connection: Connection, *, python: str | None, agent_file: str, become: str) -> Facts:
    """
    Find a Python and check sudo, in one command.

    Args:
        connection: An open connection.
        python: The inventory's interpreter, when it names one; then no other is looked for.
        agent_file: Name of the agent's file.
        become: `sudo` or `none`; empty when root is not needed.

    Raises:
        PrivilegeError: sudo refused, or the account is not root and `become` is `none`.
        NodeError: No Python 3.8 or newer.
        UnreachableError, ProtocolError: The probe did not answer, or nonsense.
    """
    names = (python,) if python else PYTHONS
    said = connection.ask(["sh", "-c", _PROBE, "sh", _PYTHON_PROBE, agent_file, become, *names], why_late=_what_hangs)
    return _facts(said, connection.node, names, str(connection.user), become)


def _facts(said: str, node: str, names: tuple[str, ...], user: str, become: str) -> Facts:
    found = dict(line[len(_MARK) :].partition(" ")[::2] for line in said.splitlines() if line.startswith(_MARK))
    home, uid = found.get("home", ""), found.get("uid", "")
    if not _PATH.fullmatch(home) or not uid.isdecimal():
        raise ProtocolError(f"the probe gave no sensible answer: {said[:200]!r}", node=node, hint="the login shell must run `sh -c`")
    python = found.get("python", "").partition(" ")[2]
    if "python" in found and not _PATH.fullmatch(python):
        raise ProtocolError(f"Python's path on the node cannot be used: {python!r}", node=node)
    troubles = [] if python else [_no_python(found.get("old"), names, node)]
    if become == "sudo" and found.get("sudo") != "yes" and (python or "sudo" in found):  # without any Python it was not tried
        troubles.append(_no_sudo(said.partition(f"{_MARK}sudo no")[2], user, python or "/path/to/python3", node))
    if become == "none" and uid != "0":
        troubles.append(_not_root(user, node))
    if troubles:
        troubles[0].also = tuple(troubles[1:])
        raise troubles[0]
    size = found.get("agent", "")
    client, server = _ends(found.get("ssh", ""), node)
    return Facts(home, int(uid), python, client, server, int(size) if size.isdecimal() else None)


def _what_hangs(said: str) -> str:
    """Say of a probe that did not end what it waits for, by the last thing that it printed."""
    marks = {line[len(_MARK) :].partition(" ")[0] for line in said.splitlines() if line.startswith(_MARK)}
    if marks & {"python", "old"}:
        return "sudo does not answer: it may wait for a directory or name server of the site's"
    if "uid" in marks:
        return "the home directory or a Python does not answer: look for a dead file server, or name a local `python:` in the inventory"
    return "the login shell does not come to the command: look at its start-up files, and for a dead file server below the home directory"


def _ends(said: str, node: str) -> tuple[str, str]:
    """Return the client's and the server's address; without them nobody could say which of the node's links must not be cut."""
    try:
        client, _, server, _ = said.split()
        for address in (client, server):
            ipaddress.ip_address(address)
    except ValueError as error:
        hint = "sshd says it in SSH_CONNECTION: the login shell must keep that, and a proxy must end at sshd's port"
        raise NodeError(f"the node does not say by which of its addresses it was reached: {said!r}", node=node, hint=hint) from error
    return client, server


def _no_python(old: str | None, names: tuple[str, ...], node: str) -> NodeError:
    looked = ", ".join(names)
    what = f"Python {old.split()[0]} is older than 3.8" if old else "no Python 3.8 or newer was found"
    error = NodeError(
        f"{what}; looked for {looked}", node=node, hint="install one, and name it in the inventory: `python: /path/to/python3`"
    )
    error.step = "python"
    return error


def _not_root(user: str, node: str) -> PrivilegeError:
    error = PrivilegeError(f"{user} is not root on the node", node=node, hint="say `ssh: {become: sudo}`, or log in as root")
    error.step = "sudo"
    return error


def _no_sudo(answer: str, user: str, python: str, node: str) -> PrivilegeError:
    reason = " ".join(answer.split())[:200] or "no answer"
    exact = "`chaoskit doctor --sudoers` prints lines for this release only"
    hint = f"put into /etc/sudoers.d/chaoskit: {user} ALL=(root) NOPASSWD: {python} (this makes {user} root there; {exact})"
    if "tty" in reason:
        hint = f"put into /etc/sudoers.d/chaoskit: Defaults:{user} !requiretty"
    error = PrivilegeError(f"`sudo -n` is refused for {user}: {reason}", node=node, hint=hint)
    error.step = "sudo"
    return error
