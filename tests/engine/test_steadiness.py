"""The first fault begins in a steady training, or not at all: one that has wavered since its baseline is waited for."""

import pytest
from simulated_cluster import Cluster, injection

from chaoskit.judge.verdict import Outcome


@pytest.fixture
def cluster(tmp_path):
    return Cluster(tmp_path)


def waver_for(cluster, seconds):
    """Have every step take more than twice its time, from the baseline on, for so long."""

    class Wavering:
        def tick(self, now):
            cluster.training.pace = 0.6 if now < until else 0.25

    until = cluster.clock.now() + seconds
    cluster.clock.parts.append(Wavering())


def stages(cluster):
    return [event.says for event in cluster.events if event.kind == "stage"]


def test_a_training_that_wavers_after_its_baseline_is_waited_for(cluster):
    cluster.on_event["steady"] = lambda _: waver_for(cluster, 10.0)

    result = cluster.run(injection(after=6.0))

    assert result.verdict.outcome is Outcome.PASSED, result.verdict.reasons
    assert stages(cluster).count("waiting until the throughput is steady again") == 1


def test_the_later_faults_keep_their_distance_from_the_first(cluster):
    cluster.on_event["steady"] = lambda _: waver_for(cluster, 10.0)

    result = cluster.run(injection(after=6.0), injection(number=1, after=30.0))

    first, second = (one.t0.mid for one in result.verdict.injections)
    assert second - first == pytest.approx(24.0, abs=1.0)


def test_one_that_does_not_come_back_is_not_broken(cluster):
    cluster.on_event["steady"] = lambda _: waver_for(cluster, 1000.0)

    result = cluster.run(injection(after=6.0), steady_within=60.0)

    assert result.verdict.outcome is Outcome.INCONCLUSIVE
    assert "it left the band, and did not come back within 60 s" in result.verdict.reasons[0]
    assert not any(entry.t0 for node in cluster.nodes.values() for entry in node.entries.values())
    assert cluster.owed == []


def test_one_that_ends_meanwhile_is_not_waited_for(cluster):
    def waver_and_die(_):
        waver_for(cluster, 1000.0)
        cluster.training.dies_at = cluster.clock.now() + 12.0

    cluster.on_event["steady"] = waver_and_die

    result = cluster.run(injection(after=6.0), steady_within=600.0)

    assert result.verdict.outcome is Outcome.INCONCLUSIVE
    assert "the training ended before any fault" in result.verdict.reasons[0]
    assert result.elapsed < 100.0


def test_a_steady_one_is_not_kept_waiting(cluster):
    result = cluster.run(injection())

    assert result.verdict.outcome is Outcome.PASSED
    assert "waiting until the throughput is steady again" not in stages(cluster)
