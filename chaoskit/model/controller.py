"""
How a controller is called on nodes, and whether one of that name is dead for certain.

The name is `user@host:PID.START.NAMESPACE`: a pid alone is used again, and means another process in another container.
"""

import getpass
import os
import socket
from pathlib import Path

from chaoskit.agent.identity import Process, stat_of


def this_controller() -> str:
    """Return who we are, for the nodes' ledgers, holds and syslogs."""
    return f"{getpass.getuser()}@{socket.gethostname()}:{os.getpid()}.{_start()}.{_namespace()}"


def is_this(name: str) -> bool:
    """Say whether a name is this very process's."""
    return name.rpartition(":")[2] == this_controller().rpartition(":")[2] and _host(name) == socket.gethostname()


def is_dead(name: str) -> bool:
    """Say whether a controller is a process of this machine that has ended for certain; of any other nobody knows."""
    parts = name.rpartition(":")[2].split(".")
    if _host(name) != socket.gethostname() or len(parts) != 3 or not all(part.isdigit() for part in parts):
        return False
    pid, start, namespace = (int(part) for part in parts)
    if namespace != _namespace() or not 0 < pid < 2**31:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    seen = stat_of(pid)  # not to be seen where /proc hides other users' processes: then it lives
    return seen is not None and (seen.start_time != start or seen.state in "ZX")


def _host(name: str) -> str:
    return name.rpartition(":")[0].rpartition("@")[2]


def _start() -> int:
    try:
        return Process.of(os.getpid()).start_time
    except OSError:
        return 0


def _namespace() -> int:
    """Return the number of our PID namespace; 0 where there is no such thing."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0
