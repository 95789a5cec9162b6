"""Outcomes: the worst wins, and each comes with the sentence that says why."""

import itertools
from dataclasses import replace

import pytest
from judged import BEFORE, NO, UNKNOWN, at, injection, mark, steps, timeline, verdict

from chaoskit.judge import judge
from chaoskit.judge.timeline import Fact, MarkKind, Sample, Spec
from chaoskit.judge.verdict import BudgetState, Outcome
from chaoskit.model.experiment import Budgets

STEADY = steps(0, 120, 0.0)
BROKEN = [*BEFORE, *steps(41, 120, 58.4, session="b")]
HELD = (50.4, 60.4)
MISSED = Budgets(lost_steps=3)


def test_the_outcomes_are_ordered_from_best_to_worst():
    order = [Outcome.PASSED, Outcome.INCONCLUSIVE, Outcome.ABORTED, Outcome.FAILED, Outcome.LEAKED]

    for first, second in itertools.product(order, order):
        assert Outcome.worst([first, second]) is max(first, second, key=order.index)
    assert Outcome.worst([]) is Outcome.PASSED
    assert [one.exit_code for one in order] == [0, 3, 4, 1, 5]


def test_every_worse_trouble_wins_over_the_milder_ones():
    """The same failed run, with one trouble more each time."""
    void = injection(exposed=NO)
    assert verdict(BROKEN).outcome is Outcome.PASSED
    assert verdict(BROKEN, injections=[void]).outcome is Outcome.INCONCLUSIVE
    assert verdict(BROKEN, injections=[void], aborted="Ctrl-C").outcome is Outcome.ABORTED
    assert verdict(BROKEN, injections=[void], aborted="Ctrl-C", budgets=MISSED).outcome is Outcome.FAILED
    leaked = injection(exposed=NO, gone=Fact(False, "rail1 is still down"))
    found = verdict(BROKEN, injections=[leaked], aborted="Ctrl-C", budgets=MISSED)
    assert found.outcome is Outcome.LEAKED
    assert found.reasons[:3] == ("leaked: fault on node1: rail1 is still down", "lost_steps 10, at most 3", "aborted: Ctrl-C")
    assert found.reasons[3].startswith("void: ")


@pytest.mark.row("L4")
def test_a_fault_that_had_an_effect_and_is_not_proven_gone_has_leaked():
    assert verdict(STEADY, injections=[injection(*HELD, gone=UNKNOWN)]).outcome is Outcome.LEAKED
    assert verdict(STEADY, injections=[injection(*HELD, gone=NO)]).outcome is Outcome.LEAKED
    assert verdict(STEADY, injections=[injection(None, gone=NO)]).outcome is Outcome.LEAKED
    assert verdict(STEADY, injections=[injection(None, gone=UNKNOWN)]).outcome is Outcome.INCONCLUSIVE
    armed = replace(injection(None, gone=UNKNOWN), armed=True)
    assert verdict(STEADY, injections=[armed]).outcome is Outcome.LEAKED


@pytest.mark.row("L5")
def test_one_leak_among_several_faults_is_enough():
    found = verdict(STEADY, injections=[injection(*HELD), injection(70.0, 75.0, gone=NO)])

    assert found.outcome is Outcome.LEAKED


@pytest.mark.row("L13", "L26")
@pytest.mark.parametrize("present", [NO, UNKNOWN])
def test_a_fault_that_nobody_witnessed_proves_nothing(present):
    found = verdict(STEADY, injections=[injection(*HELD, present=present)])

    assert found.outcome is Outcome.INCONCLUSIVE
    assert found.reasons[0] == "not present: fault on node1: no witness saw it"
    assert not found.absorbed


@pytest.mark.parametrize("exposed", [NO, UNKNOWN])
def test_a_fault_that_the_training_may_not_have_met_proves_nothing(exposed):
    assert verdict(STEADY, injections=[injection(*HELD, exposed=exposed)]).outcome is Outcome.INCONCLUSIVE


