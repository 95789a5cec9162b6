"""
The verdict table that a person reads at the end of a run, and the summary over several runs.

A table is a list of rows, laid out in lines as late as possible: a terminal gets them as wide as it is and coloured
through rich (which honours NO_COLOR), anything else as plain lines. The last line is always the verdict and starts with
the outcome's word.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import IO, NamedTuple

from chaoskit.engine.residue import Remnant, is_left
from chaoskit.engine.result import RunInfo, RunResult
from chaoskit.judge.timeline import Fact, InjectionFacts
from chaoskit.judge.verdict import END_OF_WATCH, BudgetResult, BudgetState, Outcome, Quantity
from chaoskit.model.hostlist import fold
from chaoskit.report import figures
from chaoskit.report.layout import WIDTH, Row, firm, lines
from chaoskit.report.quote import quote
from chaoskit.report.sanitise import line as clean

CLOSING = 240
"""Characters of the last line; the reasons stand in full above it."""
LONGEST_REMARK = 300
"""Characters of what the stack itself said of a disruption."""
RESIDUE = ("left behind", "moved", "not known")
"""Labels of what stayed, in the order of their rows: only the first was left behind."""
MOST_RESIDUE = 6
"""Rows of what stayed behind; the summary has all of it."""
LABEL = 19
FIGURE = 19
LIMIT = 17
VALUES = LABEL + 2
"""Column that values start in, and go on in below."""

COLOURS = {
    Outcome.PASSED: "bold green",
    Outcome.INCONCLUSIVE: "bold yellow",
    Outcome.ABORTED: "bold yellow",
    Outcome.FAILED: "bold red",
    Outcome.LEAKED: "bold white on red",
}
STATES = {BudgetState.MET: "ok", BudgetState.MISSED: "MISSED", BudgetState.UNDECIDED: "undecided"}
FELT_COLOURS = {BudgetState.MET: "green", BudgetState.MISSED: "bold yellow", BudgetState.UNDECIDED: "yellow"}
STATE_COLOURS = {BudgetState.MET: "green", BudgetState.MISSED: "bold red", BudgetState.UNDECIDED: "yellow"}


def verdict_table(result: RunResult) -> list[Row]:
    """Return the rows of one run: what was done, measured and judged, and how to run it again."""
    return [
        _heading(result.info, result.verdict.outcome),
        _baseline(result),
        *_injections(result),
        *_judged(result),
        *_other_quantities(result),
        *_outage(result),
        *_remarks(result),
    ]


def artefacts(result: RunResult) -> Row:
    """Return the row that says where the run's files lie."""
    files = sorted(path.name for path in result.run_dir.iterdir() if path.is_file()) if result.run_dir.is_dir() else []
    return Row(f"  {_cell('artefacts', LABEL)}{'  '.join([f'{clean(str(result.run_dir))}/', *map(clean, files)])}", hang=VALUES)


def closing(result: RunResult) -> Row:
    """Return the last line: the outcome's word, the experiment, and the first reason."""
    outcome = result.verdict.outcome
    text = clean(f"{outcome}: {result.info.name}: {_because(result)}")
    return Row(text if len(text) <= CLOSING else f"{text[: CLOSING - 3]}...", COLOURS[outcome])


def summary_table(results: Sequence[RunResult]) -> list[Row]:
    """Return one line a run; closed by `summary_closing`."""
    widest = max((len(clean(result.info.name)) for result in results), default=0)
    heading = f"{'experiment':<{max(widest, 10)}}  {'outcome':<12}  {'recovered in':<14}  {'lost steps':<10}  {'goodput':<9}  artefacts"
    rows = [Row(""), Row(heading, "bold")]
    for result in results:
        head = f"{clean(result.info.name):<{max(widest, 10)}}  "
        outcome = result.verdict.outcome
        recovered, lost, goodput = (_short(result.verdict.quantities, name) for name in ("time_to_recover", "lost_steps", "window_goodput"))
        told = f"{outcome:<12}  {recovered:<14}  {lost:<10}  {goodput:<9}  "
        place = f"{clean(str(result.run_dir))}/"
        rows.append(Row(head + told, COLOURS[outcome], len(head), len(head) + len(outcome), hang=2, aside=place))
    return rows


