"""
Processes that outlive us: started under a key, asked for by it later (by another agent, too), ended with all their kin.

The record in the run directory names them by pid and start time. Standard library only, Python 3.8.
"""

import json
import os
import signal
import subprocess
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set

from chaoskit.agent import cgroups, users
from chaoskit.agent.detach import ENVIRONMENT, agent_command
from chaoskit.agent.identity import Process, in_session, session_of
from chaoskit.agent.paths import PART, Paths, checked_part, private_directory, write_atomically
from chaoskit.errors import NodeError, ProtocolError, RefusedError

LAUNCH_TIMEOUT = 20.0

KILL_TIMEOUT = 10.0
"""Seconds after SIGKILL until what is left is in the kernel's hands (uninterruptible), and not ours to end."""


class Order(NamedTuple):
    """What to start: argument list, environment beside a login's, user, directory, and the log that output goes to."""

    argv: Sequence[str]
    env: Mapping[str, str]
    user: Optional[str]
    cwd: str
    log: str

    def checked(self) -> "Order":
        """Return it when every part is usable. Raises ProtocolError."""
        texts = [*self.argv, *self.env.keys(), *self.env.values(), self.cwd, self.log]
        if not self.argv or not all(isinstance(text, str) and "\0" not in text for text in texts):
            raise ProtocolError("argv, env, cwd and log are texts without NUL, and argv is not empty")
        if not os.path.isabs(self.log) or not os.path.isabs(self.cwd):
            raise ProtocolError("log and cwd are absolute paths")
        return self


def group_of(key: str) -> str:
    """Return the cgroup's name of what runs under a key."""
    return "chaoskit-training-" + checked_part(key)


def spawn(archive: str, paths: Paths, key: str, order: Order) -> Process:
    """
    Start a process of its own session and cgroup.

    Raises:
        RefusedError: One is alive under this key, or the user does not exist.
        NodeError: It could not be started.
    """
    order.checked()
    if _left(paths, key):
        raise RefusedError("a process is alive under key {!r}".format(key), hint="stop it first")
    environment = {**users.environment(order.user), **order.env}
    request = {**order._asdict(), "env": environment, "group": group_of(key)}
    answer = _launch(archive, request)
    if "error" in answer:
        raise NodeError("could not start {}: {}".format(order.argv[0], answer["error"]), hint="log: {}".format(order.log))
    process = Process.from_json(answer)
    path = paths.spawned(key)
    private_directory(os.path.dirname(path))
    write_atomically(path, json.dumps(process.to_json()).encode())
    return process


def running() -> List[str]:
    """Return the keys under which something runs, started by any agent of this node."""
    begin = group_of("x")[:-1]
    keys: Set[str] = set()
    for root in cgroups.roots():
        try:
            keys.update(name[len(begin) :] for name in os.listdir(root) if name.startswith(begin))
        except OSError:
            continue
    return sorted(key for key in keys if cgroups.members(group_of(key)))


def recorded(paths: Paths) -> List[str]:
    """Return the keys under which something runs that was started here, by any agent with our roots."""
    try:
        names = os.listdir(os.path.dirname(paths.spawned("x")))
    except OSError:
        return []
    keys = [name[: -len(".json")] for name in names if name.endswith(".json") and PART.match(name)]
    return sorted(key for key in keys if _left(paths, key))


def spawned(paths: Paths, key: str) -> Optional[Process]:
    """Return the process that was started under a key in this boot; it may be dead by now. None when there is no record."""
    try:
        with open(paths.spawned(key), "rb") as file:
            return Process.from_json(json.loads(file.read()))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def stop(paths: Paths, key: str, grace: float) -> bool:
    """
    End what runs under a key: SIGTERM to its session, SIGKILL to session and cgroup after `grace` seconds.

    Returns:
        True when none is left.
    """
    process = spawned(paths, key)
    for one in _left(paths, key):
        if process is not None and session_of(one.pid) == process.pid:
            one.kill(signal.SIGTERM)
    if not _wait_until_none(paths, key, grace):
        for one in _left(paths, key):
            one.kill(signal.SIGKILL)
        _kill_until_none(paths, key)
    if _left(paths, key):
        return False
    cgroups.remove(group_of(key))
    return True


def _launch(archive: str, request: Dict[str, Any]) -> Dict[str, Any]:
    done = subprocess.run(
        agent_command(archive, "launch", []),
        input=json.dumps(request).encode() + b"\n",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=LAUNCH_TIMEOUT,
        check=False,
        cwd="/",
        env=ENVIRONMENT,
    )
    try:
        answer: Dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"error": done.stderr.decode("utf-8", "replace")[-500:] or "no answer from the launcher"}
    return answer


def _left(paths: Paths, key: str) -> List[Process]:
    """Return who is alive of a key: its session, and whoever stands in its cgroup, as workers have sessions of their own."""
    process = spawned(paths, key)
    kin = set(cgroups.members(group_of(key)))
    # A session id is a pid: it is ours as long as the leader is, or while members of our group stand in it.
    if process is not None and process.alive():
        kin.update(in_session(process.pid))
    return sorted(kin)


def _wait_until_none(paths: Paths, key: str, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while _left(paths, key):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def _kill_until_none(paths: Paths, key: str) -> None:
    """Kill again and again: a fork may have slipped through between looking and killing."""
    until = time.monotonic() + KILL_TIMEOUT
    while time.monotonic() < until:
        left = _left(paths, key)
        if not left:
            return
        for one in left:
            one.kill(signal.SIGKILL)
        time.sleep(0.02)
