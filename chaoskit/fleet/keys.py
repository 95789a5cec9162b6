"""
Private keys for logging in: identity files, each read once, then the keys of the ssh-agent.

chaoskit never asks for a passphrase: nobody may sit there, and what is never known cannot leak. An encrypted key is used
through ssh-agent, and one that the agent does not have is named, with the command that adds it.
"""

import base64
import os
import shlex
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from paramiko.agent import AgentSSH
from paramiko.pkey import PublicBlob, UnknownKeyType

from chaoskit.errors import PrivilegeError, UnreachableError
from chaoskit.fleet.offers import algorithms_of
from chaoskit.fleet.ssh_options import SshOptions

AUTH_TIMEOUT = 10.0
"""Seconds for the server to answer one key."""
_MAGIC = b"openssh-key-v1\0"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A key that may open the door, and how to call it in an error text."""

    label: str
    key: paramiko.PKey


class AgentAt(AgentSSH):
    """The ssh-agent behind a socket. Raises OSError or SSHException when it does not answer."""

    def __init__(self, path: str) -> None:
        super().__init__()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(AUTH_TIMEOUT)
        connection.connect(path)
        self._connect(connection)  # type: ignore[attr-defined]  # in paramiko, not in its stubs

    def close(self) -> None:
        """Leave the agent."""
        self._close()  # type: ignore[attr-defined]  # in paramiko, not in its stubs


class KeyRing:
    """The identity files of a fleet, each read once: an RSA key takes 0.1 s of CPU to load."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[Path, paramiko.PKey | str] = {}

    def load(self, path: Path) -> paramiko.PKey | str:
        """Return the key in a file, or the sentence that says why there is none; an empty one when there is no file."""
        with self._lock:
            if path not in self._files:
                self._files[path] = _load(path)
            return self._files[path]


def _load(path: Path) -> paramiko.PKey | str:
    try:
        seen = path.stat()
        if seen.st_uid == os.getuid() and seen.st_mode & 0o077:
            return f"{path}: others may read it (mode {seen.st_mode & 0o777:04o}): chmod 600 {shlex.quote(str(path))}"
        return paramiko.PKey.from_path(path)
    except FileNotFoundError:
        return ""
    except (paramiko.PasswordRequiredException, TypeError):  # TypeError is how `cryptography` asks for the passphrase
        return f"{path}: needs a passphrase; add it to ssh-agent: ssh-add {shlex.quote(str(path))}"
    except (OSError, ValueError, paramiko.SSHException, UnknownKeyType, UnsupportedAlgorithm) as error:
        return f"{path}: cannot be read: {type(error).__name__}"


def log_in(transport: paramiko.Transport, options: SshOptions, ring: KeyRing, node: str) -> None:
    """
    Log in with the first key that the server takes; identity files first, since they need no other process.

    Raises:
        PrivilegeError: No key was taken; the text lists what was tried.
        UnreachableError: The connection broke, or the server gave no answer in time.
    """
    transport.auth_timeout = AUTH_TIMEOUT
    tried: list[str] = []
    for candidate in _candidates(options, ring, tried):
        tried.append(candidate.label)
        try:
            more = transport.auth_publickey(options.user, candidate.key)
        except paramiko.BadAuthenticationType as error:
            raise _no_keys_taken(options, node, error.allowed_types) from error
        except paramiko.AuthenticationException as error:
            if not transport.is_active():
                raise _hung_up(options, node, tried) from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise UnreachableError(f"logging in as {options.user}: {error}", node=node) from error
        else:
            if not more:
                return
            tried.append(f"the server took it and wants more: {', '.join(more)}")
    raise _refused(options, node, tried)


def _refused(options: SshOptions, node: str, tried: list[str]) -> PrivilegeError:
    what = "; ".join(tried) or "none: there are no keys"
    return PrivilegeError(
        f"{options.user}@{options.hostname} takes none of our keys; tried {what}{_others(options)}",
        node=node,
        hint=f"put your public key into ~{options.user}/.ssh/authorized_keys on the node, or name another key in `ssh: {{key: ...}}`;"
        " sshd says the same of an account that is locked or has expired, and the truth in its log",
    )


