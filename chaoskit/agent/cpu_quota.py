"""
A group of our own below another, with a quota of CPU time: made, filled, read and removed, in cgroup v1 and v2.

It stands *below* the group that the processes came from, never beside it, so that every limit, device filter and kill of
theirs goes on to hold. In v2 a group with processes cannot have ordinary children: ours is `threaded`, which is allowed for
controllers such as `cpu`. Standard library only, Python 3.8.
"""

import errno
import math
import os
import time
from contextlib import suppress
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from chaoskit.agent import mounts, procs
from chaoskit.agent.mounts import Mount

PERIOD = 5_000
"""Microseconds: short against a step, so that a step is slowed evenly and not by luck."""
LEAST_QUOTA = 1_000
"""Microseconds of a period: the kernel takes no smaller quota, so a small share has a longer period."""
LONGEST_PERIOD = 1_000_000
LEAST_RATE = LEAST_QUOTA / LONGEST_PERIOD
"""Cores: no smaller share can be said."""
REMOVE_WITHIN = 5.0
STEP = 0.01


class MissingError(Exception):
    """No quota can be set here; the text says why and `hint` what to do."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.hint = hint


class Quota(NamedTuple):
    """CPU time, in microseconds of each period."""

    quota: int
    period: int

    @property
    def rate(self) -> float:
        """The cores that it amounts to."""
        return self.quota / self.period


class Home(NamedTuple):
    """
    A group that processes stand in, in the hierarchy that shares out CPU time.

    `version` is that of cgroups; `handed_down` whether its children have the cpu controller already (in v1 they always do).
    """

    folder: str
    version: int
    handed_down: bool


def quota_for(rate: float) -> Quota:
    """Return the quota that amounts to so many cores, at least `LEAST_RATE`."""
    period = min(LONGEST_PERIOD, max(PERIOD, math.ceil(LEAST_QUOTA / rate)))
    return Quota(max(LEAST_QUOTA, round(rate * period)), period)


def home(pid: int) -> Home:
    """
    Return the group of a process, when a group with a quota can be made below it.

    Raises:
        MissingError: The kernel, the mounts, the group or our rights do not allow it.
        ProcessLookupError: The process is gone.
    """
    if not os.path.exists("/proc/sys/kernel/sched_cfs_bandwidth_slice_us"):
        raise MissingError("this kernel has no CPU quotas", "it needs CONFIG_CFS_BANDWIDTH")
    folders = {_folder(pid, thread) for thread in os.listdir("/proc/{}/task".format(pid))}
    if len(folders) != 1:
        what = "the threads of process {} stand in several groups".format(pid)
        raise MissingError("{}: {}".format(what, ", ".join(sorted(name for name, _ in folders))), "they could not be put back")
    folder, mount = folders.pop()
    found = examined(folder, mount)
    if not os.access(os.path.join(folder, "cgroup.procs"), os.W_OK):
        raise MissingError("{} cannot be written".format(folder), "run the agent as root, where the cgroups are mounted writable")
    return found


def folder_of(pid: int) -> Optional[str]:
    """Return the folder of the group that a process stands in; None when it has ended, or its group is in no mount here."""
    try:
        return _folder(pid, str(pid))[0]
    except (OSError, MissingError):
        return None


def examined(folder: str, mount: Mount) -> Home:
    """
    Return what a group allows, by its files.

    Raises:
        MissingError: v2 gives it no CPU time to share out; or others stand below it, from whom the controller that is handed
            down for ours could not be taken again.
    """
    if mount.type == "cgroup":
        return Home(folder, 1, handed_down=True)
    if "cpu" not in _words(folder, "cgroup.controllers"):
        line = "echo +cpu > {}/cgroup.subtree_control".format(os.path.dirname(folder))
        raise MissingError("the group {} has no cpu controller".format(folder), "run: {}".format(line))
    found = Home(folder, 2, handed_down(folder))
    if _is_root(folder) and not found.handed_down:
        line = "echo +cpu > {}/cgroup.subtree_control".format(folder)
        raise MissingError("the topmost group gives no cpu controller to those below it", "run: {}".format(line))
    if not found.handed_down and _children(folder):
        line = "echo +cpu > {}/cgroup.subtree_control".format(folder)
        raise MissingError("the group {} has others below it".format(folder), "remove them, or run: {}".format(line))
    return found


def make(own: str, parent: Home, quota: Quota) -> None:
    """
    Make a group below its parent, and read back that it has the quota.

    Raises:
        FileExistsError: A group of that name is there; it was not touched.
        OSError: The kernel refused; what was made is for `remove`.
    """
    os.mkdir(own, 0o755)
    if parent.version == 1:
        _fill_cpuset(parent.folder, own)
        _write(own, "cpu.cfs_period_us", str(quota.period))
        _write(own, "cpu.cfs_quota_us", str(quota.quota))
    else:
        if not _is_root(parent.folder):
            _write(own, "cgroup.type", "threaded")
        if not parent.handed_down:
            _write(parent.folder, "cgroup.subtree_control", "+cpu")
        _write(own, "cpu.max", "{} {}".format(quota.quota, quota.period))
    if read(own, parent.version) != quota:
        raise OSError(errno.EIO, "{} has the quota {}, not {}".format(own, read(own, parent.version), quota))


def read(own: str, version: int) -> Quota:
    """Return a group's quota. Raises OSError, ValueError when it has none."""
    if version == 1:
        return Quota(int(_words(own, "cpu.cfs_quota_us")[0]), int(_words(own, "cpu.cfs_period_us")[0]))
    quota, period = _words(own, "cpu.max")
    return Quota(int(quota), int(period))