def summary_closing(results: Sequence[RunResult], skipped: int = 0) -> Row:
    """Return the last line over several runs: the worst outcome's word, who was not green, and how many did not begin."""
    total, worst = len(results) + skipped, over_all(results, skipped)
    others = [f"{result.info.name} {result.verdict.outcome}" for result in results if result.verdict.outcome is not Outcome.PASSED]
    others += [f"{skipped} not run"] if skipped else []
    missing = total - sum(result.verdict.outcome is Outcome.PASSED for result in results)
    what = f"{missing} of {total} did not pass: {', '.join(others)}" if others else f"{total} of {total} passed"
    return Row(clean(f"{worst}: {what}"), COLOURS[worst])


def over_all(results: Sequence[RunResult], skipped: int = 0) -> Outcome:
    """Return the outcome of several runs: the worst, and never green where one that was asked for did not begin."""
    outcomes = [result.verdict.outcome for result in results]
    return Outcome.worst([*outcomes, *([Outcome.ABORTED] if skipped else [])])


def plain(rows: Sequence[Row]) -> str:
    """Return the rows as text without any colour, `WIDTH` columns wide."""
    return "".join(f"{line.text}\n" for row in rows for line in lines(row, WIDTH))


def show(rows: Sequence[Row], file: IO[str]) -> None:
    """Print the rows: coloured and as wide as fits on a terminal, plain elsewhere."""
    if not file.isatty():
        file.write(plain(rows))
        file.flush()
        return
    from rich.console import Console  # noqa: PLC0415 - rich is loaded for a terminal only
    from rich.text import Text  # noqa: PLC0415 - rich is loaded only when something is shown

    console = Console(file=file, highlight=False, soft_wrap=True)
    for line in (line for row in rows for line in lines(row, min(WIDTH, console.width))):
        text = Text(line.text)  # a Text, never markup: brackets in foreign text stay brackets
        if line.style:
            text.stylize(line.style, line.start, line.end)
        console.print(text)


def _heading(info: RunInfo, outcome: Outcome) -> Row:
    what = (info.name, info.inventory, f"{info.nodes} nodes, {info.gpus} GPUs", f"seed {info.seed}")
    return Row("   ".join(clean(part) for part in what), COLOURS[outcome], right=str(outcome))


def _cell(text: str, width: int) -> str:
    """Return the text padded to a column's width, and never touching the next column."""
    return f"{text:<{width - 2}}  "


def _row(name: str, value: str) -> Row:
    """Return a labelled value, which goes on below its own start."""
    return Row(f"  {_cell(name, LABEL)}{clean(value)}", hang=VALUES)


def _baseline(result: RunResult) -> Row:
    baseline = result.verdict.baseline
    return _row("baseline", figures.pace(baseline) if baseline else "never steady")


def _injections(result: RunResult) -> Iterator[Row]:
    for index, injection in enumerate(result.verdict.injections):
        name, rest = _injection_label(injection)
        what, _, facts = injection_line(result, index).partition("; ")
        row = _row(name, f"{rest}{what}{';' if facts else ''}")
        yield replace(row, text=f"{row.text} {firm(facts)}")
        for name in ("exposed", "present", "gone") if injection.t0 is not None else ():
            fact: Fact = getattr(injection, name)
            if fact.holds is not True and fact.says:
                yield _row("", f"{fact_word(name, fact.holds)}: {fact.says}")


def _injection_label(injection: InjectionFacts) -> tuple[str, str]:
    """Return what labels the row, and what of the injection's detail does not fit there."""
    detail = clean(injection.detail or injection.fault)
    if len(detail) < LABEL - 1:
        return detail, ""
    fault = clean(injection.fault)
    return fault, f"{detail.removeprefix(fault).strip()} on "


