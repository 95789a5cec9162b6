"""
How long a save takes: a probe written, synced and renamed as one, as the training does it, and timed as one.

In a child with a deadline (`savetime_child`), since a file server that is away hangs whoever asks it, in the kernel and for
ever. Standard library only, Python 3.8.
"""

import contextlib
import errno
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import IO, Any, Dict, List, Optional, Sequence, Tuple

from chaoskit.agent.savetime_child import KILL_AFTER, PROBE, READY, Viewer
from chaoskit.errors import NodeError

Json = Any

START_WITHIN = 15.0
"""Seconds that a child may take to start, which is the machine's load and no word about the file system."""

_CHILD = """
import json, sys
order = json.loads(sys.stdin.readline())
sys.path[:] = order["path"]
from chaoskit.agent import savetime_child
savetime_child.main(order)
"""


class HangsError(Exception):
    """The child had no answer in time: the file system hangs, or is slower than that."""


def viewer_of(pid: int) -> Viewer:
    """Return a process's view and user. Raises OSError: it is gone."""
    with open("/proc/{}/status".format(pid), encoding="ascii", errors="replace") as file:
        fields = {line.split(":")[0]: line.split()[1:] for line in file}
    return Viewer(pid, int(fields["Uid"][1]), int(fields["Gid"][1]), tuple(int(group) for group in fields["Groups"]))


def look(viewer: Viewer, directory: str, within: float) -> Tuple[int, str]:
    """
    Return the id of the mount that a directory lies on, as the viewer's mount table has it, and its path without links.

    Raises:
        OSError: It cannot be opened by that user.
        HangsError: There was no answer in time.
    """
    answer = _ask({"do": "look", "viewer": viewer, "directory": directory}, within)
    return answer["mount"], answer["directory"]


def save(viewer: Viewer, directory: str, tag: str, size: int, within: float, joins: Sequence[str] = ()) -> float:
    """
    Return the seconds that one save of `size` bytes took.

    Args:
        viewer: Whose view and user.
        directory: Where.
        tag: What makes the probe's name its own.
        size: Bytes.
        within: Seconds until the child is ended.
        joins: Files `cgroup.procs` of the groups to stand in meanwhile.

    Raises:
        OSError: It could not be written.
        HangsError: It took longer than `within`.
    """
    order = {"do": "save", "viewer": viewer, "directory": directory, "tag": tag, "size": size, "joins": list(joins)}
    return float(_ask(order, within)["seconds"])


def sweep(viewer: Viewer, directory: str, tag: str, within: float) -> None:
    """
    Remove what a probe of that name left that had to be killed.

    Raises:
        OSError: It could not be removed, or the directory not be opened.
        HangsError: There was no answer in time.
    """
    _ask({"do": "sweep", "viewer": viewer, "directory": directory, "tag": tag}, within)


def left(viewer: Viewer, directory: str, within: float) -> Tuple[int, List[Tuple[str, str]]]:
    """
    Return the id of the mount that a directory lies on, and the probes that lie there, or one folder below, since long.

    A probe is told by its folder and its tag.

    Raises:
        OSError: It cannot be read.
        HangsError: There was no answer in time.
    """
    answer = _ask({"do": "left", "viewer": viewer, "directory": directory}, within)
    return answer["mount"], [(os.path.join(directory, folder), tag) for folder, tag in answer["probes"]]


def watch(viewer: Viewer, directory: str, seconds: float, within: float) -> Dict[str, Json]:
    """
    Watch a folder of checkpoints for a save, for `seconds` at most.

    Returns:
        `saved`: the bytes of the files that came or changed meanwhile, 0 when none did; `size` and `mtime` (wall clock) of
        the newest that is there, 0 when there is none.

    Raises:
        OSError: It cannot be read.
        HangsError: There was no answer within `within` seconds.
    """
    return _ask({"do": "watch", "viewer": viewer, "directory": directory, "seconds": seconds}, within)


def trial(addresses: Sequence[str], rate: float, within: float) -> Optional[str]:
    """Return what the kernel says against a rate cap, tried where it harms nobody (`qdiscs.trial`). Raises HangsError."""
    answer = _ask({"do": "trial", "addresses": list(addresses), "rate": rate}, within)
    return answer["words"]  # type: ignore[no-any-return]  # JSON: a text or null


def _ask(order: Dict[str, Json], within: float) -> Dict[str, Json]:
    command = [sys.executable or "/usr/bin/python3", "-I", "-S", "-c", _CHILD]
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
            env={"LC_ALL": "C.UTF-8"},
            start_new_session=True,
        )
    except OSError as error:
        # No word about the file system, so no OSError of its.
        raise NodeError("could not start {}: {}".format(command[0], error.strerror)) from error
    try:
        return _conversation(child, order, within)
    finally:
        _end(child)


def _conversation(child: "subprocess.Popen[bytes]", order: Dict[str, Json], within: float) -> Dict[str, Json]:
    """Hand over the order, and wait for the answer; the deadline counts from where the child touches the file system."""
    assert child.stdin is not None  # noqa: S101 - opened as a pipe, as the next
    assert child.stdout is not None  # noqa: S101 - see above
    with contextlib.suppress(BrokenPipeError):  # it has ended already, which shows at once
        child.stdin.write(json.dumps({**order, "within": within, "path": [os.path.abspath(place) for place in sys.path]}).encode() + b"\n")
        child.stdin.close()
    if _line(child.stdout, START_WITHIN) != READY:
        raise NodeError("the child that times saves did not start", hint="is the node out of memory, or processes?")
    line = _line(child.stdout, within)
    if line is None:
        raise HangsError("no answer within {:g} s".format(within))
    if not line:
        raise OSError(errno.EIO, "the child ended without an answer")
    answer: Dict[str, Json] = json.loads(line)
    if "errno" in answer:
        raise OSError(answer["errno"], answer["says"])
    return answer


def _line(pipe: IO[bytes], within: float) -> Optional[bytes]:
    """Return the next line, empty at the end of the pipe; None when it did not come in time."""
    end, line = time.monotonic() + within, b""
    while not line.endswith(b"\n"):
        if not select.select([pipe], [], [], max(0.0, end - time.monotonic()))[0]:
            return None
        data = os.read(pipe.fileno(), 1)
        if not data:
            return b""
        line += data
    return line


def _end(child: "subprocess.Popen[bytes]") -> None:
    """End a child that has not ended; one that hangs in the kernel is left to it, and never waited for."""
    for number, patience in ((None, 1.0), (signal.SIGTERM, KILL_AFTER), (signal.SIGKILL, 0.5)):
        if number is not None and child.poll() is None:
            child.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(patience)
            break
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()


__all__: List[str] = ["PROBE", "HangsError", "Viewer", "left", "look", "save", "sweep", "trial", "viewer_of", "watch"]
