"""
Changing a file of known host keys: all of it or nothing, and no line but those of the host in question.

The new content replaces the file in one step, so that whoever reads meanwhile, or a crash, finds the old file or the new
one. A link stays a link, and an existing file keeps its owner and mode; a new one can be read by its owner alone.
"""

import fcntl
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from chaoskit.errors import RefusedError
from chaoskit.fleet.known_hosts import KnownKey, parse_line

_PATTERN = frozenset("*?!")
_UNFIT = frozenset(" \t\r\n,*?!|#")


def check_name(name: str) -> None:
    """Raise RefusedError for a name that a line could not carry, such as an alias with a blank."""
    if not name or set(name) & _UNFIT or name.startswith("@"):
        raise RefusedError(f"{name!r} cannot stand in a file of known hosts", hint="choose another HostKeyAlias")


def check_mendable(lines: Collection[KnownKey], own: Collection[Path]) -> None:
    """Raise RefusedError, naming the line, unless a host can be taken out of these lines without touching another host."""
    for key in lines:
        if key.file not in map(str, own):
            raise RefusedError(f"{key.position} is not in a file of yours", hint="mend that line by hand")
        if not key.patterns.startswith("|") and set(key.patterns) & _PATTERN:
            raise RefusedError(f"{key.position} is a pattern for other hosts too: {key.patterns}", hint="mend that line by hand")


def change(file: Path, add: Sequence[str], drop: Mapping[KnownKey, Collection[str]]) -> None:
    """
    Add lines at the end, and take names of hosts out of others.

    Args:
        file: The file; made when there is none.
        add: The new lines, without their ends.
        drop: Lines of this file, and the hosts that each shall name no more.

    Raises:
        RefusedError: This is no plain file, or the lines are not what they were.
        OSError: The file cannot be written; it is as it was.
    """
    real = Path(os.path.realpath(file))
    real.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if real.exists() and not real.is_file():
        raise RefusedError(f"{file} is no plain file", hint="name a file by UserKnownHostsFile or in the inventory")
    with _alone(real.parent):
        old = real.read_bytes().decode("utf-8", "surrogateescape") if real.exists() else ""
        lines: list[str | None] = list(old.removesuffix("\n").split("\n")) if old else []
        for key, names in drop.items():
            lines[key.line - 1] = _without(names, key, lines)
        text = "".join(f"{line}\n" for line in (*lines, *add) if line is not None)
        _replace(real, text.encode("utf-8", "surrogateescape"))


def _without(names: Collection[str], key: KnownKey, lines: Sequence[str | None]) -> str | None:
    """Return a line without these names; None when it names nobody else."""
    text = lines[key.line - 1] if key.line <= len(lines) else None
    if text is None or parse_line(text, key.file, key.line) != key:
        raise RefusedError(f"{key.position} has changed meanwhile", hint="try again")
    gone = {name.lower() for name in names}
    others = [] if key.patterns.startswith("|") else [each for each in key.patterns.split(",") if each.lower() not in gone]
    return text.replace(key.patterns, ",".join(others), 1) if others else None


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one chaoskit at a time change the files of a folder."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # some network file systems have no such locks
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
        os.fsync(fd)
    finally:
        os.close(fd)


def _replace(file: Path, data: bytes) -> None:
    fd, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with os.fdopen(fd, "wb") as new:
            new.write(data)
            with suppress(FileNotFoundError):
                was = file.stat()
                os.fchown(fd, was.st_uid, was.st_gid)
                os.fchmod(fd, was.st_mode & 0o777)
            new.flush()
            os.fsync(fd)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink()
        raise