def injection_line(result: RunResult, index: int) -> str:
    """Return what one injection was: targets, moment, length, and its facts."""
    injection = result.verdict.injections[index]
    where = fold(injection.targets) or "no node"
    if injection.t0 is None:
        return f"{where}: never injected"
    at = figures.moment(result.info.started, result.info.began, injection.t0.mid)
    held = f" for {figures.span(injection.t1.mid - injection.t0.mid)}" if injection.t1 else ""
    spread = f", spread {figures.span(injection.spread)}" if injection.spread is not None and len(injection.targets) > 1 else ""
    return f"{where} at {at} UTC{held}{spread}; {', '.join(_facts(injection, result.verdict.felt.get(index)))}"


def _facts(injection: InjectionFacts, felt: bool | None) -> Iterator[str]:
    yield fact_word("exposed", injection.exposed.holds)
    yield fact_word("present", injection.present.holds)
    if felt is not None:
        yield "felt" if felt else "not felt"
    if injection.t1 is not None:
        yield "reverted"
    yield fact_word("gone", injection.gone.holds)


def fact_word(name: str, holds: bool | None) -> str:
    """Return a fact as words: `gone`, `not gone`, `gone unknown`."""
    return {True: name, False: f"not {name}", None: f"{name} unknown"}[holds]


class Judged(NamedTuple):
    """The cells of a budget's row, or of what must have been felt."""

    label: str
    measured: str
    limit: str
    state: str
    colour: str
    aside: str


def _judged(result: RunResult) -> Iterator[Row]:
    """Yield a row for each thing judged; columns are as wide as their longest cell, and of the usual width when that is less."""
    cells = [*_expectations(result), *_budgets(result)]
    figure, limit = _width([one.measured for one in cells], FIGURE), _width([one.limit for one in cells], LIMIT)
    states = _width([one.state for one in cells])
    for one in cells:
        head = f"  {_cell(one.label, LABEL)}{_cell(one.measured, figure)}{_cell(one.limit, limit)}"
        yield Row(
            f"{head}{_cell(one.state, states)}", one.colour, len(head), len(head) + len(one.state), hang=VALUES, aside=clean(one.aside)
        )


def _budgets(result: RunResult) -> Iterator[Judged]:
    for budget in result.verdict.budgets:
        limit = figures.limit(budget.sense, budget.limit, budget.measured.unit)
        name, measured = figures.label(budget.name), figures.figure(budget.measured)
        yield Judged(name, measured, limit, STATES[budget.state], STATE_COLOURS[budget.state], _aside(result, budget))


def _expectations(result: RunResult) -> Iterator[Judged]:
    """Yield how each fault was felt that the experiment states the step time of."""
    verdict = result.verdict
    for one in verdict.expectations:
        whose = f"({verdict.injections[one.index].fault})" if len(verdict.injections) > 1 else ""
        yield Judged("step time", figures.felt(one), figures.stated(one), felt_word(one.state), FELT_COLOURS[one.state], whose)


def felt_word(state: BudgetState) -> str:
    """Return whether a fault was felt as stated, as a word: `ok`, `not as stated`, `undecided`."""
    return "not as stated" if state is BudgetState.MISSED else STATES[state]


def _width(cells: Sequence[str], least: int = 0) -> int:
    return max([least, *(len(cell) + 2 for cell in cells)])


def _aside(result: RunResult, budget: BudgetResult) -> str:
    """Return a remark that puts a figure in its place."""
    note = budget.measured.note
    if note and not any(note in reason for reason in result.verdict.reasons):
        return clean(f"({note})")
    steady = result.verdict.quantities.get("time_to_steady")
    if budget.name == "settle_time" and steady is not None and steady.value is not None and not steady.beyond and steady.value.hi > 0:
        return f"(steady {figures.middle(steady)} after the fault began)"
    return ""


def _other_quantities(result: RunResult) -> Iterator[Row]:
    """Yield what was measured without a budget, unless it is nothing."""
    judged = {budget.name for budget in result.verdict.budgets}
    for name, quantity in result.verdict.quantities.items():
        if name not in judged and quantity.value is not None and (quantity.beyond or quantity.value.hi > 0):
            note = f" ({quantity.note})" if quantity.note else ""
            yield _row(figures.label(name), figures.figure(quantity) + note)


