"""One example run for each way that a run can end."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from chaoskit.engine.result import RunInfo, RunResult
from chaoskit.judge.timeline import Fact, InjectionFacts
from chaoskit.judge.verdict import Baseline, BudgetResult, BudgetState, Disruption, Expectation, Outcome, Phase, Quantity, Verdict
from chaoskit.model.experiment import Expect, Position
from chaoskit.model.interval import Interval

BEGAN = 5000.0
YES = Fact(True, "seen")


def info(name="plane_loss", **changes):
    positions = {
        path: Position(f"experiments/{name}.yaml", line, 3)
        for path, line in (("title", 2), ("budgets.restarts", 14), ("budgets.settle_time", 15), ("budgets.lost_steps", 16))
    }
    head = RunInfo(
        run=f"2026-11-30T170150-{name}",
        name=name,
        title="Losing one network plane must not stop training",
        why="The fabric has two planes.",
        file=f"experiments/{name}.yaml",
        inventory="lab",
        inventory_file="lab.yaml",
        seed=7,
        nodes=4,
        gpus=4,
        started=datetime(2026, 11, 30, 17, 1, 50, tzinfo=UTC),
        began=BEGAN,
        positions=positions,
        version="0.1.0",
    )
    return replace(head, **changes)


def quantity(name, low, high=None, unit="", **more):
    return Quantity(name, Interval(low, low if high is None else high), unit, **more)


def held(**changes):
    facts = InjectionFacts(
        "link_flap",
        "link_flap plane B",
        ("node1", "node2", "node3", "node4"),
        one_shot=False,
        t0=Interval.at(BEGAN + 21.004, 0.0001),
        t1=Interval.at(BEGAN + 41.004, 0.0001),
        spread=0.0006,
        present=YES,
        exposed=YES,
        gone=YES,
    )
    return replace(facts, **changes)


BASELINE = Baseline(BEGAN + 5, BEGAN + 15, 98, 1 / 9.8, 9.8, 0.02, 0.1, 10.0, 0.15)
STEADY = quantity("time_to_steady", 21.8, 22.0, "s")
SETTLE = quantity("settle_time", 1.8, 2.0, "s")
DURING = quantity("throughput_during", 0.49, 0.55, "share")
QUANTITIES = {
    each.name: each
    for each in (
        quantity("time_to_recover", 0.0, unit="s"),
        STEADY,
        SETTLE,
        quantity("lost_steps", 0, unit="steps"),
        quantity("restarts", 0),
        DURING,
        quantity("lost_gpu_hours", 0.0117, 0.0123, "GPU-h"),
        quantity("window_goodput", 0.55, 0.56, "share"),
    )
}
MET = (
    BudgetResult("restarts", "at most", 0, quantity("restarts", 0), BudgetState.MET, "restarts 0, at most 0"),
    BudgetResult("throughput_during", "at least", 0.4, DURING, BudgetState.MET, "throughput_during 52 %, at least 40 %"),
    BudgetResult("settle_time", "at most", 10.0, SETTLE, BudgetState.MET, "settle_time 1.9 s, at most 10 s"),
    BudgetResult("lost_steps", "at most", 0, quantity("lost_steps", 0, unit="steps"), BudgetState.MET, "lost_steps 0, at most 0"),
)


def verdict(outcome, reasons=(), **changes):
    base = Verdict(outcome, tuple(reasons), BASELINE, QUANTITIES, MET, (), (), (held(),), {0: True})
    return replace(base, **changes)


def passed():
    return verdict(Outcome.PASSED)


def failed():
    """A missed budget after a restart, with its phases; the node's own words are hostile."""
    late = quantity("time_to_steady", 40.9, 41.5, "s")
    missed = BudgetResult("time_to_steady", "at most", 30.0, late, BudgetState.MISSED, "time_to_steady 41.2 s, at most 30 s")
    ledger = (
        Phase("detect", BEGAN + 20.9, BEGAN + 21.5, 0, 0.6),
        Phase("new process", BEGAN + 21.5, BEGAN + 25.5, 0, 4.0),
        Phase("steady", BEGAN + 25.5, BEGAN + 62.2, 260, 10.2),
    )
    says = "restart: \x1b[31m[[ATTACHMENT|/etc/shadow]]\x00 worker node2 failed"
    broken = Disruption(Interval.at(BEGAN + 21.0), "restart", {}, 1, says)
    kill = held(
        fault="rank_kill",
        detail="rank_kill rank 1, signal SIGKILL",
        targets=("node2",),
        one_shot=True,
        t1=None,
        spread=0.0,
        gone=Fact(True, "back after 4.1 s"),
    )
    quantities = {**QUANTITIES, "time_to_steady": late, "time_to_recover": quantity("time_to_recover", 11.9, 12.1, "s")}
    return verdict(
        Outcome.FAILED,
        [missed.says],
        budgets=(missed, *MET[3:]),
        ledger=ledger,
        disruptions=(broken,),
        injections=(kill,),
        quantities=quantities,
    )


