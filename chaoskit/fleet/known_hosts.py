"""
Known host keys: our own reader of OpenSSH's format (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT").

paramiko's reader takes time quadratic in the lines and knows no markers and no wildcards. This one reads every file
once, keeps the position of each line for the error texts, and answers as `ssh` does.
"""

import base64
import binascii
import enum
import fnmatch
import hashlib
import hmac
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

MARKERS = ("@revoked", "@cert-authority")
_SIGNATURES = {"rsa-sha2-256": "ssh-rsa", "rsa-sha2-512": "ssh-rsa"}
"""Names of signatures that `ssh` takes for the type of the key that makes them."""
_BLANKS = re.compile(r"[ \t]+")


class Verdict(enum.Enum):
    """What known_hosts says of a key that a host showed."""

    OK = "ok"
    UNKNOWN = "unknown"
    CHANGED = "changed"
    REVOKED = "revoked"
    AUTHORITY_ONLY = "certificate authority only"


@dataclass(frozen=True, slots=True)
class KnownKey:
    """One usable line: whom it names, the key's type and bytes, and where it stands."""

    patterns: str
    marker: str
    type: str
    blob: bytes
    file: str
    line: int

    @property
    def position(self) -> str:
        """`file:line`."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Answer:
    """The verdict on a key, and the lines that led to it."""

    verdict: Verdict
    lines: tuple[KnownKey, ...] = ()


def fingerprint(blob: bytes) -> str:
    """Return a key's SHA256 fingerprint as `ssh-keygen -l` shows it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def parse_line(text: str, file: str, line: int) -> KnownKey | None:
    """
    Read one line; None for a comment or an empty one.

    Raises:
        ValueError: The line cannot be used; the text says why.
    """
    words = [word for word in _BLANKS.split(text.rstrip("\r")) if word]
    if not words or words[0].startswith("#"):
        return None
    marker = words.pop(0) if words[0].startswith("@") else ""
    if marker and marker not in MARKERS:
        raise ValueError(f"unknown marker {marker}")
    if len(words) < 3:
        raise ValueError("expected: hosts, key type, key")
    type_ = _SIGNATURES.get(words[1], words[1])
    return KnownKey(words[0], marker, type_, _key_blob(type_, words[2]), file, line)


def _key_blob(type_: str, text: str) -> bytes:
    try:
        blob = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"the key is not base64: {error}") from error
    size = int.from_bytes(blob[:4], "big")
    inner = blob[4 : 4 + size]
    if inner != type_.encode():
        raise ValueError(f"the key is not of the type {type_}")
    return blob


class KnownHosts:
    """
    The known keys of some files.

    Args:
        lines: The usable lines.
        warnings: One sentence for each line that could not be used.
    """

    def __init__(self, lines: Iterable[KnownKey], warnings: Sequence[str] = ()) -> None:
        self.warnings = tuple(warnings)
        self._exact: dict[str, list[KnownKey]] = {}
        self._matched: list[KnownKey] = []
        self._hashed: list[tuple[bytes, bytes, KnownKey]] = []
        self._found: dict[str, list[KnownKey]] = {}
        for key in lines:
            if key.patterns.startswith("|"):
                if found := _salt_and_digest(key.patterns):
                    self._hashed.append((*found, key))
            elif set(key.patterns) & set("*?!"):
                self._matched.append(key)
            else:
                for name in key.patterns.lower().split(","):
                    self._exact.setdefault(name, []).append(key)

    @classmethod
    def read(cls, files: Iterable[Path]) -> "KnownHosts":
        """Read files, in order; those that do not exist are left out. Raises OSError for one that cannot be read."""
        lines: list[KnownKey] = []
        warnings: list[str] = []
        for file in files:
            if not file.exists():
                continue
            for number, text in enumerate(file.read_bytes().decode("utf-8", "replace").split("\n"), 1):
                try:
                    key = parse_line(text, str(file), number)
                except ValueError as error:
                    warnings.append(f"{file}:{number}: line ignored: {error}")
                else:
                    lines += [key] if key else []
        return cls(lines, warnings)

    def lines_for(self, name: str) -> list[KnownKey]:
        """Return the lines that name this host, written `host` or `[host]:port`; those that name it in plain words first."""
        name = name.lower()
        if name not in self._found:  # a hash of each hashed line is what a search costs
            found = self._exact.get(name, []) + [key for key in self._matched if matches(key.patterns, name)]
            self._found[name] = found + [key for salt, digest, key in self._hashed if _digest(salt, name) == digest]
        return self._found[name]

    def check(self, names: Sequence[str], blob: bytes) -> Answer:
        """
        Say what is known of a key that a host showed.

        Args:
            names: The host as known_hosts writes it: `host`; or `[host]:port`, and then the plain `host`, for whose key
                any port is good, while one that is not its key counts as unknown.
            blob: The key's bytes.
        """
        first, *others = names
        answer = _judge(self.lines_for(first), blob)
        for name in others if answer.verdict in (Verdict.UNKNOWN, Verdict.AUTHORITY_ONLY) else ():
            plain = _judge(self.lines_for(name), blob)
            if plain.verdict in (Verdict.OK, Verdict.REVOKED):
                return plain
        return answer

    def types_for(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the key types that are known for this host, in file order; these are asked for first."""
        keys = next(filter(None, map(self.lines_for, names)), [])
        return tuple(dict.fromkeys(key.type for key in keys if not key.marker))


def _judge(lines: Sequence[KnownKey], blob: bytes) -> Answer:
    same = [key for key in lines if key.blob == blob]
    revoked = tuple(key for key in same if key.marker == "@revoked")
    if revoked:
        return Answer(Verdict.REVOKED, revoked)
    plain = tuple(key for key in lines if not key.marker)
    good = tuple(key for key in same if not key.marker)
    if good:
        return Answer(Verdict.OK, good)
    if plain:
        return Answer(Verdict.CHANGED, plain)
    authorities = tuple(key for key in lines if key.marker == "@cert-authority")
    return Answer(Verdict.AUTHORITY_ONLY, authorities) if authorities else Answer(Verdict.UNKNOWN)


def matches(patterns: str, name: str) -> bool:
    """Say whether a host field names this host: a hash, or names with `*`, `?` and `!` (a negated match wins)."""
    if patterns.startswith("|"):
        hidden = _salt_and_digest(patterns)
        return hidden is not None and _digest(hidden[0], name) == hidden[1]
    found = False
    for pattern in patterns.lower().split(","):
        if pattern.startswith("!"):
            if _glob(pattern[1:], name):
                return False
        else:
            found = found or _glob(pattern, name)
    return found


def hashed(name: str) -> str:
    """Return a host field that names this host to whoever knows its name, and to nobody else, as with `HashKnownHosts yes`."""
    salt = os.urandom(20)
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(_digest(salt, name.lower())).decode()}"


def _glob(pattern: str, name: str) -> bool:
    # Brackets are plain text here (`[host]:port`), while fnmatch would take them for a set of characters.
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))


def _salt_and_digest(field: str) -> tuple[bytes, bytes] | None:
    parts = field.split("|")
    if len(parts) != 4 or parts[1] != "1":
        return None
    try:
        return base64.b64decode(parts[2]), base64.b64decode(parts[3])
    except binascii.Error:
        return None


def _digest(salt: bytes, name: str) -> bytes:
    return hmac.digest(salt, name.encode(), "sha1")
