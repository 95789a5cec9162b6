"""The demo, killed in the middle: one `lab down` and the machine is as before."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from host_snapshot import snapshot

from chaoskit.lab import control

pytestmark = [pytest.mark.cluster, pytest.mark.prove, pytest.mark.usefixtures("can_have_lab")]

TOP = Path(__file__).parents[2]
NAME = f"killed-{os.getpid()}"


@pytest.fixture
def lab_of_its_own():
    yield
    control.down(NAME)


@pytest.mark.usefixtures("lab_of_its_own")
def test_nothing_is_left_of_a_killed_demo_after_lab_down(tmp_path):
    """SIGKILL to the controller while links are down and the training runs, as `./dev demo` runs them."""
    before = snapshot(NAME)
    control.up(name=NAME, nodes=4)
    entry = [sys.executable, "-c", "from chaoskit.cli.main import entry; entry()"]
    argv = [*entry, "run", "-i", f"/run/chaoskit-lab/{NAME}/inventory.yaml", "--out", str(tmp_path), "experiments/plane_loss.yaml"]
    process = subprocess.Popen(argv, cwd=TOP, stdout=subprocess.DEVNULL, start_new_session=True)
    give_up = time.monotonic() + 240
    while not any('"kind":"injected"' in path.read_text() for path in tmp_path.glob("*/journal.jsonl")):
        assert process.poll() is None
        assert time.monotonic() < give_up
        time.sleep(0.1)

    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert subprocess.run([*entry, "lab", "down", "--name", NAME], check=False).returncode == 0

    assert snapshot(NAME) == before
