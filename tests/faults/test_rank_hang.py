"""Exactly one rank stands still, and exactly that one goes on again."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time

import pytest
from fair_watch import until

from chaoskit.agent import procs, ranks
from chaoskit.agent.contract import Refusal, Site, TrainingFacts
from chaoskit.agent.host import Host
from chaoskit.errors import InputError
from chaoskit.faults import load, rank_hang
from chaoskit.faults.rank_hang import RankHang

BUSY = "import time\nwhile True: time.sleep(0.001)"
IDLE = "import signal; signal.pause()"
FAMILY = "import os, time\nos.fork()\nwhile True: time.sleep(0.001)"
THREADS = "import threading, time\nfor _ in range(3): threading.Thread(target=time.sleep, args=(60,)).start()\nwhile 1: time.sleep(0.001)"
# The parent waits in the kernel until its child has a memory of its own, which it never gets.
IN_THE_KERNEL = "import ctypes, time\nctypes.PyDLL(None).vfork() or time.sleep(600)"
PTRACE_SEIZE = 0x4206


@pytest.fixture
def run_id(request):
    """Return a run id that no other test's processes have."""
    return "{}-{}".format(request.node.name, os.getpid())


@pytest.fixture
def start(run_id):
    """Return a function that starts a rank and waits until it has so many `members` and `threads`; all are ended afterwards."""
    started = []

    def begin(rank, code=BUSY, members=1, threads=1):
        env = {"RANK": str(rank), "LOCAL_RANK": str(rank % 8), "TORCHELASTIC_RUN_ID": run_id}
        process = subprocess.Popen([sys.executable, "-S", "-c", code], env=env, start_new_session=True)
        started.append(process)
        until(lambda: len(ranks.family(run_id, rank)) == members and len(procs.states(process.pid)) == threads)
        return process

    yield begin
    for process in started:
        with contextlib.suppress(ProcessLookupError):  # the test killed it, and it had no helpers
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def host(run_id):
    return Host(Site("node7", training=TrainingFacts(run_id=run_id)))


def refusal(fault, host):
    with pytest.raises(Refusal) as refused:
        fault.prepare(host)
    return str(refused.value)


@pytest.mark.row("L13")
def test_exactly_the_rank_s_own_process_stands_still(start, host, run_id):
    """All of its threads; its helpers and its neighbours go on."""
    start(3)
    victim = start(4, THREADS, threads=4)
    loader = start(5, FAMILY, members=2)
    fault = RankHang(rank=4)
    undo = fault.prepare(host)

    fault.inject(host, undo)
    evidence = fault.witness(host, undo)

    assert (evidence.holds, evidence.readings["threads"]) == (True, ["T"] * 4)
    assert evidence.says == "process {} of rank 4 stands still".format(victim.pid)
    others = [process.pid for process in ranks.family(run_id, 3) + ranks.family(run_id, 5)]
    assert len(others) == 3
    assert loader.pid in others
    assert not any(procs.held(pid) for pid in others)


def test_a_rank_s_helpers_go_on(start, host, run_id):
    """A data loader is no rank: what hangs is who asks it for data."""
    trainer = start(4, FAMILY, members=2)
    fault = RankHang()
    undo = fault.prepare(host)
    fault.inject(host, undo)

    assert fault.witness(host, undo).holds
    assert {process.pid for process in ranks.family(run_id, 4) if procs.held(process.pid)} == {trainer.pid}


def test_it_stands_still_until_it_is_let_go_on(start, host):
    """It uses no CPU and is never switched while it is held, and runs again afterwards."""
    start(4)
    fault = RankHang(rank=4)
    undo = fault.prepare(host)
    assert fault.exposed(host, undo).holds
    fault.inject(host, undo)
    assert fault.witness(host, undo).holds
    assert not fault.gone(host, undo).holds
    assert not fault.exposed(host, undo).holds

    fault.revert(host, undo)

    assert fault.gone(host, undo).says == "process {} of rank 4 is free to run".format(undo["pid"])
    assert not fault.witness(host, undo).holds
    assert fault.exposed(host, undo).holds


