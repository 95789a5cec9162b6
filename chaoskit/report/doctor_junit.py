"""
JUnit XML of what a doctor found: one testcase a node and check, so that a CI system keeps the history of each.

A defect is a failure and what nobody could find out an error; the text says what to do. The file is red exactly when the
exit code is not 0.
"""

import socket
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from junitparser import Error, Failure, JUnitXml, TestCase, TestSuite

import chaoskit
from chaoskit.engine.doctor import Diagnosis, names_of
from chaoskit.model.wire import Finding
from chaoskit.report import sanitise
from chaoskit.report.doctor import WHOLE, outcome_of


def write(found: Diagnosis, path: Path, experiments: Sequence[str] = ()) -> None:
    """Write the file. Raises OSError."""
    document(found, experiments).write(str(path), pretty=True)


def document(found: Diagnosis, experiments: Sequence[str] = (), hostname: str = "") -> JUnitXml:
    """Return what was found as JUnit XML; `hostname` is this machine's when not given."""
    suite = TestSuite(sanitise.line(f"doctor {found.site}"))
    suite.timestamp = datetime.now(UTC).isoformat(timespec="seconds")
    suite.hostname = sanitise.line(hostname or socket.gethostname())
    facts = {"outcome": str(outcome_of(found)), "site": found.site, "chaoskit": chaoskit.__version__, "experiments": ", ".join(experiments)}
    for name, value in facts.items():
        suite.add_property(name, sanitise.line(value))
    suite.add_testcases([case for place, findings in _places(found) for case in _cases(place, findings)])
    root = JUnitXml(suite.name)
    root.add_testsuite(suite)
    root.update_statistics()
    return root


def _places(found: Diagnosis) -> Iterator[tuple[str, Sequence[Finding]]]:
    yield from found.nodes.items()
    if found.whole:
        yield WHOLE, found.whole


def _cases(place: str, findings: Sequence[Finding]) -> Iterator[TestCase]:
    for check in names_of(findings):
        case = TestCase(sanitise.line(check), sanitise.line(f"chaoskit.doctor.{place.replace('.', '_')}"))
        told = [one for one in findings if one.check == check]
        bad = [one for state in ("defect", "unknown") for one in told if one.state == state]
        if bad:
            message = sanitise.line(f"{place}: {bad[0].says}")
            kind = Failure if bad[0].state == "defect" else Error
            result = kind(message, sanitise.line(check))
            result.text = sanitise.text("\n".join([message, *map(_line, bad)]))
            case.result = result
        if said := "\n".join(_line(one) for one in told if one not in bad and one.says):
            case.system_out = sanitise.text(said)
        yield case


def _line(one: Finding) -> str:
    return f"{one.state}: {one.says}" + (f"\n  -> {one.do}" if one.do else "")
