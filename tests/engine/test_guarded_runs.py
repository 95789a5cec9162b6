"""Runs on the simulated cluster that guards end, and faults that cut their own node off: reverted, judged, and never hung."""

from concurrent.futures import Future

import pytest
from guarded import Cluster, CutOff, injection
from simulated import Slow
from simulated_plan import LEASE

from chaoskit.engine import journal
from chaoskit.engine.aborts import Answer
from chaoskit.judge.verdict import Outcome
from chaoskit.model.experiment import Abort, Budgets, Command, Query, Slump


@pytest.fixture
def cluster(tmp_path):
    return Cluster(tmp_path)


# -- a fault that cuts its own node off ----------------------------------------------------------------------------


def test_a_node_that_is_cut_off_for_less_than_its_lease_is_judged(cluster):
    """What happened meanwhile the node itself tells afterwards."""
    result = cluster.run(injection(CutOff(hold=12.0), "n2"), budgets=Budgets(restarts=0), abort=Abort(nodes_unreachable=0))

    facts = result.verdict.injections[0]
    assert Outcome.PASSED is result.verdict.outcome
    assert (facts.present.holds, facts.gone.holds) == (True, True)
    assert facts.t1.mid - facts.t0.mid == pytest.approx(12.0, abs=0.2)
    assert "n2: connected again" in cluster.told("back")
    assert cluster.owed == []


@pytest.mark.row("L12", "L18", "L47")
def test_a_node_that_is_cut_off_for_longer_heals_itself_and_the_run_is_aborted(cluster):
    """Nothing renews its lease: it is back alone when that is over."""
    began = cluster.clock.now()
    result = cluster.run(injection(CutOff(hold=600.0), "n2"), abort=Abort(nodes_unreachable=0))

    entry = cluster.nodes["n2"].entries["sim-run/0/n2"]
    assert Outcome.ABORTED is result.verdict.outcome
    assert "the lease ended before it was renewed; healed by the node itself" in result.verdict.reasons[0]
    assert result.verdict.injections[0].gone.holds is True
    assert entry.t1 - entry.t0 <= LEASE + 1.0
    assert cluster.clock.now() - began < 200.0


def test_a_node_that_is_never_back_ends_the_run_all_the_same(cluster):
    """Its absence is explained by the fault only until it should be back; and what it owes is leaked."""
    cluster.nodes["n2"].comes_back = False
    began = cluster.clock.now()
    result = cluster.run(injection(CutOff(hold=12.0), "n2"), abort=Abort(nodes_unreachable=0))

    assert Outcome.LEAKED is result.verdict.outcome
    assert any("nodes unreachable (n2)" in why for why in reasons(cluster))
    assert cluster.clock.now() - began < 240.0


def reasons(cluster):
    return [record["why"] for record in journal.read(cluster.run_dir).records if record["kind"] == "aborted"]


def test_the_others_leases_are_kept_while_one_is_cut_off(cluster):
    result = cluster.run(injection(Slow(hold=50.0), "n1"), injection(CutOff(hold=20.0), "n2", number=1, after=5.0))

    assert Outcome.PASSED is result.verdict.outcome
    assert cluster.nodes["n1"].entries["sim-run/0/n1"].t1 - cluster.nodes["n1"].entries["sim-run/0/n1"].t0 >= 49.9


# -- abort conditions ----------------------------------------------------------------------------------------------


@pytest.mark.row("L24")
def test_a_throughput_that_stays_low_ends_the_run_and_reverts(cluster):
    """The training still makes progress, so that nothing else would end it."""
    abort = Abort(throughput=Slump(below=0.7, for_=20.0), no_progress=30.0)
    result = cluster.run(injection(Slow(hold=300.0), "n2"), abort=abort)

    assert Outcome.ABORTED is result.verdict.outcome
    assert "of the baseline's at most over 20s, at least 70% required" in result.verdict.reasons[0]
    entry = cluster.nodes["n2"].entries["sim-run/0/n2"]
    assert 20.0 <= entry.t1 - entry.t0 < 40.0
    assert cluster.owed == []


def test_a_throughput_that_is_low_for_a_moment_does_not(cluster):
    abort = Abort(throughput=Slump(below=0.7, for_=20.0))

    assert Outcome.PASSED is cluster.run(injection(Slow(hold=8.0), "n2"), abort=abort).verdict.outcome


CHECK = Abort(commands=(Command(("check", "--fast"), every=5.0),))


class Asked:
    """Answers with what the test says from a moment on, and remembers when it was asked."""

    def __init__(self, cluster, answer, after):
        self.cluster, self.answer, self.after = cluster, answer, after
        self.times = []

    def __call__(self, _ask):
        self.times.append(self.cluster.clock.now())
        future = Future()
        if len(self.times) <= self.after:
            future.set_result(Answer())
        elif self.answer is not None:
            future.set_result(self.answer)
        return future


@pytest.mark.parametrize("after", [0, pytest.param(3, marks=pytest.mark.prove), 6, pytest.param(9, marks=pytest.mark.prove)])
def test_a_condition_ends_the_run_whenever_it_says_no(cluster, after):
    """Before the training is up, while it gets steady, under the fault, and after it."""
    asked = Asked(cluster, Answer(why="exit code 1: too hot"), after)
    result = cluster.run(injection(Slow(hold=15.0), "n2"), abort=CHECK, asking=asked)

    assert Outcome.ABORTED is result.verdict.outcome
    assert ("aborted: the abort condition `check --fast`: exit code 1: too hot",) == result.verdict.reasons[:1]
    assert after + 1 == len(asked.times)
    assert cluster.owed == []
    if not after:
        assert {} == cluster.nodes["n2"].entries


def test_a_condition_is_asked_all_along(cluster):
    asked = Asked(cluster, None, 1000)
    result = cluster.run(injection(Slow(hold=15.0), "n2"), abort=CHECK, asking=asked)

    assert Outcome.PASSED is result.verdict.outcome
    gaps = [later - earlier for earlier, later in zip(asked.times, asked.times[1:], strict=False)]
    assert len(gaps) > 5
    assert max(gaps) < 6.0


def test_a_condition_that_answers_nothing_ends_the_run(cluster):
    """A run that nobody watches is no guarded one."""
    result = cluster.run(injection(Slow(hold=60.0), "n2"), abort=CHECK, asking=Asked(cluster, None, 4))

    assert Outcome.ABORTED is result.verdict.outcome
    assert "nobody can say whether the run may go on, 3 times in a row" in result.verdict.reasons[0]
    assert cluster.owed == []


def test_leases_are_kept_while_a_condition_hangs(cluster):
    abort = Abort(commands=(Command(("check",), every=5.0, tries=1000),))
    result = cluster.run(injection(Slow(hold=50.0), "n2"), abort=abort, asking=Asked(cluster, None, 2))

    assert Outcome.PASSED is result.verdict.outcome
    assert cluster.nodes["n2"].renewals > 7


def test_a_secret_that_is_not_there_refuses_the_run_before_anything_begins(cluster, monkeypatch):
    monkeypatch.delenv("CHAOSKIT_TEST_TOKEN", raising=False)
    abort = Abort(queries=(Query("up", url="http://127.0.0.1:1", token_env="CHAOSKIT_TEST_TOKEN"),))
    result = cluster.run(injection(Slow(hold=8.0), "n2"), abort=abort)

    assert Outcome.INCONCLUSIVE is result.verdict.outcome
    assert "CHAOSKIT_TEST_TOKEN is not set" in result.verdict.reasons[0]
    assert 0 == cluster.training.step
