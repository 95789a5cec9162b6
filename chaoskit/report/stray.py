"""What anybody writes to standard error while a panel stands on the terminal: our signal handlers, a jump host's ssh, a library."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from chaoskit.report.sanitise import line as clean

STDERR = 2
LAST_WORDS = 1.0
"""Seconds that the end waits for what was written last; a child that keeps our standard error open must not keep us."""


@contextmanager
def told_above(tell: Callable[[str], None]) -> Iterator[None]:
    """
    Hand every line that reaches standard error to `tell`, when it is a terminal.

    Written straight to it, a line would be overwritten by the panel's next drawing, and leave half of the panel behind.
    """
    if not os.isatty(STDERR):
        yield
        return
    kept = os.dup(STDERR)
    reading, writing = os.pipe()
    os.dup2(writing, STDERR)
    os.close(writing)
    teller = threading.Thread(target=_tell_all, args=(reading, tell), daemon=True)
    teller.start()
    try:
        yield
    finally:
        os.dup2(kept, STDERR)  # which closes the pipe's end, and so ends the thread
        os.close(kept)
        teller.join(LAST_WORDS)


def _tell_all(reading: int, tell: Callable[[str], None]) -> None:
    with open(reading, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            tell(clean(line))
