"""
Starting a process of its own: run as a short child of the server, because forking a program with threads is not safe.

It reads an order, forks twice, and the grandchild leads a new session in a cgroup of its own, becomes the user, opens
its log as that user and executes. The answer on standard output is the identity of that process, or why there is none.
Standard library only, Python 3.8.
"""

import json
import os
import signal
import stat
import sys
from typing import Any, Dict, NoReturn

from chaoskit.agent import cgroups
from chaoskit.agent.identity import Process
from chaoskit.agent.memory import soften
from chaoskit.agent.users import become


def main() -> None:
    """Carry out the order on standard input."""
    order = json.loads(sys.stdin.buffer.readline())
    print(json.dumps(launch(order)), flush=True)


def launch(order: Dict[str, Any]) -> Dict[str, Any]:
    """Start what the order says; returns pid and start_time, or `error`."""
    trouble_reader, trouble = os.pipe()  # close-on-exec: end of file without a word means that it runs
    pid_reader, pid_writer = os.pipe()
    child = os.fork()
    if child == 0:
        if os.fork():
            os._exit(0)
        os.write(pid_writer, str(os.getpid()).encode())
        _become_it(order, trouble)
    for end in (trouble, pid_writer):
        os.close(end)
    os.waitpid(child, 0)
    pid = int(_rest(pid_reader) or 0)
    words = _rest(trouble_reader).decode("utf-8", "replace")
    if words:
        return {"error": words}
    try:
        return Process.of(pid).to_json()
    except ProcessLookupError:
        return {"error": "it ended at once; see {}".format(order["log"])}


def _rest(fd: int) -> bytes:
    with os.fdopen(fd, "rb") as file:
        return file.read()


def _become_it(order: Dict[str, Any], trouble: int) -> NoReturn:
    """Run in the grandchild: everything up to the exec."""
    try:
        os.setsid()
        cgroups.enter(order["group"])
        _refuse_confined()
        for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        soften()
        os.umask(0o022)
        become(order["user"])
        _open_output(order["log"])
        os.chdir(order["cwd"])
        os.execvpe(order["argv"][0], order["argv"], order["env"])  # noqa: S606 - no shell is what we want
    except BaseException as error:  # noqa: BLE001 - a forked child: report and end, whatever it was
        os.write(trouble, "{}: {}".format(type(error).__name__, error).encode())
    finally:
        os._exit(127)


def _refuse_confined() -> None:
    path = cgroups.confined(cgroups.own_cgroup())
    if path is not None:
        raise PermissionError("the process would stand in {} and end with it".format(path))


def _open_output(log: str) -> None:
    null = os.open("/dev/null", os.O_RDONLY)
    # A pipe without a reader would hold us up for ever; a link or another's file that root follows writes where nobody meant.
    as_root = os.geteuid() == 0
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK | (os.O_NOFOLLOW if as_root else 0)
    output = os.open(log, flags, 0o644)
    found = os.fstat(output)
    if not stat.S_ISREG(found.st_mode):
        raise PermissionError("{} is not a regular file".format(log))
    if as_root and (found.st_uid != 0 or found.st_nlink > 1):
        raise PermissionError("{} is another user's or has further names, and root would write to it: name a `user`".format(log))
    os.set_blocking(output, True)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
