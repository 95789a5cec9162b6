"""Abort conditions that the run's own records decide: pure, so that every course of a training can be tried."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaoskit.engine.guard import done_since, why_abort
from chaoskit.engine.state import RunState
from chaoskit.judge.timeline import Interval, Mark, MarkKind, Sample
from chaoskit.model.experiment import Abort, Slump

PACE = 0.5
SLUMP = Abort(throughput=Slump(below=0.2, for_=30.0))


def told(*lives, every=1, baseline=(0.0, 10.0), blind=None):
    """Return what a log told: each life is a list of (moments of steps, first step)."""
    state = RunState(baseline=baseline, blind=dict(blind or {}))
    for number, (times, first) in enumerate(lives):
        steps = list(enumerate(times, first))
        state.samples += [Sample(Interval.at(t, 0.001), step, f"life-{number}") for step, t in steps if step % every == 0]
    return state


def even(start, end, pace):
    """Return the moments of steps that each take as long."""
    count = int((end - start) / pace)
    return [start + pace * (1 + number) for number in range(count)]


def test_a_throughput_below_for_long_enough_ends_the_run():
    state = told((even(0, 100, PACE), 1), (even(100, 200, PACE * 10), 201))

    assert "" == why_abort(SLUMP, state, (), 110.0, PACE)
    why = why_abort(SLUMP, state, (), 160.0, PACE)
    assert "of the baseline's at most over 30s, at least 20% required" in why


def test_it_is_told_in_shares():
    state = told((even(0, 100, PACE), 1))

    assert "throughput of 1.7% of the baseline's at most over 30s, at least 20% required" == why_abort(SLUMP, state, (), 130.0, PACE)


@pytest.mark.parametrize(
    ("state", "now", "pace"),
    [
        (told((even(0, 100, PACE), 1)), 100.0, PACE),
        (told((even(0, 9, PACE), 1), baseline=None), 500.0, PACE),
        (told((even(0, 9, PACE), 1)), 39.9, PACE),
        (told((even(0, 100, PACE), 1)), 500.0, 0.0),
        (told((even(0, 100, PACE), 1), blind={120.0: 125.0}), 131.0, PACE),
        (told((even(0, 100, PACE), 1), blind={90.0: 131.0}), 131.0, PACE),
    ],
    ids=["as before", "no baseline", "hardly after the baseline", "no pace", "blind meanwhile", "blind all along"],
)
def test_what_is_no_slump(state, now, pace):
    """Where nobody saw what was done, nobody says that nothing was."""
    assert "" == why_abort(SLUMP, state, (), now, pace)


def test_a_line_of_a_new_life_counts_as_many_steps_as_one_of_the_old():
    """A log that tells of every twentieth step says little of a life that has just begun."""
    old, new = [10.0 * number for number in range(1, 11)], [125.0]
    state = told(baseline=(0.0, 10.0))
    for life, times in (("old", old), ("new", new)):
        state.samples += [Sample(Interval.at(t), 20 * number, life) for number, t in enumerate(times, 1)]

    assert "" == why_abort(SLUMP, state, (), 131.0, PACE)
    assert "" != why_abort(SLUMP, state, (), 170.0, PACE / 3)


def test_a_training_that_ended_is_judged_and_not_aborted():
    state = told((even(0, 100, PACE), 1))
    state.marks.append(Mark(Interval.at(100.0), MarkKind.EXIT, "life-0", says="exit code 1"))

    assert "" == why_abort(SLUMP, state, (), 200.0, PACE)


def test_steps_that_are_done_again_are_throughput_all_the_same():
    """After a restart the training is at work, though it gets nowhere new yet."""
    state = told((even(0, 100, PACE), 1), (even(101, 131, PACE), 100))

    assert "" == why_abort(SLUMP, state, (), 131.0, PACE)


@settings(max_examples=50)
@given(st.floats(0.2, 5.0), st.integers(1, 20), st.floats(0.0, 1.0), st.floats(5.0, 120.0))
def test_what_keeps_the_limit_is_never_aborted_and_what_is_far_below_always(slower, every, phase, window):
    """However many steps a line of the log tells of, and wherever in a step the look comes."""
    pace = PACE * slower
    end = 20.0 + window * 2 + 3 * pace * every
    state = told((even(0, end, pace), 1), every=every)
    now = state.samples[-1].t.hi + phase * pace * every * 0.999
    kept = Abort(throughput=Slump(below=min(0.999 / slower, 0.99), for_=window))

    assert "" == why_abort(kept, state, (), now, PACE)
    if window > 4 * pace * every:
        missed = Abort(throughput=Slump(below=1.6 / slower, for_=window))
        assert "" != why_abort(missed, state, (), now, PACE)


@given(st.lists(st.tuples(st.floats(0.01, 5.0), st.integers(1, 5)), min_size=2, max_size=60), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_no_step_is_counted_twice(steps, share, other):
    """What was done in two parts of a time is at least what was done in all of it, and one line more at most."""
    state, t, step = RunState(), 0.0, 0
    for took, count in steps:
        t, step = t + took, step + count
        state.samples.append(Sample(Interval.at(t), step, "s"))
    since = share * t
    middle = since + other * (t - since)
    whole, parts = done_since(state, since, t + 0.01), done_since(state, since, middle) + done_since(state, middle, t + 0.01)
    most = max(count for _, count in steps)

    assert 0 <= whole <= step + most
    assert whole <= parts + 1e-6 + most
    assert parts <= whole + 3 * most + 1e-6


@given(st.lists(st.tuples(st.floats(0.0, 300.0), st.integers(0, 500), st.sampled_from("ab")), max_size=80), st.floats(0.0, 400.0))
def test_whatever_a_log_tells_no_condition_breaks(lines, now):
    state = RunState(baseline=(0.0, 1.0))
    for t, step, session in sorted(lines):
        state.samples.append(Sample(Interval.at(t), step, session))

    why_abort(Abort(no_progress=1.0, nodes_unreachable=0, throughput=Slump(0.5, 10.0)), state, (), now, PACE)
    assert done_since(state, now - 10.0, now) >= 0
