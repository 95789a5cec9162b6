import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from chaoskit.agent import procs
from chaoskit.agent.contract import Refusal, Site, TrainingFacts
from chaoskit.agent.host import Host
from chaoskit.errors import InputError
from chaoskit.faults import load
from chaoskit.faults.rank_kill import RankKill

BUSY = "import time\nwhile True: time.sleep(0.001)"
IDLE = "import signal; signal.pause()"
DEAF = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\nwhile True: time.sleep(0.001)"
FAMILY = "import os, time\nfor _ in range(2): os.fork()\nwhile True: time.sleep(0.001)"


@pytest.fixture
def run_id(request):
    """Return a run id that no other test's processes have."""
    return "{}-{}".format(request.node.name, os.getpid())


@pytest.fixture
def start(run_id):
    """Return a function that starts a process of the run; all are ended afterwards, with their helpers."""
    started = []

    def begin(rank, code=BUSY, **changes):
        env = {"RANK": str(rank), "LOCAL_RANK": str(rank % 8), "TORCHELASTIC_RUN_ID": run_id, **changes}
        process = subprocess.Popen([sys.executable, "-S", "-c", code], env=env, start_new_session=True, stdout=subprocess.PIPE)
        deadline = time.monotonic() + 5
        while procs.environ(process.pid).get("RANK") != str(rank) and time.monotonic() < deadline:
            time.sleep(0.005)
        started.append(process)
        return process

    yield begin
    for process in started:
        with contextlib.suppress(ProcessLookupError):  # the test killed it, and it had no helpers
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


@pytest.fixture
def host(run_id):
    return Host(Site("node7", training=TrainingFacts(run_id=run_id)))


def refusal(fault, host):
    with pytest.raises(Refusal) as refused:
        fault.prepare(host)
    return str(refused.value)


@pytest.mark.row("L29")
def test_exactly_the_rank_dies(start, host):
    """Its neighbours live on, also the same rank of another run."""
    others = [start(3), start(5), start(4, TORCHELASTIC_RUN_ID="another run")]
    victim = start(4)
    fault = RankKill(rank=4)

    undo = fault.prepare(host)
    assert not fault.witness(host, undo).holds
    fault.inject(host, undo)

    assert fault.witness(host, undo).holds
    assert victim.wait(5) == -signal.SIGKILL
    assert [other.poll() for other in others] == [None, None, None]


def test_without_a_rank_the_lowest_of_the_node_dies(start, host):
    processes = {rank: start(rank) for rank in (10, 9, 12)}

    assert RankKill().prepare(host)["pid"] == processes[9].pid


def test_a_local_rank_is_found(start, host):
    start(8)
    wanted = start(9)

    assert RankKill(local_rank=1).prepare(host)["pid"] == wanted.pid


def test_a_slurm_job_is_a_run_too(start, run_id, host):
    wanted = start(0, TORCHELASTIC_RUN_ID="", SLURM_JOB_ID=run_id)

    assert RankKill().prepare(host)["pid"] == wanted.pid


def test_helpers_that_inherit_the_rank_are_not_the_rank(start, host):
    """Data loaders have the environment of their trainer; the topmost process is the rank."""
    trainer = start(0, FAMILY)
    time.sleep(0.3)

    assert RankKill(rank=0).prepare(host)["pid"] == trainer.pid


def test_two_candidates_are_refused_by_name(start, host):
    one, two = start(4), start(4)

    says = refusal(RankKill(rank=4), host)

    assert "rank 4 is more than one process: " in says
    assert str(one.pid) in says
    assert str(two.pid) in says
    assert "end what an earlier run left behind" in says


def test_a_rank_of_another_node_is_refused_with_those_that_are_here(start, host):
    start(8)
    start(11)

    assert refusal(RankKill(rank=3), host) == "node7 rank_kill: rank 3 does not run on this node (here are the ranks 8, 11)"


def test_a_training_that_is_not_here_is_refused(host, run_id):
    assert "no process of run {} has a rank on this node (is it up".format(run_id) in refusal(RankKill(), host)


def test_without_a_run_id_nothing_is_guessed():
    says = refusal(RankKill(), Host(Site("node7")))

    assert says == "node7 rank_kill: the training's run id is not known here (let chaoskit launch the training, or state its run id)"


