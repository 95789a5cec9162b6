"""Each budget against what was measured: met, missed, or undecided."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from chaoskit.judge.timeline import Interval
from chaoskit.judge.verdict import Baseline, BudgetResult, BudgetState, Quantity
from chaoskit.judge.words import figure, limit_of, measured
from chaoskit.model.experiment import AT_LEAST, AT_MOST, BUDGET_SENSE, Budgets

SHARES = ("throughput_during", "window_goodput")
LOSSES = ("lost_time", "lost_gpu_hours", "lost_cost")


def judge_budgets(
    budgets: Budgets, quantities: Mapping[str, Quantity], baseline: Baseline | None, gpus: int, price: float | None
) -> tuple[BudgetResult, ...]:
    """Return the result of every budget that was given, in their fixed order."""
    return tuple(
        compare(BUDGET_SENSE[name], limit, quantities[name], noise_of(name, baseline, gpus, price)) for name, limit in _given(budgets)
    )


def _given(budgets: Budgets) -> Iterator[tuple[str, float]]:
    limits = asdict(budgets)
    for name in BUDGET_SENSE:
        if limits[name] is not None:
            yield name, float(limits[name])


def noise_of(name: str, baseline: Baseline | None, gpus: int, price: float | None) -> float:
    """Return the change of this quantity that the baseline itself shows in a window."""
    if baseline is None:
        return 0.0
    if name in SHARES:
        return baseline.noise
    seconds = baseline.noise * baseline.window
    return {"lost_time": seconds, "lost_gpu_hours": seconds * gpus / 3600, "lost_cost": seconds * gpus / 3600 * (price or 0.0)}.get(
        name, 0.0
    )


def compare(sense: str, limit: float, quantity: Quantity, noise: float) -> BudgetResult:
    """
    Hold what was measured against one limit.

    Args:
        sense: `AT_MOST` or `AT_LEAST`.
        limit: The limit, in the quantity's own unit.
        quantity: What was measured.
        noise: What the baseline itself shows of it, as of `noise_of`.
    """
    name = quantity.name
    state = _state(sense, limit, quantity)
    says = f"{name} {measured(quantity, limit)}, {limit_of(sense, limit, quantity.unit)}"
    if quantity.note and state is not BudgetState.MET:
        says += f": {quantity.note}" if quantity.value is None else f" ({quantity.note})"
    if _in_noise(name, limit, quantity, noise):
        state = BudgetState.UNDECIDED
        says += f": the budget is smaller than the baseline's own noise, {figure(noise, quantity.unit)}"
    return BudgetResult(name, sense, limit, quantity, state, says)


def _state(sense: str, limit: float, quantity: Quantity) -> BudgetState:
    value = quantity.value
    slack = 1e-9 * max(1.0, abs(limit))
    if quantity.beyond and sense == AT_LEAST:
        return BudgetState.MET if value is not None and value.lo >= limit - slack else BudgetState.UNDECIDED
    if quantity.beyond:
        surely = value is not None and value.lo > limit + slack
        return BudgetState.UNDECIDED if quantity.open and not surely else BudgetState.MISSED
    if value is None:
        return BudgetState.UNDECIDED
    low, high = (value.lo, value.hi) if sense == AT_MOST else (-value.hi, -value.lo)
    bound = (limit if sense == AT_MOST else -limit) + slack
    if high <= bound:
        return BudgetState.MET
    return BudgetState.MISSED if low > bound else BudgetState.UNDECIDED


def _in_noise(name: str, limit: float, quantity: Quantity, noise: float) -> bool:
    """Say whether both the budget and what was measured are changes that the baseline shows by itself."""
    value = quantity.value
    if value is None or quantity.beyond or value == Interval(0.0, 0.0):
        return False
    if name in SHARES:
        return 1 - limit < noise and 1 - value.hi < noise and limit < 1
    return name in LOSSES and limit < noise and value.lo < noise
