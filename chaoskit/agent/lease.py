"""
The lease of a run: the deadline, on the boot-time clock, after which the node heals itself.

It always runs from the arming of an entry, only `renew` moves it, and once over with entries open it is over for those
entries for ever. The server keeps it; the file is for the fuse and for whoever audits. Standard library only, Python 3.8.
"""

import json
import math
import os
from contextlib import suppress
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence

from chaoskit.agent.paths import PART, Paths, private_directory, write_atomically
from chaoskit.errors import RefusedError

SHORTEST, LONGEST = 0.5, 3600.0


class Lease(NamedTuple):
    """A lease: its length, and its deadline on CLOCK_BOOTTIME, both in seconds."""

    length: float
    deadline: float

    def over(self, now: float) -> bool:
        """Say whether it has run out."""
        return now >= self.deadline

    def enough(self, at: float) -> bool:
        """Say whether at least half of it remains at `at` (boottime), so that an injection may begin."""
        return self.deadline - at >= self.length / 2


def checked_length(seconds: float) -> float:
    """Return a lease's length. Raises RefusedError when it is outside the bounds (or not a number)."""
    if not SHORTEST <= seconds <= LONGEST:
        raise RefusedError("a lease of {} s is not between {} and {} s".format(seconds, SHORTEST, LONGEST))
    return seconds


class Leases:
    """
    The leases that one server keeps, by run.

    Args:
        write: Called with run and lease after each change, before the change counts.
    """

    def __init__(self, write: Callable[[str, Lease], None]) -> None:
        self._write = write
        self._leases: Dict[str, Lease] = {}
        self._expired: Dict[str, List[str]] = {}

    def begin(self, run: str, length: float, now: float) -> Lease:
        """Start or renew the lease of a run for an entry that is being armed."""
        lease = Lease(checked_length(length), now + length)
        self._write(run, lease)
        self._leases[run] = lease
        return lease

    def renew(self, run: str, length: float, now: float) -> Optional[Lease]:
        """Move the deadline of a living lease; a dead or unknown one stays what it is."""
        current = self._leases.get(run)
        if current is None or current.over(now):
            return None
        return self.begin(run, length, now)

    def get(self, run: str) -> Optional[Lease]:
        """Return the lease of a run."""
        return self._leases.get(run)

    def over(self, now: float) -> List[str]:
        """Return the runs whose lease has run out, and forget those leases."""
        runs = [run for run, lease in self._leases.items() if lease.over(now)]
        for run in runs:
            del self._leases[run]
        return runs

    def expire(self, run: str, entries: Sequence[str]) -> None:
        """Remember which entries a lease ended."""
        self._expired.setdefault(run, []).extend(entries)

    def expired(self, run: str) -> List[str]:
        """Return the entries of a run that a lease ended, for as long as this server lives."""
        return list(self._expired.get(run, ()))

    def next_deadline(self) -> Optional[float]:
        """Return the earliest deadline."""
        return min((lease.deadline for lease in self._leases.values()), default=None)


def write_lease(paths: Paths, run: str, lease: Lease) -> None:
    """Write a run's lease file. Raises OSError."""
    path = paths.lease(run)
    private_directory(os.path.dirname(path))
    write_atomically(path, json.dumps({"length": lease.length, "deadline": lease.deadline}).encode() + b"\n")


def read_lease(paths: Paths, run: str) -> Optional[Lease]:
    """Return what a run's lease file says; None when there is none or it cannot be read."""
    try:
        with open(paths.lease(run), "rb") as file:
            data = json.loads(file.read())
        lease = Lease(float(data["length"]), float(data["deadline"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return lease if math.isfinite(lease.length) and math.isfinite(lease.deadline) else None


def forget_lease(paths: Paths, run: str) -> None:
    """Remove a run's lease file, once nothing of it is owed any more; harmless when it is gone."""
    path = paths.lease(run)
    with suppress(OSError):
        os.unlink(path)
        os.rmdir(os.path.dirname(path))


def last_deadline(paths: Paths) -> float:
    """Return the latest deadline that any lease file tells, on CLOCK_BOOTTIME; 0 when there is none."""
    try:
        runs = [run for run in os.listdir(os.path.join(paths.run, "runs")) if PART.match(run)]
    except OSError:
        return 0.0
    leases = (read_lease(paths, run) for run in runs)
    return max((lease.deadline for lease in leases if lease is not None), default=0.0)
