"""
Control groups: a process of its own session still dies with the login or the job whose cgroup it stands in.

So each long-lived process of ours moves into a group of its own, at the top of every hierarchy it can (v1 and v2), and
reads back where it stands. Standard library only, Python 3.8.
"""

import os
import re
from contextlib import suppress
from typing import List, Optional

from chaoskit.agent.identity import Process

SWEPT = ("chaoskit-agent-", "chaoskit-fuse-")
"""Names of groups that only ever held a server or a fuse."""

CONFINED = re.compile(r"(^|/)(user\.slice|user-\d+\.slice|session-[^/]*\.scope|slurm[^/]*|job_?\d+[^/]*|pbs[^/]*)(/|$)")


def confined(cgroup: str) -> Optional[str]:
    """
    Return the path, out of a `/proc/PID/cgroup` text, that ends with a login or a batch job; None when there is none.

    A process there is killed when the user logs out or the job's epilogue runs: a revert must not depend on it.
    """
    for line in cgroup.splitlines():
        path = line.split(":", 2)[-1]
        if CONFINED.search(path):
            return path
    return None


def own_cgroup() -> str:
    """Return the text of this process's cgroup memberships."""
    with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
        return file.read()


def roots(mountinfo: Optional[str] = None) -> List[str]:
    """Return the mount point of each hierarchy, v1 and v2."""
    if mountinfo is None:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            mountinfo = file.read()
    found = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        if after.split(" ", 1)[0] in ("cgroup", "cgroup2"):
            found.append(before.split()[4])
    return found


def enter(name: str) -> List[str]:
    """
    Move this process into the group `name` of every hierarchy that allows it.

    Returns:
        A sentence for each hierarchy that refused.
    """
    notes = []
    for root in roots():
        group = os.path.join(root, name)
        try:
            os.makedirs(group, mode=0o755, exist_ok=True)
            _fill_cpuset(root, group)
            _write(os.path.join(group, "cgroup.procs"), str(os.getpid()))
        except OSError as error:
            _remove(group)
            notes.append("cgroup {}: {}".format(group, error.strerror))
    return notes


def leave(name: str) -> None:
    """Move this process back to the top and remove its group, best effort: an empty group hurts nobody."""
    for root in roots():
        try:
            _write(os.path.join(root, "cgroup.procs"), str(os.getpid()))
        except OSError:
            continue
        _remove(os.path.join(root, name))


def sweep() -> None:
    """Remove the groups of dead servers and fuses; the kernel refuses to remove those that somebody stands in."""
    for root in roots():
        try:
            names = [name for name in os.listdir(root) if name.startswith(SWEPT)]
        except OSError:
            continue
        for name in names:
            remove_tree(os.path.join(root, name))


def members(name: str) -> List[Process]:
    """Return the processes in the group `name` and the groups below it, in any hierarchy."""
    pids = set()
    for root in roots():
        for directory, _, files in os.walk(os.path.join(root, name)):
            if "cgroup.procs" in files:
                pids.update(_pids(os.path.join(directory, "cgroup.procs")))
    found = []
    for pid in sorted(pids):
        try:
            found.append(Process.of(pid))
        except ProcessLookupError:
            continue
    return [process for process in found if process.alive()]


def remove(name: str) -> None:
    """Remove the group `name` and those below it, as far as they are empty."""
    for root in roots():
        remove_tree(os.path.join(root, name))


def remove_tree(group: str) -> None:
    """Remove one group and those below it, as far as they are empty."""
    for directory, _, _ in os.walk(group, topdown=False):
        _remove(directory)


def _pids(path: str) -> List[int]:
    try:
        with open(path, encoding="ascii") as file:
            return [int(line) for line in file if int(line)]
    except OSError:
        return []


def _fill_cpuset(root: str, group: str) -> None:
    """A v1 cpuset takes no process until it has processors and memory: give it all that the top has."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        path = os.path.join(group, name)
        if os.path.exists(path) and os.path.exists(os.path.join(root, "cgroup.clone_children")):
            with open(os.path.join(root, name), encoding="ascii") as file:
                _write(path, file.read().strip())


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _remove(group: str) -> None:
    with suppress(OSError):  # still used, or never made
        os.rmdir(group)
