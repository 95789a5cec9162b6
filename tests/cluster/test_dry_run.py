"""`chaoskit run --dry` on the lab."""

from pathlib import Path

import pytest

from chaoskit.cli.main import main

EXPERIMENTS = sorted((Path(__file__).parents[2] / "experiments").glob("*.yaml"))

pytestmark = pytest.mark.cluster


@pytest.mark.prove
def test_a_dry_run_of_every_shipped_experiment_meets_no_obstacle(lab, capsys):
    """What chaoskit would launch need not be up for it; what can be prepared is, and what cannot yet says so."""
    code = main(["run", "--dry", "-i", str(lab.inventory_path), *map(str, EXPERIMENTS)])

    out, err = capsys.readouterr()
    assert (0, "") == (code, err)
    assert "rank_kill: can be prepared only once the training is up" in out
    assert "link_flap plane B: prepared on node1, node2, node3, node4, nothing injected" in out
    assert "PASSED: the dry run met no obstacle" == out.splitlines()[-1]
