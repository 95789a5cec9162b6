import os
import signal
import subprocess
import sys
import time

import pytest

from chaoskit.agent import procs
from chaoskit.agent.contract import Refusal, TrainingFacts


@pytest.fixture
def sleeper():
    """Return a process of ours that only waits, with an odd name and a run id."""
    process = subprocess.Popen(["sleep", "60"], env={"TORCHELASTIC_RUN_ID": "procs-run", "EMPTY": "", "ODD": "a=b"})
    yield process
    process.kill()
    process.wait()


def test_a_process_is_what_ps_says(sleeper):
    process = procs.read(sleeper.pid)
    shown = subprocess.run(
        ["ps", "-o", "ppid=,uid=,comm=", "-p", str(sleeper.pid)], check=True, capture_output=True, text=True
    ).stdout.split()

    assert [str(process.ppid), str(process.uid), process.comm] == shown
    assert not process.dead
    assert not process.stopped


def test_a_name_with_parentheses_and_spaces_does_not_shift_the_fields():
    """The name is the process's own to choose."""
    code = "import ctypes, time; ctypes.CDLL(None).prctl(15, b') R 1 1 (x'); print(flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    process.stdout.readline()
    seen = procs.read(process.pid)
    process.kill()
    process.communicate()

    assert (seen.comm, seen.ppid) == (") R 1 1 (x", os.getpid())


def test_the_environment_is_the_one_it_began_with(sleeper):
    env = procs.environ(sleeper.pid)

    assert (env["TORCHELASTIC_RUN_ID"], env["EMPTY"], env["ODD"]) == ("procs-run", "", "a=b")


def test_a_process_that_is_gone_reads_as_nothing(sleeper):
    sleeper.kill()
    assert sleeper.wait(5) == -signal.SIGKILL

    assert procs.read(sleeper.pid) is None
    assert procs.environ(sleeper.pid) == {}
    assert procs.cgroup(sleeper.pid) == ""
    assert procs.switches(sleeper.pid) == 0
    assert procs.dying(sleeper.pid, signal.SIGKILL)


def test_a_training_is_found_by_its_run_id_alone(sleeper):
    """A user with the same name does not make a process the training's when the run id is known."""
    assert [process.pid for process in procs.of_training(TrainingFacts("procs-run"))] == [sleeper.pid]
    assert procs.of_training(TrainingFacts("another-run", user="root")) == []
    assert procs.of_training(TrainingFacts()) == []


def test_a_training_without_a_run_id_is_found_by_its_cgroup(sleeper):
    own = procs.cgroup(sleeper.pid)

    assert sleeper.pid in [process.pid for process in procs.of_training(TrainingFacts(cgroup=own))]
    assert procs.of_training(TrainingFacts(cgroup=own.rstrip("/") + "/below")) == []


def test_a_cgroup_is_not_its_neighbour_with_a_longer_name():
    assert procs.within("/job_1/step", "/job_1")
    assert not procs.within("/job_10", "/job_1")


def test_the_signal_reaches_exactly_the_process(sleeper):
    seen = procs.read(sleeper.pid)

    assert not procs.send(seen.pid, seen.start_time + 1, seen.uid, signal.SIGKILL)
    assert not procs.send(seen.pid, seen.start_time, seen.uid + 1, signal.SIGKILL)
    assert sleeper.poll() is None
    assert procs.send(seen.pid, seen.start_time, seen.uid, signal.SIGKILL)
    assert sleeper.wait(5) == -signal.SIGKILL
    assert not procs.send(seen.pid, seen.start_time, seen.uid, signal.SIGKILL)


def test_a_blocked_signal_is_on_its_way():
    """A stopped process does not take it before it goes on."""
    process = subprocess.Popen(["sleep", "60"])
    process.send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + 5
    while not procs.read(process.pid).stopped and time.monotonic() < deadline:
        time.sleep(0.01)
    before = procs.dying(process.pid, signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    after = procs.dying(process.pid, signal.SIGTERM)
    process.kill()
    process.wait()

    assert (before, after) == (False, True)


def test_what_this_process_may_not_do_is_refused():
    code = "from chaoskit.agent import procs\ntry: procs.require_capability('KILL', 'node7')\nexcept Exception as error: print(error)"
    argv = ["setpriv", "--bounding-set=-kill", "--inh-caps=-kill", sys.executable, "-c", code]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30)

    procs.require_capability("KILL", "node7")
    assert done.stdout.startswith("node7: the agent lacks the capability CAP_KILL (run the agent as root")


def test_an_unknown_user_is_refused_with_what_to_do():
    with pytest.raises(Refusal, match=r"this node has no user nobody-at-all \(correct the training's `user`"):
        procs.uid_of("nobody-at-all")


def test_an_unknown_signal_is_an_error():
    with pytest.raises(ValueError, match="unknown signal 'NOPE'"):
        procs.signal_number("NOPE")
