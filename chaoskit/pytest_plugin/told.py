"""What pytest is told of results: messages, sections of a failure, properties for JUnit, and the summary at the end."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from statistics import median

import pytest

from chaoskit.engine.losses import Losses
from chaoskit.engine.replay import state_of
from chaoskit.engine.result import RunResult
from chaoskit.errors import InputError
from chaoskit.judge import words
from chaoskit.judge.verdict import Outcome, Quantity
from chaoskit.model.load import load_inventory
from chaoskit.pytest_plugin.keys import RESULTS, Told
from chaoskit.report import table
from chaoskit.report.figures import figure, label
from chaoskit.report.moments import moments


def told(result: RunResult) -> str:
    """Return the message, its first line alone enough, and the table."""
    return f"{table.closing(result).text}\n\n{table.plain([*table.verdict_table(result), table.artefacts(result)])}"


def timeline(result: RunResult, told_already: str) -> str:
    """Return what happened when, and what was measured unless that was told already."""
    try:
        marks = state_of(result.run_dir)[0].marks
    except InputError:
        marks = []  # nothing began, and the verdict alone is left
    figures = [] if table.closing(result).text in told_already else [*table.verdict_table(result), table.artefacts(result)]
    return table.plain([*moments(result, marks), *figures])


def keep(item: pytest.Item, one: Told) -> None:
    """
    Keep a result for the summary, and as properties of the item's JUnit; the last of several repetitions has those of all.

    Once the site has lost all the nodes that it may, nothing more begins.
    """
    results = item.config.stash[RESULTS]
    results.append(one)
    if one.result.lost and (spent := _spent(item.config, results)):
        item.session.shouldstop = spent
    item.user_properties += _properties(one.result)
    same = [each.result for each in results if (each.where, each.experiment) == (one.where, one.experiment)]
    if len(same) > 1 and len(same) == item.config.getoption("chaos_repeat"):
        item.user_properties += [(f"repeat.{name}", text) for name, text in _repeated(same).items()]


def _spent(config: pytest.Config, results: Sequence[Told]) -> str:
    most = config.getoption("chaos_lose_at_most") or load_inventory(config.getoption("chaos_inventory")).file.limits.nodes_lost
    losses = Losses(most)
    for one in results:
        losses.add(one.result.lost)
    return losses.spent


def _properties(result: RunResult) -> list[tuple[str, object]]:
    head: list[tuple[str, object]] = [
        ("outcome", str(result.verdict.outcome)),
        ("run_dir", str(result.run_dir)),
        ("seed", result.info.seed),
    ]
    return head + [(name, figure(quantity)) for name, quantity in result.verdict.quantities.items() if quantity.value is not None]


def _repeated(results: Sequence[RunResult]) -> dict[str, str]:
    """Return each figure over repetitions, such as `min 11.2 s, median 12 s, max 15.1 s`; how many have it, when not all do."""
    said = {}
    for name in results[0].verdict.quantities if results else ():
        known = [quantity for result in results if _is_bounded(quantity := result.verdict.quantities[name])]
        values = [quantity.value.mid for quantity in known if quantity.value is not None]
        if values and max(values) > 0:
            spread = (("min", min(values)), ("median", median(values)), ("max", max(values)))
            text = ", ".join(f"{word} {words.figure(value, known[0].unit)}" for word, value in spread)
            said[name] = text if len(values) == len(results) else f"{text} (of {len(values)} in {len(results)})"
    return said


def _is_bounded(quantity: Quantity) -> bool:
    return quantity.value is not None and not quantity.beyond


def summary(results: list[Told]) -> Iterator[str]:
    """Yield the lines at the end: each verdict, what leaked last; and the figures over repetitions."""
    ordered = sorted(results, key=lambda one: one.result.verdict.outcome is Outcome.LEAKED)
    for one in ordered:
        yield table.artefacts(one.result).text.strip()
        yield table.closing(one.result).text
    by_name = sorted(results, key=lambda one: (one.experiment, one.where))
    for (name, where), group in groupby(by_name, key=lambda one: (one.experiment, one.where)):
        runs = [one.result for one in group]
        if len(runs) > 1:
            alone = all(one.where == where for one in results if one.experiment == name)
            yield from _repetitions(name if alone else f"{where}::{name}", runs)


def _repetitions(name: str, runs: Sequence[RunResult]) -> Iterator[str]:
    outcomes = [str(run.verdict.outcome) for run in runs]
    yield f"{name}, {len(runs)} times: {', '.join(f'{outcomes.count(each)} {each}' for each in dict.fromkeys(outcomes))}"
    for quantity, text in _repeated(runs).items():
        yield f"  {label(quantity):<19}{text}"