def test_a_process_of_another_user_is_refused(start, run_id):
    process = start(0)
    host = Host(Site("node7", training=TrainingFacts(run_id=run_id, user="nobody")))

    assert "process {} (python".format(process.pid) in refusal(RankKill(), host)
    assert "belongs to uid {}, not to nobody".format(os.getuid()) in refusal(RankKill(), host)


def test_a_user_that_the_node_does_not_know_is_refused(start, run_id):
    start(0)
    host = Host(Site("node7", training=TrainingFacts(run_id=run_id, user="no-such-user")))

    assert "this node has no user no-such-user" in refusal(RankKill(), host)


def test_a_process_outside_of_the_training_s_cgroup_is_refused(start, run_id):
    start(0)
    host = Host(Site("node7", training=TrainingFacts(run_id=run_id, cgroup="/slurm/job_7")))

    assert "outside of /slurm/job_7" in refusal(RankKill(), host)


@pytest.mark.parametrize("wrong", ["start_time", "uid"])
def test_a_reused_pid_is_never_hit(wrong, start, host):
    """The identity is read again right before the kill."""
    process = start(0)
    undo = RankKill().prepare(host)

    with pytest.raises(Refusal, match="is gone or has another owner"):
        RankKill().inject(host, {**undo, wrong: undo[wrong] + 1})

    assert process.poll() is None


@pytest.mark.row("L13", "L26")
def test_a_process_that_ended_meanwhile_is_not_injected(start, host):
    process = start(0)
    undo = RankKill().prepare(host)
    process.kill()
    process.wait()

    with pytest.raises(Refusal, match="is gone"):
        RankKill().inject(host, undo)


@pytest.mark.parametrize("name", ["TERM", "ABRT", "SEGV"])
def test_other_signals_kill_as_well(name, start, host):
    process = start(0)
    fault = RankKill(signal=name)
    undo = fault.prepare(host)

    fault.inject(host, undo)

    assert fault.witness(host, undo).holds
    assert process.wait(5) == -procs.signal_number(name)


@pytest.mark.row("L13")
def test_a_rank_that_ignores_the_signal_is_not_witnessed(start, host):
    """Sent is not dead."""
    process = start(0, DEAF)
    assert process.stdout.readline() == b"deaf\n"
    fault = RankKill(signal="TERM")
    undo = fault.prepare(host)

    fault.inject(host, undo)
    evidence = fault.witness(host, undo)

    assert (evidence.holds, process.poll()) == (False, None)


def test_a_corpse_that_nobody_reaped_is_dead(start, host):
    """Its parent may be busy; the process holds nothing any more."""
    start(0)
    fault = RankKill()
    undo = fault.prepare(host)
    fault.inject(host, undo)

    evidence = fault.witness(host, undo)

    assert (evidence.holds, evidence.readings["state"]) == (True, "Z")
    assert not fault.exposed(host, undo).holds
    with pytest.raises(Refusal):
        fault.prepare(host)


@pytest.mark.parametrize(
    ("code", "stopped", "holds"), [(BUSY, False, True), (IDLE, False, False), (BUSY, True, False)], ids=["busy", "idle", "stopped"]
)
def test_only_a_rank_that_runs_is_exposed(code, stopped, holds, start, host):
    process = start(0, code)
    time.sleep(0.3)
    undo = RankKill().prepare(host)
    if stopped:
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.1)

    assert RankKill().exposed(host, undo).holds is holds


def test_a_rank_that_is_stopped_while_we_look_is_not_exposed(start, host):
    """It ran a moment ago, and does not run now."""
    process = start(0)
    undo = RankKill().prepare(host)
    later = threading.Timer(0.25, process.send_signal, [signal.SIGSTOP])
    later.start()

    evidence = RankKill().exposed(host, undo)
    later.join()

    assert (evidence.holds, evidence.readings["state"]) == (False, "T")
    assert evidence.readings["switches"] > 0


def test_there_is_nothing_to_undo(start, host):
    start(0)
    evidence = RankKill().gone(host, RankKill().prepare(host))

    assert (evidence.holds, evidence.says) == (True, "nothing to undo: a killed process is the training's to replace")


@pytest.mark.parametrize("params", [{"rank": 1, "local_rank": 1}, {"signal": "HUP"}, {"rank": True}, {"rank": "1"}], ids=str)
def test_parameters_that_make_no_sense_are_refused(params):
    with pytest.raises(InputError):
        load("rank_kill", params)
