"""A node whose answers are worth nothing, at any verb: the run says so, never PASSED, and the other nodes are mended."""

import pytest
from guarded import Cluster, injection
from simulated import SimAgent, Slow, failed

from chaoskit.errors import AgentError, DeadlineError, ProtocolError, UnreachableError
from chaoskit.judge.verdict import Outcome

pytestmark = pytest.mark.row("S9", "L4", "L5")

VERBS = ("prepare", "exposed", "arm", "inject", "witness", "finish", "revert", "renew", "gone")
KINDS = (ProtocolError, DeadlineError, AgentError, UnreachableError)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", VERBS)
def test_an_answer_that_is_worth_nothing_never_makes_a_run_pass(tmp_path, monkeypatch, verb, kind):
    """From that verb on, the node is unknown: INCONCLUSIVE at best, LEAKED where its end was never proven, and no harm stays elsewhere."""
    cluster = Cluster(tmp_path)
    honest = getattr(SimAgent, verb)

    def answer(self, *args, **more):
        if self.name == "n2":
            return failed(kind("what came back was nonsense", node="n2"))
        return honest(self, *args, **more)

    monkeypatch.setattr(SimAgent, verb, answer)
    result = cluster.run(injection(Slow(hold=8.0), "n1", "n2"))

    # `finish` and `revert` prove the end each alone, and a fault that was felt was exposed.
    if verb in ("prepare", "arm", "inject", "witness"):
        assert result.verdict.outcome is not Outcome.PASSED
    assert not cluster.nodes["n1"].slow
    if verb != "revert":
        assert not cluster.nodes["n2"].slow
