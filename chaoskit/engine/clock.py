"""The controller's clock, as the engine sees it."""

import time


class SystemClock:
    """CLOCK_MONOTONIC, in seconds."""

    def now(self) -> float:
        """Return the time in seconds."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
