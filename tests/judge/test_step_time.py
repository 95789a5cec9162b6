"""The step time that an experiment states for a fault, against the one that was felt: worked examples and generated ones."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judged import BEFORE, NO, injection, steps, verdict
from simulated_training import Training

from chaoskit.judge import judge
from chaoskit.judge.timeline import Interval, Sample, Spec
from chaoskit.judge.verdict import BudgetState, Outcome
from chaoskit.model.experiment import Budgets, Expect

SLOW = [*BEFORE, *steps(51, 60, 52.0, pace=2.0), *steps(61, 100, 71.0)]
"""The fourth worked history: two seconds a step from 50 to 70."""


def expecting(samples, ratio, t0=50.0, t1=70.0, *, within=0.15, budgets=None, facts=None, **rest):
    facts = {"expect": Expect(ratio, within), **(facts or {})}
    return verdict(samples, injections=[replace(injection(t0, t1), **facts)], budgets=budgets, **rest)


def bounds(found):
    value = found.expectations[0].measured.value
    return round(value.lo, 6), round(value.hi, 6)


def test_steps_twice_as_long_are_felt_as_twice_the_step_time():
    """Worked: ten whole steps of 2 s lie in [50, 70], the baseline's take 1 s, no stamp is unsure and no step differs: exactly 2."""
    found = expecting(SLOW, 2.0)

    assert bounds(found) == (2.0, 2.0)
    assert (found.expectations[0].state, found.outcome, found.reasons) == (BudgetState.MET, Outcome.PASSED, ())
    assert found.quantities["throughput_during"].value.mid == pytest.approx(1 / 2.0)


def test_a_fault_that_is_hidden_proves_nothing():
    samples = [*BEFORE, *steps(51, 67, 51.12, pace=1.12), *steps(68, 110, 70.04)]
    found = expecting(samples, 1.5, 50.0, 69.05)

    assert bounds(found) == (1.12, 1.12)
    assert found.outcome is Outcome.INCONCLUSIVE
    assert found.reasons[0] == (
        "fault on node1: step time moved 1.12 times, the experiment states 1.5 ±15 %: the fault was hidden, or is not of the size it claims"
    )


def test_a_fault_that_is_worse_than_stated_is_another_fault():
    found = expecting(SLOW, 1.5)

    assert found.outcome is Outcome.INCONCLUSIVE
    assert found.reasons == (
        "fault on node1: step time moved 2 times, the experiment states 1.5 ±15 %: the fault is not of the size it claims",
    )


def test_missed_budgets_fail_whatever_was_felt():
    found = expecting(SLOW, 1.5, budgets=Budgets(throughput_during=0.9))

    assert found.outcome is Outcome.FAILED
    assert found.expectations[0].state is BudgetState.MISSED
    assert any("the experiment states 1.5" in says for says in found.reasons)


def test_nothing_felt_may_be_what_is_stated():
    assert expecting(steps(0, 100, 0.0), 1.0, 50.4, 60.4).outcome is Outcome.PASSED


def test_a_step_under_way_at_an_edge_is_on_neither_side():
    """Half of step 51 was done at the old pace, and step 61 was ended at it: only the nine steps between count."""
    samples = [*BEFORE, *steps(51, 60, 51.75, pace=2.5), *steps(61, 100, 75.0)]

    assert bounds(expecting(samples, 2.5, 50.5, 74.9)) == (2.5, 2.5)


def test_a_checkpoint_while_it_is_held_moves_nothing():
    """A save of 5 s in one of the steps: throughput falls, the step time is what it was."""
    samples = [*BEFORE, *steps(51, 55, 52.0, pace=2.0), *steps(56, 60, 67.0, pace=2.0), *steps(61, 100, 76.0)]
    found = expecting(samples, 2.0, 50.0, 75.0)

    assert found.expectations[0].state is BudgetState.MET
    assert found.quantities["throughput_during"].value.mid < 0.45