@pytest.mark.row("L19")
def test_zero_targets_is_inconclusive():
    found = verdict(STEADY, injections=[injection(*HELD, targets=())])

    assert found.outcome is Outcome.INCONCLUSIVE
    assert "fault: zero targets" in found.reasons


def test_a_fault_that_was_never_injected_is_told_from_one_that_nobody_witnessed():
    later = injection(None, present=UNKNOWN, gone=UNKNOWN)

    assert "fault on node1: never injected" in verdict(STEADY, injections=[injection(*HELD), later]).reasons
    armed = replace(later, armed=True, gone=Fact(True))  # a signal came before the node's answer
    told = "fault on node1: armed, and nobody told whether it began"
    assert told in verdict(STEADY, injections=[injection(*HELD), armed]).reasons
    assert "not present: fault on node1: no witness saw it" in verdict(STEADY, injections=[injection(*HELD, present=UNKNOWN)]).reasons


@pytest.mark.parametrize(
    ("samples", "second", "absorbed"),
    [
        pytest.param(STEADY, injection(70.0, 75.0), True, id="both"),
        pytest.param(STEADY, injection(70.0, 75.0, exposed=NO), False, id="one is void"),
        pytest.param(STEADY, injection(70.0, 75.0, present=UNKNOWN), False, id="nobody saw one"),
        pytest.param(STEADY, injection(90.0, 101.0), False, id="less than a window is left after one"),
        pytest.param([*steps(0, 62, 0.0), *steps(63, 120, 75.0)], injection(90.0, 95.0), False, id="it stood still after one"),
    ],
)
def test_a_run_is_absorbed_when_each_of_its_faults_is(samples, second, absorbed):
    """As the judge's page says: each there, hitting what is used, not felt, and watched for a whole window."""
    assert absorbed == verdict(samples, injections=[injection(*HELD), second]).absorbed


def test_a_run_that_ends_within_a_window_of_its_fault_does_not_say_absorbed():
    """Aborted 0.9 s after the fault: that steps still came proves nothing."""
    found = verdict([one for one in STEADY if one.t.mid <= 61.3], injections=[injection(*HELD)], watched=61.3)

    assert not found.absorbed
    assert found.outcome is Outcome.INCONCLUSIVE
    told = "not watched long enough to tell whether the training felt it: 0.6 s since its end, where a window is 20 s"
    assert found.reasons == (told,)


def test_a_baseline_that_scatters_beyond_what_can_be_judged_is_not_judged():
    """However it was accepted once: link_flap was `absorbed` in noise of 85 %."""
    t, samples = 0.0, []
    for step in range(250):
        samples.append(Sample(at(t), step, "a"))
        t += 0.04 if step % 60 < 30 else 0.4
    found = verdict(samples, injections=[injection(50.0, 51.0)], baseline=(0.0, 50.0), spec={"for_": 5.0})

    assert found.outcome is Outcome.INCONCLUSIVE
    assert found.reasons[0].startswith("not steady before the fault: its windows of")
    assert not found.absorbed


def test_a_second_stall_says_from_where_its_times_count():
    """Figures of one run that count from different moments must say so: 9 s to the first step, then 10 s of silence."""
    once = [*BEFORE, *steps(51, 52, 59.4)]
    found = verdict(once, injections=[injection(50.4, None, one_shot=False)], watched=70.7, aborted="no progress for 10 s")

    note = found.quantities["time_to_resume"].note
    assert note == "it did not come in the 10.3 s watched after the last step, 10 s after the fault"


def test_a_fault_that_ended_with_the_watch_has_no_settle_time_to_speak_of():
    found = verdict(BEFORE, injections=[injection(50.4, 60.39)], watched=60.4, aborted="no progress for 10 s")

    settle = found.quantities["settle_time"]
    assert (settle.value, settle.open) == (None, True)
    assert settle.note == "the watch ended with the fault"


