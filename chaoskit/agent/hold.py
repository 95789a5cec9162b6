"""
The hold: one run at a time on a node, from its beginning, so that no second one disturbs what the first one measures.

A file in memory says whose it is, and until when. It is renewed as a lease is, goes with the run, and ends by itself when
its controller dies; faults have their own locks beside it (`Node.refuse_taken`). All versions of the agent share it.
Standard library only, Python 3.8.
"""

import json
import os
import time
from contextlib import contextmanager, suppress
from typing import Any, Dict, Iterator, NamedTuple, Optional

from chaoskit.agent.contract import Site
from chaoskit.agent.host import Host
from chaoskit.agent.lease import LONGEST, checked_length
from chaoskit.agent.paths import Paths, private_directory, write_atomically
from chaoskit.agent.stopped import take_lock


class Holder(NamedTuple):
    """Whose a node is: the run, its controller, since when (wall clock), until when (CLOCK_BOOTTIME), and of which boot."""

    run: str
    controller: str
    since: float
    deadline: float
    boot: str = ""

    def to_json(self) -> Dict[str, Any]:
        """Return it as an answer has it, with the seconds that are left."""
        return {"run": self.run, "controller": self.controller, "since": self.since, "left": self.deadline - _now()}

    def __str__(self) -> str:
        told = "run {} of {} has this node since {} UTC; {:.0f} s of its hold are left"
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.since))
        return told.format(self.run, self.controller, since, self.deadline - _now())


def take(paths: Paths, run: str, controller: str, length: float, instead_of: str = "") -> Optional[Holder]:
    """
    Take the node for a run, or renew its hold.

    Args:
        paths: The agent's roots.
        run: Whose it shall be.
        controller: Who drives that run.
        length: Seconds from now.
        instead_of: A run whose controller is known to be dead.

    Returns:
        None when it is the run's; otherwise whose it is.

    Raises:
        RefusedError: The length is out of bounds.
        OSError: It cannot be written.
    """
    checked_length(length)
    private_directory(paths.run)
    with _lock(paths):
        other = holder(paths)
        if other is not None and other.run not in (run, instead_of):
            return other
        since = other.since if other is not None and other.run == run else time.time()
        mine = Holder(run, controller, since, _now() + length, _boot())
        write_atomically(_path(paths), json.dumps(mine._asdict()).encode())
    return None


def release(paths: Paths, run: str) -> None:
    """Give the node back, if it is this run's. Raises OSError."""
    private_directory(paths.run)
    with _lock(paths):
        other = holder(paths)
        if other is not None and other.run == run:
            with suppress(FileNotFoundError):
                os.unlink(_path(paths))


def holder(paths: Paths) -> Optional[Holder]:
    """
    Return whose the node is; None when it is nobody's (any more), or that cannot be read.

    Of another boot, or farther ahead than anybody may hold a node, is no deadline of ours: it would keep everybody out for ever.
    """
    try:
        with open(_path(paths), "rb") as file:
            data = json.loads(file.read())
        times = float(data["since"]), float(data["deadline"])
        found = Holder(str(data["run"]), str(data["controller"]), *times, str(data.get("boot", "")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    return found if found.boot in ("", _boot()) and 0 < found.deadline - _now() <= LONGEST else None


def _path(paths: Paths) -> str:
    return os.path.join(paths.run, "holder")


@contextmanager
def _lock(paths: Paths) -> Iterator[None]:
    fd = os.open(_path(paths) + ".lock", os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        take_lock(fd)
        yield
    finally:
        os.close(fd)


def _boot() -> str:
    return Host(Site("")).boot_id()


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