@pytest.mark.row("L2")
def test_a_stop_that_is_still_on_its_way_is_owed_and_taken_back(start, host, monkeypatch):
    """A thread in the kernel stops only when it comes back: until then it is neither proven hung, nor proven free."""
    monkeypatch.setattr(rank_hang, "STOPS_WITHIN", 0.1)
    process = start(4, IN_THE_KERNEL, members=2)
    until(lambda: procs.states(process.pid) == ["D"])
    fault = RankHang(rank=4)
    undo = fault.prepare(host)

    fault.inject(host, undo)
    assert procs.held(process.pid) == ["pending"]
    assert not fault.witness(host, undo).holds
    assert not fault.gone(host, undo).holds

    fault.revert(host, undo)
    assert procs.held(process.pid) == []
    assert fault.gone(host, undo).holds


@pytest.mark.row("L11", "L22")
def test_a_rank_that_was_killed_while_it_stood_still_owes_nothing(start, host):
    """As its launcher's watchdog may do; the sentence says that it ended, and not that it runs."""
    process = start(4)
    fault = RankHang(rank=4)
    undo = fault.prepare(host)
    fault.inject(host, undo)
    assert fault.witness(host, undo).holds
    process.kill()
    until(lambda: procs.read(process.pid).dead)  # a corpse that nobody has reaped yet

    for _ in range(2):
        fault.revert(host, undo)
        evidence = fault.gone(host, undo)
        assert (evidence.holds, evidence.says) == (True, "process {} of rank 4 has ended: nobody is left to let go on".format(process.pid))
        process.wait()


@pytest.mark.parametrize("wrong", ["start_time", "uid"])
def test_a_reused_pid_is_never_stopped(wrong, start, host):
    """The identity is read again right before the signal."""
    process = start(0)
    undo = RankHang().prepare(host)

    with pytest.raises(Refusal, match="is gone or has another owner"):
        RankHang().inject(host, {**undo, wrong: undo[wrong] + 1})

    assert procs.held(process.pid) == []


def test_a_reused_pid_is_never_let_go_on(start, host):
    """Somebody else may have stopped the process that has this pid now."""
    process = start(0)
    undo = RankHang().prepare(host)
    process.send_signal(signal.SIGSTOP)
    until(lambda: procs.held(process.pid) == ["T"])

    RankHang().revert(host, {**undo, "start_time": undo["start_time"] - 1})

    assert procs.held(process.pid) == ["T"]


def test_a_rank_that_somebody_else_stopped_is_refused(start, host):
    process = start(0)
    process.send_signal(signal.SIGSTOP)
    until(lambda: procs.held(process.pid) == ["T"])

    says = refusal(RankHang(), host)

    assert says.startswith("node7 rank_hang: process {} of rank 0 is stopped already (find out".format(process.pid))
    assert "kill -CONT {}".format(process.pid) in says


def test_a_rank_under_a_debugger_is_refused(start, host):
    """It would be told of our signals first, and may swallow them."""
    process = start(0)
    ctypes.CDLL(None).ptrace(PTRACE_SEIZE, process.pid, 0, 0)

    says = refusal(RankHang(), host)

    assert "a debugger (process {}) is attached to process {} of rank 0".format(os.getpid(), process.pid) in says


def test_two_candidates_are_refused(start, host):
    start(4)
    start(4, members=2)

    assert "rank 4 is more than one process" in refusal(RankHang(rank=4), host)


def test_a_rank_that_has_left_is_refused_with_those_that_are_here(start, host):
    start(8)
    process = start(9)
    process.kill()
    process.wait()

    assert refusal(RankHang(rank=9), host) == "node7 rank_hang: rank 9 does not run on this node (here are the ranks 8)"


def test_an_idle_rank_is_not_exposed(start, host):
    """Stopping what stands still anyhow proves nothing."""
    start(0, IDLE)
    time.sleep(0.3)

    assert not RankHang().exposed(host, RankHang().prepare(host)).holds


@pytest.mark.parametrize("params", [{"rank": 1, "local_rank": 1}, {"hold": 0}, {"hold": -1.0}, {"hold": "5s"}], ids=str)
def test_parameters_that_make_no_sense_are_refused(params):
    with pytest.raises(InputError):
        load("rank_hang", params)
