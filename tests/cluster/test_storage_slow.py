"""`storage_slow` on the lab's network storage, as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.prove]

TOP = Path(__file__).parents[2]
SHIPPED = TOP / "experiments" / "storage_slow.yaml"


@pytest.fixture
def run(lab, tmp_path):
    """Return a function that runs an experiment at the lab, or at a changed copy of its inventory: code, summary, output."""

    def run(experiment, change=lambda text: text):
        inventory = tmp_path / "inventory.yaml"
        inventory.write_text(change(lab.inventory_path.read_text()))
        argv = ["run", str(experiment), "--inventory", str(inventory), "--out", str(tmp_path / "runs")]
        call = [sys.executable, "-c", "from chaoskit.cli.main import entry; entry()", *argv]
        done = subprocess.run(call, check=False, capture_output=True, text=True, cwd=TOP)
        summary = json.loads((tmp_path / "runs" / "latest" / "summary.json").read_text())
        return done.returncode, summary, done.stdout + done.stderr

    return run


def test_slow_storage_makes_saves_wait_and_nothing_restarts(run):
    """A save is more than ten times as slow while it is applied, and as quick as before after it."""
    code, summary, said = run(SHIPPED)

    assert (code, summary["outcome"]) == (0, "PASSED"), said
    [injection] = summary["injections"]
    assert [injection[fact]["holds"] for fact in ("exposed", "present", "gone")] == [True] * 3
    assert injection["felt"] is True
    assert "and this node sent" in injection["exposed"]["says"]
    assert (summary["quantities"]["restarts"]["hi"], summary["quantities"]["lost_steps"]["hi"]) == (0, 0)


@pytest.mark.row("L13", "L26")
def test_storage_that_the_training_does_not_save_to_is_void(run, tmp_path):
    """Its checkpoints lie on each node's own disk, and the network storage is named."""
    path = tmp_path / "storage_slow.yaml"
    path.write_text(SHIPPED.read_text().replace("with: {rate", "with: {path: /ckpt, rate"))
    code, summary, said = run(path, lambda inventory: inventory.replace('"/ckpt/{run}"', '"/tmp/ckpt-{run}"'))

    assert (code, summary["outcome"]) == (3, "INCONCLUSIVE"), said
    [injection] = summary["injections"]
    assert [injection[fact]["holds"] for fact in ("exposed", "present", "gone")] == [False, True, True]
    assert "void: the training" in said
    assert "not to /ckpt (fuse.sshfs" in said or "does not save from this node" in said
