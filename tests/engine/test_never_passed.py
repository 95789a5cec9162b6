"""Voids on purpose: a fault that does nothing, a source that goes silent, no targets, a revert that lies. None of them passes."""

import pytest
from guarded import Cluster, Nothing, injection
from simulated import Kill, Slow

from chaoskit.judge.verdict import Outcome
from chaoskit.model.experiment import Budgets, Expect

pytestmark = pytest.mark.row("L14")


@pytest.fixture
def cluster(tmp_path):
    return Cluster(tmp_path)


LENIENT = Budgets(restarts=5, lost_steps=10_000)
"""So that nothing but the void keeps a run from passing."""


@pytest.mark.row("L26")
def test_a_fault_that_does_nothing_and_whose_witness_says_so(cluster):
    cluster.nodes["n2"].witnessed = False
    result = cluster.run(injection(Nothing(hold=8.0), "n2"), budgets=LENIENT)

    assert Outcome.INCONCLUSIVE is result.verdict.outcome
    assert result.verdict.injections[0].present.holds is False


@pytest.mark.row("L13", "L26")
def test_a_fault_that_does_nothing_and_whose_witness_lies(cluster):
    """The training is the witness that cannot be bribed: what it must feel, it does not."""
    result = cluster.run(injection(Nothing(hold=30.0), "n2", expect=Expect(2.0)), budgets=LENIENT)

    assert result.verdict.outcome in (Outcome.INCONCLUSIVE, Outcome.FAILED)
    assert result.verdict.injections[0].present.holds is True


@pytest.mark.row("L5", "L26")
def test_one_of_many_targets_on_which_nothing_happened(cluster):
    """Counting only those that were hit would call it done."""
    cluster.nodes["n3"].witnessed = False
    result = cluster.run(injection(Slow(hold=8.0), "n1", "n2", "n3"), budgets=LENIENT)

    assert Outcome.INCONCLUSIVE is result.verdict.outcome


@pytest.mark.row("L27", "L28")
def test_one_of_many_targets_that_cannot_say_whether_it_happened(cluster):
    cluster.nodes["n3"].refuses, cluster.nodes["n3"].refuses_at = "no", "witness"
    result = cluster.run(injection(Slow(hold=8.0), "n1", "n3"), budgets=LENIENT)

    assert Outcome.INCONCLUSIVE is result.verdict.outcome


@pytest.mark.row("L13", "L28")
def test_a_fault_on_what_the_training_does_not_use(cluster):
    cluster.nodes["n2"].exposed = False
    result = cluster.run(injection(Slow(hold=8.0), "n2"), budgets=LENIENT)

    assert Outcome.INCONCLUSIVE is result.verdict.outcome


@pytest.mark.row("L28")
@pytest.mark.parametrize("blind", [False, True], ids=["and nobody knows", "and it is known"])
@pytest.mark.parametrize("event", ["connected", "steady", "injected", "ended"])
@pytest.mark.parametrize("fault", [Slow(hold=8.0), pytest.param(Kill(), marks=pytest.mark.prove)], ids=["held", "kill"])
def test_a_source_that_goes_silent(cluster, fault, event, blind):
    """Whenever it happens: whether the training went on, nobody saw."""
    cluster.training.blind = blind

    def silence(_):
        if cluster.training.silent_from == float("inf"):
            cluster.training.silent_from = cluster.clock.now()

    cluster.on_event[event] = silence
    result = cluster.run(injection(fault, "n2"), budgets=LENIENT)

    assert cluster.training.silent_from < cluster.clock.now()
    assert result.verdict.outcome in (Outcome.INCONCLUSIVE, Outcome.FAILED)
    assert cluster.owed == []


@pytest.mark.row("L19")
def test_no_targets(cluster):
    result = cluster.run(empty="x.yaml:3:5: no node of sim is in the group 'spares'", budgets=LENIENT)

    assert Outcome.INCONCLUSIVE is result.verdict.outcome
    assert 3 == result.verdict.outcome.exit_code
    assert "'spares'" in result.verdict.reasons[0]
    assert cluster.training.step == 0


def test_no_method(cluster):
    """As a Python test that injects nothing."""
    result = cluster.run(budgets=LENIENT)

    assert Outcome.PASSED is not result.verdict.outcome


@pytest.mark.row("L4")
def test_a_revert_that_changes_nothing_and_whose_proof_says_so(cluster):
    cluster.nodes["n2"].never_gone = True
    result = cluster.run(injection(Slow(hold=8.0), "n2"), budgets=LENIENT)

    assert Outcome.LEAKED is result.verdict.outcome


@pytest.mark.row("L23", "L50")
def test_a_revert_that_changes_nothing_and_whose_proof_lies(cluster):
    """The training never gets steady again."""
    cluster.nodes["n2"].lies = True
    result = cluster.run(injection(Slow(hold=8.0), "n2"), budgets=LENIENT)

    assert ["sim-run/0/n2"] == cluster.owed
    assert result.verdict.injections[0].gone.holds is True
    assert result.verdict.outcome in (Outcome.INCONCLUSIVE, Outcome.FAILED)


def test_the_cluster_of_these_tests_passes_without_a_void(cluster):
    """Else none of them would show anything."""
    result = cluster.run(
        injection(Slow(hold=8.0), "n2", expect=Expect(2.0)), injection(Kill(), "n3", number=1, after=40.0), budgets=LENIENT
    )

    assert Outcome.PASSED is result.verdict.outcome
