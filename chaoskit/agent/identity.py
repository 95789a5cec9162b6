"""Which process: a pid is only a number until its start time stands beside it, because pids are used again."""

import os
import signal
from typing import Any, Dict, List, Mapping, NamedTuple, Optional


class Process(NamedTuple):
    """A process: pid, and start time in clock ticks after boot."""

    pid: int
    start_time: int

    def alive(self) -> bool:
        """Say whether this very process still runs; a zombie does not."""
        found = stat_of(self.pid)
        return found is not None and found.start_time == self.start_time and found.state not in "ZX"

    def kill(self, number: int) -> bool:
        """Send a signal to this very process; false when it is gone. Raises PermissionError."""
        try:
            # From 3.9 a pidfd closes the gap between looking and killing; 3.8 has to live with it.
            fd = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None
        except OSError:
            fd = None
        try:
            if not self.alive():
                return False
            return _send(fd, self.pid, number)
        finally:
            if fd is not None:
                os.close(fd)

    def to_json(self) -> Dict[str, int]:
        """Return the identity as JSON."""
        return {"pid": self.pid, "start_time": self.start_time}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Process":
        """Rebuild the identity from `to_json`'s output."""
        return cls(int(data["pid"]), int(data["start_time"]))

    @classmethod
    def of(cls, pid: int) -> "Process":
        """Return the identity of a running process. Raises ProcessLookupError."""
        found = stat_of(pid)
        if found is None:
            raise ProcessLookupError("no process {}".format(pid))
        return cls(pid, found.start_time)


class Stat(NamedTuple):
    """What `/proc/PID/stat` says of a process."""

    state: str
    session: int
    start_time: int


def stat_of(pid: int) -> Optional[Stat]:
    """Return a process's state, session and start time; None when there is none."""
    try:
        with open("/proc/{}/stat".format(pid), "rb") as file:
            # The name in brackets may hold anything, brackets too: count from the last one.
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return Stat(fields[0].decode(), int(fields[3]), int(fields[19]))


def session_of(pid: int) -> Optional[int]:
    """Return a process's session; None when there is no such process."""
    found = stat_of(pid)
    return None if found is None else found.session


def all_pids() -> List[int]:
    """Return the pids of this moment."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def in_session(session: int) -> List[Process]:
    """Return the living processes of a session."""
    found = ((pid, stat_of(pid)) for pid in all_pids())
    return [Process(pid, stat.start_time) for pid, stat in found if stat is not None and stat.session == session and stat.state not in "ZX"]


def _send(fd: Optional[int], pid: int, number: int) -> bool:
    try:
        if fd is not None and hasattr(signal, "pidfd_send_signal"):
            signal.pidfd_send_signal(fd, number)
        else:
            os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