def died():
    """No budget says it: the training died and nothing was asked of its recovery."""
    beyond = quantity("time_to_recover", 300.0, 300.0, "s", beyond=True)
    return verdict(
        Outcome.FAILED,
        ["the training died 0.5 s after the fault and nothing started it again: exit code 1"],
        budgets=MET[3:],
        quantities={"time_to_recover": beyond},
    )


def void():
    fact = Fact(False, "training sent nothing over rail 1 of node[1-4]")
    return verdict(Outcome.INCONCLUSIVE, ["void: " + fact.says], injections=(held(exposed=fact),), felt={0: False})


def felt(low, high, state):
    """How a fault was felt that is stated to make steps half as long again."""
    return Expectation(0, Expect(1.5), Quantity("step_time", Interval(low, high)), state)


def stated():
    return replace(passed(), expectations=(felt(1.49, 1.55, BudgetState.MET),))


def hidden():
    """The fault was there, and the training did not feel it as stated: no budget says so."""
    says = "link_flap plane B on node1: step time moved 1.12 ±0.02 times, the experiment states 1.5 ±15 %: the fault was hidden, or ..."
    return verdict(Outcome.INCONCLUSIVE, [says], expectations=(felt(1.1, 1.14, BudgetState.MISSED),))


def undecided():
    wide = quantity("settle_time", 8.0, 14.0, "s")
    says = "settle_time between 8.0 and 14.0 s, at most 10 s: the limit lies inside the uncertainty"
    budget = BudgetResult("settle_time", "at most", 10.0, wide, BudgetState.UNDECIDED, says)
    return verdict(Outcome.INCONCLUSIVE, [f"undecided: {says}"], budgets=(budget,))


def unreachable():
    """Set-up failed: nothing was measured, nothing injected."""
    budget = BudgetResult(
        "lost_steps", "at most", 0, Quantity("lost_steps", None, "steps"), BudgetState.UNDECIDED, "lost_steps was not measured"
    )
    never = InjectionFacts("link_flap", "link_flap plane B", ("node1",), one_shot=False)
    return verdict(
        Outcome.INCONCLUSIVE,
        ["node3: no connection: timed out after 10 s (is the node up?)"],
        baseline=None,
        quantities={},
        budgets=(budget,),
        injections=(never,),
        felt={},
    )


def aborted():
    return verdict(Outcome.ABORTED, ["aborted: ended by SIGTERM"])


def leaked():
    fact = Fact(False, "rail1 is still down")
    return verdict(Outcome.LEAKED, ["leaked: link_flap plane B on node2: rail1 is still down"], injections=(held(gone=fact, t1=None),))


EXAMPLES = {each.__name__: each for each in (passed, failed, died, void, undecided, unreachable, aborted, leaked, stated, hidden)}


@pytest.fixture(params=EXAMPLES)
def example(request):
    """Each example in turn: its name and its result."""
    return request.param, result(EXAMPLES[request.param]())


def result(judged, **changes):
    base = RunResult(
        info("rank_kill" if judged.injections[0].fault == "rank_kill" else "plane_loss"), judged, Path("runs/2026-11-30T170150"), 83.25
    )
    return replace(base, **changes)


@pytest.fixture
def results():
    """Return every example, by name."""
    return {name: result(make()) for name, make in EXAMPLES.items()}
