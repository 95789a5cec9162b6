"""
The child of `savetime`: it looks at, saves to and watches a folder as a process of the training does.

It takes that process's root folder and mounts, joins its groups where those are throttled, and becomes its user before it
opens anything. Its probe is a hidden file of a name of its own, and it removes it whatever happens; that of one that had to be
killed is removed by the next one of that tag, or by `sweep`. It ends by itself soon after its deadline, since it may have
left our control group, and its parent may be dead by then. Standard library only, Python 3.8.
"""

import contextlib
import errno
import json
import os
import re
import signal
import stat
import sys
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

from chaoskit.agent import qdiscs

Json = Any

KILL_AFTER = 2.0
"""Seconds between asking a child to end, so that it can remove its probe, and ending it."""
READY = b"ready\n"
CHUNK = 1 << 20
PROBE = ".chaoskit-probe-{}"
"""How the name of a probe begins, by its tag; then comes its process, since two may time a save at the same moment."""
_PROBES = re.compile(r"\.chaoskit-probe-([^./]*)\.(\d+)(?:\.part)?")
POLL = 0.25
"""Seconds between two looks at a folder of checkpoints."""
OLD = 120.0
"""Seconds after which a probe is one that was left: nobody takes so long to write it."""
MOST = 2000
"""Entries of a folder that are looked at."""


class Viewer(NamedTuple):
    """
    As whom a child looks: `pid` is a process whose root folder and mounts it takes on (0: our own), then its user.

    `groups` are the user's further groups.
    """

    pid: int
    uid: int
    gid: int
    groups: Tuple[int, ...]


def main(order: Dict[str, Json]) -> None:
    """Do what is asked and print the answer."""
    signal.signal(signal.SIGTERM, _leave)
    # The default action ends us where the file system keeps us inside a call, too, and no Python code would run.
    signal.setitimer(signal.ITIMER_REAL, order["within"] + KILL_AFTER)
    os.write(1, READY)
    try:
        answer = _DOES[order["do"]](order)
    except OSError as error:
        answer = {"errno": error.errno or errno.EIO, "says": error.strerror or str(error)}
    print(json.dumps(answer), flush=True)


def _leave(number: int, frame: object) -> None:
    """End by way of every `finally`, so that no probe stays."""
    del number, frame
    sys.exit(1)


def _look(order: Dict[str, Json]) -> Dict[str, Json]:
    _, mount, path = _enter(order)
    return {"mount": mount, "directory": path}


def _save(order: Dict[str, Json]) -> Dict[str, Json]:
    folder, _, _ = _enter(order)
    name, data = "{}.{}".format(PROBE.format(order["tag"]), os.getpid()), os.urandom(min(order["size"], CHUNK))
    try:
        began = time.monotonic()
        _write(folder, name + ".part", data, order["size"])
        os.rename(name + ".part", name, src_dir_fd=folder, dst_dir_fd=folder)
        _sync_folder(folder)
        return {"seconds": time.monotonic() - began}
    finally:
        for mine in (name, name + ".part"):
            _remove(folder, mine)
        with contextlib.suppress(OSError):  # another user's, which `audit` tells later, is no word about this save
            _remove_left(folder, order["tag"], old=False)


def _sweep(order: Dict[str, Json]) -> Dict[str, Json]:
    folder, _, _ = _enter(order)
    _remove_left(folder, order["tag"], old=True)
    return {}


def _left(order: Dict[str, Json]) -> Dict[str, Json]:
    top, mount, _ = _enter(order)
    with os.scandir(top) as entries:
        below = [entry.name for _, entry in zip(range(MOST), entries) if entry.is_dir(follow_symlinks=False)]
    return {"mount": mount, "probes": [[name, tag] for name in ["", *sorted(below)] for tag in _old_tags(top, name or ".")]}


def _old_tags(above: int, name: str) -> List[str]:
    """Return the tags of the probes in a folder that nobody can be writing any more; none where it may not be read."""
    try:
        folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    except (FileNotFoundError, PermissionError):
        return []
    try:
        return sorted({tag for file, tag, _ in _probes(folder) if _is_old(folder, file)})
    finally:
        os.close(folder)


def _probes(folder: int) -> Iterator[Tuple[str, str, int]]:
    """Yield each probe's file in a folder, its tag, and the process that wrote it."""
    for file in os.listdir(folder):
        found = _PROBES.fullmatch(file)
        if found:
            yield file, found.group(1), int(found.group(2))