def _outage(result: RunResult) -> Iterator[Row]:
    if any(phase.ends != END_OF_WATCH for phase in result.verdict.ledger):  # else no moment came: "lost time" says it all
        yield Row(f"  {_cell('phases', LABEL)}{firm(figures.phases(result.verdict.ledger))}", hang=VALUES)
    for kind, says in dict.fromkeys((each.kind, each.says) for each in result.verdict.disruptions if each.says):
        yield _row(kind, quote(says, LONGEST_REMARK))


def _remarks(result: RunResult) -> Iterator[Row]:
    outcome = result.verdict.outcome
    for number, reason in enumerate(_reasons(result)):
        yield _row("" if number else "note" if outcome is Outcome.PASSED else "because", reason)
    for error in result.teardown_errors:
        yield _row("teardown", error)
    for missing in result.unwritten:
        yield _row("unwritten", missing)
    for note in result.notes:
        if note not in result.unwritten:
            yield _row("note", note)
    yield from _residue(result)
    if outcome is not Outcome.PASSED:
        yield Row(f"  {'rerun':<{LABEL}}{clean(result.info.rerun)}")


def _residue(result: RunResult) -> Iterator[Row]:
    """Yield what stayed behind, each sentence once, with the command that clears it; the summary has all of it."""
    nodes: dict[tuple[str, str], list[str]] = {}
    labels: dict[tuple[str, str], str] = {}
    for one in sorted(result.residue, key=lambda one: RESIDUE.index(_residue_label(one))):
        key = (one.says, one.clear.replace(one.node, "NODE"))
        nodes.setdefault(key, []).append(one.node)
        labels.setdefault(key, _residue_label(one))
    above = ""
    for (says, clear), on in list(nodes.items())[:MOST_RESIDUE]:
        label, command = labels[says, clear], clear if len(on) > 1 else clear.replace("NODE", on[0])
        yield _row("" if label == above else label, f"{fold(on)}: {says}{f'; {command} clears it' if command else ''}")
        above = label
    if len(nodes) > MOST_RESIDUE:
        yield _row("", f"and {len(nodes) - MOST_RESIDUE} more, in summary.json")


def _residue_label(one: Remnant) -> str:
    if is_left(one):
        return RESIDUE[0]
    return RESIDUE[1] if one.kind == "expected" else RESIDUE[2]


def _reasons(result: RunResult) -> list[str]:
    """Return why the outcome is what it is; what only repeats the row of a budget or a disruption is said once, there."""
    verdict = result.verdict
    first, *others = verdict.reasons or ("",)
    rows = [*(budget.says for budget in verdict.budgets), *(disruption.says for disruption in verdict.disruptions if disruption.says)]
    told = [reason for reason in others if not any(row in reason for row in rows)]
    return [reason for reason in (first, *told) if reason and reason not in rows[len(verdict.budgets) :]]


def _because(result: RunResult) -> str:
    verdict = result.verdict
    if verdict.reasons and verdict.outcome is not Outcome.PASSED:
        return verdict.reasons[0].removeprefix(f"{verdict.outcome.lower()}: ")
    if not verdict.budgets:
        return "the training recovered; " + ("what the test states holds" if result.info.is_test else "no budget was given")
    met = sum(budget.state is BudgetState.MET for budget in verdict.budgets)
    return f"{met} of {len(verdict.budgets)} budgets met{'; the fault was absorbed' if verdict.absorbed else ''}{_widened(result)}"


def _widened(result: RunResult) -> str:
    """Say that the band is not the one that was stated."""
    return "".join(f"; {reason.partition(':')[0]}" for reason in result.verdict.reasons if reason.startswith("the band was widened"))


def _short(quantities: Mapping[str, Quantity], name: str) -> str:
    quantity = quantities.get(name)
    return "-" if quantity is None or quantity.value is None else figures.middle(quantity)
