"""The twelve worked histories of the definitions, each with its exact numbers. d0 = 1 s, step n done at t = n up to 50."""

import pytest
from judged import BEFORE, at, injection, mark, steps, values, verdict

from chaoskit.judge.timeline import Fact, Interval, MarkKind, Sample
from chaoskit.judge.verdict import BudgetState, Outcome
from chaoskit.model.experiment import Budgets


def assert_measured(found, **expected):
    measured = values(found.quantities)
    assert {name: measured[name] for name in expected} == pytest.approx(expected, abs=1e-9)


def assert_sums(found):
    assert sum(phase.loss for phase in found.ledger) == pytest.approx(found.quantities["lost_time"].value.mid, abs=1e-9)


RESTART_MARKS = [
    mark(MarkKind.DETECT, 50.5, "a"),
    mark(MarkKind.OLD_GONE, 51.4, "a"),
    mark(MarkKind.BORN, 54.4, "b"),
    mark(MarkKind.GROUP_UP, 55.4, "b"),
    mark(MarkKind.LOADED, 57.4, "b", 40),
]


def test_1_kill_clean_restart():
    found = verdict([*BEFORE, *steps(41, 90, 58.4, session="b")], RESTART_MARKS)

    assert_measured(
        found,
        time_to_detect=0.1,
        time_to_resume=8.0,
        time_to_recover=18.0,
        time_to_steady=18.0,
        lost_steps=10,
        restarts=1,
        boots=1,
        lost_time=17.4,
        lost_gpu_hours=17.4 * 4 / 3600,
        window_goodput=1 / 18.4,
    )
    assert round(found.quantities["lost_gpu_hours"].value.mid, 5) == 0.01933
    assert round(found.quantities["window_goodput"].value.mid, 4) == 0.0543
    assert found.outcome is Outcome.PASSED
    assert (found.settled, found.phase, found.felt, found.absorbed) == (True, "steady", {0: True}, False)
    assert found.reasons == ()


@pytest.mark.row("L17", "L39")
def test_1_the_ledger_names_every_phase_and_adds_up():
    found = verdict([*BEFORE, *steps(41, 90, 58.4, session="b")], RESTART_MARKS)

    cut = [(phase.ends, round(phase.start, 6), round(phase.end, 6), phase.new_steps) for phase in found.ledger]
    assert cut == [
        ("detect", 50.0, 50.5, 0),
        ("old processes gone", 50.5, 51.4, 0),
        ("new process", 51.4, 54.4, 0),
        ("process group up", 54.4, 55.4, 0),
        ("checkpoint loaded", 55.4, 57.4, 0),
        ("first step", 57.4, 58.4, 0),
        ("steady", 58.4, 68.4, 1),
    ]
    assert_sums(found)


def test_1_two_lives_born_at_one_moment_cost_no_more_than_one():
    """A launcher that starts two at once: their one moment cuts time and GPU-hours once."""
    twins = [*RESTART_MARKS, mark(MarkKind.BORN, 54.4, "c")]
    found = verdict([*BEFORE, *steps(41, 90, 58.4, session="b")], twins)

    assert found.quantities["lost_gpu_hours"].value.mid == pytest.approx(17.4 * 4 / 3600)
    assert [phase.ends for phase in found.ledger].count("new process") == 1
    assert_sums(found)


def test_2_in_flight_step():
    marks = [mark(MarkKind.DETECT, 51.1, "a"), mark(MarkKind.BORN, 55.4, "b"), mark(MarkKind.LOADED, 58.4, "b", 40)]
    found = verdict([*BEFORE, *steps(51, 51, 51.0), *steps(41, 90, 59.4, session="b")], marks)

    assert_measured(found, time_to_detect=0.7, time_to_resume=9.0, time_to_recover=20.0, lost_steps=11, lost_time=18.4, restarts=1)
    assert (found.ledger[0].ends, found.ledger[0].new_steps) == ("detect", 1)
    assert found.ledger[0].loss == pytest.approx(0.1)
    assert_sums(found)


