"""Budgets: met, missed or undecided, each with one line that says the figure and the limit."""

import pytest
from judged import BEFORE, injection, mark, steps, verdict

from chaoskit.judge.budgets import judge_budgets
from chaoskit.judge.timeline import Interval, MarkKind
from chaoskit.judge.verdict import Baseline, BudgetState, Quantity
from chaoskit.model.experiment import Budgets

MET, MISSED, UNDECIDED = BudgetState.MET, BudgetState.MISSED, BudgetState.UNDECIDED


def baseline(noise=0.0):
    return Baseline(0.0, 100.0, 100, 1.0, 1.0, noise, max(0.1, noise), 20.0, 1.0)


def result(budgets, quantity, noise=0.0):
    (found,) = judge_budgets(budgets, {quantity.name: quantity}, baseline(noise), 4, 2.0)
    return found


@pytest.mark.parametrize(
    ("low", "high", "state"),
    [(1.0, 10.0, MET), (10.0, 10.0, MET), (9.0, 10.1, UNDECIDED), (10.0, 11.0, UNDECIDED), (10.1, 11.0, MISSED), (10.5, 10.5, MISSED)],
)
def test_at_most(low, high, state):
    found = result(Budgets(time_to_recover=10.0), Quantity("time_to_recover", Interval(low, high), "s"))

    assert (found.state, found.sense, found.limit) == (state, "at most", 10.0)


@pytest.mark.parametrize(("low", "high", "state"), [(0.4, 0.6, MET), (0.39, 0.6, UNDECIDED), (0.3, 0.4, UNDECIDED), (0.3, 0.39, MISSED)])
def test_at_least(low, high, state):
    found = result(Budgets(throughput_during=0.4), Quantity("throughput_during", Interval(low, high), "share"))

    assert (found.state, found.sense) == (state, "at least")


def test_a_lower_bound_is_missed_unless_it_is_open_and_below_the_limit():
    def bound(value, *, still_open):
        return Quantity("time_to_steady", Interval.at(value), "s", beyond=True, open=still_open)

    assert result(Budgets(time_to_steady=10.0), bound(5.0, still_open=True)).state is UNDECIDED
    assert result(Budgets(time_to_steady=10.0), bound(15.0, still_open=True)).state is MISSED
    assert result(Budgets(time_to_steady=10.0), bound(5.0, still_open=False)).state is MISSED


@pytest.mark.parametrize(("value", "state"), [(Interval.at(0.5), MET), (Interval.at(0.3), UNDECIDED), (None, UNDECIDED)])
def test_a_lower_bound_is_enough_where_at_least_so_much_is_asked(value, state):
    """Beyond a bound that is enough it is surely enough; beyond one that is not, it may be or not, and is never missed."""
    assert result(Budgets(throughput_during=0.4), Quantity("throughput_during", value, "share", beyond=True)).state is state


@pytest.mark.row("L14")
def test_what_cannot_be_said_is_undecided():
    found = result(Budgets(lost_cost=1.0), Quantity("lost_cost", None, "cost", note="the inventory gives no price"))

    assert (found.state, found.says) == (UNDECIDED, "lost_cost unknown, at most 1: the inventory gives no price")


def test_a_sign_that_never_came_reads_like_one():
    found = result(Budgets(time_to_detect=5.0), Quantity("time_to_detect", None, "s", beyond=True, note="no sign of the stack was seen"))

    assert (found.state, found.says) == (MISSED, "time_to_detect never seen, at most 5 s: no sign of the stack was seen")


@pytest.mark.parametrize(
    ("limit", "measured", "state"),
    [(0.98, 0.99, UNDECIDED), (0.98, 0.96, UNDECIDED), (0.98, 0.90, MISSED), (0.90, 0.93, MET), (0.90, 0.85, MISSED)],
)
def test_a_share_that_allows_less_change_than_the_noise_is_undecided(limit, measured, state):
    found = result(Budgets(throughput_during=limit), Quantity("throughput_during", Interval.at(measured), "share"), noise=0.05)

    assert found.state is state
    assert ("smaller than the baseline's own noise, 5 %" in found.says) is (state is UNDECIDED)


@pytest.mark.parametrize(("limit", "measured", "state"), [(0.5, 0.8, UNDECIDED), (0.5, 0.0, MET), (0.5, 3.0, MISSED), (2.0, 0.8, MET)])
def test_a_loss_smaller_than_the_noise_of_a_window_is_undecided(limit, measured, state):
    found = result(Budgets(lost_time=limit), Quantity("lost_time", Interval.at(measured), "s"), noise=0.05)

    assert found.state is state


def test_losses_in_gpu_hours_and_money_have_the_same_noise_as_the_time():
    hours = Quantity("lost_gpu_hours", Interval.at(0.8 * 4 / 3600), "GPU-h")
    cost = Quantity("lost_cost", Interval.at(0.8 * 4 / 3600 * 2), "cost")

    assert result(Budgets(lost_gpu_hours=0.0005), hours, noise=0.05).state is UNDECIDED
    assert result(Budgets(lost_cost=0.001), cost, noise=0.05).state is UNDECIDED
    assert result(Budgets(lost_gpu_hours=0.0005), hours, noise=0.01).state is MISSED


def test_counts_have_no_noise():
    assert result(Budgets(lost_steps=0), Quantity("lost_steps", Interval.at(1.0), "steps"), noise=0.9).state is MISSED


def test_every_budget_is_judged_in_its_fixed_order():
    budgets = Budgets(window_goodput=0.01, lost_steps=10, time_to_detect=1.0, restarts=0, boots=5, settle_time=1.0)
    found = verdict([*BEFORE, *steps(41, 120, 58.4, session="b")], [mark(MarkKind.DETECT, 50.5, "a")], budgets=budgets)

    assert [(one.name, one.state) for one in found.budgets] == [
        ("time_to_detect", MET),
        ("settle_time", UNDECIDED),
        ("lost_steps", MET),
        ("restarts", MISSED),
        ("boots", MET),
        ("window_goodput", MET),
    ]
    assert found.budgets[3].says == "restarts 1, at most 0"


@pytest.mark.row("L43")
def test_a_failure_that_nothing_detected_is_missed_not_met():
    stalled = [*BEFORE, *steps(51, 90, 63.0)]
    found = verdict(stalled, injections=[injection(50.4, 60.4)], budgets=Budgets(time_to_detect=10.0))
    assert found.budgets[0].state is MISSED
    assert "no sign of the stack was seen" in found.budgets[0].says

    found = verdict(stalled, injections=[injection(50.4, 60.4)], budgets=Budgets(time_to_detect=10.0), blind=((51.0, 55.0),))
    assert found.budgets[0].state is UNDECIDED


def test_a_quantity_that_a_fault_without_an_end_does_not_have_is_undecided_and_said():
    found = verdict([*BEFORE, *steps(41, 120, 58.4, session="b")], budgets=Budgets(throughput_during=0.4))

    assert found.budgets[0].state is UNDECIDED
    assert found.budgets[0].says == "throughput_during unknown, at least 40 %: no fault of this run was held"


def test_cost_is_gpu_hours_times_the_price():
    broken = [*BEFORE, *steps(41, 120, 58.4, session="b")]
    assert verdict(broken).quantities["lost_cost"].value is None
    found = verdict(broken, spec={"price_per_gpu_hour": 2.5}, budgets=Budgets(lost_cost=0.01))

    assert found.quantities["lost_cost"].value.mid == pytest.approx(17.4 * 4 / 3600 * 2.5)
    assert found.budgets[0].state is MISSED
