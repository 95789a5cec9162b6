"""A disk that forgets, at a cut of the power, what was not synced: a recording shim of the module `os` (as LazyFS, without FUSE)."""

import os
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


class ForgetfulDisk(types.ModuleType):
    """
    The module `os`, for code that writes by `open`, `mkdir`, `write` and `fsync`.

    POSIX promises of a file only what was there at its last fsync, and of a name only that it is there once its folder was
    synced; whatever else may be there or not. `cut` is called whenever that has changed.
    """

    def __init__(self, cut: Callable[[], None]) -> None:
        super().__init__("os")
        self._cut = cut
        self._opened: dict[int, str] = {}
        self._new: set[str] = set()
        self._safe: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        """Open a file, or make it."""
        made = flags & os.O_CREAT and not os.path.exists(path)
        fd = os.open(path, flags, mode)
        self._opened[fd] = path
        if made:
            self._new.add(path)
        return fd

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        """Make a folder."""
        os.mkdir(path, mode)
        self._new.add(path)

    def write(self, fd: int, data: bytes) -> int:
        """Write into the page cache, and no further."""
        written = os.write(fd, data)
        self._cut()
        return written

    def fsync(self, fd: int) -> None:
        """Make a file's bytes safe, or the names in a folder."""
        path = self._opened[fd]
        if os.path.isdir(path):
            self._new -= {one for one in self._new if os.path.dirname(one) == path}
        else:
            self._safe[path] = os.path.getsize(path)
        self._cut()

    def close(self, fd: int) -> None:
        """Close a file, which makes nothing safe."""
        os.close(fd)
        self._opened.pop(fd, None)

    def survivors(self, path: str) -> Iterator[bytes | None]:
        """Yield all that may be there of a file when the power is back; None: its name, or that of a folder above, is gone."""
        if any(one in self._new for one in (path, *map(str, Path(path).parents))):
            yield None
        if not os.path.exists(path):
            return
        written = Path(path).read_bytes()
        for kept in range(self._safe.get(path, 0), len(written) + 1):
            yield written[:kept]
            if kept < len(written):
                yield written[:kept] + bytes(len(written) - kept)  # the size had reached the disk, the bytes had not
