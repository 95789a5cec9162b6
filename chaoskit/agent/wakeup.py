"""
Waking a waiting thread, with timeouts that no step of the wall clock can stretch.

A lock's timeout runs on the wall clock before Python 3.11, and a fault may be that very clock: so a pipe and `poll`.
Standard library only, Python 3.8.
"""

import os
import select
import threading
from contextlib import suppress
from typing import Callable


class Wakeup:
    """A flag that any thread sets and one waits for."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)
        self._poll = select.poll()
        self._poll.register(self._reader, select.POLLIN)

    def fileno(self) -> int:
        """Return the readable end, for a selector."""
        return self._reader

    def set(self) -> None:
        """Wake the waiting thread."""
        with suppress(BlockingIOError):  # when it is full, awake it will be
            os.write(self._writer, b"\0")

    def wait(self, seconds: float) -> bool:
        """Wait until set, at most `seconds`; say whether it was set, and clear it."""
        if not self._poll.poll(max(0.0, seconds) * 1000):
            return False
        self.clear()
        return True

    def clear(self) -> None:
        """Clear the flag."""
        with suppress(BlockingIOError):  # when nobody has set it
            os.read(self._reader, 4096)

    def close(self) -> None:
        """Give both ends back."""
        os.close(self._reader)
        os.close(self._writer)


def run_within(job: Callable[[], None], seconds: float, name: str) -> bool:
    """
    Run `job` on a thread of its own and wait for it, at most `seconds`; say whether it ended.

    A fault's code can hang (a dead file system, a lost GPU): then the thread is left to itself, and the caller goes on.
    """
    done = Wakeup()

    def run() -> None:
        try:
            job()
        finally:
            done.set()

    threading.Thread(target=run, name=name, daemon=True).start()
    if not done.wait(seconds):
        return False  # the thread still holds the flag, so it stays open
    done.close()
    return True
