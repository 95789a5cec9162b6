"""What happened in a run, in order: faults, the training's own signs, and the moments that the judge found."""

from collections.abc import Iterator, Sequence

from chaoskit.engine.result import RunResult
from chaoskit.judge.timeline import InjectionFacts, Mark
from chaoskit.model.hostlist import fold
from chaoskit.report import figures
from chaoskit.report.layout import Row
from chaoskit.report.quote import quote
from chaoskit.report.sanitise import line as clean

BURST = 5.0
"""Seconds in which one kind of sign is told once: every node and every rank gives its own."""
FOUND = frozenset(("first step", "recovery", "steady"))
"""Ends of phases that no log line tells: the judge finds them among the steps."""
MOST = 60
"""Rows at most; a storm of restarts is told by its beginning and its end."""


def moments(result: RunResult, marks: Sequence[Mark]) -> list[Row]:
    """Return a row a moment: time of day, seconds from the first fault, and what it was."""
    info, verdict = result.info, result.verdict
    begun = [one.t0.mid for one in verdict.injections if one.t0 is not None]
    zero = min(begun, default=info.began)
    # In one millisecond, the finest that is shown, the baseline comes before what was injected once it was there.
    every = [*_steady(result), *_injections(verdict.injections), *_signs(marks), *_found(result)]
    told = sorted(every, key=lambda one: round(one[0], 3))
    rows = [Row(f"  {figures.moment(info.started, info.began, at)}  {at - zero:+8.1f} s  {clean(says)}", hang=28) for at, says in told]
    if len(rows) > MOST:
        left = len(rows) - MOST
        rows = [*rows[: MOST // 2], Row(f"  ... {left} more moments stand in the journal ..."), *rows[-MOST // 2 :]]
    return [*rows, Row("")] if rows else []


def _injections(injections: Sequence[InjectionFacts]) -> Iterator[tuple[float, str]]:
    for one in injections:
        what = f"{one.detail or one.fault} on {fold(one.targets) or 'nobody'}"
        if one.t0 is not None:
            yield one.t0.mid, f"{what} begins"
        if one.t1 is not None:
            yield one.t1.mid, f"{what} has ended{'' if one.gone.holds else ', and is not proven gone'}"


def _signs(marks: Sequence[Mark]) -> Iterator[tuple[float, str]]:
    last: dict[str, float] = {}
    for mark in sorted(marks, key=lambda mark: mark.t.mid):
        kind = mark.kind.value
        before = last.get(kind)
        last[kind] = mark.t.mid
        if before is None or mark.t.mid - before >= BURST:
            step = f" (step {mark.step})" if mark.step is not None else ""
            place = f" on {mark.node}" if mark.node else ""
            yield mark.t.mid, f"{kind}{place}{step}{f': {quote(mark.says)}' if mark.says else ''}"


def _steady(result: RunResult) -> Iterator[tuple[float, str]]:
    if result.verdict.baseline is not None:
        yield result.verdict.baseline.end, f"steady: {figures.pace(result.verdict.baseline)}"


def _found(result: RunResult) -> Iterator[tuple[float, str]]:
    for phase in result.verdict.ledger:
        if phase.ends in FOUND:
            yield phase.end, f"{phase.ends} after the fault" if phase.ends == "first step" else phase.ends
