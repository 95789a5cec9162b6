"""
The journal of a run: JSON lines, appended and fsynced, written before everything else is derived from it.

Each record is {"v": schema version, "at": controller monotonic seconds, "kind": ..., ...}. An undo stands here, on
disk, before the fault that owes it begins: stateless nodes lose their own ledger. A line that a crash tore, or that was
altered since it was written (each carries its checksum), is reported and skipped.
"""

import errno
import fcntl
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaoskit.agent import lines
from chaoskit.agent.lines import ChangedError
from chaoskit.errors import ChaosError, InputError

VERSION = 1
NAME = "journal.jsonl"
FARTHEST = 1e12
"""Seconds that no clock has counted: what a damaged record says beyond it (or not a number) is no moment."""
Record = Mapping[str, Any]


class JournalError(ChaosError):
    """The journal could not be written: nothing may be injected any more."""


class Journal:
    """An open journal. `append` returns only when the record is on disk."""

    def __init__(self, run_dir: Path, *, new: bool = True) -> None:
        """Create the journal of a new run, or open that of an earlier one to add to it. Raises JournalError."""
        self.path = run_dir / NAME
        create = os.O_CREAT | os.O_EXCL if new else 0
        try:
            self._fd = os.open(self.path, os.O_RDWR | create | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            _sync_directory(run_dir)
        except OSError as error:
            raise _unwritable(self.path, error) from error
        if new:
            with suppress(OSError):  # a file system without locks: only `chaoskit stop` asks for it, whether the controller lives
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def append(self, kind: str, at: float, fields: Record, *, durable: bool = True) -> Record:
        """
        Append one record and return it.

        Args:
            kind: What happened.
            at: Controller's monotonic clock, seconds.
            fields: The figures, as JSON.
            durable: Fsync before returning; only plain observations may do without.

        Raises:
            JournalError: The disk refused.
        """
        record = {"v": VERSION, "at": at, "kind": kind, **fields}
        line = lines.seal(record, allow_nan=True)
        try:
            lines.write(self._fd, line)
            if durable:
                os.fsync(self._fd)
        except OSError as error:
            raise _unwritable(self.path, error) from error
        return record

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def is_live(run_dir: Path) -> bool:
    """Whether a controller holds the lock of this run's journal: it lives, and the run goes on."""
    try:
        with (run_dir / NAME).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # no journal, or a file system without locks
    return False


@dataclass(frozen=True, slots=True)
class Read:
    """A journal as read back: its records, and a sentence for each line that was not one."""

    records: tuple[Record, ...]
    notes: tuple[str, ...]


def read(run_dir: Path) -> Read:
    """Read a journal, also that of a crashed run. Raises InputError when there is none."""
    path = run_dir / NAME
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"no journal to read: {error.strerror or error}", where=str(path), hint="name a directory below runs/") from error
    records: list[Record] = []
    notes: list[str] = []
    for number, told in lines.records(raw.split(b"\n")):
        record = _record(told)
        if isinstance(record, str):
            notes.append(f"{path}:{number}: {record}; the line is skipped")
        else:
            records.append(record)
    return Read(tuple(records), tuple(notes))


def _record(record: Any) -> Record | str:
    if isinstance(record, ChangedError):
        return str(record)
    if isinstance(record, Exception):
        return "not a JSON record (torn by a crash?)"
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str) or not _finite(record.get("at")):
        return "not a record of a journal"
    if record.get("v") != VERSION:
        return f"schema version {record.get('v')!r}, this chaoskit reads {VERSION}"
    return record


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < FARTHEST


def _unwritable(path: Path, error: OSError) -> JournalError:
    name = errno.errorcode.get(error.errno or 0, "")
    return JournalError(
        f"the journal cannot be written: {error.strerror or error}{name and f' ({name})'}",
        where=str(path),
        hint="free space or choose --out",
    )


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
