"""A clean negative: runs in which nothing is broken are never called FAILED."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.prove, pytest.mark.row("R19", "L14")]

RUNS = 50
ENTRY = [sys.executable, "-c", "from chaoskit.cli.main import entry; entry()"]
EXPERIMENT = """\
title: Nothing is broken, so nothing may be told
steady_state: {throughput: {within: 20%, for: 5s}}
method:
  - fault: quiet
    target: {group: workers, pick: 1}
    with: {down: 4s}
    after: 1s
abort: {no_progress: 60s}
budgets: {restarts: 0, boots: 0, lost_steps: 0, throughput_during: 50%, settle_time: 15s, window_goodput: 50%}
"""


@pytest.fixture
def quiet(tmp_path):
    """Return the environment in which the control is an installed fault of a third party."""
    shutil.copy2(Path(__file__).parents[1] / "support" / "quiet.py", tmp_path)
    info = tmp_path / "quiet-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: quiet\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[chaoskit.faults]\nquiet = quiet\n")
    (tmp_path / "control.yaml").write_text(EXPERIMENT)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])}


def test_fifty_runs_in_which_nothing_is_broken_give_no_false_alarm(lab, tmp_path, quiet):
    """A busy machine may leave a run undecided, with its reason; a budget missed or a training called lost would be a lie."""
    told = Counter()
    for number in range(RUNS):
        command = [*ENTRY, "run", "control.yaml", "-i", str(lab.inventory_path), "--seed", str(number)]
        done = subprocess.run(command, cwd=tmp_path, env=quiet, capture_output=True, text=True, timeout=600, check=False)
        summary = json.loads((tmp_path / "runs" / "latest" / "summary.json").read_text())
        told[summary["outcome"]] += 1
        print(f"{number + 1:3} {summary['outcome']:12} {'; '.join(summary['reasons'])}", flush=True)
        assert (summary["outcome"], done.returncode) in (("PASSED", 0), ("INCONCLUSIVE", 3)), done.stdout[-3000:] + done.stderr[-3000:]
        assert summary["outcome"] == "PASSED" or summary["reasons"]
    print(dict(told))
    assert told["PASSED"]