def test_saves_that_the_baseline_shows_as_well_are_no_part_of_its_step_time():
    """Every tenth step takes 6 s: the mean of the baseline is 1.5 s a step, its step time 1 s."""
    t, samples = 0.0, []
    for step in range(151):
        t += 6.0 if step % 10 == 0 and step else 1.0
        samples.append(Sample(Interval.at(t), step, "a"))
    start = t
    for step in range(151, 160):
        t += 1.5
        samples.append(Sample(Interval.at(t), step, "a"))
    samples += steps(160, 190, t + 1.0)
    found = expecting(samples, 1.5, start, t, baseline=(1.0, start), spec={"checkpoint_every": 10})

    assert found.expectations[0].state is BudgetState.MET
    assert found.expectations[0].measured.value.lo <= 1.5 <= found.expectations[0].measured.value.hi


def test_too_wide_to_tell_is_undecided():
    """Steps of 1 s and of 2 s by turns: the median may be either."""
    t, samples = 50.0, list(BEFORE)
    for step in range(51, 71):
        t += 1.0 if step % 2 else 2.0
        samples.append(Sample(Interval.at(t), step, "a"))
    found = expecting([*samples, *steps(71, 110, t + 1.0)], 1.5, 50.0, t)

    assert bounds(found) == (1.0, 2.0)
    assert found.outcome is Outcome.INCONCLUSIVE
    assert found.reasons[0] == "undecided: fault on node1: step time moved between 1 and 2 times, the experiment states 1.5 ±15 %"


def test_a_training_that_stood_still_moved_by_more_than_it_can_be_said():
    found = expecting([*BEFORE, *steps(51, 90, 63.0)], 1.5, 50.4, 60.4)
    one = found.expectations[0]

    assert (round(one.measured.value.lo, 6), one.measured.beyond, one.state) == (10.0, True, BudgetState.MISSED)
    assert "step time moved > 10 times (no whole step was done while it was applied)" in found.reasons[0]


def test_one_step_within_a_fault_is_no_step_time_and_parts_the_wait():
    """Done 4.6 s after t0 and 5.4 s before t1: the longer wait is what is known, and no step was seen from its begin to its end."""
    one = expecting([*BEFORE, *steps(51, 51, 55.0), *steps(52, 90, 63.0)], 1.5, 50.4, 60.4).expectations[0]

    assert (round(one.measured.value.lo, 6), one.measured.beyond) == (5.4, True)


def test_a_stall_of_unknown_length_cannot_be_told_from_the_stated_one():
    assert expecting([*BEFORE, *steps(51, 90, 63.0)], 12.0, 50.4, 60.4).expectations[0].state is BudgetState.UNDECIDED


def test_a_blind_observer_says_nothing_of_the_step_time():
    found = expecting([*BEFORE, *steps(75, 110, 75.0)], 1.5, 52.0, 70.0, blind=((50.5, 74.9),))

    assert found.expectations[0].measured.value is None
    assert any("how far step time moved is not known" in says for says in found.reasons)


def test_coarse_stamps_widen_the_interval_and_do_not_move_it():
    """Lines are read every 0.4 s: single gaps are 0.8 or 1.2 s, and one step of 1 s is never measured so; over more of them it is."""

    def read(t):
        return Interval(t - t % 0.4, t - t % 0.4 + 0.4)

    times = [*(float(step) for step in range(101)), *(100 + 1.5 * step for step in range(1, 41)), *(160.0 + step for step in range(1, 60))]
    samples = [Sample(read(t), step, "a") for step, t in enumerate(times)]
    found = expecting(samples, 1.5, 100.0, 160.0, baseline=(0.0, 100.4))
    value = found.expectations[0].measured.value

    assert 1.4 < value.lo < 1.5 < value.hi < 1.6
    assert found.expectations[0].state is BudgetState.MET


def test_what_the_baseline_does_by_itself_is_no_size_of_a_fault():
    """Five steps of 0.8 s and five of 1.2 s by turns: four steps of 1.5 s may be 1.2 to 1.8 times as long as those before."""
    t, samples = 0.0, [Sample(Interval.at(0.0), 0, "a")]
    for step in range(1, 121):
        t += 0.8 if (step - 1) // 5 % 2 else 1.2
        samples.append(Sample(Interval.at(t), step, "a"))
    samples += steps(121, 124, t + 1.5, 1.5)
    samples += steps(125, 160, t + 7.0)
    found = expecting(samples, 1.5, t, t + 6.0, baseline=(0.0, t))

    assert bounds(found) == (1.2, 1.8)
    assert found.expectations[0].state is BudgetState.UNDECIDED


