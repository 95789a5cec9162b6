"""Arithmetic on intervals, and on floats that should be equal."""

from chaoskit.model.interval import Interval

EPS = 1e-6
"""Seconds below which two moments are the same: stamps carry microseconds, sums of floats carry less."""


def hull(first: Interval, second: Interval) -> Interval:
    """Return the smallest interval that holds both: either may be the truth."""
    return Interval(min(first.lo, second.lo), max(first.hi, second.hi))


def later(first: Interval, second: Interval) -> Interval:
    """Return the later of two moments, or the larger of two figures."""
    return Interval(max(first.lo, second.lo), max(first.hi, second.hi))


def positive(value: Interval) -> Interval:
    """Return the part of it that is not negative: no effect comes before its cause."""
    return Interval(max(value.lo, 0.0), max(value.hi, 0.0))


def total(values: list[Interval]) -> Interval:
    """Return the sum."""
    return Interval(sum(value.lo for value in values), sum(value.hi for value in values))


def scaled(value: Interval, factor: float) -> Interval:
    """Return the interval times a factor that is not negative."""
    return Interval(value.lo * factor, value.hi * factor)
