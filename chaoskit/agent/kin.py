"""
The agent's other processes on this node: servers and fuses of any version and any roots, by their command lines.

Standard library only, Python 3.8.
"""

import os
import re
from typing import List, NamedTuple, Optional, Tuple

from chaoskit.agent.identity import Process, all_pids
from chaoskit.agent.paths import STATE

NAME = re.compile(r"[0-9a-f]{64}\.pyz\Z")
"""How the loader names an agent's file."""

LASTING = ("serve", "fuse")
"""The verbs of processes that outlive the connection that they were started by."""


IDLE_EXIT = 600.0
"""Seconds after its last use until a server ends, when nothing is owed."""


class Kin(NamedTuple):
    """A process of an agent: who, what it does, of which agent (hash), and below which state root."""

    process: Process
    verb: str
    agent: str
    state: str

    def __str__(self) -> str:
        what = "server" if self.verb == "serve" else "fuse"
        root = "" if self.state == STATE else ", state in {}".format(self.state)
        return "{} of agent {} (process {}{})".format(what, self.agent[:16], self.process.pid, root)


def everyone() -> List[Kin]:
    """Return every living server and fuse of this node, the caller's own included; those of containers are other nodes'."""
    found = (_kin(pid) for pid in all_pids())
    return [kin for kin in found if kin is not None]


def _kin(pid: int) -> Optional[Kin]:
    try:
        who = Process.of(pid)
        with open("/proc/{}/cmdline".format(pid), "rb") as file:
            argv = [part.decode("utf-8", "replace") for part in file.read().split(b"\0")]
        told = told_by(argv)
        ours = told is not None and os.stat("/proc/{}".format(pid)).st_uid == 0 and _sees_our(told[2], pid)
        return Kin(who, *told) if told is not None and ours and who.alive() else None
    except OSError:
        return None  # it has ended


def told_by(argv: List[str]) -> Optional[Tuple[str, str, str]]:
    """
    Return verb, agent and state root that a command line tells of; None when it is no server's and no fuse's.

    They run from where the loader puts agents, below their own state root: other programs may end in `.pyz` and serve, too.
    """
    for archive, verb, rest in ((argv[at], argv[at + 1], argv[at + 2 :]) for at in range(1, len(argv) - 1)):
        if verb in LASTING:
            state = os.path.normpath(dict(zip(rest[::2], rest[1::2])).get("--state", STATE))
            folder, name = os.path.split(archive)
            if folder == os.path.join(state, "agent") and NAME.match(name):
                return verb, name[: -len(".pyz")], state
    return None


def _sees_our(state: str, pid: int) -> bool:
    """Whether a state root is the same to a process as to us; a container has another one of the same name. Raises OSError."""
    if os.path.samestat(os.stat("/proc/{}/ns/mnt".format(pid)), os.stat("/proc/self/ns/mnt")):
        return True  # even when it has been removed meanwhile
    return os.path.samestat(os.stat("/proc/{}/root{}".format(pid, state)), os.stat(state))
