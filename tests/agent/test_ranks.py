"""Which process is a rank: from the environment that it began with, never guessed."""

import os
import signal
import subprocess
import sys
import time

import pytest

from chaoskit.agent import procs, ranks
from chaoskit.agent.contract import Refusal, Site, TrainingFacts
from chaoskit.agent.host import Host

FAMILY = "import os, time\nos.fork()\nwhile True: time.sleep(0.001)"
WRAPPED = "import subprocess, sys\nsubprocess.run([sys.executable, '-S', '-c', 'import time; time.sleep(60)'])"


@pytest.fixture
def run_id(request):
    """Return a run id that no other test's processes have."""
    return "{}-{}".format(request.node.name, os.getpid())


@pytest.fixture
def start(run_id):
    """Return a function that starts processes of the run and waits until it has `members`; all are ended afterwards."""
    started = []

    def begin(rank, code, members=1, **changes):
        env = {"RANK": str(rank), "LOCAL_RANK": str(rank % 8), "TORCHELASTIC_RUN_ID": run_id, **changes}
        process = subprocess.Popen([sys.executable, "-S", "-c", code], env=env, start_new_session=True)
        started.append(process)
        deadline = time.monotonic() + 20
        while len(ranks.family(run_id, rank)) < members:
            assert time.monotonic() < deadline, "the rank did not come up"
            time.sleep(0.005)
        return process

    yield begin
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_rank_s_helpers_are_its_family_and_not_the_rank(start, run_id):
    trainer = start(8, FAMILY, members=2)

    assert [(head.process.pid, head.rank, head.local_rank) for head in ranks.heads(run_id)] == [(trainer.pid, 8, 0)]
    assert {process.ppid for process in ranks.family(run_id, 8)} == {os.getpid(), trainer.pid}


def test_a_wrapper_script_is_the_rank_and_the_python_below_it_of_its_family(start, run_id):
    wrapper = start(1, WRAPPED, members=2)

    assert [head.process.pid for head in ranks.heads(run_id)] == [wrapper.pid]
    assert len(ranks.family(run_id, 1)) == 2


def test_other_ranks_and_other_runs_are_no_family(start, run_id):
    start(1, FAMILY, members=2)
    start(2, FAMILY, members=2)

    assert len(ranks.family(run_id, 1)) == 2
    assert ranks.family("another run", 1) == []


def test_a_refusal_names_the_fault_that_asked(run_id):
    host = Host(Site("node7", training=TrainingFacts(run_id=run_id)))

    with pytest.raises(Refusal, match="node7 some_fault: no process of run"):
        ranks.choose(host, "some_fault")


def test_a_process_without_a_local_rank_is_found_by_its_rank_only(start, run_id):
    trainer = start(3, FAMILY, LOCAL_RANK="")
    host = Host(Site("node7", training=TrainingFacts(run_id=run_id)))

    assert ranks.choose(host, "some_fault", rank=3).process.pid == trainer.pid
    with pytest.raises(Refusal, match="local rank 3 does not run on this node"):
        ranks.choose(host, "some_fault", local_rank=3)


def test_what_is_captured_names_the_process_for_ever(start, run_id):
    trainer = start(3, FAMILY, members=2)
    host = Host(Site("node7", training=TrainingFacts(run_id=run_id)))

    undo = ranks.captured(host, ranks.choose(host, "some_fault"))

    assert procs.same(undo["pid"], undo["start_time"]).pid == trainer.pid
    assert (undo["rank"], undo["run_id"], undo["uid"]) == (3, run_id, os.getuid())
    assert ranks.named(undo) == "process {} of rank 3".format(trainer.pid)