def move(pid: int, folder: str) -> bool:
    """Move a process with all of its threads into a group; return False when it has ended. Raises OSError."""
    try:
        _write(folder, "cgroup.procs", str(pid))
    except ProcessLookupError:
        return False
    return True


def members(own: str) -> List[int]:
    """Return the processes of a group, by their threads: v2 tells no processes of a threaded one; empty when there is no group."""
    for name in ("tasks", "cgroup.threads"):  # v1, v2
        try:
            threads = [int(word) for word in _words(own, name)]
        except (FileNotFoundError, OSError) as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise
            continue
        return sorted({owner for owner in map(procs.owner, threads) if owner})
    return []


def named(prefix: str) -> List[Tuple[str, int]]:
    """Return the folder of each group whose name begins so, where CPU time is shared out, with the version of its hierarchy."""
    found: Dict[Tuple[int, int], Tuple[str, int]] = {}  # one hierarchy may be mounted at several places
    for mount in mounts.table():
        if mount.type == "cgroup2" or (mount.type == "cgroup" and mount.has("cpu")):
            for folder, names, _ in os.walk(mount.point):
                for path in (os.path.join(folder, name) for name in names if name.startswith(prefix)):
                    with suppress(FileNotFoundError):
                        status = os.stat(path)
                        found.setdefault((status.st_dev, status.st_ino), (path, 2 if mount.type == "cgroup2" else 1))
    return list(found.values())


def throttled(own: str) -> Tuple[int, float]:
    """Return how often a group was held back, and for how many seconds in all; (0, 0.0) when there is no such group."""
    try:
        pairs = dict(line.split() for line in _read(own, "cpu.stat").splitlines())
    except OSError:
        return 0, 0.0
    held = int(pairs["throttled_time"]) / 1e9 if "throttled_time" in pairs else int(pairs.get("throttled_usec", 0)) / 1e6
    return int(pairs.get("nr_throttled", 0)), held


