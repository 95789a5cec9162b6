"""
Stopped at any moment of any fault, whoever is left mends the node; where nobody is left, `audit` says so and `heal` mends it.

`run.py` records, generates, plays and tells; see there and in `cases.py` how the points come from the code's own transitions.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaoskit.lab import control

HERE = Path(__file__).parent
TOP = HERE.parents[1]

pytestmark = [pytest.mark.cluster, pytest.mark.row("R1", "R2")]


def play(lab, *options):
    """Run the matrix in a process of its own, which forks; its report goes to our output."""
    env = {**os.environ, "PYTHONPATH": str(TOP)}
    argv = [sys.executable, str(HERE / "run.py"), "--lab", lab, *options]
    done = subprocess.run(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(done.stdout)
    return done


@pytest.mark.prove
@pytest.mark.usefixtures("can_have_lab")
def test_whoever_dies_or_hangs_at_whatever_point_every_node_is_as_it_was():
    """Every fault, every transition of ledger, lease and journal, controller, server, fuse, both of these, and the channel."""
    name = f"test-matrix-{os.getpid()}"
    try:
        control.up(name=name, nodes=8)
        done = play(name, "--nodes", "8")
    finally:
        control.down(name)

    assert done.returncode == 0, done.stdout


def test_a_drawn_sample_of_the_matrix_leaves_every_node_as_it_was(lab):
    """Each victim in each way, and each state of the ledger, as one seed draws them."""
    done = play(lab.name, "--nodes", "4", "--sample", "10", "--brief")

    assert done.returncode == 0, done.stdout
