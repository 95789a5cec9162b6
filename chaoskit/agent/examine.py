"""
Examining a node for `chaoskit doctor`: what a person must mend before an experiment can be trusted here. Changes nothing.

The looks themselves are in `looks`, one small function a check. They run in children of the server, one for each
account that has to look, and in those each on a thread of its own: what hangs (a dead file server, a lost GPU) costs
its own answer, which is then unknown, and nobody else's. Where sudo is refused there is no server, and the SSH account
runs such a child itself for what needs no root. Standard library only, Python 3.8.
"""

import json
import os
import pwd
import select
import subprocess
import sys
import threading
import time
from typing import Any, Dict, FrozenSet, Iterator, List, Mapping, NamedTuple, Optional

from chaoskit.agent.contract import Site
from chaoskit.agent.detach import ENVIRONMENT, agent_command
from chaoskit.agent.host import Host
from chaoskit.agent.looks import LOOKS
from chaoskit.agent.memory import soften
from chaoskit.agent.paths import Paths
from chaoskit.agent.protocol import decode, encode, need
from chaoskit.agent.seen import OK, STATES, UNKNOWN, Ask, Seen
from chaoskit.agent.users import become
from chaoskit.errors import ChaosError, ProtocolError

WITHIN = 25.0
"""Seconds for all looks of a node; the controller waits a little longer for the answer."""

LONGEST = 2000
"""Characters of one sentence: a child of the training's user could write anything."""

MOST_OUTPUT = 1 << 18
"""Bytes that a child may write."""

MOST_SEEN = 100
"""Findings of one check."""


class Part(NamedTuple):
    """What one account looks at: check -> its arguments. `user` is a name, empty for the SSH account, None for root."""

    user: Optional[str]
    checks: Mapping[str, Mapping[str, Any]]

    @classmethod
    def from_json(cls, data: Any) -> "Part":
        """Read a part of a request. Raises ProtocolError."""
        if not isinstance(data, dict):
            raise ProtocolError("field 'parts': expected a list of objects")
        user, checks = data.get("user"), need(data, "checks", dict)
        if not (user is None or isinstance(user, str)) or not all(isinstance(args, dict) for args in checks.values()):
            raise ProtocolError("field 'parts': expected a user's name or null, and an object for each check")
        if unknown := sorted(set(checks) - set(LOOKS)):
            raise ProtocolError("check {!r} is not known".format(unknown[0]), hint="this agent has: {}".format(", ".join(sorted(LOOKS))))
        return cls(user, checks)


class Examination(NamedTuple):
    """What is asked of this node. `accounts` are the user ids that may have processes here: the SSH account."""

    site: Site
    parts: List[Part]
    accounts: FrozenSet[int]


def examine(archive: str, paths: Paths, asked: Examination, within: float = WITHIN) -> List[Dict[str, Any]]:
    """Let every part look at once, `within` seconds at most, and return the findings of all checks as JSON."""
    until = time.monotonic() + within
    children = [(part, _start(archive, paths, asked, part)) for part in asked.parts]
    return [finding for part, child in children for finding in answers(part, _output(child, until))]


def _start(archive: str, paths: Paths, asked: Examination, part: Part) -> "subprocess.Popen[bytes]":
    order = {
        "site": asked.site.to_json(),
        "paths": list(paths),
        "user": _account(asked.accounts) if part.user == "" else part.user,
        "accounts": sorted(asked.accounts),
        "checks": part.checks,
    }
    child = subprocess.Popen(
        agent_command(archive, "examine", []),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env=ENVIRONMENT,
    )
    if child.stdin is not None:
        try:
            child.stdin.write(encode(order))
            child.stdin.close()
        except BrokenPipeError:
            child.kill()  # it could not even start: every check of it stays unknown
    return child


def _account(accounts: FrozenSet[int]) -> Optional[str]:
    """Return the name of the SSH account; None (root) when that is who logs in."""
    return pwd.getpwuid(min(accounts)).pw_name if accounts else None


_held: List["subprocess.Popen[bytes]"] = []
"""Children that SIGKILL has not ended yet: they wait in the kernel, and are collected once it lets them go."""


def _output(child: "subprocess.Popen[bytes]", until: float) -> bytes:
    """Return what a child wrote until it ended, or until its time is over; then it is killed."""
    pipe = child.stdout
    if pipe is None:
        return b""
    poll, data, chunk = select.poll(), b"", b"-"
    poll.register(pipe, select.POLLIN | select.POLLHUP)
    with pipe:
        while chunk and len(data) < MOST_OUTPUT and poll.poll(max(0.0, until - time.monotonic()) * 1000):
            chunk = os.read(pipe.fileno(), 1 << 16)
            data += chunk
    child.kill()
    _held.append(child)
    _held[:] = [one for one in _held if one.poll() is None]
    return data


def answers(part: Part, output: bytes) -> Iterator[Dict[str, Any]]:
    """Yield the findings of a part, made anew from the lines of its child; a check without an answer is unknown."""
    missing = dict.fromkeys(part.checks)
    for line in output.split(b"\n"):
        try:
            told = decode(line)
            check, seen = need(told, "check", str), [_seen(one) for one in need(told, "seen", list)][:MOST_SEEN]
        except ProtocolError:
            continue  # torn by the kill, or nothing of ours: then the check stays without an answer
        if check in missing:
            del missing[check]
            yield from (_finding(check, one) for one in seen)
    for check in missing:
        says = "no answer within {:g} s: something hangs there, such as a dead file server or a lost GPU".format(WITHIN)
        yield _finding(check, Seen(UNKNOWN, says, "look at the node's kernel log (`dmesg`) and for processes in state D"))


def _seen(data: Any) -> Seen:
    if not isinstance(data, dict) or data.get("state") not in STATES:
        raise ProtocolError("a look told nothing of ours: {!r}".format(data))
    return Seen(data["state"], need(data, "says", str)[:LONGEST], need(data, "do", str, "")[:LONGEST], need(data, "readings", dict, {}))


def _finding(check: str, seen: Seen) -> Dict[str, Any]:
    return {"check": check, **seen._asdict()}


# -- the child -----------------------------------------------------------------------------------------------------


def main() -> None:
    """Carry out the order on standard input: become the account, look, and write a line for each check as it is done."""
    order = json.loads(sys.stdin.buffer.read())
    if os.geteuid() == 0:
        soften()
    ask = Ask(Host(Site.from_json(order["site"])), Paths(*order["paths"]), frozenset(order["accounts"]), order["user"])
    try:
        become(order["user"])
    except (KeyError, OSError) as error:
        for name in order["checks"]:
            _tell(name, [Seen(UNKNOWN, "cannot become the user {}: {}".format(order["user"], error), "is it known on this node?")])
        return
    threads = [threading.Thread(target=_look, args=(name, ask, args), daemon=True) for name, args in order["checks"].items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.stdout.flush()


def _look(name: str, ask: Ask, args: Mapping[str, Any]) -> None:
    try:
        seen = list(LOOKS[name](ask, args)) or [Seen(OK, "")]
    except ChaosError as error:
        seen = [Seen(UNKNOWN, error.what, error.hint)]
    except Exception as error:  # noqa: BLE001 - one look that breaks must not cost the others; it is told as unknown
        seen = [Seen(UNKNOWN, "the check broke: {}: {}".format(type(error).__name__, error))]
    _tell(name, seen)


_telling = threading.Lock()


def _tell(name: str, seen: List[Seen]) -> None:
    with _telling:
        sys.stdout.buffer.write(encode({"check": name, "seen": [one._asdict() for one in seen]}))
        sys.stdout.buffer.flush()