def noisy_run():
    """Steps of 0.9 s and 1.1 s, thirty of each in turn: windows that scatter by more than the band of 10 %, and no drift."""
    t, samples = 0.0, []
    for step in range(700):
        samples.append(Sample(at(t), step, "a"))
        t += 0.9 if step % 60 < 30 else 1.1 + 0.04 * (step % 2)
    return samples


def test_a_band_that_noise_widened_is_said_and_the_noise_is_in_the_figures():
    found = verdict(noisy_run(), injections=[injection(600.4, 630.4)], baseline=(0.0, 600.0), watched=700.0)

    assert found.outcome is Outcome.PASSED
    assert found.baseline.band > 0.10
    assert any(reason.startswith("the band was widened from 10 % to 1") for reason in found.reasons)
    during = found.quantities["throughput_during"].value
    assert during.lo < 1 < during.hi
    assert during.hi - during.lo >= found.baseline.noise


def test_noise_is_a_share_of_what_was_measured():
    """Half the pace is known as well as the whole one: to a share of itself."""
    samples = [replace(one, t=at(max(one.t.mid, 2 * one.t.mid - 600))) for one in noisy_run()]
    whole = verdict(noisy_run(), injections=[injection(600.4, 660.4)], baseline=(0.0, 600.0), watched=700.0)
    half = verdict(samples, injections=[injection(600.4, 660.4)], baseline=(0.0, 600.0), watched=790.0)

    of_whole, of_half = (each.quantities["throughput_during"].value for each in (whole, half))
    assert 0.5 < of_half.mid < 0.6
    assert (of_half.hi - of_half.lo) / of_half.mid == pytest.approx((of_whole.hi - of_whole.lo) / of_whole.mid)


@pytest.mark.row("L14", "L28")
def test_what_a_test_stated_and_what_does_not_hold_fails_the_run():
    """Whatever else was well: its words are the reason."""
    found = verdict(STEADY, injections=[injection(*HELD)], denied="loss_is_finite: the loss is nan at step 60")

    assert (found.outcome, found.reasons[0]) == (Outcome.FAILED, "loss_is_finite: the loss is nan at step 60")


def test_trouble_is_inconclusive_and_said():
    found = verdict(STEADY, injections=[injection(None)], trouble="no node of group workers is left")

    assert found.outcome is Outcome.INCONCLUSIVE
    assert "no node of group workers is left" in found.reasons


def test_a_run_that_was_refused_before_it_began_has_that_one_reason():
    """That there was no baseline, and that nothing was injected, follows from it."""
    found = verdict([], injections=[injection(None, present=UNKNOWN)], baseline=None, watched=1.0, trouble="node1 belongs to run first")

    assert (found.outcome, found.reasons) == (Outcome.INCONCLUSIVE, ("node1 belongs to run first",))


def test_a_run_without_a_fault_never_passes_nor_fails():
    found = verdict(STEADY, injections=[], budgets=Budgets(lost_steps=0))

    assert found.outcome is Outcome.INCONCLUSIVE
    assert [one.state for one in found.budgets] == [BudgetState.UNDECIDED]


@pytest.mark.row("L50")
def test_no_baseline_is_inconclusive_whatever_came_after():
    found = verdict(BROKEN, baseline=None, budgets=MISSED)

    assert found.outcome is Outcome.INCONCLUSIVE
    assert found.reasons[0].startswith("not steady before the fault")
    assert (found.baseline, found.phase, found.settled) == (None, "baseline", False)
    assert all(quantity.value is None for quantity in found.quantities.values())


def test_no_sample_at_all_is_inconclusive():
    assert judge(timeline([], watched=10.0, baseline=None), Spec(Budgets())).outcome is Outcome.INCONCLUSIVE
    assert judge(timeline([], watched=10.0), Spec(Budgets())).outcome is Outcome.INCONCLUSIVE


