"""
Following a log on the node that writes it, in a child that has become the training's user before it opens anything.

Each batch of lines carries the span of this node's clock in which they were completed, and a beat each second says that
silence is the training's and not ours. Standard library only, Python 3.8.
"""

import json
import os
import re
import select
import stat
import sys
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional

from chaoskit.agent.users import become

POLL = 0.01
"""Seconds between looks at the file."""

BEAT = 1.0

READ = 1 << 16
"""Bytes of one read: a line event stays well below what a protocol line may hold, even when every byte is escaped."""

LONGEST = 1 << 15
"""Bytes of a line that are kept; the rest of it is dropped."""

BACKLOG = 64 << 20
"""Bytes behind the end of the file at which the tail jumps forward instead of flooding the controller."""

BREAK = re.compile(rb"\r\n|\n|\r")


class Chunk(NamedTuple):
    """Lines that were completed in (since, at], this node's monotonic clock, and how many bytes were dropped."""

    lines: List[str]
    since: float
    at: float
    dropped: int = 0


class NotAFileError(Exception):
    """What stands at the path is no regular file."""


class Follower:
    """
    Follows one path through growth, truncation, replacement and absence.

    Args:
        path: The file; it may come later.
        whole: Whether what stands in it already is of interest. A file that comes or is replaced later always is.
        now: The monotonic time of the start.
    """

    def __init__(self, path: str, whole: bool, now: float) -> None:
        self._path = path
        self._fd: Optional[int] = None
        self._inode = (0, 0)
        self._offset = 0
        self._half = b""
        self._cut = False
        self._dropped = 0
        # What stood in the file before we came was written at some time since boot.
        self._since = 0.0 if whole else now
        self._open(from_end=not whole)

    def poll(self, now: float) -> Optional[Chunk]:
        """
        Return the lines that are complete since the last call; None when there are none. Call again at once after some.

        Args:
            now: The monotonic time of this look, taken just before it.

        Raises:
            NotAFileError: Something else stands at the path.
            OSError: It cannot be read.
        """
        data = self._read()
        if not data and self._replaced():
            data = self._read()  # what the old file got until it was replaced
            if not data:
                self._open(from_end=False)
                data = self._read()
        if not data:
            self._since = now
            return None
        lines = list(self._lines(data))
        chunk = Chunk(lines, self._since, time.monotonic(), self._dropped)
        if len(data) < READ:
            self._since = now
        self._dropped = 0
        return chunk if lines or chunk.dropped else None

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self, *, from_end: bool) -> None:
        self.close()
        self._half, self._cut = b"", False
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except FileNotFoundError:
            return
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            os.close(fd)
            raise NotAFileError("{} is not a regular file".format(self._path))
        self._fd, self._inode = fd, (found.st_dev, found.st_ino)
        self._offset = found.st_size if from_end else 0

    def _read(self) -> bytes:
        if self._fd is None:
            return b""
        size = os.fstat(self._fd).st_size
        if size < self._offset:  # truncated: what comes now is new from the start
            self._offset, self._half, self._cut = 0, b"", False
        if size - self._offset > BACKLOG:
            self._dropped += size - READ - self._offset
            self._offset, self._half, self._cut = size - READ, b"", True
        data = os.pread(self._fd, READ, self._offset)
        self._offset += len(data)
        return data

    def _replaced(self) -> bool:
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return False  # moved away, and nothing new yet: the old file may still grow
        return self._fd is None or (found.st_dev, found.st_ino) != self._inode

    def _lines(self, data: bytes) -> Iterator[str]:
        """Cut at newlines and carriage returns (progress bars); hold a half line; keep at most `LONGEST` bytes of a line."""
        *whole, half = BREAK.split(self._half + data)
        for line in whole:
            if self._cut:
                self._dropped += len(line)
            elif line:
                self._dropped += max(0, len(line) - LONGEST)
                yield line[:LONGEST].decode("utf-8", "replace")
            self._cut = False
        if len(half) > LONGEST:
            self._dropped += len(half) - (0 if self._cut else LONGEST)
            if not self._cut:
                yield half[:LONGEST].decode("utf-8", "replace")
            self._cut, half = True, b""
        self._half = half


def main() -> None:
    """Read the order from standard input, become its user, and write events to standard output until input ends."""
    order = json.loads(sys.stdin.buffer.readline())
    try:
        become(order.get("user"))
        _follow(order)
    except (OSError, KeyError, NotAFileError) as error:
        _emit({"event": "tail_end", "stream": order["stream"], "why": str(error)})


def _follow(order: Dict[str, Any]) -> None:
    stream, next_beat = order["stream"], time.monotonic()
    follower = Follower(order["path"], bool(order.get("whole")), next_beat)
    poll = select.poll()
    poll.register(0, select.POLLIN)
    wait = 0.0
    while not poll.poll(wait * 1000):  # the server's end of the pipe closes: it has gone, or wants no more
        now = time.monotonic()
        chunk = follower.poll(now)
        if chunk is not None:
            _emit({"event": "lines", "stream": stream, **chunk._asdict()})
        wait = POLL if chunk is None else 0.0
        if now >= next_beat and chunk is None:
            _emit({"event": "beat", "stream": stream, "at": now})
            next_beat = now + BEAT


def _emit(event: Dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(event, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
    sys.stdout.buffer.flush()