def test_3_stall_no_restart():
    found = verdict([*BEFORE, *steps(51, 90, 63.0)], injections=[injection(50.4, 60.4)])

    assert_measured(
        found,
        time_to_resume=12.6,
        time_to_recover=12.6,
        time_to_steady=12.6,
        settle_time=2.6,
        lost_steps=0,
        restarts=0,
        boots=0,
        lost_time=12.0,
        throughput_during=0,
    )
    assert [one.kind for one in found.disruptions] == ["stall"]
    assert found.outcome is Outcome.PASSED
    assert_sums(found)


def test_4_slow():
    found = verdict([*BEFORE, *steps(51, 60, 52.0, pace=2.0), *steps(61, 100, 71.0)], injections=[injection(50.0, 70.0)])

    assert_measured(
        found,
        time_to_resume=0,
        time_to_recover=0,
        throughput_during=0.5,
        time_to_steady=20.0,
        settle_time=0,
        lost_time=10.0,
        window_goodput=0.5,
        restarts=0,
    )
    assert found.disruptions == ()
    assert found.felt == {0: True}
    assert_sums(found)


def test_5_absorbed():
    found = verdict(
        steps(0, 100, 0.0), injections=[injection(50.4, 60.4)], budgets=Budgets(restarts=0, lost_time=0.0, throughput_during=0.9)
    )

    zeros = ("time_to_resume", "time_to_recover", "time_to_steady", "settle_time", "lost_steps", "restarts", "boots", "lost_time")
    assert_measured(found, **dict.fromkeys(zeros, 0.0), lost_gpu_hours=0.0, throughput_during=1.0, window_goodput=1.0)
    assert found.outcome is Outcome.PASSED
    assert (found.absorbed, found.felt, found.settled, found.phase) == (True, {0: False}, True, "steady")
    assert "absorbed" in found.reasons[0]


def test_6_void():
    idle = Fact(False, "training sent nothing over rail 1 in the 5 s before")
    found = verdict(steps(0, 100, 0.0), injections=[injection(50.4, 60.4, exposed=idle)])

    assert found.outcome is Outcome.INCONCLUSIVE
    assert found.reasons[0] == "void: training sent nothing over rail 1 in the 5 s before"
    assert not found.absorbed


def test_7_death():
    budgets = Budgets(time_to_resume=600.0, time_to_recover=60.0)
    found = verdict(BEFORE, [mark(MarkKind.EXIT, 50.9, "a")], watched=350.4, budgets=budgets)

    assert found.outcome is Outcome.FAILED
    assert_measured(found, time_to_detect=0.5, time_to_resume=300.0, time_to_recover=300.0, lost_time=300.4)
    assert all(found.quantities[name].beyond for name in ("time_to_resume", "time_to_recover", "lost_time"))
    assert [one.state for one in found.budgets] == [BudgetState.MISSED, BudgetState.MISSED]
    assert found.budgets[1].says.startswith("time_to_recover > 300 s, at most 60 s")
    assert (found.settled, found.phase) == (True, "dead")
    assert_sums(found)


def blind_samples():
    together = [Sample(Interval(50.6, 75.0), step, "a") for step in range(51, 76)]
    return [*BEFORE, *together, *steps(76, 120, 76.0)]


@pytest.mark.row("L14")
def test_8_blind():
    budgets = Budgets(time_to_recover=10.0)
    found = verdict(blind_samples(), injections=[injection(50.4, 60.4)], blind=((50.6, 75.0),), budgets=budgets)

    recover = found.quantities["time_to_recover"].value
    assert (recover.lo, recover.hi) == pytest.approx((0.0, 24.6), abs=1e-9)
    assert found.outcome is Outcome.INCONCLUSIVE
    assert found.budgets[0].state is BudgetState.UNDECIDED


def test_8_blind_within_the_margin_of_the_budget():
    budgets = Budgets(time_to_recover=30.0)
    found = verdict(blind_samples(), injections=[injection(50.4, 60.4)], blind=((50.6, 75.0),), budgets=budgets)

    assert found.budgets[0].state is BudgetState.MET
    assert found.outcome is Outcome.PASSED
    assert not found.absorbed