def test_stamps_that_are_coarser_than_the_baseline_is_long_tell_nothing():
    """A step time would have to be taken over more steps than the baseline has."""
    coarse = [Sample(Interval.at(float(step), 5.0), step, "a") for step in range(51, 151)]
    one = expecting([*BEFORE, *coarse, *steps(151, 200, 152.0)], 1.5, 45.0, 155.0).expectations[0]

    assert (one.measured.value, one.measured.note) == (None, "its stamps are coarser than the baseline is long")


def test_lines_that_were_swapped_are_no_step_backwards():
    """Two lines a tenth of a second apart, told in the other order, each stamp unsure by more: a step back takes no time at all."""
    before, after = steps(51, 53, 52.0, pace=2.0), [*steps(56, 60, 62.0, pace=2.0), *steps(61, 100, 71.0)]
    swapped = [Sample(Interval.at(58.1, 1.2), 54, "a"), Sample(Interval.at(58.0, 1.2), 55, "a")]

    assert bounds(expecting([*BEFORE, *before, *swapped, *after], 2.0)) == (1.35, 2.0)


def test_a_step_that_may_lie_outside_is_not_counted():
    """Lines come in blocks of ten: those of the block that was read across t0 may all be from before it."""
    blocks = [
        Sample(Interval(float(start), float(start + 10)), step, "a") for start in range(0, 120, 10) for step in range(start + 1, start + 11)
    ]
    found = expecting(blocks, 1.0, 52.0, 78.0, baseline=(0.0, 50.0))

    assert bounds(found) == bounds(expecting(blocks, 1.0, 60.0, 70.0, baseline=(0.0, 50.0)))


def test_a_smaller_batch_is_less_than_a_step():
    """The world shrinks at once and its steps take as long as before, with 3/4 of the batch: 4/3 of the time a baseline's batch."""
    samples = [*BEFORE, *steps(51, 90, 51.5, session="b")]
    found = expecting(samples, 4 / 3, 50.4, 85.0, batch={"a": 40, "b": 30}, spec={"may_shrink": True})

    assert bounds(found) == (round(4 / 3, 6), round(4 / 3, 6))


def test_what_never_began_is_named_once():
    found = expecting(steps(0, 100, 0.0), 1.5, facts={"t0": None, "t1": None, "present": NO})

    assert found.expectations[0].state is BudgetState.UNDECIDED
    assert not any("step time" in says for says in found.reasons)


@given(
    pace=st.floats(0.05, 3.0),
    factor=st.floats(1.0, 4.0),
    slow=st.integers(3, 80),
    stated=st.floats(1.0, 4.0),
    jitter=st.lists(st.floats(-0.03, 0.03), min_size=7, max_size=7),
    after=st.floats(0.0, 0.9),
)
@settings(max_examples=60, deadline=None)
def test_whatever_the_pace_the_factor_lies_in_the_interval_and_the_state_follows_from_it(pace, factor, slow, stated, jitter, after):
    """Every step is up to 3 % off; the fault begins somewhere in a step."""
    training = Training(pace)
    for step in range(120):
        training.run(1, 1 + jitter[step % 7])
    training.end_of_baseline()
    training.run(1)
    t0 = training.now + after * pace
    for step in range(slow):
        training.run(1, factor * (1 + jitter[(3 * step) % 7]))
    t1 = training.now
    training.run(50)
    expect = Expect(stated)
    timeline = replace(training.timeline(), injections=(replace(injection(t0, t1), expect=expect),))
    one = judge(timeline, Spec(budgets=Budgets(), for_=0.0, gpus=1)).expectations[0]
    value = one.measured.value

    assert not one.measured.beyond
    assert value.lo - 0.065 * factor <= factor <= value.hi + 0.065 * factor
    assert value.hi - value.lo <= 0.2 * factor
    inside = expect.least <= value.lo and value.hi <= expect.most
    outside = value.hi < expect.least or value.lo > expect.most
    assert one.state is (BudgetState.MET if inside else BudgetState.MISSED if outside else BudgetState.UNDECIDED)