def _is_old(folder: int, file: str) -> bool:
    """Whether nobody can be writing a file any more, by its time of change; a file that is gone is no old one."""
    try:
        changed = os.stat(file, dir_fd=folder, follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return False
    return abs(time.time() - changed) > OLD  # either way: a file server's clock may be ahead of ours


def _remove_left(folder: int, tag: str, *, old: bool) -> None:
    """
    Remove the probes of a tag whose processes are gone or, where that is asked, that are old by the file server's clock.

    A probe that is being written stays: server and fuse may time a save at the same moment, and a file that is removed while
    it is open stays for ever, under another name, on some file systems (libfuse's `.fuse_hidden`).
    """
    for file, whose, pid in _probes(folder):
        if whose == tag and (_is_gone(pid) or (old and _is_old(folder, file))):
            _remove(folder, file)


def _is_gone(pid: int) -> bool:
    # By a signal that is none, and not by /proc, which may be a container's by now.
    try:
        os.kill(pid, 0)
    except OSError as error:
        return error.errno == errno.ESRCH
    return False


def _remove(folder: int, file: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(file, dir_fd=folder)


def _write(folder: int, name: str, data: bytes, size: int) -> None:
    """Write and sync. Through the page cache, as trainings do: the sync is what waits for the storage."""
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        left = size
        while left > 0:
            left -= os.write(file, data[:left])
        os.fsync(file)
    finally:
        os.close(file)


def _sync_folder(folder: int) -> None:
    try:
        os.fsync(folder)
    except OSError as error:
        # Some network file systems have no such call: the rename is then durable by itself, or never.
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EBADF):
            raise


def _watch(order: Dict[str, Json]) -> Dict[str, Json]:
    folder, _, _ = _enter(order)
    end = time.monotonic() + order["seconds"]
    first = seen = dict(_files(folder, "."))
    while True:
        time.sleep(POLL)
        now = dict(_files(folder, "."))
        saved = sum(size for name, (mtime, size) in now.items() if first.get(name) != (mtime, size))
        # A save is over when nothing has changed between two looks; a file that is still empty is one that begins.
        if (saved and now == seen) or time.monotonic() > end:
            break
        seen = now
    newest = max(now.values(), default=(0.0, 0))
    return {"saved": saved, "mtime": newest[0], "size": max((size for _, size in now.values()), default=0)}


def _files(above: int, name: str) -> Iterator[Tuple[str, Tuple[float, int]]]:
    """Yield path, time of change and size of the files in a folder, and in the folders in it; probes of ours are none."""
    # Opened anew for each look: some network file systems list an open folder only once.
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for _, entry in zip(range(MOST), entries) if not entry.name.startswith(PROBE.format(""))]
        for inner in names:
            with contextlib.suppress(FileNotFoundError, PermissionError):
                found = os.stat(inner, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISREG(found.st_mode):
                    yield "{}/{}".format(name, inner), (found.st_mtime, found.st_size)
                elif stat.S_ISDIR(found.st_mode) and name == ".":
                    yield from _files(folder, inner)
    finally:
        os.close(folder)


def _trial(order: Dict[str, Json]) -> Dict[str, Json]:
    return {"words": qdiscs.trial(order["addresses"], order["rate"])}


def _enter(order: Dict[str, Json]) -> Tuple[int, int, str]:
    """Stand where the viewer stands, open the directory as its user and be that user from then on; return it, its mount and path."""
    viewer = Viewer(*order["viewer"])
    for group in order.get("joins", ()):
        _join(group)
    proc = [os.open("/proc/self/{}".format(name), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for name in ("fd", "fdinfo")]
    if viewer.pid:
        try:
            os.chdir("/proc/{}/root".format(viewer.pid))
        except FileNotFoundError as error:
            # Not to be taken for a directory that is gone.
            raise ProcessLookupError(errno.ESRCH, "process {} has ended".format(viewer.pid)) from error
        os.chroot(".")
    if os.geteuid() == 0:
        os.setgroups(viewer.groups)
        os.setegid(viewer.gid)
        os.seteuid(viewer.uid)
    folder = os.open(order["directory"], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    # Root once more: a process that changed its user may not read of itself in /proc.
    if os.getuid() == 0:
        os.seteuid(0)
    path = os.readlink(str(folder), dir_fd=proc[0])
    mount = _mount_of(folder, proc[1])
    os.setgid(viewer.gid)
    os.setuid(viewer.uid)
    return folder, mount, path


def _join(group: str) -> None:
    with open(group, "w", encoding="ascii") as file:
        file.write("0")


def _mount_of(folder: int, fdinfo: int) -> int:
    file = os.open(str(folder), os.O_RDONLY | os.O_CLOEXEC, dir_fd=fdinfo)
    try:
        lines = os.read(file, 4096).decode("ascii", "replace").splitlines()
    finally:
        os.close(file)
    return next(int(line.split()[1]) for line in lines if line.startswith("mnt_id:"))


_DOES = {"look": _look, "save": _save, "sweep": _sweep, "left": _left, "watch": _watch, "trial": _trial}
