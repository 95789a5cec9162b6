"""What a doctor found: a table for people, in which nodes that are alike share a line, and JSON with a schema version."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import chaoskit
from chaoskit.engine.doctor import Diagnosis, names_of
from chaoskit.judge.verdict import Outcome
from chaoskit.model.hostlist import fold
from chaoskit.model.wire import Finding
from chaoskit.report import sanitise
from chaoskit.report.layout import Row
from chaoskit.report.sanitise import line as clean
from chaoskit.report.table import COLOURS

SCHEMA_VERSION = 1
"""Raised when a key changes its meaning or goes; new keys and new checks do not raise it."""

STATES = ("defect", "unknown", "note")
"""What is told in full, in this order; what is `ok` is only counted."""
STYLES = {"defect": "bold red", "unknown": "yellow", "note": "", "ok": "green"}
WHOLE = "site"
"""How the site as a whole is called where nodes stand."""
STATE = 9
CHECK = 10
WIDEST_NAMES = 24
ALIKE = "{node}"


def outcome_of(found: Diagnosis) -> Outcome:
    """Return the word of the exit code."""
    return next(outcome for outcome in Outcome if outcome.exit_code == found.exit_code)


def table(found: Diagnosis) -> list[Row]:
    """Return the rows: how each group of nodes is, then what to mend, what nobody knows, and what is worth knowing."""
    told = [one for state in STATES for one in _grouped(found, state)]
    width = min(WIDEST_NAMES, max((len(where) for where in [*(where for where, _ in told), *_groups(found)]), default=0)) + 2
    outcome = outcome_of(found)
    head = Row(f"doctor   {clean(found.site)}   {_count(len(found.nodes), 'node')}", COLOURS[outcome], right=str(outcome))
    return [head, *_overview(found, width), *(row for where, one in told for row in _rows(where, one, width))]


def closing(found: Diagnosis) -> Row:
    """Return the last line, which starts with the word of the exit code."""
    outcome = outcome_of(found)
    return Row(clean(f"{outcome}: {found.site}: {_sum(found)}"), COLOURS[outcome])


def _sum(found: Diagnosis) -> str:
    if not found.found("defect") and not found.found("unknown"):
        return f"{_count(len(found.nodes), 'node')}, and nothing to mend"
    owed = f"; {len(found.owed)} left over from earlier runs" if found.owed else ""
    return f"{', '.join(_places(found, state) for state in ('defect', 'unknown') if found.found(state))}{owed}"


def _places(found: Diagnosis, state: str) -> str:
    """Say on how many nodes something is as it should not be: one dead node is one, however much nobody could look at there."""
    nodes = sum(any(one.state == state for one in findings) for findings in found.nodes.values())
    where = f"{nodes} of {_count(len(found.nodes), 'node')}" if nodes else "the site as a whole"
    if state == "defect":
        return f"{_count(len(found.found(state)), 'defect')} on {where}"
    return f"{where} could not be looked at in full"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _groups(found: Diagnosis) -> dict[str, tuple[Finding, ...]]:
    """Return the nodes whose checks have the same results, folded: with the findings of the first of them."""
    alike: dict[frozenset[tuple[str, str]], list[str]] = {}
    for name, findings in found.nodes.items():
        alike.setdefault(frozenset((one.check, one.state) for one in findings), []).append(name)
    return {fold(names): found.nodes[names[0]] for names in alike.values()}


def _overview(found: Diagnosis, width: int) -> list[Row]:
    rows = []
    for names, findings in _groups(found).items():
        bad = [state for state in ("defect", "unknown") if any(one.state == state for one in findings)]
        spoiled = {one.check for one in findings if one.state in ("defect", "unknown")}
        well = [check for check in names_of(one for one in findings if one.state == "ok") if check not in spoiled]
        says = [f"{state}: {', '.join(names_of(one for one in findings if one.state == state))}" for state in bad]
        text = f"  {clean(names):<{width}}{'; '.join([*says, f'ok: {chr(44).join(well)}'.replace(chr(44), ', ')] if well else says)}"
        rows.append(Row(text, STYLES[bad[0] if bad else "ok"], 2, 2 + len(clean(names)), hang=2 + width))
    return rows


def _grouped(found: Diagnosis, state: str) -> list[tuple[str, Finding]]:
    """Return what was found in this state, each sentence once: (the nodes it is true of, folded, and the finding)."""
    places: dict[tuple[str, str, str], list[str]] = {}
    first: dict[tuple[str, str, str], Finding] = {}
    for name, findings in found.nodes.items():
        for one in _merged([one for one in findings if one.state == state]):
            key = (one.check, one.says.replace(name, ALIKE), one.do.replace(name, ALIKE))
            places.setdefault(key, []).append(name)
            first.setdefault(key, one)
    told = [(fold(dict.fromkeys(names)), first[key]) for key, names in places.items()]
    return told + [(WHOLE, one) for one in found.whole if one.state == state]


def _merged(findings: Sequence[Finding]) -> Iterable[Finding]:
    """Yield the findings of one node; those that differ in nothing but their check, as what nobody could look at, as one."""
    checks: dict[tuple[str, str], list[Finding]] = {}
    for one in findings:
        checks.setdefault((one.says, one.do), []).append(one)
    for alike in checks.values():
        names, one = names_of(alike), alike[0]
        yield one if len(names) == 1 else replace(one, check="", says=f"{', '.join(names)}: {one.says}")


def _rows(where: str, one: Finding, width: int) -> Iterable[Row]:
    head = f"  {one.state:<{STATE}}{clean(where):<{width}}"
    text = f"{head}{f'{clean(one.check):<{CHECK}} ' if one.check else ''}{clean(one.says)}"
    hang = 2 + STATE + width
    yield Row(text, STYLES[one.state], 2, 2 + len(one.state), hang=hang)
    if one.do:
        yield Row(f"{' ' * hang}-> {clean(one.do)}")  # whole: a line to copy is not broken


# -- JSON ----------------------------------------------------------------------------------------------------------


def document(found: Diagnosis, experiments: Sequence[str] = ()) -> dict[str, Any]:
    """
    Return what was found as JSON values.

    `nodes` maps each node of the inventory to its findings, `site` are those of no single node; a finding is `check`,
    `state` (`ok`, `note`, `unknown` or `defect`), `says`, and what to `do`. `ready` is true when the exit code is 0.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "chaoskit": chaoskit.__version__,
        "inventory": sanitise.line(found.site),
        "experiments": [sanitise.line(name) for name in experiments],
        "ready": found.exit_code == 0,
        "outcome": str(outcome_of(found)),
        "exit_code": found.exit_code,
        "defects": len(found.found("defect")),
        "unknown": len(found.found("unknown")),
        "nodes": {name: [_finding(one) for one in findings] for name, findings in found.nodes.items()},
        "site": [_finding(one) for one in found.whole],
    }


def _finding(one: Finding) -> dict[str, str]:
    return {name: sanitise.text(getattr(one, name)) for name in ("check", "state", "says", "do")}
