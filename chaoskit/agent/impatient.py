"""
A ledger for whoever must not wait for its disk: each call is given up after a while, as if the disk had refused.

A disk that stalls answers nothing, not even an error, and whoever waits for it cannot be killed. So each call runs on a
thread of its own, one at a time: as long as one hangs, the next is refused at once. What hangs is done when the disk is
back. Standard library only, Python 3.8.
"""

import errno
import fcntl
import os
import threading
import time
from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, Optional, TypeVar

from chaoskit.agent.ledger import Entry, Ledger
from chaoskit.agent.stopped import take_lock
from chaoskit.agent.wakeup import run_within
from chaoskit.errors import RefusedError

T = TypeVar("T")

WITHIN = 1.0
"""Seconds that a disk has for one call."""

STEP = 0.02


class Impatient(Ledger):
    """
    A ledger whose calls end.

    `widowed` says that whoever else held locks has been killed, and cannot let go of them while the disk hangs: a lock is
    then waited for no longer than a disk.
    """

    widowed = False
    _pending: Optional[threading.Event] = None
    _worker = 0

    @property
    def hangs(self) -> bool:
        """True while a call has not ended that was given up."""
        return self._pending is not None and not self._pending.is_set()

    def append(self, entry: str, state: str, /, *, durable: bool = True, **more: Any) -> None:
        """As any ledger's. Raises RefusedError, also when the disk takes too long."""
        more.setdefault("boottime", time.clock_gettime(time.CLOCK_BOOTTIME))
        try:
            self._soon(lambda: Ledger.append(self, entry, state, durable=durable, **more))
        except OSError as error:
            raise RefusedError("the ledger {} cannot be written: {}".format(self.path(entry), error)) from error

    def read(self, entry: str) -> Optional[Entry]:
        """As any ledger's. Raises OSError, also when the disk takes too long."""
        return self._soon(lambda: Ledger.read(self, entry))

    def open_entries(self) -> List[Entry]:
        """As any ledger's. Raises OSError, also when the disk takes too long."""
        return self._soon(lambda: Ledger.open_entries(self))

    @contextmanager
    def lock(self, entry: str, *, must: bool) -> Iterator[None]:
        """As any ledger's; without a lock where the disk gives none in time, unless there `must` be one."""
        if must:
            with super().lock(entry, must=must):
                yield
            return
        try:
            fd = self._opened(self._lock_path(entry))
        except OSError:
            yield
            return
        try:
            self._take(fd)
            yield
        finally:
            os.close(fd)

    @contextmanager
    def _common_lock(self, name: str) -> Iterator[None]:
        path = os.path.join(self.directory, name)
        try:
            fd = self._opened(path)
        except OSError as error:
            raise RefusedError("no lock on {}: {}".format(path, error)) from error
        try:
            if not self._take(fd):
                raise RefusedError("no lock on {}: who holds it does not let go".format(path))
            yield
        finally:
            os.close(fd)

    def _opened(self, path: str) -> int:
        return self._soon(lambda: os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))

    def _take(self, fd: int) -> bool:
        """Take a lock; say whether it was to be had."""
        if not self.widowed:
            take_lock(fd)
            return True
        until = time.monotonic() + WITHIN
        while time.monotonic() < until:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(STEP)
            else:
                return True
        return False

    def _soon(self, call: Callable[[], T]) -> T:
        """Return what a call returns, and raise what it raises. Raises OSError when it takes too long, or one before it still does."""
        if threading.get_ident() == self._worker:
            return call()  # a part of a call that is waited for already
        if self.hangs:
            raise OSError(errno.ETIMEDOUT, "the disk hangs")
        ended = threading.Event()
        answers: List[T] = []
        errors: List[Exception] = []
        self._pending = ended

        def run() -> None:
            self._worker = threading.get_ident()
            try:
                answers.append(call())
            except Exception as error:  # noqa: BLE001 - it is raised where it is waited for
                errors.append(error)
            finally:
                ended.set()

        if not run_within(run, WITHIN, "ledger"):
            raise OSError(errno.ETIMEDOUT, "the disk has not answered within {:g} s".format(WITHIN))
        if errors:
            raise errors[0]
        return answers[0]
