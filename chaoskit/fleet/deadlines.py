"""One thread for the deadlines of all channels of a fleet: it sleeps until the earliest one is due."""

import heapq
import itertools
import threading
import time
from collections.abc import Callable


class Deadlines:
    """
    Calls back when a moment has passed; safe from any thread.

    There is no cancelling: whoever is called back finds out whether it still matters, which keeps a request that is
    answered in time free of any cost here.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="chaoskit-deadlines", daemon=True)
        self._thread.start()

    def add(self, at: float, due: Callable[[], None]) -> None:
        """Call `due` at `at`, seconds on the monotonic clock; it must be quick and must not raise."""
        with self._changed:
            earliest = self._heap[0][0] if self._heap else float("inf")
            heapq.heappush(self._heap, (at, next(self._order), due))
            if at < earliest:
                self._changed.notify()

    def close(self) -> None:
        """Forget all deadlines and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while (due := self._next()) is not None:
            due()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._closed:
                wait = self._heap[0][0] - time.monotonic() if self._heap else None
                if wait is not None and wait <= 0:
                    return heapq.heappop(self._heap)[2]
                self._changed.wait(wait)
            return None
