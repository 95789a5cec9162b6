"""Figures as people read them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaoskit.judge.timeline import Interval
from chaoskit.judge.verdict import Quantity
from chaoskit.judge.words import figure, limit_of, measured, number


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (41.2, "41.2"), (300.0, "300"), (300.4, "300"), (1234.5, "1234"), (98765.4, "98765"), (0.0193333, "0.0193")],
)
def test_a_number_has_three_digits_and_all_before_the_point(value, text):
    assert number(value) == text


@settings(deadline=None)
@given(st.floats(1e-4, 1e7))
def test_a_number_is_never_written_with_an_exponent_and_never_far_off(value):
    assert "e" not in number(value)
    assert float(number(value)) == pytest.approx(value, rel=0.006, abs=1e-6)


def test_a_number_is_not_rounded_up_to_one_that_has_more_digits_before_the_point():
    assert number(99.9) == "99.9"
    assert number(9.996) == "10"
    assert number(999.6) == "1000"


@pytest.mark.parametrize(
    ("sense", "limit", "unit", "said"),
    [
        ("at least", 0.999, "share", "at least 99.9 %"),
        ("at least", 0.07, "share", "at least 7 %"),
        ("at most", 1234.5, "s", "at most 1234.5 s"),
        ("at most", 0.001, "s", "at most 0.001 s"),
        ("at most", 64.0, "GPU-h", "at most 64 GPU-h"),
        ("at most", 0, "steps", "at most 0"),
    ],
)
def test_a_limit_reads_as_it_was_written(sense, limit, unit, said):
    assert limit_of(sense, limit, unit) == said


def test_units():
    assert figure(0.52, "share") == "52 %"
    assert figure(12.0, "s") == "12 s"
    assert figure(23.0, "steps") == "23"
    assert figure(0.0193333, "GPU-h") == "0.0193 GPU-h"


def test_a_quantity_says_what_is_known_of_it():
    assert measured(Quantity("x", Interval.at(41.2), "s")) == "41.2 s"
    assert measured(Quantity("x", Interval(0.49, 0.55), "share")) == "52 % ±3"
    assert measured(Quantity("x", Interval.at(300.0), "s", beyond=True)) == "> 300 s"
    assert measured(Quantity("x", Interval(0.0, 24.6), "s"), limit=10.0) == "between 0 s and 24.6 s"
    assert measured(Quantity("x", None, "s", note="no price")) == "unknown"
    assert measured(Quantity("x", None, "s", beyond=True)) == "never seen"


@pytest.mark.parametrize(
    ("low", "high", "unit", "said"),
    [
        (5.734, 5.866, "s", "5.80 s ±0.07"),
        (0.7144, 0.7196, "share", "71.7 % ±0.3"),
        (0.0, 0.0634, "s", "0.03 s ±0.04"),
        (8.145, 8.215, "s", "8.18 s ±0.04"),
        (0.00638, 0.00652, "GPU-h", "0.00645 GPU-h ±0.00007"),
        (29.0, 53.0, "s", "41 s ±12"),
        (18.0, 19.0, "steps", "18.5 ±0.5"),
        (-0.02, 0.02, "s", "0.00 s ±0.02"),
    ],
)
def test_a_figure_and_its_uncertainty_end_at_the_same_place(low, high, unit, said):
    assert measured(Quantity("x", Interval(low, high), unit)) == said


@settings(deadline=None)
@given(st.floats(0.0, 1e6), st.floats(1e-6, 1e5))
def test_what_is_written_holds_the_whole_interval(low, width):
    said = measured(Quantity("x", Interval(low, low + width), "cost"))
    if "±" in said:
        middle, spread = said.split(" ±")
        assert len(middle.partition(".")[2]) == len(spread.partition(".")[2])
        slack = 1e-5 * float(spread)
        assert float(middle) - float(spread) <= low + slack
        assert float(middle) + float(spread) >= low + width - slack


def test_a_figure_never_reads_like_the_limit_that_it_missed():
    assert measured(Quantity("x", Interval.at(30.004), "s"), limit=30.0) == "30.004 s"
    assert measured(Quantity("x", Interval.at(30.0000004), "s"), limit=30.0) == "30.0000004 s"
