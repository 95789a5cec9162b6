"""What a campaign may lose: nodes that are not back, or not proven mended, over all experiments of one command."""

import pytest
from guarded import Cluster, CutOff, injection
from simulated import Kill, Slow

from chaoskit.engine.losses import Losses
from chaoskit.engine.replay import read_run


@pytest.fixture
def cluster(tmp_path):
    return Cluster(tmp_path)


def test_each_node_counts_once_and_the_budget_is_spent_when_so_many_are_lost():
    losses = Losses(2)
    losses.add(["n1"])
    losses.add(["n1"])
    assert "" == losses.spent
    losses.add(["n2"])
    assert "2 nodes are lost (n[1-2]), and no more than 2 may be: mend what is lost first" == losses.spent


def test_what_comes_back_is_not_lost(cluster):
    assert () == cluster.run(injection(Kill(), "n2"), injection(Slow(hold=8.0), "n3", number=1, after=40.0)).lost


@pytest.mark.row("L5", "L7")
def test_what_is_not_proven_mended_is_lost(cluster):
    cluster.nodes["n2"].never_gone = True
    result = cluster.run(injection(Slow(hold=8.0), "n1", "n2"))

    assert ("n2",) == result.lost == read_run(cluster.run_dir).lost


def test_a_node_that_is_not_back_is_lost(cluster):
    """Also one that nothing was injected on."""
    cluster.nodes["n2"].comes_back = False
    cluster.on_event["injected"] = lambda _: setattr(cluster.nodes["n3"], "cut_until", float("inf"))

    assert ("n2", "n3") == cluster.run(injection(CutOff(hold=12.0), "n2")).lost
