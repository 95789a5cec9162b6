"""
The system calls behind namespaces and mounts, which Python 3.11 does not have by name.

A namespace belongs to a thread, not to a process: a thread that calls `unshare` or `enter` takes only itself, and what
it starts, to another network or another root. The supervisor rests on that.
"""

import ctypes
import os
import threading
from collections.abc import Callable
from typing import TypeVar

CLONE_FS = 0x00000200
CLONE_NEWNS = 0x00020000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
T = TypeVar("T")


def unshare(flags: int) -> None:
    """Give the calling thread its own namespaces. Raises OSError."""
    _check(_LIBC.unshare(flags), "unshare")


def enter(pid: int, kinds: str) -> None:
    """
    Move the calling thread into namespaces of a process; its own root folder must not be shared with other threads.

    Args:
        pid: The process whose namespaces are entered.
        kinds: Names as in /proc/PID/ns, separated by spaces; `mnt` last, since /proc changes with it.

    Raises:
        OSError: The process is gone, or a right is missing.
    """
    for kind in kinds.split():
        fd = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _check(_LIBC.setns(fd, 0), f"setns {kind}")
        finally:
            os.close(fd)


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Mount. Raises OSError."""
    _check(_LIBC.mount(source.encode(), target.encode(), kind.encode() or None, flags, data.encode() or None), f"mount {target}")


def unmount(target: str, flags: int = 0) -> None:
    """Unmount. Raises OSError."""
    _check(_LIBC.umount2(target.encode(), flags), f"unmount {target}")


def inside(pid: int, kinds: str, work: Callable[[], T]) -> T:
    """Run `work` in a thread of its own inside namespaces of a process, and return or raise what it does."""
    box: list[T] = []
    failure: list[BaseException] = []

    def body() -> None:
        try:
            unshare(CLONE_FS)
            enter(pid, kinds)
            box.append(work())
        except BaseException as error:  # noqa: BLE001 - handed to the caller, who raises it
            failure.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return box[0]


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
