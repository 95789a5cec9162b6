"""The wall clock of a whole node jumps by an hour under a held fault: no lease, no span, no stamp and no order is told by it."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fair_watch import FairWatch

from chaoskit.agent.identity import stat_of

pytestmark = [pytest.mark.row("R8"), pytest.mark.prove]

HOUR = 3600.0
LEASE = 3.0
LATE = 2.0
"""Seconds after a deadline by which a node must be whole."""

LIBRARY = next(iter(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")), None)

# Told to leave the monotonic clock alone, libfaketime 0.9.10 still reckons an absolute sleep on it from the wall clock of its
# own: a moment before the machine began, which the kernel refuses as an invalid argument. This is the sleep as it is.
SLEEP = """
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left)
{
    return syscall(SYS_clock_nanosleep, clock, flags, until, left) == 0 ? 0 : errno;
}
"""

# The agent starts its server, and that its fuse, in an environment of its own, but by the interpreter that it was started by.
PYTHON = """#!/bin/bash
export LD_PRELOAD={sleep}:{library} FAKETIME_TIMESTAMP_FILE={stamp}
export FAKETIME_DONT_FAKE_MONOTONIC=1 FAKETIME_NO_CACHE=1
exec -a "$0" {python} "$@"
"""


class Node:
    """An agent that believes in a wall clock of ours."""

    def __init__(self, agent, stamp):
        self.agent = agent
        self.channel = agent.connect()
        self._stamp = stamp

    def jump(self, seconds):
        """Set the wall clock so far from the true one, and see that the server believes it."""
        self._stamp.write_text(f"{seconds:+.0f}")
        assert self.channel.ask("clock")["wall"] - time.time() == pytest.approx(seconds, abs=30.0)

    def deadline(self):
        return json.loads((self.agent.root / "run" / "runs" / "run1" / "lease").read_text())["deadline"]


@pytest.fixture
def node(agent, tmp_path):
    """An agent whose every process is under libfaketime."""
    if LIBRARY is None:
        pytest.skip("no libfaketime on this machine: apt-get install faketime")
    source, sleep, stamp, python = (tmp_path / name for name in ("sleep.c", "sleep.so", "stamp", "python"))
    source.write_text(SLEEP)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", sleep, source], check=True)
    stamp.write_text("+0")
    python.write_text(PYTHON.format(sleep=sleep, library=LIBRARY, stamp=stamp, python=sys.executable))
    python.chmod(0o700)
    agent.python = str(python)
    yield Node(agent, stamp)
    agent.end()
    for left in Path("/dev/shm").glob("*faketime_*_*"):  # a process that is killed leaves its own
        if not is_running(int(left.name.rpartition("_")[2])):
            left.unlink()


def is_running(pid):
    """Say whether there is such a process that has not ended."""
    found = stat_of(pid)
    return found is not None and found.state not in "ZX"


def moments(path, word):
    """Return when a toy did something, on the monotonic clock."""
    said = (line.split() for line in Path(f"{path}.log").read_text().splitlines())
    return [float(moment) for what, moment in said if what == word]


either_way = pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["an_hour_on", "an_hour_back"])


@either_way
def test_a_lease_lasts_as_long_as_it_was_given_and_the_newest_is_reverted_first(node, harm, until, jump):
    """An entry before the jump, one after it, and a renewal on the other side: one lease, over when it was to be."""
    one, two = node.agent.file("a"), node.agent.file("b")
    harm(node.channel, one, down=60.0, lease=LEASE)
    node.jump(jump)
    harm(node.channel, two, entry="run1/2/n1", down=60.0, lease=LEASE)
    node.jump(-jump)
    watch, before = FairWatch(), time.clock_gettime(time.CLOCK_BOOTTIME)
    renewed = node.channel.ask("renew", run="run1", lease=LEASE)
    node.jump(jump)

    assert 0.0 <= renewed["deadline"] - LEASE - before < LATE + watch.spared()
    assert renewed["expired"] == []
    assert renewed["deadline"] == node.deadline()
    until(lambda: (one.read_text(), two.read_text()) == ("whole", "whole"))
    assert 0.0 <= time.clock_gettime(time.CLOCK_BOOTTIME) - renewed["deadline"] < LATE + watch.spared()
    assert max(moments(two, "revert")) < min(moments(one, "revert"))


@either_way
def test_a_fault_ends_when_it_was_to_end_and_its_stamps_are_the_monotonic_clocks(node, harm, jump):
    """A span of two seconds, with the jump in the middle of it."""
    path, watch, began = node.agent.file(), FairWatch(), time.monotonic()
    begun = harm(node.channel, path, down=2.0)
    node.jump(jump)
    ended = node.channel.ask("finish", entry="run1/1/n1")

    assert began < begun["before"] <= begun["after"] < ended["before"] <= ended["after"] < time.monotonic()
    assert 2.0 - 0.2 < ended["before"] - begun["before"] < 2.0 + LATE + watch.spared()
    assert ended["evidence"]["holds"]


@either_way
def test_a_fuse_pays_at_once_and_a_later_server_knows_that_it_was_paid(node, harm, until, jump):
    """The server dies after the jump; the next one begins in yet another hour, and reads the same ledger."""
    path = node.agent.file()
    harm(node.channel, path, down=60.0, lease=60.0)
    node.jump(jump)
    node.agent.kill("serve")

    assert until(lambda: path.read_text() == "whole") < LATE
    until(lambda: not node.agent.pids("fuse"))
    node.channel = node.agent.connect()
    node.jump(-jump)
    (entry,) = node.channel.ask("entries", run="run1")["entries"]
    assert (entry["state"], node.channel.ask("audit")["debts"]) == ("reverted", [])
