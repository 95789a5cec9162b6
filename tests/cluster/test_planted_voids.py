"""Faults on what the training does not use, or on ranks that are not there: INCONCLUSIVE with the reason, never PASSED."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.prove]

TOP = Path(__file__).parents[2]
ENTRY = "from chaoskit.cli.main import entry; entry()"


@pytest.fixture
def run(lab, tmp_path):
    """Return a function that runs a shipped experiment with changes (pattern -> text); returns exit code, summary, output."""

    def run(name, changes):
        text = (TOP / "experiments" / f"{name}.yaml").read_text()
        for pattern, words in changes.items():
            text, count = re.subn(pattern, words, text)
            assert count == 1, pattern
        path = tmp_path / f"{name}.yaml"
        path.write_text(text)
        argv = ["run", str(path), "--inventory", str(lab.inventory_path), "--out", str(tmp_path / "runs")]
        done = subprocess.run(
            [sys.executable, "-c", "from chaoskit.cli.main import entry; entry()", *argv],
            check=False,
            capture_output=True,
            text=True,
            cwd=TOP,
        )
        summary = json.loads((tmp_path / "runs" / "latest" / "summary.json").read_text())
        return done.returncode, summary, done.stdout + done.stderr

    return run


@pytest.mark.row("L19")
@pytest.mark.parametrize("name", ["rank_hang", "rank_slow"])
def test_a_rank_that_is_not_in_the_run_is_refused(run, name):
    """Four nodes have the ranks 0 to 3."""
    code, summary, said = run(name, {r"hold: \d+s": "hold: 5s, rank: 9"})

    assert (code, summary["outcome"]) == (3, "INCONCLUSIVE"), said
    assert "rank 9 does not run on this node (here are the ranks" in said


@pytest.mark.row("L19")
def test_a_rank_that_has_left_is_refused(run):
    """Killed a moment ago, and not started again yet: there is nobody to hang."""
    kill = "- fault: rank_kill\n    target: {nodes: node2}\n    after: 5s\n  - fault: rank_hang"
    changes = {"- fault: rank_hang": kill, r"target: \{group: workers, pick: 1\}": "target: {nodes: node2}", "restarts: 0": "restarts: 1"}
    code, summary, said = run("rank_hang", {**changes, "lost_steps: 0": "lost_steps: 60"})

    assert (code, summary["outcome"]) == (3, "INCONCLUSIVE"), said
    assert re.search(r"node2 rank_hang: no process of run \S+ has a rank on this node", said), said


@pytest.mark.row("L13", "L26")
@pytest.mark.parametrize("name", ["link_flap", "rail_loss"])
def test_a_rail_without_traffic_is_void(run, name):
    """The training is bound to rail 0, so that losing rail 1 proves nothing."""
    code, summary, said = run(name, {"seed: 7": "seed: 7\ntraining: rail_a"})

    assert (code, summary["outcome"]) == (3, "INCONCLUSIVE"), said
    [injection] = summary["injections"]
    assert (injection["exposed"]["holds"], injection["present"]["holds"], injection["gone"]["holds"]) == (False, True, True)
    assert "void" in said
