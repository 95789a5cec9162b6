"""Several experiments in one command: the next one begins only while the site has not lost more nodes than it may."""

import pytest
from guarded import Cluster, injection
from simulated import Slow

from chaoskit import wiring

THREE = [f"experiments/{name}.yaml" for name in ("rank_kill", "rank_hang", "rank_slow")]


@pytest.fixture
def leaky(tmp_path, monkeypatch):
    """Let every experiment leak on a node of its own; return the names of those that began."""
    began = []

    def run(order, _listen):
        node = f"n{len(began) + 1}"
        began.append(order.experiment.name)
        folder = tmp_path / f"run-{node}"
        folder.mkdir()
        cluster = Cluster(folder)
        cluster.nodes[node].never_gone = True
        return cluster.run(injection(Slow(hold=8.0), node))

    monkeypatch.setattr(wiring, "run_order", run)
    return began


@pytest.mark.parametrize(("options", "count"), [((), 1), (("--lose-at-most", "2"), 2), (("--lose-at-most", "4"), 3)])
def test_no_further_experiment_begins_once_the_budget_is_spent(chaoskit, leaky, options, count):
    code, out, _ = chaoskit("run", *THREE, "-i", "inventories/staging-example.yaml", *options)

    assert 5 == code
    assert ["rank_kill", "rank_hang", "rank_slow"][:count] == leaky
    skipped = [line for line in out.splitlines() if "not run, since" in line]
    assert 3 - count == len(skipped)
    if skipped:
        lost = "1 node is lost (n1), and no more than 1" if count == 1 else "2 nodes are lost (n[1-2]), and no more than 2"
        assert f"{lost} may be: mend what is lost first" in skipped[0]


def test_the_inventory_states_the_budget_of_the_site(chaoskit, leaky, workdir):
    path = workdir / "inventories" / "staging-example.yaml"
    text = path.read_text()
    path.write_text(text.replace("\nlimits:\n", "\nlimits:\n  nodes_lost: 2\n"))
    assert "nodes_lost: 2" in path.read_text()

    assert 5 == chaoskit("run", *THREE, "-i", path)[0]
    assert 2 == len(leaky)
    assert 2 == chaoskit("run", *THREE, "-i", path, "--lose-at-most", "0")[0]
