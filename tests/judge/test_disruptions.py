"""Disruptions and slow-downs: where they start, what they cost, and what is no disruption."""

import pytest
from judged import BEFORE, at, injection, mark, steps, values, verdict

from chaoskit.judge.timeline import Interval, MarkKind, Sample
from chaoskit.judge.verdict import BudgetState, Outcome
from chaoskit.model.experiment import Budgets


def kinds(found):
    return [(one.kind, round(one.start.mid, 6)) for one in found.disruptions]


def test_a_disruption_starts_at_the_latest_fault_before_it():
    samples = [*steps(0, 100, 0.0), *steps(91, 150, 108.4, session="b")]
    found = verdict(samples, injections=[injection(60.4, 65.4), injection(100.4)])

    assert kinds(found) == [("restart", 100.4)]
    assert found.felt == {0: False, 1: True}
    assert not found.absorbed
    assert values(found.quantities)["time_to_resume"] == pytest.approx(8.0)


def test_a_fault_just_before_another_does_not_feel_what_the_other_did():
    samples = [*steps(0, 100, 0.0), *steps(91, 150, 108.4, session="b")]
    found = verdict(samples, injections=[injection(88.4, 93.4), injection(100.4)])

    assert found.felt == {0: False, 1: True}
    assert values(found.quantities)["settle_time"] == 0.0


def test_a_restart_too_quick_for_a_window_to_notice_is_felt_all_the_same():
    found = verdict([*BEFORE, *steps(51, 120, 51.5, session="b")])

    assert found.felt == {0: True}
    assert values(found.quantities)["restarts"] == 1
    assert values(found.quantities)["lost_time"] == pytest.approx(0.5)


def test_a_fault_whose_effect_comes_late_is_still_its_cause():
    """Steps go on for five seconds after the kill, then a failure line, then a restart."""
    samples = [*BEFORE, *steps(51, 55, 51.0), *steps(41, 120, 70.0, session="b")]
    found = verdict(samples, [mark(MarkKind.DETECT, 55.5, "a")])

    assert kinds(found) == [("restart", 50.4)]
    assert values(found.quantities)["lost_steps"] == 15


def test_a_fault_after_the_first_sign_is_not_the_cause():
    samples = [*BEFORE, *steps(41, 120, 70.0, session="b")]
    found = verdict(samples, [mark(MarkKind.DETECT, 50.6, "a")], [injection(50.4), injection(52.0)])

    assert kinds(found) == [("restart", 50.4)]


def test_each_stall_of_a_flapping_link_is_judged_from_its_own_start():
    samples = [*BEFORE, *steps(51, 55, 58.0), *steps(56, 60, 70.0), *steps(61, 120, 82.0)]
    found = verdict(samples, injections=[injection(50.4, 81.0)])

    assert kinds(found) == [("stall", 50.4), ("stall", 62.0), ("stall", 74.0)]
    assert [values(one.quantities)["time_to_resume"] for one in found.disruptions] == pytest.approx([7.6, 8.0, 8.0])
    assert values(found.quantities)["time_to_resume"] == pytest.approx(8.0)
    assert values(found.quantities)["settle_time"] == pytest.approx(1.0)
    assert values(found.quantities)["time_to_steady"] == pytest.approx(31.6)


def test_overlapping_spans_are_counted_once():
    samples = [*BEFORE, *steps(51, 55, 58.0), *steps(56, 120, 70.0)]
    found = verdict(samples, injections=[injection(50.4, 69.0)])

    measured = values(found.quantities)
    assert measured["lost_time"] == pytest.approx(70.0 - 50.0 - 6)
    assert measured["window_goodput"] == pytest.approx(6 / 20)
    assert sum(phase.loss for phase in found.ledger) == pytest.approx(14.0)


def test_a_pause_that_the_baseline_shows_too_is_no_stall():
    t, samples = 0.0, []
    for step in range(400):
        samples.append(Sample(at(t), step, "a"))
        t += 7.0 if step % 150 == 149 else 1.0
    found = verdict(samples, injections=[injection(300.4, 305.4)], baseline=(0.0, 300.0), spec={"checkpoint_every": 150})

    assert found.disruptions == ()


def test_a_gap_just_above_five_times_the_99th_percentile_is_a_stall():
    assert verdict([*BEFORE, *steps(51, 120, 55.0)]).disruptions == ()
    assert kinds(verdict([*BEFORE, *steps(51, 120, 55.1)])) == [("stall", 50.4)]


def test_a_recovery_while_the_fault_is_still_held_is_steady_only_after_its_end():
    samples = [*BEFORE, *steps(41, 200, 58.4, session="b")]
    found = verdict(samples, injections=[injection(50.4, 100.4)])

    measured = values(found.quantities)
    assert (measured["time_to_recover"], measured["time_to_steady"], measured["settle_time"]) == pytest.approx((18.0, 50.0, 0.0))


