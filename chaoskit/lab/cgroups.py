"""
The lab's cgroups: the rope that holds every process of it, so that nothing survives `down`.

In every cgroup hierarchy of the machine (v1, v2 or both) stand chaoskit-lab/NAME/supervisor and chaoskit-lab/NAME/NODE.
"""

import os
import signal
import time
from pathlib import Path

from chaoskit.errors import LeakedError

TOP = "chaoskit-lab"
NODE_SHARES = 1024
"""What a process at the top of a v1 hierarchy weighs when processors are short."""


def hierarchies() -> tuple[Path, ...]:
    """Return the mount points of all cgroup hierarchies."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        left, _, right = line.partition(" - ")
        if right.split()[0] in ("cgroup", "cgroup2") and left.split()[3] == "/":
            found.append(Path(left.split()[4]))
    return tuple(dict.fromkeys(found))


def path_of(lab: str, leaf: str) -> str:
    """Return the path of a cgroup of the lab, as runc wants it."""
    return f"/{TOP}/{lab}/{leaf}"


def folders(lab: str, leaf: str = "") -> tuple[Path, ...]:
    """Return the existing folders of one of the lab's cgroups, in all hierarchies."""
    return tuple(path for root in hierarchies() if (path := root / TOP / lab / leaf).is_dir())


def join(lab: str, leaf: str, pid: int) -> None:
    """Put a process into a cgroup of the lab, making it where needed."""
    for root in hierarchies():
        folder = root / TOP / lab / leaf
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / "tasks").exists() and (folder / "cpuset.mems").exists():
            continue  # a fresh v1 cpuset takes nobody before it has processors, and runc sees to the nodes' own
        (folder / "cgroup.procs").write_text(str(pid), encoding="ascii")


def weigh(lab: str, nodes: int) -> None:
    """
    Let each node of a lab weigh as much as one process of the machine, so that a busy one does not starve the cluster.

    On cgroup v1 all labs together would weigh as much as one process beside them. On v2 the lab competes with slices, which
    weigh the same however many processes are in them, and no change is needed.
    """
    for root in hierarchies():
        own = root / TOP / lab / "cpu.shares"
        if own.exists():
            own.write_text(str(NODE_SHARES * nodes), encoding="ascii")
            labs = (int(file.read_text(encoding="ascii")) for file in (root / TOP).glob("*/cpu.shares"))
            (root / TOP / "cpu.shares").write_text(str(sum(labs)), encoding="ascii")


def processes(lab: str, leaf: str = "") -> set[int]:
    """Return the pids of everything in the lab, or in one of its cgroups."""
    found: set[int] = set()
    for folder in folders(lab, leaf):
        for file in folder.rglob("cgroup.procs"):
            found |= _pids(file)
    return found


def kill(lab: str, leaf: str = "", within: float = 10.0) -> None:
    """
    Kill every process of the lab, or of one of its cgroups, frozen ones too.

    Raises:
        LeakedError: Something is still there after `within` seconds.
    """
    end = time.monotonic() + within
    while pids := processes(lab, leaf):
        if time.monotonic() > end:
            raise LeakedError(
                f"processes {sorted(pids)} do not die", where=f"lab {lab}", hint="they hang in the kernel; see /proc/PID/stack"
            )
        _thaw(lab, leaf)
        for pid in pids:
            _kill(pid)
        time.sleep(0.005)


def remove(lab: str, within: float = 5.0) -> None:
    """
    Remove the lab's cgroups, and the folder above when no other lab is up.

    Raises:
        LeakedError: One is still there after `within` seconds.
    """
    end = time.monotonic() + within
    while left := [folder for folder in folders(lab) if not _remove_tree(folder)]:
        if time.monotonic() > end:
            raise LeakedError(f"cgroups stay: {', '.join(map(str, left))}", where=f"lab {lab}")
        time.sleep(0.01)
    for root in hierarchies():
        _rmdir(root / TOP)


def _remove_tree(folder: Path) -> bool:
    children = sorted((path for path in folder.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts))
    for path in children:
        _rmdir(path)
    return _rmdir(folder)


def _rmdir(path: Path) -> bool:
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError:  # a process is still leaving it, or another lab is in it
        return False
    return True


def _pids(file: Path) -> set[int]:
    try:
        return {int(word) for word in file.read_text(encoding="ascii").split()}
    except OSError:  # removed while we looked
        return set()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _thaw(lab: str, leaf: str) -> None:
    for folder in folders(lab, leaf):
        for name, word in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
            for file in folder.rglob(name):
                _write_if_there(file, word)


def _write_if_there(file: Path, word: str) -> None:
    try:
        file.write_text(word, encoding="ascii")
    except FileNotFoundError:
        return
