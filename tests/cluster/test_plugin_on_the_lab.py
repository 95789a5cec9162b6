"""The pytest plugin on the lab: whatever ends pytest, nothing stays behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.prove]

TOP = Path(__file__).parents[2]
LONG_FAULT = """\
title: A long fault, to be interrupted
method:
  - {fault: link_flap, target: {group: workers, pick: 1}, with: {rail: 1, down: 90s}, together: true}
budgets: {restarts: 0}
"""


def journal_has(folder: Path, kind: str) -> bool:
    """Say whether a run below this folder has recorded such a thing."""
    return any(f'"kind":"{kind}"' in path.read_text() for path in folder.glob("*/journal.jsonl"))


@pytest.mark.row("R11", "L36")
def test_sigterm_to_pytest_reverts_the_fault(lab, tmp_path):
    """
    SIGTERM while a link is down: pytest ends as interrupted, with an ABORTED run, and the node owes nothing.

    Fixtures of a plain pytest would not even be torn down.
    """
    (tmp_path / "long.yaml").write_text(LONG_FAULT)
    argv = [sys.executable, "-m", "pytest", "long.yaml", "--chaos-inventory", str(lab.inventory_path), "--chaos-out", "runs"]
    process = subprocess.Popen(argv, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 240
    while not journal_has(tmp_path / "runs", "witness"):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.1)

    os.kill(process.pid, signal.SIGTERM)
    said, _ = process.communicate(timeout=120)

    assert pytest.ExitCode.INTERRUPTED == process.returncode, said
    assert "ABORTED: long: ended by SIGTERM" in said
    command = [sys.executable, "-c", "from chaoskit.cli.main import entry; entry()", "audit", "-i", str(lab.inventory_path)]
    audit = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert 0 == audit.returncode, audit.stdout
    states = {node: lab.ssh(node, "cat", "/sys/class/net/rail1/operstate").stdout.strip() for node in ("node1", "node2", "node3", "node4")}
    assert {"up"} == set(states.values()), states
