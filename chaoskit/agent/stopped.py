"""
Processes of ours that are stopped, as by SIGSTOP: neither dead, so that nobody takes over, nor of any use.

What they hold, a lock or a socket, is free once they are ended. Standard library only, Python 3.8.
"""

import fcntl
import os
import signal
import time
from contextlib import suppress
from typing import List

from chaoskit.agent.identity import Process, all_pids, stat_of

LOOK_EVERY = 1.0
"""Seconds between looks at whether whoever holds a lock is stopped."""


def is_stopped(pid: int) -> bool:
    """Say whether a process is stopped."""
    found = stat_of(pid)
    return found is not None and found.state in "Tt"


def take_lock(fd: int) -> None:
    """Take the lock of an open file of ours, however long that takes; who holds it and is stopped is ended. Raises OSError."""
    pause, looked = 0.001, time.monotonic()
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(pause)
        else:
            return
        pause = min(2 * pause, 0.05)
        if time.monotonic() - looked >= LOOK_EVERY:
            end_stopped_holders(os.readlink("/proc/self/fd/{}".format(fd)))
            looked = time.monotonic()


def end_stopped_holders(path: str) -> List[int]:
    """Kill each stopped process that has a file of ours open, as whoever holds its lock has; returns their pids."""
    ended = []
    for pid in all_pids():
        if pid != os.getpid() and is_stopped(pid) and _has_open(pid, path):
            with suppress(ProcessLookupError):
                if Process.of(pid).kill(signal.SIGKILL):
                    ended.append(pid)
    return ended


def _has_open(pid: int, path: str) -> bool:
    folder = "/proc/{}/fd".format(pid)
    with suppress(OSError):
        for name in os.listdir(folder):
            with suppress(OSError):
                if os.readlink(os.path.join(folder, name)) == path:
                    return True
    return False