def test_a_training_that_broke_before_the_fault_is_not_judged():
    """Its failure line came before t0: whatever it cost, the fault did not cost it, and no phases of it are counted."""
    found = verdict(BROKEN, [mark(MarkKind.DETECT, 50.2, "a")], budgets=MISSED)

    assert found.outcome is Outcome.INCONCLUSIVE
    assert found.budgets[0].state is BudgetState.UNDECIDED
    assert () == found.ledger


def test_a_training_that_had_slowed_before_the_fault_is_not_judged():
    slow = [*BEFORE, *steps(51, 100, 52.0, pace=2.0)]
    found = verdict(slow, injections=[injection(100.5, 110.0)], budgets=Budgets(time_to_steady=1.0))

    assert found.outcome is Outcome.INCONCLUSIVE
    assert found.reasons[0].startswith("not steady before the fault")


def test_a_silent_training_fails_even_without_a_budget():
    """A hang: no exit, no line, the observer alive."""
    found = verdict(BEFORE, watched=350.4)

    assert found.outcome is Outcome.FAILED
    assert found.reasons == ("the training was silent until the watch ended, 300 s after the fault",)
    assert (found.phase, found.settled) == ("stalled", False)


def test_a_silent_training_is_no_failure_of_a_fault_that_was_not_there():
    assert verdict(BEFORE, injections=[injection(present=NO)], watched=350.4).outcome is Outcome.INCONCLUSIVE


@pytest.mark.row("L23", "L38")
def test_a_training_that_stays_slow_fails_even_without_a_budget():
    found = verdict([*BEFORE, *steps(51, 100, 52.0, pace=2.0)], injections=[injection(*HELD)])

    assert found.outcome is Outcome.FAILED
    assert "the training goes on at 50 % of the baseline, never steady" in found.reasons[0]


def test_a_training_that_never_gets_beyond_its_old_steps_fails():
    """It comes back from step 40 and dies again, and again."""
    lives = [step for number in range(4) for step in steps(41, 48, 60.0 + 20 * number, session=f"b{number}")]
    found = verdict([*BEFORE, *lives], watched=160.0)

    assert found.outcome is Outcome.FAILED
    assert found.quantities["time_to_recover"].beyond


def test_a_death_that_a_new_life_follows_is_no_death():
    found = verdict(BROKEN, [mark(MarkKind.EXIT, 51.0, "a"), mark(MarkKind.BORN, 54.4, "b")])

    assert found.outcome is Outcome.PASSED
    assert found.quantities["time_to_detect"].value.mid == pytest.approx(0.6)


def test_dead_is_worse_than_aborted():
    found = verdict(
        BEFORE, [mark(MarkKind.EXIT, 50.9, "a")], watched=60.0, aborted="no progress for 9 s", budgets=Budgets(time_to_resume=300.0)
    )

    assert found.outcome is Outcome.FAILED
    assert found.budgets[0].state is BudgetState.MISSED, "it can no longer be met"
    assert any("died 0.5 s after the fault" in reason for reason in found.reasons)


@pytest.mark.parametrize("budgets", [Budgets(lost_time=1000.0), Budgets(time_to_steady=1000.0), Budgets(lost_gpu_hours=10.0)])
def test_the_dead_lose_without_end_the_aborted_only_until_the_abort(budgets):
    ends = [mark(MarkKind.EXIT, 50.9, "a")]

    assert verdict(BEFORE, ends, watched=150.4, aborted="no progress", budgets=budgets).budgets[0].state is BudgetState.MISSED
    assert verdict(BEFORE, watched=150.4, aborted="no progress", budgets=budgets).budgets[0].state is BudgetState.UNDECIDED
    assert verdict(BEFORE, watched=150.4, budgets=budgets).budgets[0].state is BudgetState.MISSED


