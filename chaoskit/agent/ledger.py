"""
The ledger: what this node owes, on its own disk before any harm, so that whoever is left can pay.

One file an entry, one JSON object a line, only ever appended to. The first line (`planned`) carries everything a revert
needs; later lines move the state on:

    planned -> armed -> injecting -> injected -> reverted       (`reverting` and `released` mark the way, `failed` a bad revert)

An entry is closed only by `reverted`, which is written after a fresh read found the captured state back. A torn or
garbled line is reported and skipped: every prefix of a ledger is a valid earlier state. Nothing here is decided by the
wall clock, which may jump. Standard library only, Python 3.8.
"""

import os
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Tuple

from chaoskit.agent import lines
from chaoskit.agent.entry import SCHEMA, Entry, entry_name, file_name, fold, is_entry_name, oldest_first
from chaoskit.agent.paths import fsync_directory, private_directory
from chaoskit.agent.stopped import take_lock
from chaoskit.errors import RefusedError

if TYPE_CHECKING:
    from chaoskit.agent.boot import Unit

__all__ = ["SCHEMA", "Entry", "Ledger", "entry_name", "file_name", "fold", "is_entry_name", "oldest_first"]

KEEP = 30 * 24 * 3600.0
"""Seconds that a closed entry stays on disk at least, by the wall clock."""

NEWEST = 200
"""Closed entries that stay however old they seem: a wall clock that jumped makes yesterday's look like last year's."""

Looks = Tuple[int, int, int]
"""Inode, size and change of a file: as long as they stay, so does what it says, since it is only ever appended to."""


