"""Figures as a report shows them: a quantity, a limit, a moment, an outage; numbers and units are the judge's `words`."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from chaoskit.judge import words
from chaoskit.judge.quantities import UNITS
from chaoskit.judge.timeline import Unit
from chaoskit.judge.verdict import Baseline, Expectation, Phase, Quantity

SPECIAL_LABELS = {"lost_gpu_hours": "lost GPU-hours"}


def label(name: str) -> str:
    """Return a quantity's or budget's name as words."""
    return SPECIAL_LABELS.get(name, name.replace("_", " "))


def unit_of(name: str) -> Unit:
    """Return the unit of a quantity by its name; whatever the judge does not list is a time."""
    return UNITS.get(name, "s")


def figure(quantity: Quantity) -> str:
    """Return a quantity with its uncertainty, such as `1.9 s ±0.1`, `52 % ±3`, `> 300 s`, `never seen` or `unknown`."""
    return words.measured(quantity)


def middle(quantity: Quantity) -> str:
    """Return a quantity without its uncertainty, to the same place, for a remark beside the full figure."""
    return figure(quantity).partition(" ±")[0]


def limit(sense: str, value: float, unit: Unit) -> str:
    """Return a budget's limit, such as `at most 10 s`."""
    return words.limit_of(sense, value, unit)


def felt(one: Expectation) -> str:
    """Return how a fault was felt, such as `1.52 ±0.03 times`."""
    return f"{figure(one.measured)}{' times' if one.measured.value is not None else ''}"


def stated(one: Expectation) -> str:
    """Return how the experiment states that it must be felt, such as `stated 1.5 ±15 %`."""
    return f"stated {words.number(one.expect.step_time, words.EXACT)} ±{words.figure(one.expect.within, 'share', words.EXACT)}"


def span(seconds: float) -> str:
    """Return a length of time: `20 s`, `0.6 ms`."""
    if abs(seconds) < 0.1:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds:.1f}".removesuffix(".0") + " s"


def moment(started: datetime, began: float, at: float) -> str:
    """Return a moment of the controller's monotonic clock as time of day, in UTC with milliseconds."""
    wall = started + timedelta(seconds=at - began)
    return f"{wall:%H:%M:%S}.{wall.microsecond // 1000:03d}"


def pace(baseline: Baseline) -> str:
    """Return the baseline as one line: `9.8 steps/s (±2 % over 98 steps)`."""
    return f"{words.number(1 / baseline.pace)} steps/s (±{words.figure(baseline.noise, 'share', 2)} over {baseline.steps} steps)"


def phases(ledger: Iterable[Phase]) -> str:
    """Return the outage's segments and their sum: `detect 0.5 + new process 3.0 = 3.5 s, 3.1 s of it lost`."""
    segments = list(ledger)
    parts = " + ".join(f"{phase.ends} {phase.end - phase.start:.1f}" for phase in segments)
    whole = sum(phase.end - phase.start for phase in segments)
    return f"{parts} = {whole:.1f} s, {sum(phase.loss for phase in segments):.1f} s of it lost"
