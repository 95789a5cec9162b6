"""The machine-readable summary of a run: JSON, with a schema version, every figure with its bounds."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chaoskit.engine.residue import as_record
from chaoskit.engine.result import RunResult
from chaoskit.judge.timeline import Fact, InjectionFacts
from chaoskit.judge.verdict import Baseline, BudgetResult, Disruption, Expectation, Phase, Quantity, Verdict
from chaoskit.model.interval import Interval
from chaoskit.report import sanitise
from chaoskit.report.replacing import replace_file

SCHEMA_VERSION = 1
"""Raised when a key changes its meaning or goes; new keys do not raise it."""


def write(result: RunResult, path: Path) -> None:
    """Write the summary. Raises OSError."""
    text = json.dumps(document(result), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    replace_file(path, text.encode())


def document(result: RunResult) -> dict[str, Any]:
    """
    Return the summary as JSON values.

    Times are seconds; moments count from the start of the run; shares are fractions of one; an interval is `lo`, `hi`
    and the middle, `value`. A bound that is not known is null.
    """
    info, verdict, began = result.info, result.verdict, result.info.began
    told = {
        "schema_version": SCHEMA_VERSION,
        "chaoskit": info.version,
        "run": info.run,
        "experiment": {"name": info.name, "title": info.title, "why": info.why, "file": info.file, "seed": info.seed},
        "site": {"name": info.inventory, "file": info.inventory_file, "nodes": info.nodes, "gpus": info.gpus},
        "started": info.started.isoformat(timespec="milliseconds"),
        "elapsed": round(result.elapsed, 3),
        "complete": result.complete,
        "rerun": info.rerun,
        **_verdict(verdict, began),
        "teardown_errors": list(result.teardown_errors),
        "residue": as_record(result.residue),
        "notes": list(result.notes),
    }
    clean: dict[str, Any] = _clean(told)
    return clean


def _verdict(verdict: Verdict, began: float) -> dict[str, Any]:
    return {
        "outcome": str(verdict.outcome),
        "exit_code": verdict.outcome.exit_code,
        "reasons": list(verdict.reasons),
        "absorbed": verdict.absorbed,
        "baseline": _baseline(verdict.baseline, began),
        "quantities": _quantities(verdict.quantities),
        "budgets": [_budget(budget) for budget in verdict.budgets],
        "injections": [_injection(each, verdict, index, began) for index, each in enumerate(verdict.injections)],
        "disruptions": [_disruption(each, began) for each in verdict.disruptions],
        "phases": [_phase(each, began) for each in verdict.ledger],
    }


def _interval(value: Interval | None, zero: float = 0.0) -> dict[str, float | None]:
    if value is None:
        return {"value": None, "lo": None, "hi": None}
    return {"value": _finite(value.mid - zero), "lo": _finite(value.lo - zero), "hi": _finite(value.hi - zero)}


def _finite(value: float) -> float | None:
    return round(value, 9) if math.isfinite(value) else None


def _baseline(baseline: Baseline | None, began: float) -> dict[str, Any] | None:
    if baseline is None:
        return None
    figures = {name: getattr(baseline, name) for name in ("steps", "pace", "rate", "noise", "band", "window", "gap_p99")}
    return {"start": baseline.start - began, "end": baseline.end - began, **figures}


def _quantities(quantities: Mapping[str, Quantity]) -> dict[str, Any]:
    return {name: _quantity(quantity) for name, quantity in quantities.items()}


def _quantity(quantity: Quantity) -> dict[str, Any]:
    bounds = _interval(quantity.value)
    if quantity.beyond:  # only the lower bound was seen
        bounds = {"value": None, "lo": bounds["lo"], "hi": None}
    return {**bounds, "unit": quantity.unit, "beyond": quantity.beyond, "note": quantity.note}


def _budget(budget: BudgetResult) -> dict[str, Any]:
    stated = {"name": budget.name, "sense": budget.sense, "limit": budget.limit, "state": str(budget.state), "says": budget.says}
    return {**stated, "measured": _quantity(budget.measured)}


def _injection(facts: InjectionFacts, verdict: Verdict, index: int, began: float) -> dict[str, Any]:
    expected = [_expectation(one) for one in verdict.expectations if one.index == index]
    return {
        "fault": facts.fault,
        "detail": facts.detail,
        "targets": list(facts.targets),
        "one_shot": facts.one_shot,
        "t0": _interval(facts.t0, began),
        "t1": _interval(facts.t1, began),
        "spread": facts.spread,
        "present": _fact(facts.present),
        "exposed": _fact(facts.exposed),
        "felt": verdict.felt.get(index),
        "gone": _fact(facts.gone),
        "expect": expected[0] if expected else None,
    }


def _expectation(one: Expectation) -> dict[str, Any]:
    """Return a stated step time and the felt one, as multiples of the baseline's; the state `missed` is: not as stated."""
    stated = {"step_time": one.expect.step_time, "within": one.expect.within}
    return {**stated, "state": str(one.state), "measured": _quantity(one.measured)}


def _fact(fact: Fact) -> dict[str, Any]:
    return {"holds": fact.holds, "says": fact.says}


def _disruption(disruption: Disruption, began: float) -> dict[str, Any]:
    what = {"kind": disruption.kind, "start": _interval(disruption.start, began), "boots": disruption.boots, "says": disruption.says}
    return {**what, "quantities": _quantities(disruption.quantities)}


def _phase(phase: Phase, began: float) -> dict[str, Any]:
    place = {"ends": phase.ends, "start": _finite(phase.start - began), "end": _finite(phase.end - began)}
    return {**place, "new_steps": phase.new_steps, "loss": _finite(phase.loss)}


def _clean(value: Any) -> Any:
    """Return JSON values with every string made harmless, and every number finite."""
    if isinstance(value, str):
        return sanitise.text(value)
    if isinstance(value, float):
        return _finite(value)
    if isinstance(value, dict):
        return {sanitise.line(key): _clean(inner) for key, inner in value.items()}
    return [_clean(inner) for inner in value] if isinstance(value, list) else value