def test_a_restart_that_reaches_the_old_pace_only_later_is_steady_later():
    """The first 30 new steps take two seconds each."""
    samples = [*BEFORE, *steps(41, 80, 58.4, pace=2.0, session="b"), *steps(81, 140, 137.4, session="b")]
    found = verdict(samples)

    recover, steady = (values(found.quantities)[name] for name in ("time_to_recover", "time_to_steady"))
    assert recover == pytest.approx(28.0)
    first_good = next(t for t in range(0, 200, 2) if (t + 58.4 - 136.4) / 20 >= -0.2)  # at most a tenth of 20 steps may be missing
    assert steady == pytest.approx(58.4 + first_good - 50.4)


def test_a_training_that_comes_back_faster_than_before_is_steady_at_once_and_loses_nothing_more():
    """A baseline taken on a busy machine is slower than the training can be; that is no harm of the fault's."""
    samples = [*BEFORE, *steps(41, 200, 58.4, pace=0.5, session="b")]
    found = verdict(samples, budgets=Budgets(time_to_steady=30.0))

    measured = values(found.quantities)
    assert (measured["time_to_recover"], measured["time_to_steady"]) == pytest.approx((13.0, 13.0))
    assert found.outcome is Outcome.PASSED
    assert measured["lost_time"] > 0


def test_a_training_that_only_goes_faster_did_not_feel_the_fault():
    samples = [*BEFORE, *steps(51, 150, 50.6, pace=0.6)]
    found = verdict(samples, injections=[injection(50.4, 60.4)])

    assert (found.felt, found.absorbed) == ({0: False}, True)


def test_a_dip_within_the_band_is_not_felt():
    samples = [*BEFORE, *steps(51, 80, 51.05, pace=1.05), *steps(81, 150, 82.5)]
    found = verdict(samples, injections=[injection(50.0, 81.0)])

    assert (found.felt, found.absorbed) == ({0: False}, True)
    assert values(found.quantities)["lost_time"] == 0.0


def test_a_fault_too_short_for_a_window_is_felt_by_its_own_throughput():
    """Two steps of two seconds: no window of 20 s leaves the band, but the fault's own four seconds do."""
    samples = [*BEFORE, *steps(51, 51, 52.0), *steps(52, 120, 53.0)]
    found = verdict(samples, injections=[injection(50.0, 52.0)])

    assert found.felt == {0: True}
    assert values(found.quantities)["lost_time"] == pytest.approx(1.0)
    assert values(found.quantities)["throughput_during"] == pytest.approx(0.5)


def test_the_lowest_throughput_of_several_faults_counts():
    samples = [*BEFORE, *steps(51, 60, 52.0, pace=2.0), *steps(61, 120, 71.0), *steps(121, 130, 134.0, pace=4.0), *steps(131, 200, 171.0)]
    found = verdict(samples, injections=[injection(50.0, 70.0), injection(130.0, 170.0)])

    assert values(found.quantities)["throughput_during"] == pytest.approx(0.25)
    assert values(found.quantities)["lost_time"] == pytest.approx(10.0 + 30.0)
    assert found.felt == {0: True, 1: True}


def test_old_processes_that_are_gone_are_not_the_stacks_own_sign():
    samples = [*BEFORE, *steps(41, 120, 58.4, session="b")]
    gone = mark(MarkKind.OLD_GONE, 50.5, "a")

    assert values(verdict(samples, [gone]).quantities)["time_to_detect"] == pytest.approx(8.0)
    assert values(verdict(samples, [gone, mark(MarkKind.BORN, 54.4, "b")]).quantities)["time_to_detect"] == pytest.approx(4.0)


def test_a_moment_of_the_ledger_is_over_when_the_last_rank_passed_it():
    samples = [*BEFORE, *steps(41, 120, 58.4, session="b")]
    ranks = [
        mark(kind, t, "b")
        for kind, t in ((MarkKind.BORN, 54.4), (MarkKind.BORN, 54.9), (MarkKind.GROUP_UP, 56.0), (MarkKind.GROUP_UP, 56.2))
    ]
    found = verdict(samples, ranks)

    cut = [(phase.ends, phase.end) for phase in found.ledger]
    assert ("new process", 54.9) in cut
    assert ("process group up", 56.2) in cut
    assert found.quantities["boots"].value == Interval(1, 1)


@pytest.mark.row("L40")
def test_lost_steps_are_counted_from_the_checkpoint_that_was_loaded():
    """The first step of the new life was never logged."""
    samples = [*BEFORE, *steps(42, 120, 58.4, session="b")]

    assert values(verdict(samples).quantities)["lost_steps"] == 9
    assert values(verdict(samples, [mark(MarkKind.LOADED, 57.4, "b", 40)]).quantities)["lost_steps"] == 10


