"""The hold: one run at a time on a node, whoever comes first."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from chaoskit.agent import hold
from chaoskit.agent.paths import Paths
from chaoskit.agent.wakeup import run_within
from chaoskit.errors import RefusedError

pytestmark = pytest.mark.row("R10")


@pytest.fixture
def paths(tmp_path):
    return Paths(*(str(tmp_path / name) for name in ("state", "run", "etc")))


def race(paths, seed):
    """Let two processes take the node at one instant; return the exit status of each: 0 when it won, 1 when it was told whose it is."""
    gate, pids = os.pipe(), []
    for run in ("a", "b"):
        pid = os.fork()
        if pid == 0:
            os.close(gate[1])
            os.read(gate[0], 1)
            time.sleep(seed % 7 * 1e-5 * (run == "a"))
            other = hold.take(paths, f"{run}{seed}", f"{run}@host:1", 30.0)
            os._exit(0 if other is None else 1 if other.controller != f"{run}@host:1" else 2)
        pids.append(pid)
    for end in gate:
        os.close(end)
    return sorted(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)


@pytest.mark.parametrize("seeds", [20, pytest.param(400, marks=pytest.mark.prove)])
def test_of_two_controllers_in_the_same_moment_exactly_one_wins(paths, seeds):
    """Two processes, many times: never both, never neither, and the other is told who has it."""
    for seed in range(seeds):
        assert race(paths, seed) == [0, 1], f"seed {seed}"
        winner = hold.holder(paths).run
        hold.release(paths, winner)
        assert hold.holder(paths) is None


def test_whoever_is_refused_is_told_the_run_its_controller_since_when_and_how_long_yet(paths):
    """And nothing is changed by asking."""
    hold.take(paths, "first", "ada@laptop:7", 30.0)
    before = os.stat(f"{paths.run}/holder").st_mtime_ns
    other = hold.take(paths, "second", "bob@desk:8", 30.0)

    assert (other.run, other.controller) == ("first", "ada@laptop:7")
    assert abs(other.since - time.time()) < 30
    assert 20 < other.to_json()["left"] <= 30
    assert "run first of ada@laptop:7 has this node since" in str(other)
    assert os.stat(f"{paths.run}/holder").st_mtime_ns == before


def test_a_hold_is_renewed_by_its_run_alone_and_ends_by_itself(paths):
    """A controller that dies keeps nobody out for longer than it promised."""
    hold.take(paths, "first", "ada@laptop:7", 0.5)
    since = hold.holder(paths).since
    hold.take(paths, "first", "ada@laptop:7", 0.6)
    assert hold.holder(paths).since == since
    hold.release(paths, "second")
    assert hold.holder(paths).run == "first"
    ended = threading.Event()
    until = time.monotonic() + 20
    while hold.holder(paths) is not None and time.monotonic() < until:
        ended.wait(0.05)
    assert hold.take(paths, "second", "bob@desk:8", 30.0) is None


def test_the_hold_of_a_controller_that_is_known_to_be_dead_is_taken_over(paths):
    """Only that run's: if another one was quicker, it is the other one's."""
    hold.take(paths, "dead", "ada@laptop:7", 30.0)
    assert hold.take(paths, "second", "bob@desk:8", 30.0, instead_of="dead") is None
    assert hold.take(paths, "third", "eve@desk:9", 30.0, instead_of="dead").run == "second"


@pytest.mark.parametrize("content", [b"", b"garbage", b"[]", b"{}", b'{"run":1}', b"\xff"])
def test_a_damaged_hold_is_nobodys(paths, content):
    """What cannot be read keeps nobody out: faults have their own locks."""
    hold.take(paths, "first", "ada@laptop:7", 30.0)
    with open(f"{paths.run}/holder", "wb") as file:
        file.write(content)

    assert hold.take(paths, "second", "bob@desk:8", 30.0) is None


def test_a_hold_without_bounds_is_refused(paths):
    """Nobody locks a node for ever."""
    with pytest.raises(RefusedError, match="not between"):
        hold.take(paths, "first", "ada@laptop:7", 1e9)


@pytest.mark.parametrize(
    "changes",
    [
        {"deadline": 1e12},
        {"deadline": float("inf")},
        {"deadline": float("nan")},
        {"deadline": 10**400},
        {"boot": "that-of-before"},
        {"deadline": -1.0},
    ],
    ids=["far ahead", "infinite", "no number", "a huge integer", "another boot", "before the boot"],
)
def test_a_hold_of_another_boot_or_beyond_all_bounds_is_nobodys(paths, changes):
    """What a folder that outlived a reboot says, or a clock that another kernel counted, keeps nobody out."""
    hold.take(paths, "first", "ada@laptop:7", 3600.0)
    path = Path(f"{paths.run}/holder")
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    assert hold.holder(paths) is None
    assert hold.take(paths, "second", "bob@desk:8", 30.0) is None


def test_a_hold_of_an_older_version_counts(paths):
    """It does not say of which boot it is."""
    hold.take(paths, "first", "ada@laptop:7", 3600.0)
    path = Path(f"{paths.run}/holder")
    told = json.loads(path.read_text())
    del told["boot"]
    path.write_text(json.dumps(told))

    assert hold.take(paths, "second", "bob@desk:8", 30.0).run == "first"


@pytest.mark.row("R1")
def test_a_stopped_process_keeps_nobody_from_taking_or_giving_back_a_node(paths):
    """Of whatever version it is: its lock is taken from it."""
    hold.take(paths, "first", "ada@laptop:7", 30.0)
    script = "import fcntl, sys, time; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", script, f"{paths.run}/holder.lock"], stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"held\n"
        process.send_signal(signal.SIGSTOP)
        assert run_within(lambda: hold.release(paths, "first"), 30.0, "release")
        assert process.wait(5) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert hold.holder(paths) is None
