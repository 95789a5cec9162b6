"""
JUnit XML for CI systems, written so that each of their readers shows what a person needs.

One `testsuite` a run; one `testcase` a budget, at the budget's line in the experiment file; one testcase `run` for what
no budget says: set-up, proof, death of the training, leaks; and one `teardown` when that failed, which never replaces the
verdict. A missed budget is a failure; inconclusive, aborted and
leaked are errors. The file is red exactly when the outcome is not PASSED, and never empty: an empty suite is green in
most readers. GitLab reads only a failure's text, Jenkins its message first, so the text repeats the message.
"""

import io
import socket
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from junitparser import Attr, Error, Failure, JUnitXml, Properties, Property, Skipped, TestCase, TestSuite

from chaoskit.engine.result import RunResult
from chaoskit.judge.verdict import BudgetResult, BudgetState, Outcome, Quantity, Verdict
from chaoskit.report import figures, sanitise, table
from chaoskit.report.replacing import replace_file

RUN = "run"
"""Name of the testcase that says what no budget says."""
TEARDOWN = "teardown"
"""Name of the testcase that says what went wrong once the verdict was written; there is none when nothing did."""


Told = Failure | Error | Skipped


class Case(TestCase):
    """A testcase that points into the experiment file."""

    file = Attr()
    line = Attr()


def write(result: RunResult, path: Path) -> None:
    """Write the run's JUnit file. Raises OSError."""
    text = io.BytesIO()
    document(result).write(text, pretty=True)
    replace_file(path, text.getvalue())


def document(result: RunResult, hostname: str = "") -> JUnitXml:
    """Return the run as JUnit XML; `hostname` is this machine's when not given."""
    suite = TestSuite(sanitise.line(result.info.name))
    suite.timestamp = result.info.started.isoformat(timespec="seconds")
    suite.hostname = sanitise.line(hostname or socket.gethostname())
    for name, value in _properties(result).items():
        suite.add_property(name, sanitise.line(value))
    suite.add_testcases([_run_case(result), *_budget_cases(result), *_teardown_cases(result)])
    root = JUnitXml(suite.name)
    root.add_testsuite(suite)
    root.update_statistics()
    return root


def _properties(result: RunResult) -> dict[str, str]:
    info, verdict = result.info, result.verdict
    facts = {"title": info.title, "site": info.inventory, "seed": str(info.seed), "chaoskit": info.version, "rerun": info.rerun}
    return {"outcome": str(verdict.outcome), **facts, **_quantity_properties(verdict.quantities), **_felt_properties(verdict)}


def _felt_properties(verdict: Verdict) -> dict[str, str]:
    """Return how each fault was felt that the experiment states the step time of, by the injection's number."""
    felt: dict[str, str] = {}
    for one in verdict.expectations:
        felt |= _quantity_properties({f"step_time.{one.index + 1}": one.measured})
        felt[f"step_time.{one.index + 1}.stated"] = figures.stated(one).removeprefix("stated ")
        felt[f"step_time.{one.index + 1}.state"] = table.felt_word(one.state)
    return felt


def _quantity_properties(quantities: Mapping[str, Quantity]) -> dict[str, str]:
    """Return each quantity's bounds, in its own unit."""
    bounds = {}
    for name, quantity in quantities.items():
        if quantity.value is not None:
            bounds[f"{name}.lo"] = f"{quantity.value.lo:.6g}"
            bounds[f"{name}.hi"] = "unbounded" if quantity.beyond else f"{quantity.value.hi:.6g}"
    return bounds


def _run_case(result: RunResult) -> Case:
    case = _case(result, RUN, "title", result.elapsed)
    if not _told_by_budgets(result):
        message = sanitise.line(result.verdict.reasons[0] if result.verdict.reasons else str(result.verdict.outcome))
        kind = Failure if result.verdict.outcome is Outcome.FAILED else Error
        case.result = _outcome(kind, message, str(result.verdict.outcome).lower(), result)
    case.system_out = sanitise.text(table.plain(table.verdict_table(result)))
    return case


def _told_by_budgets(result: RunResult) -> bool:
    """Say whether the testcases of the budgets already show all that the outcome is."""
    outcome = result.verdict.outcome
    missed = any(budget.state is BudgetState.MISSED for budget in result.verdict.budgets)
    return outcome is Outcome.PASSED or (outcome is Outcome.FAILED and missed) or _undecided_by_budgets(result)


def _undecided_by_budgets(result: RunResult) -> bool:
    """Say whether undecided budgets are why the run is inconclusive: something was injected, and one is undecided."""
    injected = any(injection.t0 is not None for injection in result.verdict.injections)
    undecided = any(budget.state is BudgetState.UNDECIDED for budget in result.verdict.budgets)
    return result.verdict.outcome is Outcome.INCONCLUSIVE and injected and undecided


def _budget_cases(result: RunResult) -> list[Case]:
    seen: Counter[str] = Counter()
    cases = []
    for budget in result.verdict.budgets:
        seen[budget.name] += 1
        name = budget.name if seen[budget.name] == 1 else f"{budget.name} ({seen[budget.name]})"
        cases.append(_budget_case(result, budget, name))
    return cases


def _budget_case(result: RunResult, budget: BudgetResult, name: str) -> Case:
    case = _case(result, name, f"budgets.{budget.name}", 0.0)
    case.append(_measures(budget))  # type: ignore[no-untyped-call]  # inherited, so mypy does not see that it is excluded
    message = sanitise.line(budget.says)
    if budget.state is BudgetState.MISSED:
        case.result = _outcome(Failure, message, budget.name, result)
    elif budget.state is BudgetState.UNDECIDED:
        # Where something else ended the run there is one error, on the testcase `run`; its budgets were not judged.
        case.result = _outcome(Error, message, budget.name, result) if _undecided_by_budgets(result) else Skipped(message)
    return case


def _teardown_cases(result: RunResult) -> list[Case]:
    """Return what went wrong after the verdict, apart from it: an error, unless the verdict is green and must stay so."""
    if not result.teardown_errors:
        return []
    case = _case(result, TEARDOWN, "title", 0.0)
    case.system_err = sanitise.text("\n".join(result.teardown_errors))
    if result.verdict.outcome is not Outcome.PASSED:
        told = Error(sanitise.line(result.teardown_errors[0]), TEARDOWN)
        told.text = case.system_err
        case.result = told
    return [case]


def _case(result: RunResult, name: str, position: str, seconds: float) -> Case:
    case = Case(sanitise.line(name), sanitise.line(f"chaoskit.{result.info.name.replace('.', '_')}"), round(seconds, 3))
    place = result.info.positions.get(position)
    case.file = sanitise.line(place.file if place else result.info.file)
    case.line = str(place.line if place else 1)
    return case


def _measures(budget: BudgetResult) -> Properties:
    properties = Properties()
    measured, unit = budget.measured, budget.measured.unit
    for name, value in (("measured", figures.figure(measured)), ("limit", figures.limit(budget.sense, budget.limit, unit))):
        properties.add_property(Property(name, sanitise.line(value)))
    return properties


def _outcome(kind: type[Failure | Error], message: str, type_: str, result: RunResult) -> Told:
    """Return a failure or an error: one line as its message; as its text that line again, the table and the rerun line."""
    told = kind(message, type_)
    told.text = sanitise.text(f"{message}\n\n{table.plain(table.verdict_table(result))}")
    return told
