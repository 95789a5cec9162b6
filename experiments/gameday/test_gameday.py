"""
An afternoon of failures on staging, in three tests. People watch, and CI reads the JUnit file.

    pytest experiments/gameday --chaos-inventory inventories/staging.yaml --chaos-plan       # shows, touches nothing
    pytest experiments/gameday --chaos-inventory inventories/staging.yaml --junit-xml gameday.xml

Together with experiment files, under one command and in one JUnit file:

    pytest experiments/gameday experiments/plane_loss.yaml experiments/node_kill.yaml --chaos-inventory ...

Each test is one experiment: it has a run directory below `runs/`, and `chaoskit report` judges it again. An assertion that
does not hold is a failure. What proves nothing (the fault was void, the measurement does not decide) is an error, and so is
what leaked or was aborted. `chaoskit.scripting` documents the fixtures.
"""

import pytest

pytestmark = pytest.mark.chaos(
    steady_state={"throughput": {"within": "15%", "for": "5s"}},
    abort={"no_progress": "2m"},
    seed=11,
)


def test_a_killed_rank_costs_at_most_one_checkpoint_interval(cluster, training, inject):
    """
    A killed rank costs at most one checkpoint interval.

    Ranks die: out of memory, an illegal address, a hung driver. The launcher must notice at once and start again from the
    last checkpoint, without anybody being called.
    """
    training.await_steady()

    inject("rank_kill", target=cluster.group("workers").pick(1, avoid="rendezvous"))
    recovery = training.await_recovery(within="3m")

    assert recovery.restarts == 1
    assert recovery.lost_steps <= training.checkpoint_interval + 5  # and those in flight
    assert recovery.time_to_detect <= 10
    assert recovery.time_to_recover <= 90


def test_a_link_that_flaps_restarts_nothing(cluster, training, inject):
    """
    A link of one node that flaps is a hiccup, and nothing restarts.

    Optics flap. Every flap stalls the collective for a moment, and no more than that.
    """
    with inject("link_flap", target=cluster.group("workers").pick(1), rail=1, down="2s", up="3s", times=3) as flap:
        flap.await_end()
    recovery = training.await_recovery(within="2m")

    assert recovery.restarts == 0
    assert recovery.lost_steps == 0
    assert recovery.settle_time <= 20


def test_a_killed_rank_is_survived_while_a_link_is_down(cluster, training, inject):
    """
    A rank that dies while a rail of its node is down comes back all the same.

    Failures come in pairs: what heals the one must not need what the other took.
    """
    node = cluster.group("workers").pick(1, avoid="rendezvous")
    with inject("link_flap", target=node, rail=1, down="60s"):
        training.wait("5s")
        inject("rank_kill", target=node)
        training.wait("20s")
    recovery = training.await_recovery(within="4m")

    assert recovery.restarts == 1
    assert recovery.lost_steps <= training.checkpoint_interval + 5