SHRINK = {"batch": {"a": 40, "b": 30}, "gpus": {"a": 4, "b": 3}}


def test_9_shrink():
    samples = [*BEFORE, *steps(41, 120, 58.4, session="b")]
    found = verdict(samples, RESTART_MARKS, budgets=Budgets(time_to_steady=60.0), **SHRINK)

    assert_measured(found, time_to_recover=18.0)
    assert (found.phase, found.settled) == ("reduced", False)
    assert found.quantities["time_to_steady"].beyond
    assert found.outcome is Outcome.FAILED
    assert found.budgets[0].state is BudgetState.MISSED
    assert any("reduced" in reason and "75 %" in reason for reason in found.reasons)


def test_9_shrink_that_the_experiment_allows():
    samples = [*BEFORE, *steps(41, 120, 58.4, session="b")]
    found = verdict(samples, RESTART_MARKS, budgets=Budgets(time_to_steady=60.0), spec={"may_shrink": True}, **SHRINK)

    before, after = 4.4, 13.0  # lost until the smaller world was born at 54.4, and from then on
    assert_measured(found, time_to_recover=18.0, time_to_steady=18.0, lost_time=17.4, lost_gpu_hours=(before * 4 + after * 3) / 3600)
    assert found.baseline.rate == 40.0
    assert (found.outcome, found.settled, found.phase) == (Outcome.PASSED, True, "steady")


def rejoined():
    marks = [*RESTART_MARKS, mark(MarkKind.DETECT, 100.4, "b"), mark(MarkKind.BORN, 102.4, "c"), mark(MarkKind.LOADED, 105.4, "c", 80)]
    return [*BEFORE, *steps(41, 83, 58.4, session="b"), *steps(81, 120, 106.4, session="c")], marks


def test_10_second_rollback():
    found = verdict(*rejoined())

    assert_measured(found, lost_steps=13, restarts=2, time_to_recover=18.0, lost_time=17.4 + 8.0)
    first, second = found.disruptions
    assert values(first.quantities)["lost_steps"] == 10
    assert values(second.quantities)["lost_steps"] == 3
    assert values(second.quantities)["time_to_recover"] == pytest.approx(9.0)
    assert second.start.mid == pytest.approx(100.4)
    assert_sums(found)


def test_11_restart_storm():
    births = [mark(MarkKind.BORN, t, session) for t, session in ((54.4, "b"), (58.4, "c"), (60.4, "d"))]
    loaded = mark(MarkKind.LOADED, 63.4, "d", 40)
    found = verdict([*BEFORE, *steps(41, 90, 64.4, session="d")], [mark(MarkKind.DETECT, 50.5, "a"), *births, loaded])

    assert_measured(found, boots=3, restarts=1, time_to_resume=14.0, time_to_recover=24.0, lost_steps=10)
    assert found.disruptions[0].boots == 3
    assert "restart storm: 3 boots for one restart" in found.disruptions[0].says
    assert found.disruptions[0].says in found.reasons
    assert "3 of the launcher's restarts" in found.disruptions[0].says


def flushed(first, last, start, session):
    """Steps whose lines come in tens, without stamps of their own: all ten are seen when the last is done."""
    return [
        Sample(Interval(done - 10.0, done), step, session)
        for step in range(first, last + 1)
        for done in [start + 10.0 * ((step - first) // 10 + 1)]
    ]


def test_12_late_lines():
    samples = [Sample(at(0.0), 0, "a"), *flushed(1, 50, 0.0, "a"), *flushed(41, 120, 57.4, "b")]
    found = verdict(samples, RESTART_MARKS)

    assert_measured(found, lost_steps=10, restarts=1)
    assert found.quantities["lost_steps"].value == Interval(10, 10)
    for name, truth in (("time_to_resume", 8.0), ("time_to_recover", 18.0), ("time_to_steady", 18.0)):
        value = found.quantities[name].value
        assert value.lo <= truth <= value.hi
        assert value.hi - value.lo == pytest.approx(10.0)
    assert found.outcome is Outcome.PASSED
    assert_sums(found)
