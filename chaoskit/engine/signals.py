"""
Signals that end a run early: the first one unwinds to the reverts, and none can interrupt those.

SIGQUIT, which one sends to what seems to hang, also shows what every thread is at.
"""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from enum import Enum
from types import FrameType

from chaoskit.errors import AbortedError

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
STDERR = 2


class Whose(Enum):
    """Whose code runs, which decides what a signal does to it."""

    OURS = "the first signal raises AbortedError; the reverts that follow are not interrupted"
    TESTS = "the first raises AbortedError; a later one KeyboardInterrupt, since the test may have caught the first"
    OTHERS = "the first is kept until ours goes on; a later one raises KeyboardInterrupt, since what runs may hang"


class Gate:
    """
    Open: an ending signal raises AbortedError in the main thread. Closed: it is answered with a line only.

    A closed gate keeps the reverts, and what else is ours, from being interrupted; code that is not ours always can be.
    """

    def __init__(self) -> None:
        self.closed = False
        self.whose = Whose.OURS
        self.heard = ""
        """The first signal that came, whatever it did."""

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Take one signal."""
        name = signal.Signals(number).name
        if number == signal.SIGQUIT:
            _answer(_stacks())
        late = self.closed or self.heard
        self.heard = self.heard or name
        if not late:
            if self.whose is Whose.OURS:
                _answer(f"{name}: ending the run; what is injected is reverted first\n")
            if self.whose is not Whose.OTHERS:
                self.raise_pending()
        elif self.whose is not Whose.OURS:
            raise KeyboardInterrupt(name)
        else:
            also = "nodes that cannot be reached heal themselves when their lease ends"
            _answer(f"{name}: the run is ending already, and nothing cuts its reverts short; {also}\n")

    def raise_pending(self) -> None:
        """Raise the AbortedError of a signal that came, if one did, as often as asked: a test may have caught the first."""
        if self.heard:
            raise AbortedError(f"ended by {self.heard}")

    def ours(self) -> AbstractContextManager[None]:
        """What runs inside is ours."""
        return self._belongs(Whose.OURS)

    def kept(self) -> AbstractContextManager[None]:
        """What runs inside is not torn by the first signal: `heard` tells of it afterwards."""
        return self._belongs(Whose.OTHERS)

    @contextmanager
    def _belongs(self, whose: Whose) -> Iterator[None]:
        before, self.whose = self.whose, whose
        try:
            yield
        finally:
            self.whose = before


def _stacks() -> str:
    """
    Return what every thread is at, as text.

    The interpreter's own `faulthandler` would write it while it holds all threads: where standard error is a pipe that one
    of them reads, as under the panel, that could never end.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames().items()  # noqa: SLF001 - Python has no other way to see them
    return "".join(f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}" for ident, frame in frames)


def _answer(says: str) -> None:
    """
    Write straight to standard error: a handler may strike while its buffer is being written, which Python refuses to do again.

    A terminal that is closed, which is what SIGHUP tells, must not cost the reverts.
    """
    with suppress(OSError):
        os.write(STDERR, says.encode())


@contextmanager
def alarms_kept() -> Iterator[None]:
    """
    Keep an alarm, such as a test's time limit, from striking inside; it strikes right after.

    Another handler keeps it, and no mask: a signal is given to any thread that lets it in, and its handler runs in ours.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _frame: kept.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)
        if kept:
            signal.raise_signal(signal.SIGALRM)


@contextmanager
def ending_signals() -> Iterator[Gate]:
    """
    Turn the first ending signal into AbortedError while the gate is open.

    A second Ctrl-C would otherwise cut the reverts short. Outside the main thread Python delivers no signals, so
    there the gate stays quiet. SIGHUP that somebody has us ignore (`nohup`) stays ignored: the run shall outlive the terminal.
    """
    gate = Gate()
    if threading.current_thread() is not threading.main_thread():
        yield gate
        return
    heard = [number for number in ENDING if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, gate.handle) for number in heard}
    try:
        yield gate
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
