"""Figures as people read them."""

import math
from collections.abc import Mapping

from chaoskit.judge.timeline import Interval, Unit
from chaoskit.judge.verdict import Quantity

SUFFIXES: Mapping[Unit, str] = {"s": " s", "share": " %", "steps": "", "": "", "GPU-h": " GPU-h", "cost": ""}

EXACT = 9
"""Digits of a figure that somebody wrote, and nobody measured."""


def figure(value: float, unit: Unit, digits: int = 3) -> str:
    """Return a number with its unit, such as `41.2 s`, `52 %` or `0.0193 GPU-h`."""
    return number(value * 100 if unit == "share" else value, digits) + SUFFIXES[unit]


def number(value: float, digits: int = 3) -> str:
    """Return a number with about this many significant digits, without an exponent, and all digits before the point."""
    if value == 0:
        return "0"
    text = f"{value:.{digits}g}"
    whole = len(str(int(abs(value))))
    if "e" in text or whole >= digits:
        text = f"{value:.{max(0, digits - whole)}f}" if abs(value) >= 1 else f"{value:.{digits + 3}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def limit_of(sense: str, value: float, unit: Unit) -> str:
    """Return a budget's limit as it was written, such as `at most 10 s` or `at least 99.9 %`: it is exact."""
    return f"{sense} {figure(value, unit, EXACT)}"


def measured(quantity: Quantity, limit: float | None = None) -> str:
    """Return a quantity as a phrase: `41.2 s`, `52 % ±3`, `> 300 s`, `between 0 s and 24.6 s`, `never seen`, or `unknown`."""
    if quantity.value is None:
        return "never seen" if quantity.beyond else "unknown"
    digits = _enough(quantity.value, limit)
    if quantity.beyond:
        return f"> {figure(quantity.value.lo, quantity.unit, digits)}"
    low, high = figure(quantity.value.lo, quantity.unit, digits), figure(quantity.value.hi, quantity.unit, digits)
    if low == high:
        return low
    if limit is not None and quantity.value.lo <= limit <= quantity.value.hi:
        return f"between {low} and {high}"
    return _plus_minus(quantity.value, quantity.unit, digits)


def _plus_minus(value: Interval, unit: Unit, digits: int) -> str:
    """
    Return the middle and what may be added or taken away, both to the same place: `5.80 s ±0.07`.

    The second has one digit of its own, and is rounded up until what is written holds all of the interval.
    """
    scale = 100 if unit == "share" else 1
    low, high = value.lo * scale, value.hi * scale
    places = max(0, min(_places((high - low) / 2, 1), _places((low + high) / 2, digits)))
    middle = round((low + high) / 2, places)
    ulp = 10.0**-places
    spread = math.ceil((max(high - middle, middle - low) - 1e-6 * ulp) / ulp) * ulp
    return f"{middle:.{places}f}{SUFFIXES[unit]} ±{spread:.{places}f}"


def _places(value: float, digits: int) -> int:
    """Return the decimal places that show this many significant digits."""
    return digits - 1 - math.floor(math.log10(abs(value))) if value else digits + 12


def _enough(value: Interval, limit: float | None) -> int:
    """Return the digits that show the difference from the limit."""
    for digits in (3, 4, 5, 6):
        if limit is None or number(value.mid, digits) != number(limit, digits) or value.mid == limit:
            return digits
    return 9