def test_a_restart_that_the_watch_ended_in_has_lost_a_number_of_steps_that_nobody_knows():
    found = verdict(BEFORE, [mark(MarkKind.BORN, 54.4, "b")], watched=60.0, budgets=Budgets(lost_steps=100, boots=0, restarts=0))

    assert [one.state for one in found.budgets] == [BudgetState.UNDECIDED, BudgetState.MET, BudgetState.MISSED]
    assert found.outcome is Outcome.FAILED


def test_an_abort_leaves_what_was_not_yet_missed_undecided():
    found = verdict(BEFORE, watched=110.4, aborted="no progress for 60 s", budgets=Budgets(time_to_resume=300.0))

    assert found.outcome is Outcome.ABORTED
    assert found.budgets[0].state is BudgetState.UNDECIDED


def test_a_watch_that_trouble_cut_short_fails_nobody_who_had_time_left():
    """The second fault was refused 10 s after the first one: what was not yet missed is not known."""
    found = verdict(BEFORE, watched=60.4, trouble="node2: refused", budgets=Budgets(time_to_resume=300.0))
    assert found.outcome is Outcome.INCONCLUSIVE
    assert found.budgets[0].state is BudgetState.UNDECIDED
    assert verdict(BEFORE, watched=60.4, trouble="node2: refused", budgets=Budgets(time_to_resume=5.0)).outcome is Outcome.FAILED


def test_an_abort_does_not_forgive_a_budget_that_was_already_missed():
    found = verdict(BEFORE, watched=110.4, aborted="no progress for 60 s", budgets=Budgets(time_to_resume=30.0))

    assert found.outcome is Outcome.FAILED
    assert found.budgets[0].says.startswith("time_to_resume > 60 s, at most 30 s")


def test_a_moment_that_never_came_is_missed_even_when_the_watch_was_shorter_than_the_limit():
    found = verdict(BEFORE, watched=110.4, budgets=Budgets(time_to_resume=300.0))

    assert found.budgets[0].state is BudgetState.MISSED


def test_an_observer_that_went_blind_cannot_say_that_the_training_is_silent():
    found = verdict(BEFORE, watched=350.4, blind=((52.0, 350.4),), budgets=Budgets(time_to_recover=60.0, restarts=0, boots=0))

    assert found.outcome is Outcome.INCONCLUSIVE
    assert [one.state for one in found.budgets] == [BudgetState.UNDECIDED] * 3
    assert (found.phase, found.settled) == ("blind", False)


def test_a_blind_end_after_the_limit_had_passed_does_not_hide_the_miss():
    found = verdict(BEFORE, watched=350.4, blind=((150.4, 350.4),), budgets=Budgets(time_to_recover=60.0))

    assert found.budgets[0].state is BudgetState.MISSED
    assert found.outcome is Outcome.FAILED


@pytest.mark.row("L23")
def test_a_watch_too_short_for_one_window_after_recovery_is_inconclusive():
    short = [sample for sample in BROKEN if sample.t.mid <= 80.0]
    found = verdict(short, budgets=Budgets(time_to_steady=60.0, time_to_recover=20.0))

    assert found.outcome is Outcome.INCONCLUSIVE
    assert [one.state for one in found.budgets] == [BudgetState.MET, BudgetState.UNDECIDED]
    assert (found.phase, found.settled) == ("settling", False)
    found = verdict(short, budgets=Budgets(time_to_steady=10.0))
    assert found.budgets[0].state is BudgetState.MISSED, "it was not steady before it had recovered"


def test_the_storm_is_named_though_all_budgets_are_met():
    births = [mark(MarkKind.BORN, t, session) for t, session in ((52.0, "x"), (54.4, "y"))]
    found = verdict(BROKEN, births)

    assert found.outcome is Outcome.PASSED
    assert found.reasons == ("restart storm: 3 boots for one restart, 2 died without a step; 3 of the launcher's restarts are consumed",)