class Ledger:
    """
    The ledger of this node. Reading never fails on damage; appending fails before harm rather than after.

    Args:
        directory: Where it stands.
        unit: The boot unit that goes with it (see `boot`); None where there is none.
    """

    def __init__(self, directory: str, unit: "Optional[Unit]" = None) -> None:
        self.unit = unit
        try:
            self.directory = private_directory(directory)
        except OSError as error:
            raise _unwritable(directory, error) from error
        self._named = False
        self._closed: Dict[str, Tuple[Looks, int]] = {}
        """Closed entries: what their file was when it was read, and their place in the order."""

    def path(self, entry: str) -> str:
        """Return an entry's file."""
        return os.path.join(self.directory, file_name(entry))

    def plan(self, entry: Entry) -> Entry:
        """
        Write what is planned as a new file, durable with its name, and return it with its place in this node's order.

        Raises:
            RefusedError: It exists, or the disk says no.
        """
        try:
            entry = replace(entry, order=1 + self._scan()[1])
            self._make_name_durable()
        except OSError as error:
            raise _unwritable(self.directory, error) from error
        record = entry.to_json()
        for later in ("open", "state", "damage"):
            del record[later]
        try:
            fd = os.open(self.path(entry.entry), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileExistsError as error:
            raise RefusedError("entry {} stands in the ledger already".format(entry.entry), hint="an entry is used once") from error
        except OSError as error:
            raise _unwritable(self.path(entry.entry), error) from error
        os.close(fd)
        try:
            self.append(entry.entry, "planned", **record)
            fsync_directory(self.directory)
        except BaseException as error:
            with suppress(OSError):
                os.unlink(self.path(entry.entry))  # nothing is armed by it: nobody shall wonder what it owes
            if isinstance(error, OSError):
                raise _unwritable(self.directory, error) from error
            raise
        return entry

    def _make_name_durable(self) -> None:
        """What is fsynced in the folder is lost with it, should the folder's own name not have reached the disk."""
        if not self._named:
            for above in (os.path.dirname(self.directory), os.path.dirname(os.path.dirname(self.directory))):
                fsync_directory(above)
            self._named = True

    def append(self, entry: str, state: str, /, *, durable: bool = True, **more: Any) -> None:
        """
        Append one record: a single write, then fsync unless it is only a mark.

        Raises:
            RefusedError: The disk did not take all of it.
        """
        more.update(v=SCHEMA, state=state)
        more.setdefault("boottime", time.clock_gettime(time.CLOCK_BOOTTIME))
        line = lines.seal(more)
        try:
            fd = os.open(self.path(entry), os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                lines.write(fd, line)
                if durable:
                    os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise _unwritable(self.path(entry), error) from error

    def read(self, entry: str) -> Optional[Entry]:
        """Return an entry, or None when there is none (or nothing of its plan can be read)."""
        try:
            with open(self.path(entry), "rb") as file:
                return fold(file.read().split(b"\n"))
        except FileNotFoundError:
            return None

    def read_if_it_can(self, entry: str) -> Optional[Entry]:
        """Return an entry; None also when the disk does not give it: what it cannot tell it does not close either."""
        try:
            return self.read(entry)
        except OSError:
            return None

    def entries(self) -> List[Entry]:
        """Return every readable entry, oldest first. Raises OSError: the disk does not even tell which there are."""
        read = (self.read_if_it_can(name) for name in self._names())
        return oldest_first(entry for entry in read if entry is not None)

    def open_entries(self) -> List[Entry]:
        """
        Return every readable entry that is open, oldest first. Raises OSError.

        Asked at each injection and once a second by each fuse: of a closed entry only its file's looks are asked again.
        """
        return self._scan()[0]

    def _scan(self) -> Tuple[List[Entry], int]:
        """Return the open entries, and the highest place in the order that any entry has."""
        known = self._closed
        closed: Dict[str, Tuple[Looks, int]] = {}
        found = []
        for name in self._names():
            looks = self._looks(name)
            if looks is not None and name in known and known[name][0] == looks:
                closed[name] = known[name]
                continue
            entry = self.read_if_it_can(name)
            if entry is not None and entry.open:
                found.append(entry)
            elif entry is not None and looks is not None:
                closed[name] = (looks, entry.order)
        self._closed = closed  # whole, since other threads look as well
        return oldest_first(found), max([one.order for one in found] + [order for _, order in closed.values()], default=0)

    def _looks(self, entry: str) -> Optional[Looks]:
        try:
            found = os.stat(self.path(entry))
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def unreadable(self) -> List[str]:
        """Return the names of entries whose plan cannot be read, and of files that are no entry's: nobody knows what they owe."""
        return [name for name in self._all_names() if not is_entry_name(name) or not self._is_readable(name)]

    def _is_readable(self, name: str) -> bool:
        known = self._closed.get(name)
        return (known is not None and known[0] == self._looks(name)) or self.read_if_it_can(name) is not None

    def _names(self) -> List[str]:
        return [name for name in self._all_names() if is_entry_name(name)]

    def _all_names(self) -> List[str]:
        found = sorted(name for name in os.listdir(self.directory) if name.endswith(".jsonl"))
        return [name[: -len(".jsonl")].replace(",", "/") for name in found]

    @contextmanager
    def lock(self, entry: str, *, must: bool) -> Iterator[None]:
        """
        Hold an entry's lock: whoever injects, reverts or heals it does so alone.

        Args:
            entry: Its name.
            must: Whether a disk that gives no lock is an error, as before harm; a revert goes on without it.

        Raises:
            RefusedError: No lock, and there must be one.
        """
        try:
            fd = _lock_file(self._lock_path(entry))
        except OSError as error:
            if must:
                raise _unwritable(self._lock_path(entry), error) from error
            yield
            return
        with _flock(fd):
            yield

    def _lock_path(self, entry: str) -> str:
        return self.path(entry)[: -len(".jsonl")] + ".lock"

    @contextmanager
    def resources_lock(self) -> Iterator[None]:
        """Hold the lock under which resources are looked up and taken. Raises RefusedError: the disk gives no lock."""
        with self._common_lock("resources.lock"):
            yield

    @contextmanager
    def unit_lock(self) -> Iterator[None]:
        """Hold the lock under which the boot unit comes and goes; the last to be taken. Raises RefusedError."""
        with self._common_lock("unit.lock"):
            yield

    @contextmanager
    def _common_lock(self, name: str) -> Iterator[None]:
        path = os.path.join(self.directory, name)
        try:
            fd = _lock_file(path)
        except OSError as error:
            raise _unwritable(path, error) from error
        with _flock(fd):
            yield

    def forget(self, entry: str) -> None:
        """Remove a closed entry, as that of a canary, which tells nobody anything. Raises RefusedError: it is open, or the disk says no."""
        written = self.read(entry)
        if written is not None and written.open:
            raise RefusedError("entry {} is {}: it owes an undo".format(entry, written.state))
        try:
            _unlink_if_there(self.path(entry))
            _unlink_if_there(self._lock_path(entry))
        except OSError as error:
            raise _unwritable(self.path(entry), error) from error

    def set_aside(self, entry: str) -> None:
        """Rename the file of an entry that was paid though its plan cannot be read: it is no riddle any more. Raises OSError."""
        if self.read(entry) is None and os.path.exists(self.path(entry)):
            os.replace(self.path(entry), self.path(entry) + ".damaged")
            fsync_directory(self.directory)

    def prune(self, now: float) -> None:
        """Remove closed entries older than `KEEP` seconds by the wall clock `now`, but for the `NEWEST`; never fails for the disk."""
        with suppress(OSError):  # a disk that cannot forget is no reason not to serve
            closed = [entry for entry in self.entries() if not entry.open]
            for entry in closed[:-NEWEST]:
                path = self.path(entry.entry)
                if now - os.stat(path).st_mtime > KEEP:
                    os.unlink(path)
                    _unlink_if_there(self._lock_path(entry.entry))


def _unlink_if_there(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def _unwritable(path: str, error: OSError) -> RefusedError:
    return RefusedError("the ledger {} cannot be written: {}".format(path, error), hint="free or repair that file system first")


def _lock_file(path: str) -> int:
    # Read only is enough for a lock, and works on a file system that has become read only.
    return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


@contextmanager
def _flock(fd: int) -> Iterator[None]:
    try:
        take_lock(fd)
        yield
    finally:
        os.close(fd)
