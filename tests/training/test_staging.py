"""What a user starts from on a cluster: the staging example, its job script and its trainer, the last two run for real."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from chaoskit.engine.plan import plan
from chaoskit.model.load import load_experiment, load_inventory
from chaoskit.training import make_training
from chaoskit.training.events import EventKind
from chaoskit.training.formats import compile_format

TOP = Path(__file__).parents[2]
STAGING = TOP / "inventories" / "staging"
EXPERIMENTS = sorted((TOP / "experiments").glob("*.yaml"))
WITHIN = 60
"""Seconds until what is awaited has gone wrong: a deadline, not a measure."""


@pytest.fixture
def example():
    return load_inventory(TOP / "inventories" / "staging-example.yaml")


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_shipped_experiment_plans_on_the_example(example, path):
    """Nothing refused, nobody spared for want of a target, and nothing to warn of."""
    made = plan(load_experiment(path), example)

    assert made.touched
    assert ("", ()) == (made.empty, made.warnings)


def test_every_training_of_the_example_can_be_made(example):
    trainings = {name: make_training(spec, example, "run-1") for name, spec in example.file.trainings.items()}

    assert {"default": "run-1", "compute": "run-1", "pretraining": "4711"} == {name: made.run_id for name, made in trainings.items()}


@pytest.mark.parametrize("name", ["default", "compute"])
def test_the_example_names_what_the_job_script_uses(example, name):
    """The log, the checkpoints and the way to end the job are the script's, and the script is given the run."""
    spec, script = example.file.trainings[name], (STAGING / "smoke.sbatch").read_text()

    assert '"/var/tmp/chaoskit-$run.log"' in script
    assert "/var/tmp/chaoskit-{run}.log" == spec.log
    assert "CHAOSKIT_SHARED:=/shared/chaoskit" in script
    assert '--checkpoints "$CHAOSKIT_SHARED/ckpt/$run"' in script
    assert ("/shared/chaoskit/ckpt/{run}", 25) == (spec.checkpoints.dir, spec.checkpoints.every)
    at = spec.start.index("/shared/chaoskit/smoke.sbatch")
    assert "{run}" == spec.start[at + 1]
    assert "--every=25" in spec.start[at:]
    assert {"--parsable", "--job-name={run}"} <= set(spec.start[:at])


def test_the_job_script_is_sound_shell():
    script = STAGING / "smoke.sbatch"
    done = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)

    assert (0, "") == (done.returncode, done.stderr)
    assert os.access(script, os.X_OK)


def test_shellcheck_has_nothing_to_say_of_the_job_script():
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(["shellcheck", STAGING / "smoke.sbatch"], capture_output=True, text=True, check=False)

    assert (0, "") == (done.returncode, done.stdout)


@pytest.fixture
def smoke(tmp_path):
    """Start two ranks of the trainer under torchrun, small enough for a CPU; return its process and its log."""
    log = tmp_path / "log"
    small = ["--width=64", "--layers=1", "--sequence=16", "--vocabulary=32", "--batch=2", "--every=5"]
    argv = ["--nproc-per-node=2", "--max-restarts=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", STAGING / "train.py"]
    env = os.environ | {"LOGLEVEL": "INFO", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    torchrun = [sys.executable, "-m", "torch.distributed.run", *argv, "--checkpoints", tmp_path / "ckpt", *small]
    with log.open("wb") as file:
        process = subprocess.Popen(torchrun, stdout=file, stderr=subprocess.STDOUT, env=env)
    yield process, log
    process.terminate()
    process.wait(WITHIN)


def found(process, log, pattern):
    """Wait for a line of the log."""
    give_up = time.monotonic() + WITHIN
    while not (match := re.search(pattern, log.read_text(), re.MULTILINE)):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < give_up, log.read_text()
        time.sleep(0.02)
    return match


@pytest.mark.prove
def test_the_trainer_saves_dies_and_resumes_from_the_newest_whole_checkpoint(tmp_path, smoke):
    """Also past a torn checkpoint that claims to be newer; and chaoskit reads from its log what happened."""
    process, log = smoke
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / "step-999999.pt").write_bytes(b"torn")
    pid = int(found(process, log, r"^chaoskit-trainer start rank 1 restart 0 pid (\d+)$")[1])
    found(process, log, r"^saved step 10$")
    os.kill(pid, signal.SIGKILL)
    resumed = int(found(process, log, r"^loaded step (\d+)$")[1])
    found(process, log, rf"^loaded step {resumed}\nstep {resumed + 1} ")

    lines = log.read_text().splitlines()
    saved = [int(line.split()[2]) for line in lines[: lines.index(f"loaded step {resumed}")] if line.startswith("saved step ")]
    assert resumed == saved[-1] >= 10
    assert 2 == sum("checkpoint of step 999999 cannot be read" in line for line in lines)
    reader = compile_format("chaoskit", "format").reader()
    told = Counter(event.kind for line in lines for event in reader.feed(line))
    assert (2, 2) == (told[EventKind.GROUP_UP], told[EventKind.LOADED])
    assert told[EventKind.DETECT]
    assert told[EventKind.STEP] == sum(line.startswith("step ") for line in lines)
