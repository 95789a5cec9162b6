"""Waiting, and a stopwatch that does not count the time in which this machine kept somebody waiting for a processor.

Promises such as "within lease + 1 s" are about our code. On a machine that other work shares, a process that is due may
wait for a processor as long as that work pleases; a test that counted this would fail for what we did not do, and one with
a looser bound would miss what we did. So the bound stays as promised, and the waits that the kernel itself counted go off,
up to nine tenths of the time: who waits for what never comes has an end.
"""

import time
from collections.abc import Callable
from pathlib import Path

PRESSURE = Path("/proc/pressure/cpu")
"""`some ... total=N`: microseconds in which at least one task was ready and had no processor (the kernel's accounting/psi.rst)."""


def withheld() -> float:
    """Return the seconds that the machine has withheld since its boot, 0 where the kernel does not count them."""
    waited = 0.0
    if PRESSURE.exists():
        waited += int(PRESSURE.read_text().split("total=", 1)[1].split()[0]) / 1e6
    stolen = Path("/proc/stat").read_text().split("\n", 1)[0].split()[8]  # by other machines on the same hardware
    return waited + int(stolen) / 100


class FairWatch:
    """Runs from its making on."""

    def __init__(self) -> None:
        self._began, self._withheld = time.monotonic(), withheld()

    def spared(self) -> float:
        """Return the seconds since then that the machine withheld."""
        return min(withheld() - self._withheld, 0.9 * (time.monotonic() - self._began))

    def took(self) -> float:
        """Return the seconds since then, but for those that the machine withheld."""
        return time.monotonic() - self._began - self.spared()


def until(holds: Callable[[], object], seconds: float = 15.0, what: str = "it did not come to pass") -> float:
    """Wait until something holds, and return the seconds that it took by a fair watch.

    Raises AssertionError, with what did not come to pass, when it took longer than it may.
    """
    watch = FairWatch()
    while not holds():
        assert watch.took() < seconds, what
        time.sleep(0.005)
    return watch.took()
