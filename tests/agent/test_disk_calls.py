"""Each call by which the server writes its ledger and its leases fails in turn, by the kernel's own answer: once, or from then on."""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
from itertools import count, product
from pathlib import Path

import pytest

from chaoskit.agent.ledger import Ledger

pytestmark = [
    pytest.mark.row("R3"),
    pytest.mark.skipif(shutil.which("strace") is None, reason="no strace on this machine"),
]

CALLS = ("openat", "write", "fsync", "rename", "mkdir")
ERRORS = ("ENOSPC", "EIO")
NUMBER = count(1)


class Failing:
    """The server's calls of one name on some files fail: the one of this number, counted by each of its threads, or all from it on."""

    def __init__(self, agent, until, *options, call, error, number, for_ever):
        self._log = agent.root / "trace"
        (self._server,) = agent.pids("serve")
        self._until = until
        inject = f"inject={call}:error={error}:when={number}{'+' if for_ever else ''}"
        self._argv = ["strace", "-qq", "-o", str(self._log), "-p", str(self._server), *options, "-e", f"trace={call}", "-e", inject]

    def __enter__(self):
        self._strace = subprocess.Popen(self._argv, stderr=subprocess.PIPE)
        self._until(self._is_attached)
        return self

    def _is_attached(self):
        threads = os.listdir(f"/proc/{self._server}/task") if "-f" in self._argv else [self._server]
        try:
            return all(re.search(r"TracerPid:\t[1-9]", Path(f"/proc/{self._server}/task/{one}/status").read_text()) for one in threads)
        except FileNotFoundError:
            return False  # a thread has ended since it was listed

    def __exit__(self, *_):
        self._strace.send_signal(signal.SIGINT)
        self._strace.wait(30)
        self._strace.stderr.close()

    @property
    def struck(self):
        return self._log.read_text().count("(INJECTED)")


def files_of(agent, run, call):
    """Return the options that name each file by which an entry and its lease are written; of renames, by an older name of chance, all."""
    if call == "rename":
        return []
    ledger, runs = agent.root / "state" / "ledger", agent.root / "run" / "runs"
    entry = ledger / f"{run},1,n1"
    files = [f"{entry}.jsonl", f"{entry}.lock", ledger / "resources.lock", ledger, runs, runs / run, runs / run / "lease"]
    return [word for file in files for word in ("-P", str(file))]


def refusal(job):
    """Do a thing; return the words of the refusal, or nothing."""
    try:
        job()
    except RuntimeError as error:
        return str(error)
    return ""


def strike(agent, channel, harm, until, **how):
    """Live an entry's life while calls fail, and hold it against the promise; return how many calls failed."""
    run = f"run{next(NUMBER)}"
    entry, path = f"{run}/1/n1", agent.file(run)
    with Failing(agent, until, "-f", *files_of(agent, run, how["call"]), **how) as failing:
        said = refusal(lambda: harm(channel, path, entry=entry, lease=30.0, down=60.0))
        harmed = Path(f"{path}.log").exists()
        written = Ledger(str(agent.root / "state" / "ledger")).read(entry)
        assert harmed or said, "neither harmed nor refused"
        if harmed:  # what happened has its undo on the disk
            assert written is not None
            assert (written.undo["content"], written.open or written.state == "reverted") == ("whole", True)
        if said:
            assert re.search(r"No space left|Input/output error", said), said
            assert str(agent.root) in said, said
        with contextlib.suppress(RuntimeError):
            channel.ask("revert", entry=entry)
        assert path.read_text() == "whole"  # while the disk refuses still
    until(lambda: entry not in json.dumps(channel.ask("audit")))
    return failing.struck


@pytest.fixture(scope="module")
def channel(shared_agent):
    """Return a connection to a server that is up."""
    made = shared_agent.connect()
    made.ask("clock")
    return made


def test_a_drawn_sample_never_harms_without_an_undo(shared_agent, channel, harm, until):
    """Six of all; each of these has such a call at least twice in a life."""
    ways = list(product(("openat", "write", "fsync"), ERRORS, (1, 2), (False, True)))
    for call, error, number, for_ever in random.Random(5).sample(ways, 6):  # noqa: S311 - a sample, and no secret
        assert strike(shared_agent, channel, harm, until, call=call, error=error, number=number, for_ever=for_ever)


@pytest.mark.prove
@pytest.mark.parametrize("for_ever", [False, True], ids=["once", "for_ever"])
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("call", CALLS)
def test_every_call_never_harms_without_an_undo(shared_agent, channel, harm, until, call, error, for_ever):
    """Until there is no call of that number any more."""
    struck = 0
    for number in count(1):
        if not strike(shared_agent, channel, harm, until, call=call, error=error, number=number, for_ever=for_ever):
            break
        struck = number
    assert struck >= {"openat": 10, "write": 5, "fsync": 5, "rename": 1, "mkdir": 2}[call]
    print(f"{call} {error}: {struck} calls failed in turn")


@pytest.mark.parametrize("for_ever", [False, True], ids=["once", "for_ever"])
@pytest.mark.parametrize("call", ["openat", "rename"])
def test_a_lease_that_cannot_be_written_is_not_renewed(shared_agent, channel, harm, until, call, for_ever):
    """The controller is told; what the fuse reads is what the server keeps: the deadline of before, until the disk takes another."""
    run = f"run{next(NUMBER)}"
    path = shared_agent.file(run)
    harm(channel, path, entry=f"{run}/1/n1", lease=30.0, down=60.0)
    lease = shared_agent.root / "run" / "runs" / run / "lease"
    before = lease.read_text()
    with Failing(shared_agent, until, call=call, error="ENOSPC", number=1, for_ever=for_ever) as failing:
        said = refusal(lambda: channel.ask("renew", run=run, lease=60.0))
    assert failing.struck
    assert "No space left" in said
    assert (lease.read_text(), sorted(os.listdir(lease.parent))) == (before, ["lease"])
    assert path.read_text() == "harmed"

    renewed = channel.ask("renew", run=run, lease=60.0)
    assert renewed["deadline"] == json.loads(lease.read_text())["deadline"] > json.loads(before)["deadline"]
    channel.ask("revert", entry=f"{run}/1/n1")
