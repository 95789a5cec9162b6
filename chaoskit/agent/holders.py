"""
Who has files open on a file system, and how much they write, by /proc alone: a dead file server hangs nobody who asks here.

Standard library only, Python 3.8.
"""

import os
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence

from chaoskit.agent import mounts
from chaoskit.agent.mounts import Mount
from chaoskit.agent.procs import Process


class Held(NamedTuple):
    """A process, and one file or folder that it holds open."""

    process: Process
    path: str


class Wrote(NamedTuple):
    """What processes have written since they began, in bytes: to any storage, and by any call for it (to sockets and pipes too)."""

    storage: int
    calls: int


def wrote(processes: Sequence[Process]) -> Wrote:
    """Return what these processes, and children they have waited for, have written (proc_pid_io(5)); those that are gone, nothing."""
    counts = [_io(process.pid) for process in processes]
    return Wrote(sum(one.get("write_bytes", 0) for one in counts), sum(one.get("wchar", 0) for one in counts))


def _io(pid: int) -> Dict[str, int]:
    try:
        with open("/proc/{}/io".format(pid), encoding="ascii", errors="replace") as file:
            return {name: int(count) for name, _, count in (line.partition(":") for line in file)}
    except OSError:
        return {}


def holders(device: str, processes: Sequence[Process]) -> List[Held]:
    """Return those of these processes that hold something open on the file system `device` (major:minor), each with one path."""
    return _held(device, processes, _links)


def writers(device: str, processes: Sequence[Process]) -> List[Held]:
    """Return those that hold a file open for writing there, each with one path; who only stands or reads there is none."""
    return _held(device, processes, _written)


def _held(device: str, processes: Sequence[Process], paths: Callable[[int], Iterator[str]]) -> List[Held]:
    tables: Dict[str, List[Mount]] = {}
    found = []
    for process in processes:
        path = _path_on(device, process.pid, tables, paths)
        if path is not None:
            found.append(Held(process, path))
    return found


def _path_on(device: str, pid: int, tables: Dict[str, List[Mount]], paths: Callable[[int], Iterator[str]]) -> Optional[str]:
    try:
        namespace = os.readlink("/proc/{}/ns/mnt".format(pid))
        if namespace not in tables:
            tables[namespace] = mounts.table(str(pid))
    except OSError:
        return None
    table = tables[namespace]
    points = [mount.point for mount in table if mount.device == device]
    for path in paths(pid) if points else ():
        if any(_below(path, point) for point in points) and mounts.holding(path, table).device == device:
            return path
    return None


def _below(path: str, point: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")


def _links(pid: int) -> Iterator[str]:
    """Yield what a process has open, and where it stands; nothing of one that is gone."""
    for name in [*_descriptors(pid), "cwd"]:
        try:
            yield os.readlink("/proc/{}/{}".format(pid, name))
        except OSError:
            continue


def _written(pid: int) -> Iterator[str]:
    """Yield what a process has open for writing; nothing of one that is gone."""
    for name in _descriptors(pid):
        try:
            if _flags(pid, name) & os.O_ACCMODE:
                yield os.readlink("/proc/{}/{}".format(pid, name))
        except OSError:
            continue


def _descriptors(pid: int) -> List[str]:
    try:
        return ["fd/" + name for name in os.listdir("/proc/{}/fd".format(pid))]
    except OSError:
        return []


def _flags(pid: int, name: str) -> int:
    """Return the flags that a descriptor was opened with, by proc_pid_fdinfo(5). Raises OSError."""
    with open("/proc/{}/{}".format(pid, name.replace("fd/", "fdinfo/")), encoding="ascii", errors="replace") as file:
        return next((int(line.split()[1], 8) for line in file if line.startswith("flags:")), 0)
