"""
What is mounted where, as the kernel says it. Never looks inside: a dead file server would hang whoever does.

Standard library only, Python 3.8.
"""

import os
from typing import Dict, List, NamedTuple


class Mount(NamedTuple):
    """
    A mount, by the fields of proc_pid_mountinfo(5).

    `device` is the file system's `major:minor`, equal for all mounts of it; `options` are those of the file system.
    """

    ident: int
    device: str
    root: str
    point: str
    type: str
    source: str
    options: str

    def option(self, name: str) -> str:
        """Return an option's value; empty when it has none, or is not there."""
        found = [text.partition("=")[2] for text in self.options.split(",") if text.partition("=")[0] == name]
        return found[0] if found else ""

    def has(self, name: str) -> bool:
        """Whether an option is there, with a value or without."""
        return any(text.partition("=")[0] == name for text in self.options.split(","))


def mounted() -> Dict[str, str]:
    """Return each mount point of this mount namespace with the type of the file system there (the topmost mount's)."""
    return {mount.point: mount.type for mount in table()}


def table(pid: str = "self") -> List[Mount]:
    """Return every mount of a process's mount namespace below its root, in the kernel's order. Raises OSError."""
    with open("/proc/{}/mountinfo".format(pid), encoding="utf-8", errors="surrogateescape") as file:
        return [parsed(line) for line in file]


def parsed(line: str) -> Mount:
    """Read one line of mountinfo; a lone dash ends the fields whose number varies."""
    place, _, what = line.rstrip("\n").partition(" - ")
    left, right = place.split(" "), what.split(" ")
    return Mount(int(left[0]), left[2], _plain(left[3]), _plain(left[4]), right[0], _plain(right[1]), _plain(right[2]))


def holding(path: str, mounts: List[Mount]) -> Mount:
    """Return the mount that holds an absolute path without links, by its name alone: the longest, and the last of equals."""
    above = [mount for mount in mounts if path == mount.point or path.startswith(mount.point.rstrip("/") + "/")]
    return max(reversed(above), key=lambda mount: len(mount.point))


def on_tmpfs(path: str) -> bool:
    """Say whether a directory lies in memory, so that a ledger there would not survive a reboot."""
    return holding(os.path.abspath(path), table()).type in ("tmpfs", "ramfs")


def _plain(text: str) -> str:
    """Undo the kernel's octal escapes of space, tab, newline and backslash."""
    for char in " \t\n\\":
        text = text.replace("\\{:03o}".format(ord(char)), char)
    return text
