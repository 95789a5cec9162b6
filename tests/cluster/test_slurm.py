"""The staging example under a real Slurm: `launcher: command`, sbatch, the job script and the trainer that users start from."""

import json
import subprocess
import sys
from pathlib import Path

import lab_slurm
import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.prove]

TOP = Path(__file__).parents[2]
STAGING = TOP / "inventories" / "staging"
EXAMPLE = TOP / "inventories" / "staging-example.yaml"


@pytest.fixture(scope="module")
def slurm(lab):
    """Return a Slurm in the lab, with the staging files on its shared file system."""
    if why := lab_slurm.missing():
        pytest.skip(why)
    slurm = lab_slurm.LabSlurm(lab)
    try:
        slurm.up()
        for path in (STAGING / "train.py", STAGING / "smoke.sbatch"):
            slurm.put(path.name, path.read_text())
        yield slurm
    finally:
        slurm.down()


@pytest.fixture
def run(slurm, tmp_path):
    """Return a function that runs an experiment's text on the example's training, and returns exit code, output and summary."""

    def run(text, **env):
        (tmp_path / "experiment.yaml").write_text(text)
        (tmp_path / "inventory.yaml").write_text(slurm.inventory(EXAMPLE.read_text(), **env))
        argv = ["run", "experiment.yaml", "--inventory", "inventory.yaml", "--out", "runs"]
        command = [sys.executable, "-c", "from chaoskit.cli.main import entry; entry()", *argv]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
        summary = json.loads((tmp_path / "runs" / "latest" / "summary.json").read_text())
        return done.returncode, done.stdout + done.stderr, summary

    yield run
    slurm.until_idle()  # chaoskit has ended the job


def test_a_killed_rank_of_a_job_restarts_from_its_checkpoint(run):
    """The shipped experiment as it is: ranks are found by torchrun's run id, in a job that sbatch has started."""
    code, said, summary = run((TOP / "experiments" / "rank_kill.yaml").read_text())

    assert (0, "PASSED") == (code, summary["outcome"]), said
    assert (1, 1) == (summary["quantities"]["restarts"]["lo"], summary["quantities"]["restarts"]["hi"])
    [injection] = summary["injections"]
    assert injection["felt"]


FATAL = """
title: A training that may not restart dies of one rank
seed: 7
steady_state: {throughput: {within: 30%, for: 4s}}
method:
  - fault: rank_kill
    target: {group: workers, pick: 1, avoid: [rendezvous]}
    after: 3s
abort: {no_progress: 3m}
watch: 2m
budgets: {restarts: 1}
"""


def test_a_job_that_dies_of_it_fails_at_once(slurm, run):
    """The scheduler's word ends the run: nobody waits for steps that cannot come."""
    script = (STAGING / "smoke.sbatch").read_text()
    fatal = script.replace("restarts=5 ", "restarts=0 ").replace("requeues=3 ", "requeues=0 ")
    assert fatal.count("=0 ") == 2
    slurm.put("smoke.sbatch", fatal)
    try:
        code, said, summary = run(FATAL)
    finally:
        slurm.put("smoke.sbatch", script)

    assert (1, "FAILED") == (code, summary["outcome"]), said
    assert "has ended" in said
    assert "no step for" not in said


def test_squeue_tells_that_a_job_has_ended_by_printing_nothing(slurm):
    """What the example's `state_command` stands on: no error, for as long as Slurm remembers the job."""
    job = slurm.run("store1", "cd /tmp && sbatch --parsable --output=/dev/null --wrap='sleep 3'").strip()
    ask = f"squeue --noheader --jobs={job} --format=%T"

    assert slurm.run("store1", ask).strip() in ("PENDING", "RUNNING")
    slurm.until_idle()
    assert "" == slurm.run("store1", ask)


FLAP = """
title: A rail of one node that flaps is only a hiccup
seed: 1
steady_state: {throughput: {within: 15%, for: 5s}}
method:
  - fault: link_flap
    target: {group: workers, pick: 1}
    with: {rail: 1, down: 2s, up: 3s, times: 3}
    after: 5s
budgets: {restarts: 0, lost_steps: 0, settle_time: 30s}
"""


def test_a_rail_that_flaps_under_a_job_restarts_nothing(run):
    code, said, summary = run(FLAP)

    assert (0, "PASSED") == (code, summary["outcome"]), said
    [injection] = summary["injections"]
    assert [True, True, True] == [injection[fact]["holds"] for fact in ("present", "exposed", "gone")]


LOST = """
title: A node that reboots sends the job back into the queue
seed: 7
steady_state: {throughput: {within: 15%, for: 5s}}
method:
  - fault: node_kill
    target: {group: workers, pick: 1, avoid: [rendezvous]}
    after: 5s
abort: {no_progress: 3m}
watch: 3m
budgets: {restarts: 1, lost_steps: 30, time_to_recover: 3m}
"""


def test_a_lost_node_sends_the_job_back_into_the_queue_and_the_same_logs_go_on(slurm, run):
    """Slurm never notices so short a reboot: an agent that waits in vain for the lost one asks for the requeue itself."""
    script = (STAGING / "smoke.sbatch").read_text()
    assert "join_timeout=180" in script
    slurm.put("smoke.sbatch", script.replace("join_timeout=180", "join_timeout=10"))
    try:
        with slurm.at_every_boot():
            code, said, summary = run(LOST)
    finally:
        slurm.put("smoke.sbatch", script)

    assert (0, "PASSED") == (code, summary["outcome"]), said
    assert (1, 1) == (summary["quantities"]["restarts"]["lo"], summary["quantities"]["restarts"]["hi"])
    jobs = slurm.run("store1", "cat /srv/chaoskit-lab/ckpt/chaoskit/logs/*.out")
    assert "attempt 1, on node[1-4]" in jobs
