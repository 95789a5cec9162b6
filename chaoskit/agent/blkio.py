"""
What control groups may write to a disk: throttles of cgroup v1 (blkio) and v2 (io), captured and restored exactly.

v2 counts write-back by the page cache against whoever dirtied the pages. v1 throttles only what a process of the group
submits itself, by O_DIRECT or by syncing its file: what the kernel's flusher writes later escapes it.
Standard library only, Python 3.8.
"""

import errno
import os
from contextlib import suppress
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from chaoskit.agent import mounts
from chaoskit.agent.mounts import Mount

V1_FILE, V2_FILE = "blkio.throttle.write_bps_device", "io.max"


class MissingError(Exception):
    """Groups here cannot throttle; the text says why and `hint` what to do."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.hint = hint


class Throttle(NamedTuple):
    """A group's limit on writes to a disk: the group's folder, the disk's `major:minor`, the limit in bytes a second (None: none)."""

    group: str
    disk: str
    limit: Optional[int]

    @property
    def version(self) -> int:
        """1 or 2: that of the group's hierarchy."""
        return 2 if os.path.basename(_file(self.group)) == V2_FILE else 1

    def to_json(self) -> Dict[str, object]:
        """Return it as JSON."""
        return dict(self._asdict())


def groups_of(pids: Sequence[int]) -> List[str]:
    """
    Return the folders of the groups, of the hierarchy that throttles, in which these processes stand.

    Raises:
        MissingError: No hierarchy here throttles, or one of them stands in its topmost group.
    """
    top, controller = hierarchy(mounts.table())
    found = sorted({path for path in (_group(pid, top, controller) for pid in pids) if path is not None})
    for path in found:
        if os.path.realpath(path) == os.path.realpath(top.point):
            raise MissingError("the training stands in the topmost group, with all else", "start it in a control group of its own")
    return found


def hierarchy(table: Sequence[Mount]) -> Tuple[Mount, str]:
    """Return the hierarchy that throttles, and its controller's name where it is one of v1's. Raises MissingError."""
    for mount in table:
        if mount.type == "cgroup" and mount.has("blkio"):
            return mount, "blkio"
    unified = [mount for mount in table if mount.type == "cgroup2"]
    if not unified:
        raise MissingError("no control groups with `blkio` or `io` are mounted here", "mount them at /sys/fs/cgroup")
    return unified[0], ""


def _group(pid: int, top: Mount, controller: str) -> Optional[str]:
    try:
        with open("/proc/{}/cgroup".format(pid), encoding="utf-8", errors="surrogateescape") as file:
            return place(file.read(), top, controller)
    except (FileNotFoundError, ProcessLookupError):
        return None


def place(cgroup: str, top: Mount, controller: str) -> Optional[str]:
    """Return the folder of a group below a mounted hierarchy, by the text of /proc/PID/cgroup; None when it stands in none there."""
    lines = [line.split(":", 2) for line in cgroup.splitlines()]
    path = next((path for number, names, path in lines if (controller in names.split(",") if controller else number == "0")), None)
    if path is None:
        return None
    # A hierarchy may be mounted from below its top, as in a container.
    inside = path == top.root or path.startswith(top.root.rstrip("/") + "/")
    below = os.path.relpath(path, top.root) if inside else path.lstrip("/")
    return os.path.normpath(os.path.join(top.point, below))


def read(group: str, disk: str) -> Throttle:
    """
    Return a group's limit on a disk as it stands.

    Raises:
        MissingError: The group cannot throttle.
        FileNotFoundError: The group is gone.
    """
    path = _file(group)
    if not os.path.exists(path):
        if not os.path.isdir(group):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), group)
        parent = os.path.dirname(group)
        why = "the group {} has no io controller".format(group)
        raise MissingError(why, "run: echo +io > {}/cgroup.subtree_control".format(parent))
    with open(path, encoding="ascii") as file:
        lines = [line.split() for line in file]
    words = next((line[1:] for line in lines if line and line[0] == disk), [])
    values = [word.partition("=")[2] or word for word in words if word.startswith("wbps=") or "=" not in word]
    return Throttle(group, disk, int(values[0]) if values and values[0] != "max" else None)


def limited() -> List[Throttle]:
    """Return every limit on writes that any group has. Raises MissingError: nothing here throttles."""
    top, _ = hierarchy(mounts.table())
    found = []
    for folder, _, files in os.walk(top.point):
        if V1_FILE in files or V2_FILE in files:
            with suppress(OSError):  # it is gone by now
                with open(_file(folder), encoding="ascii") as file:
                    disks = [line.split()[0] for line in file if line.strip()]
                found += [read(folder, disk) for disk in disks]
    return [one for one in found if one.limit is not None]


def name_of(disk: str) -> str:
    """Return the name of a disk, given as `major:minor`."""
    return os.path.basename(os.path.realpath("/sys/dev/block/{}".format(disk)))


def write(throttle: Throttle) -> None:
    """Make a group's limit be this one, and leave its others alone. Raises OSError; FileNotFoundError when the group is gone."""
    path = _file(throttle.group)
    if throttle.version == 1:
        text = "{} {}".format(throttle.disk, throttle.limit or 0)
    else:
        text = "{} wbps={}".format(throttle.disk, "max" if throttle.limit is None else throttle.limit)
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def written(group: str, disk: str) -> int:
    """Return the bytes that a group has written to a disk, as its hierarchy counts them; 0 when it says nothing."""
    try:
        if os.path.basename(_file(group)) == V2_FILE:
            with open(os.path.join(group, "io.stat"), encoding="ascii") as file:
                words = next((line.split()[1:] for line in file if line.split()[:1] == [disk]), [])
            return sum(int(word.partition("=")[2]) for word in words if word.startswith("wbytes="))
        with open(os.path.join(group, "blkio.throttle.io_service_bytes"), encoding="ascii") as file:
            return sum(int(line.split()[2]) for line in file if line.split()[:2] == [disk, "Write"])
    except OSError:
        return 0


def members(group: str) -> List[int]:
    """Return the processes of a group and of those below it."""
    found = []
    for folder, _, files in os.walk(group):
        if "cgroup.procs" in files:
            with open(os.path.join(folder, "cgroup.procs"), encoding="ascii") as file:
                found += [int(line) for line in file if int(line)]
    return found


def _file(group: str) -> str:
    first = os.path.join(group, V1_FILE)
    return first if os.path.exists(first) else os.path.join(group, V2_FILE)
