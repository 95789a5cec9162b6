"""
What must happen sometimes: every error, every outcome and every state of a ledger is seen by some test, or nobody tries it.

That each record of ledger and journal is a point at which somebody is stopped, the crash matrix finds out by itself: see
`unreached` in `tests/matrix/cases.py`.
"""

import ast
import re
from pathlib import Path

import pytest

from chaoskit import errors
from chaoskit.agent.entry import MARKS, STATES
from chaoskit.judge.verdict import BudgetState, Outcome

pytestmark = pytest.mark.row("R15")

TESTS = Path(__file__).parent
TEXTS = {
    path.relative_to(TESTS).as_posix(): path.read_text(encoding="utf-8") for path in TESTS.rglob("*.py") if path.name != Path(__file__).name
}
ERRORS = [name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.ChaosError)]

SEEN_BY = {"LeakedError": "not healed at boot"}
"""An error that ends a process of its own is seen by its words."""


def expectations():
    """Yield what tests compare with, and what they expect to be raised."""
    for text in TEXTS.values():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("raises"):
                yield from (ast.unparse(argument) for argument in node.args)
            elif isinstance(node, (ast.Assert, ast.Compare)):
                yield ast.unparse(node)


@pytest.fixture(scope="module")
def expected():
    return "\n".join(expectations())


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_is_expected_somewhere(expected, name):
    assert re.search(rf"\b{SEEN_BY.get(name, name)}\b", expected)


@pytest.mark.parametrize("outcome", [*Outcome, *BudgetState], ids=str)
def test_every_outcome_is_expected_of_the_judge(outcome):
    judged = "\n".join(text for name, text in TEXTS.items() if name.startswith("judge/"))
    assert f"{type(outcome).__name__}.{outcome.name}" in judged


@pytest.mark.parametrize("state", [*STATES, *MARKS])
def test_every_state_of_a_ledger_is_looked_for(state):
    assert any(f'"{state}"' in text for name, text in TEXTS.items() if name.startswith("agent/"))
