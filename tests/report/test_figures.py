"""Figures as people read them."""

import math
from datetime import UTC, datetime

import pytest

from chaoskit.judge.verdict import Baseline, Phase, Quantity
from chaoskit.model.interval import Interval
from chaoskit.report import figures


@pytest.mark.parametrize(
    ("low", "high", "unit", "beyond", "said"),
    [
        (1.8, 2.0, "s", False, "1.9 s ±0.1"),
        (41.16, 41.24, "s", False, "41.2 s"),
        (0.1, 0.1, "s", False, "0.1 s"),
        (0, 0, "s", False, "0 s"),
        (0.49, 0.55, "share", False, "52 % ±3"),
        (0.05, 0.06, "share", False, "5.5 % ±0.5"),
        (10, 10, "steps", False, "10"),
        (9, 11, "steps", False, "10 ±1"),
        (2, 2, "", False, "2"),
        (0.0193, 0.0193, "GPU-h", False, "0.0193 GPU-h"),
        (0, 0, "GPU-h", False, "0 GPU-h"),
        (12.345, 12.345, "cost", False, "12.3"),
        (300.0, math.inf, "s", True, "> 300 s"),
        (300.0, 300.0, "s", True, "> 300 s"),
        (1234.5, 1234.5, "s", False, "1234 s"),
    ],
)
def test_a_quantity_carries_its_unit_and_uncertainty(low, high, unit, beyond, said):
    """Digits follow the size of the figure."""
    assert said == figures.figure(Quantity("x", Interval(low, high), unit, beyond))


def test_what_was_not_measured_is_unknown():
    """A quantity without a value never reads as zero."""
    assert "unknown" == figures.figure(Quantity("x", None, "s"))


def test_the_middle_has_no_uncertainty():
    """A remark beside the full figure repeats only its value."""
    assert "21.9 s" == figures.middle(Quantity("x", Interval(21.8, 22.0), "s"))


@pytest.mark.parametrize(
    ("sense", "value", "unit", "said"),
    [
        ("at most", 10.0, "s", "at most 10 s"),
        ("at least", 0.4, "share", "at least 40 %"),
        ("at most", 0, "steps", "at most 0"),
        ("at most", 0.25, "s", "at most 0.25 s"),
        ("at most", 600.0, "s", "at most 600 s"),
    ],
)
def test_a_limit_reads_as_written(sense, value, unit, said):
    """A limit is exact, and so is shown without spare digits."""
    assert said == figures.limit(sense, value, unit)


def test_a_moment_is_the_time_of_day():
    """A monotonic moment is placed on the wall clock by the start of the run, to the millisecond."""
    started = datetime(2026, 11, 30, 17, 1, 50, 250000, tzinfo=UTC)

    assert "17:02:11.004" == figures.moment(started, 100.0, 120.754)


def test_a_length_of_time():
    """Short lengths are in milliseconds."""
    assert "0.6 ms" == figures.span(0.0006)
    assert "20 s" == figures.span(20.0)
    assert "20.2 s" == figures.span(20.2)


@pytest.mark.row("L39")
def test_phases_add_up():
    """The segments of the outage, their sum and the loss stand on one line."""
    ledger = [Phase("detect", 50.0, 50.5, 0, 0.5), Phase("steady", 50.5, 68.4, 1, 16.9)]

    assert "detect 0.5 + steady 17.9 = 18.4 s, 17.4 s of it lost" == figures.phases(ledger)


def test_the_baseline_names_its_noise():
    """Pace, noise and the number of steps behind them."""
    assert "9.8 steps/s (±2 % over 98 steps)" == figures.pace(Baseline(0, 10, 98, 1 / 9.8, 9.8, 0.02, 0.1, 10, 0.15))