def remove(own: str, parent: Home) -> List[str]:
    """
    Move what is still in a group of ours back to its parent, remove it, and take from the parent what it was not given before.

    Returns:
        What is not done, each a sentence; empty when all is as it was.
    """
    trouble = _emptied(own, parent.folder)
    if not trouble and parent.version == 2 and not parent.handed_down and handed_down(parent.folder):
        if _children(parent.folder):
            return ["{} has other groups below it by now, which use the cpu controller".format(parent.folder)]
        try:
            _write(parent.folder, "cgroup.subtree_control", "-cpu")
        except OSError as error:
            return ["{}: {}".format(parent.folder, error.strerror)]
    return trouble


def handed_down(folder: str) -> bool:
    """Whether a v2 group gives its children CPU quotas; False when it is gone."""
    try:
        return "cpu" in _words(folder, "cgroup.subtree_control")
    except OSError:
        return False


def _children(folder: str) -> List[str]:
    """Return the names of the groups below one."""
    return [entry.name for entry in os.scandir(folder) if entry.is_dir()]


def _is_root(folder: str) -> bool:
    """Whether a v2 group is the root of all, which has no type and may have processes and ordinary children both."""
    return not os.path.exists(os.path.join(folder, "cgroup.type"))


def _emptied(own: str, folder: str) -> List[str]:
    end = time.monotonic() + REMOVE_WITHIN
    while True:
        try:
            for pid in members(own):  # they may fork meanwhile, into the same group
                move(pid, folder)
            os.rmdir(own)
        except FileNotFoundError:
            return []
        except OSError as error:
            if time.monotonic() > end:
                return ["{}: {}".format(own, error.strerror)]
            time.sleep(STEP)
        else:
            return []


def _folder(pid: int, thread: str) -> Tuple[str, Mount]:
    """Return the folder of a thread's group where CPU time is shared out, and the mount that it is found in. Raises MissingError."""
    with open("/proc/{}/task/{}/cgroup".format(pid, thread), encoding="utf-8", errors="surrogateescape") as file:
        return located(file.read(), mounts.table())


def located(groups: str, table: Sequence[Mount]) -> Tuple[str, Mount]:
    """
    Return the folder of the group that a `/proc/PID/cgroup` text names where CPU time is shared out, and its mount.

    v1 where it has the cpu controller, else v2. Raises MissingError when that cannot be reached by any mount.
    """
    lines = [line.split(":", 2) for line in groups.splitlines()]
    first = [path for _, names, path in lines if "cpu" in names.split(",")]
    unified = [path for number, names, path in lines if number == "0" and not names]
    kind, paths = ("cgroup", first) if first else ("cgroup2", unified)
    if not paths:
        raise MissingError("it stands in no control group of the cpu controller", "mount the cgroups at /sys/fs/cgroup")
    # The last of mounts at one place hides those before it.
    for mount in reversed(table):
        if mount.type == kind and (kind == "cgroup2" or mount.has("cpu")):
            rest = _below(paths[0], mount.root)
            if rest is not None:
                return os.path.normpath(os.path.join(mount.point, rest)), mount
    raise MissingError(
        "its group {} is in no mount here".format(paths[0]), "run the agent in the cgroup namespace of the training, or above"
    )


def _below(path: str, root: str) -> Optional[str]:
    """Return a path relative to a root above it; None when it is elsewhere."""
    if ".." in path.split("/") or not procs.within(path, root):
        return None
    return path[len(root.rstrip("/")) :].lstrip("/")


def _fill_cpuset(parent: str, own: str) -> None:
    """Where v1 mounts cpuset with cpu, a group takes no process until it has processors and memory: those of its parent."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        if os.path.exists(os.path.join(own, name)):
            _write(own, name, _read(parent, name).strip())


def _words(folder: str, name: str) -> List[str]:
    return _read(folder, name).split()


def _read(folder: str, name: str) -> str:
    with open(os.path.join(folder, name), encoding="ascii") as file:
        return file.read()


def _write(folder: str, name: str, text: str) -> None:
    fd = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
