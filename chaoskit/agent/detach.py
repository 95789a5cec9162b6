"""
Starting a process that outlives the login, the channel and the job that it was started from.

Under systemd it becomes a transient unit; elsewhere it gets its own session and its own cgroups, and the new process
itself reads back where it stands (`refuse_confined`). Standard library only, Python 3.8.
"""

import os
import subprocess
import sys
from typing import List

from chaoskit.agent import cgroups
from chaoskit.agent.host import SBIN
from chaoskit.errors import NodeError, RefusedError

_started: List["subprocess.Popen[bytes]"] = []

SYSTEMD_TIMEOUT = 20.0

ENVIRONMENT = {"PATH": os.pathsep.join(SBIN), "LC_ALL": "C.UTF-8", "HOME": "/"}


def agent_command(archive: str, verb: str, arguments: List[str]) -> List[str]:
    """Return the command line that runs a verb of this agent's zipapp."""
    return [sys.executable or "/usr/bin/python3", "-I", "-S", archive, verb, *arguments]


def start_detached(argv: List[str], name: str, log: str) -> None:
    """
    Start `argv` away from us: its own unit, or its own session (it enters the cgroup `name` itself, see `settle_in`).

    Args:
        argv: The command line.
        name: Unit name; one of a kind on this node.
        log: File that its standard error is appended to, until it opens its own.

    Raises:
        NodeError: systemd did not take it.
    """
    if has_systemd():
        _start_unit(argv, name)
    else:
        _start_session(argv, log)


def has_systemd() -> bool:
    """Say whether systemd is PID 1 and can start units."""
    if not os.path.isdir("/run/systemd/system"):
        return False
    with open("/proc/1/comm", encoding="ascii", errors="replace") as file:
        return file.read().strip() == "systemd"


def settle_in(name: str, log: str) -> List[str]:
    """
    Make the calling process its own: cgroup, directory, and a log for what goes wrong.

    Args:
        name: The cgroup's name, where no systemd has made a unit of that name.
        log: File that standard error is appended to.

    Returns:
        Sentences for `hello`.

    Raises:
        RefusedError: It still stands where a logout or a job's end would kill it.
    """
    os.chdir("/")
    os.umask(0o077)
    errors = _open_log(log)
    os.dup2(errors, 2)
    os.close(errors)
    notes = [] if has_systemd() else cgroups.enter(name)
    path = cgroups.confined(cgroups.own_cgroup())
    if path is not None:
        raise RefusedError(
            "the agent still stands in {}, where a logout or the job's end would kill it before the revert".format(path),
            hint="run it outside the job, or where systemd or a writable cgroup tree is",
        )
    return notes


def _start_unit(argv: List[str], name: str) -> None:
    properties = ["KillMode=process", "OOMScoreAdjust=-900", "LimitMEMLOCK=infinity"]
    command = ["systemd-run", "--collect", "--quiet", "--unit=" + name, *("--property=" + one for one in properties), "--", *argv]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=SYSTEMD_TIMEOUT,
            env=ENVIRONMENT,  # its PATH decides which systemd-run that is
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NodeError("systemd-run did not start {}: {}".format(name, error)) from error
    if done.returncode:
        said = done.stdout.decode("utf-8", "replace").strip()
        raise NodeError("systemd-run did not start {}: {}".format(name, said), hint="see `systemctl status {}`".format(name))


def _start_session(argv: List[str], log: str) -> None:
    """Start in a new session; whoever ends first, the new process or we, the other is not touched by it."""
    errors = _open_log(log)
    try:
        _started.append(
            subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                cwd="/",
                env=ENVIRONMENT,
                start_new_session=True,
            )
        )
    except OSError as error:
        raise NodeError("could not start {}: {}".format(argv[0], error)) from error
    finally:
        os.close(errors)


def _open_log(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def reap() -> None:
    """Collect what we started and what has ended since."""
    _started[:] = [process for process in _started if process.poll() is None]