def test_a_load_line_of_an_earlier_life_is_not_taken_for_the_new_ones():
    """No life is named: the load line at the very start belongs to the first."""
    samples = [*steps(1, 50, 1.0, session=""), *steps(41, 120, 58.4, session="")]
    found = verdict(samples, [mark(MarkKind.LOADED, 0.5, "", 0)])

    assert values(found.quantities)["lost_steps"] == 10


def test_a_training_that_logs_every_tenth_step_may_have_resumed_anywhere_before():
    logged = [Sample(at(float(step)), step, "a") for step in range(0, 101, 10)]
    again = [Sample(at(120.0 + step - 80), step, "b") for step in range(80, 200, 10)]
    found = verdict([*logged, *again], injections=[injection(100.4)], baseline=(0.0, 100.0))
    assert found.quantities["lost_steps"].value == Interval(21, 30)

    found = verdict([*logged, *again], [mark(MarkKind.LOADED, 111.0, "b", 75)], [injection(100.4)], baseline=(0.0, 100.0))
    assert found.quantities["lost_steps"].value == Interval(25, 25)


def test_a_new_life_that_lost_nothing_has_not_lost_less_than_nothing():
    found = verdict([*BEFORE, *steps(52, 120, 58.4, session="b")])

    assert values(found.quantities)["lost_steps"] == 0
    assert values(found.quantities)["restarts"] == 1


def test_lines_that_were_lost_while_blind_leave_the_moment_open():
    """Lines 51 to 74 never came: step 51 was done at some time before 75."""
    found = verdict(
        [*BEFORE, *steps(75, 120, 75.0)], injections=[injection(50.4, 60.4)], blind=((50.6, 75.0),), budgets=Budgets(time_to_recover=10.0)
    )

    recover = found.quantities["time_to_recover"].value
    assert (recover.lo, recover.hi) == pytest.approx((0.0, 24.6))
    assert found.outcome is Outcome.INCONCLUSIVE


def test_lines_that_were_lost_while_blind_may_hide_a_restart():
    """15 steps in 25 s: a short standstill, or a restart that did 10 of them twice. Nobody saw which."""
    budgets = Budgets(lost_steps=0, restarts=0, boots=0, time_to_recover=30.0)
    course = [*BEFORE, *steps(66, 120, 75.0)]
    found = verdict(course, injections=[injection(50.4, 60.4)], blind=((50.6, 75.0),), budgets=budgets)

    assert [one.state for one in found.budgets] == [BudgetState.MET, *3 * [BudgetState.UNDECIDED]]
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "a restart may be hidden there" in found.reasons[0]
    seen = verdict(course, injections=[injection(50.4, 60.4)], budgets=budgets)
    assert {one.state for one in seen.budgets} == {BudgetState.MET}


def test_a_smaller_world_is_known_by_its_gpus_when_the_pace_is_the_same():
    samples = [*BEFORE, *steps(41, 120, 58.4, session="b")]
    found = verdict(samples, gpus={"a": 4, "b": 3})

    assert (found.phase, found.outcome) == ("reduced", Outcome.FAILED)
    assert verdict(samples, gpus={"a": 4, "b": 4}).outcome is Outcome.PASSED


def test_a_smaller_world_may_not_be_slower_than_its_share():
    samples = [*BEFORE, *steps(41, 120, 58.4, pace=1.6, session="b")]

    assert verdict(samples, gpus={"b": 3}, spec={"may_shrink": True}).outcome is Outcome.FAILED
    assert verdict(samples, gpus={"b": 3}, batch={"a": 40, "b": 40}, spec={"may_shrink": True, "band": 0.2}).outcome is Outcome.PASSED


def test_throughput_is_samples_not_steps():
    """Half the global batch at the same pace is half the throughput."""
    samples = [*BEFORE, *steps(41, 120, 58.4, session="b")]
    found = verdict(samples, injections=[injection(50.4, 98.4)], batch={"a": 40, "b": 20}, gpus={"a": 4, "b": 4})

    assert values(found.quantities)["throughput_during"] == pytest.approx(41 * 0.5 / 48)


def test_a_life_that_dies_before_it_caught_up_is_a_restart_of_its_own():
    lives = [*BEFORE, *steps(41, 45, 58.4, session="b"), *steps(41, 120, 70.0, session="c")]
    found = verdict(lives)

    assert [values(one.quantities)["lost_steps"] for one in found.disruptions] == [10, 5]
    assert values(found.quantities)["lost_steps"] == 15
    assert values(found.quantities)["restarts"] == 2
    assert values(found.disruptions[0].quantities)["time_to_recover"] == pytest.approx(80.0 - 50.4)
