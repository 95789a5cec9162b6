"""Figures compare with limits, and raise where what was measured does not decide."""

import pytest

from chaoskit.errors import UndecidedError
from chaoskit.judge.timeline import Interval
from chaoskit.judge.verdict import BudgetState, Quantity
from chaoskit.scripting import Figure


def figure(lo, hi, name="lost_steps", unit="steps", noise=0.0, **rest):
    return Figure(Quantity(name, Interval(lo, hi), unit, **rest), noise)


COMPARISONS = {
    "<=": lambda one, limit: one <= limit,
    "<": lambda one, limit: one < limit,
    ">=": lambda one, limit: one >= limit,
    ">": lambda one, limit: one > limit,
    "==": lambda one, limit: one == limit,
    "!=": lambda one, limit: one != limit,
}


@pytest.mark.parametrize(
    ("limit", "answers"),
    [
        (9, {"<=": False, "<": False, ">=": True, ">": True, "==": False, "!=": True}),
        (10, {"<=": None, "<": False, ">=": True, ">": None, "==": None, "!=": None}),
        (15, {"<=": None, "<": None, ">=": None, ">": None, "==": None, "!=": None}),
        (20, {"<=": True, "<": None, ">=": None, ">": False, "==": None, "!=": None}),
        (21, {"<=": True, "<": True, ">=": False, ">": False, "==": False, "!=": True}),
    ],
)
def test_a_comparison_is_decided_only_by_the_whole_interval(limit, answers):
    """[10, 20] against limits on both sides, at the ends, and inside: never a guess."""
    for sign, answer in answers.items():
        if answer is None:
            with pytest.raises(UndecidedError):
                COMPARISONS[sign](figure(10, 20), limit)
        else:
            assert COMPARISONS[sign](figure(10, 20), limit) is answer, sign


def test_an_exact_figure_decides_everything():
    """Counts are exact, and so are their comparisons, from either side."""
    one = figure(3, 3, "restarts", "")

    assert (True, False, True) == tuple(COMPARISONS[sign](one, limit) for sign, limit in (("==", 3), ("!=", 3), ("!=", 4)))
    assert one <= 3
    assert not one < 3
    assert 2 < one
    assert 3 >= one
    assert (3, 3, 3) == (one.lo, one.hi, one.value)


def test_a_moment_that_never_came_misses_every_upper_limit():
    """`> 300 s`: not within any time, at least what was watched, and beyond that nobody knows."""
    never = figure(300, 300, "time_to_recover", "s", beyond=True)

    assert not never <= 600
    assert never >= 200
    with pytest.raises(UndecidedError):
        assert never >= 400
    with pytest.raises(UndecidedError):
        assert never.value
    assert 300 == never.lo


def test_a_moment_that_may_still_have_come_is_undecided():
    """The observer went blind: no limit beyond what was watched is met or missed."""
    with pytest.raises(UndecidedError, match="blind"):
        assert figure(3, 3, "time_to_recover", "s", beyond=True, open=True, note="the observer was blind") <= 600


def test_what_was_not_measured_decides_nothing():
    """An unknown figure says why."""
    unknown = Figure(Quantity("settle_time", None, "s", note="no fault of this run has an end"))

    with pytest.raises(UndecidedError, match="no fault of this run has an end"):
        assert unknown <= 10
    with pytest.raises(UndecidedError):
        assert unknown == 0


def test_what_is_smaller_than_the_noise_decides_nothing():
    """Both limit and figure lie within what the baseline shows by itself."""
    with pytest.raises(UndecidedError, match="noise"):
        assert figure(0.2, 0.3, "lost_time", "s", noise=0.5) <= 0.25
    assert figure(0.2, 0.3, "lost_time", "s", noise=0.5) <= 2


@pytest.mark.parametrize("limit", ["10", None, True])
def test_it_compares_with_numbers_only(limit):
    """Text and truth are no limits."""
    with pytest.raises(TypeError, match="number of steps"):
        assert figure(1, 1) <= limit


def test_it_is_no_truth_value():
    """`assert recovery.restarts` would pass for anything."""
    with pytest.raises(TypeError, match="compare it with a limit"):
        assert figure(1, 1)


def test_it_tells_how_it_compares_without_raising():
    """For a test that wants to go on."""
    told = figure(10, 20).holds("at most", 15)

    assert (BudgetState.UNDECIDED, "lost_steps between 10 and 20, at most 15") == (told.state, told.says)
