"""
Staying alive and awake: pages locked in memory, spared by the OOM killer, ahead of the load, quick thread switches.

All of it is best effort, and what the node refused becomes a sentence in `hello`, which the doctor tells. Standard library
only, Python 3.8.
"""

import ctypes
import os
import sys
from typing import List

MCL_CURRENT = 1
OOM_SCORE = -900

NICE = -10
"""A node under full load must still let us end a fault on time; we need next to no processor."""

SWITCH_INTERVAL = 0.0005
"""Seconds until a busy thread yields: a thread that waits for T0 must not wait 5 ms more for the interpreter."""


def harden() -> List[str]:
    """Lock memory, lower the OOM score, raise the priority, switch threads quickly; return a sentence for each thing refused."""
    sys.setswitchinterval(SWITCH_INTERVAL)
    return [note for note in (_lock_memory(), _spare_from_oom(), _go_ahead()) if note]


def soften() -> None:
    """Give up what a process that we start must not inherit: it is an ordinary one."""
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("0")
    os.setpriority(os.PRIO_PROCESS, 0, 0)


def _lock_memory() -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    # Only what is resident now: MCL_FUTURE would let a later thread stack fail to map where the limit is low.
    if libc.mlockall(MCL_CURRENT) == 0:
        return ""
    return "memory is not locked: {}".format(os.strerror(ctypes.get_errno()))


def _go_ahead() -> str:
    try:
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    except OSError as error:
        return "the agent's priority is not raised: {}".format(error.strerror)
    return ""


def _spare_from_oom() -> str:
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(str(OOM_SCORE))
    except OSError as error:
        return "the OOM killer may pick the agent: {}".format(error.strerror)
    return ""