def _hung_up(options: SshOptions, node: str, tried: list[str]) -> PrivilegeError:
    return PrivilegeError(
        f"{options.user}@{options.hostname} hung up after these keys: {'; '.join(tried)}",
        node=node,
        hint="sshd allows a few tries (MaxAuthTries): name the right key by IdentityFile, and say `IdentitiesOnly yes` in ssh_config",
    )


def _no_keys_taken(options: SshOptions, node: str, methods: Sequence[str]) -> PrivilegeError:
    return PrivilegeError(
        f"{options.user}@{options.hostname} takes no public keys, only: {', '.join(methods)}{_others(options)}",
        node=node,
        hint="chaoskit logs in by public key only: allow `PubkeyAuthentication yes` for this account in the node's sshd_config",
    )


def _others(options: SshOptions) -> str:
    """Say by what else `ssh` might have got in."""
    return f"; chaoskit cannot use {', '.join(options.other_logins)}, which ssh_config asks for" if options.other_logins else ""


def _candidates(options: SshOptions, ring: KeyRing, notes: list[str]) -> Iterator[Candidate]:
    """Yield keys in the order of trial; `notes` gets a sentence for each that had to be left out."""
    offered = set()
    locked: dict[bytes, str] = {}
    for path in options.identity_files:
        key = ring.load(path)
        if isinstance(key, str):
            if key:
                locked[public_blob(path) or os.fsencode(path)] = key
        elif _accepted(options, key.get_name()):
            offered.add(key.asbytes())
            yield Candidate(str(path), key)
        else:
            notes.append(f"{path}: ssh_config's PubkeyAcceptedAlgorithms allows no {key.get_name()}")
    for candidate in _agent_keys(options, offered, notes):
        locked.pop(candidate.key.asbytes(), None)  # the agent has it: then nothing is missing
        yield candidate
    notes += locked.values()


def _accepted(options: SshOptions, key_type: str) -> bool:
    return not options.accepted_keys or not set(algorithms_of(key_type)).isdisjoint(options.accepted_keys)


def _agent_keys(options: SshOptions, offered: set[bytes], notes: list[str]) -> Iterator[Candidate]:
    """Yield the agent's keys, those that an identity file names first: a server takes only a few tries."""
    path = _agent_socket(options)
    if not path:
        return
    try:
        agent = AgentAt(path)
    except (OSError, paramiko.SSHException) as error:
        notes.append(f"ssh-agent at {path} does not answer: {error}")
        return
    named = {blob for file in options.identity_files if (blob := public_blob(file))}
    with closing(agent):
        for key in sorted(agent.get_keys(), key=lambda each: each.asbytes() not in named):
            blob, label = key.asbytes(), f"ssh-agent's {key.get_name()} {key.comment}"
            if blob in offered or (options.identities_only and blob not in named):
                continue
            inner = key.inner_key  # type: ignore[attr-defined]  # in paramiko, not in its stubs; None for a type it does not have
            if inner is None or not _accepted(options, inner.get_name()):
                notes.append(f"{label}: of a type that cannot be used here")
                continue
            yield Candidate(label, key)


def _agent_socket(options: SshOptions) -> str | None:
    named = options.identity_agent
    if named is None or named == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK")
    if named == "none":
        return None
    return os.environ.get(named[1:]) if named.startswith("$") else str(Path(named).expanduser())


def public_blob(path: Path) -> bytes | None:
    """
    Return the public half of a private key: from the file beside it, or from its own head, which is never encrypted.

    None when neither can be read.
    """
    try:
        public = Path(f"{path}.pub")
        if public.is_file():
            return bytes(PublicBlob.from_file(str(public)).key_blob)
        return _head(path.read_text("ascii"))
    except (OSError, ValueError, paramiko.SSHException):
        return None


def _head(text: str) -> bytes:
    """Return the public key in an OpenSSH private key: behind the magic, cipher, KDF, its options, and the count. Raises ValueError."""
    body = text.partition("-----BEGIN OPENSSH PRIVATE KEY-----")[2].partition("-----END")[0]
    raw = base64.b64decode("".join(body.split()))
    if not raw.startswith(_MAGIC):
        raise ValueError("no OpenSSH private key")
    message = paramiko.Message(raw[len(_MAGIC) :])
    for _ in range(3):
        message.get_binary()
    message.get_int()
    return bytes(message.get_binary())
