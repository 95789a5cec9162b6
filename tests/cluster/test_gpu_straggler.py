"""A capped GPU in a real run on the lab: felt as stated and then gone; and a cap that caps nothing proves nothing."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.prove]

TOP = Path(__file__).parents[2]
EXPERIMENT = TOP / "experiments" / "gpu_straggler.yaml"


@pytest.fixture
def run(lab, tmp_path):
    """Return a function that runs the experiment's text; (exit code, summary, what was printed)."""

    def run(text):
        path = tmp_path / "gpu_straggler.yaml"
        path.write_text(text)
        argv = ["run", str(path), "--inventory", str(lab.inventory_path), "--out", str(tmp_path / "runs")]
        script = "from chaoskit.cli.main import entry; entry()"
        done = subprocess.run([sys.executable, "-c", script, *argv], check=False, capture_output=True, text=True, cwd=TOP)
        summary = json.loads((tmp_path / "runs" / "latest" / "summary.json").read_text())
        return done.returncode, summary, done.stdout + done.stderr

    return run


def limits(lab):
    asked = "nvidia-smi --query-gpu=power.limit --format=csv,noheader,nounits"
    return {lab.ssh(f"node{number}", asked).stdout.strip() for number in range(1, 5)}


def test_a_capped_gpu_is_felt_as_stated_and_gone(lab, run):
    code, summary, said = run(EXPERIMENT.read_text())

    assert (code, summary["outcome"]) == (0, "PASSED"), said
    [injection] = summary["injections"]
    assert [injection[fact]["holds"] for fact in ("exposed", "present", "gone")] == [True, True, True]
    assert injection["felt"] is True
    assert injection["expect"]["state"] == "met"
    assert abs(injection["expect"]["measured"]["value"] / injection["expect"]["step_time"] - 1) <= 0.15
    assert limits(lab) == {"700.00"}


@pytest.mark.row("L13", "L26")
def test_a_cap_above_the_draw_is_void(lab, run):
    """650 W, and the GPU draws 620: the cap is there, and nothing was harmed by it."""
    text, count = re.subn("share_of_default: 45%, hold: 20s", "watts: 650, hold: 5s", EXPERIMENT.read_text())
    assert count == 1
    code, summary, said = run(text)

    assert (code, summary["outcome"]) == (3, "INCONCLUSIVE"), said
    assert "drew 620 W at the most, not above the cap of 650 W" in said
    assert said.strip().splitlines()[-1].startswith("INCONCLUSIVE")
    assert limits(lab) == {"700.00"}
