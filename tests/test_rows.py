"""
`tests/ROWS.md` names the tests of each promise: what trusted systems test of themselves, and what the field suffered.

A test says by `@pytest.mark.row("R5")` which rows it covers. `pytest tests/test_rows.py --update` writes the third column.
"""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
TABLE = TESTS / "ROWS.md"
LINE = re.compile(r"^\| ([RSL]\d+) \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", re.MULTILINE)
KNOWN = [f"{kind}{number}" for kind, last in (("R", 19), ("S", 16), ("L", 50)) for number in range(1, last + 1)]


def rows_in(node):
    """Yield the names in every `pytest.mark.row(...)` inside a piece of syntax; a name is written out, or the table cannot have it."""
    for one in ast.walk(node):
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr == "row":
            for argument in one.args:
                yield argument.value if isinstance(argument, ast.Constant) else f"not written out: {ast.unparse(argument)}"


def marked(body, outer):
    """Yield (test, its rows) of a module's or class's statements: functions, classes, and tests that a call has made."""
    inner = [*outer, *(row for node in body if _assigns(node, "pytestmark") for row in rows_in(node))]
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            of_class = [row for mark in node.decorator_list for row in rows_in(mark)]
            yield from ((f"{node.name}::{test}", rows) for test, rows in marked(node.body, [*inner, *of_class]))
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.name, [*inner, *(row for mark in node.decorator_list for row in rows_in(mark))]
        elif _assigns(node, "Test"):
            yield node.targets[0].id, [*inner, *rows_in(node.value)]


def _assigns(node, start):
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.startswith(start)


def covered():
    """Return row -> the tests that cover it, by their marks."""
    found = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "mark.row(" not in text:
            continue  # and need not be parsed
        for test, rows in marked(ast.parse(text).body, []):
            for row in dict.fromkeys(rows):
                found.setdefault(row, []).append((path.relative_to(TESTS).as_posix(), test))
    return found


def cell(tests):
    """Return the third column: all tests of a row, a number of them where a file has many."""
    files = {}
    for path, test in tests:
        files.setdefault(path, []).append(test)
    return "<br>".join(f"{path}: {', '.join(names) if len(names) <= 4 else f'{len(names)} tests'}" for path, names in files.items())


@pytest.fixture(scope="module")
def marks():
    return covered()


@pytest.fixture(scope="module")
def table(request, marks):
    text = TABLE.read_text(encoding="utf-8")
    if request.config.getoption("--update"):
        text = LINE.sub(lambda line: f"| {line[1]} | {line[2]} | {cell(marks.get(line[1], []))} | {line[4]} |", text)
        TABLE.write_text(text, encoding="utf-8")
    return list(LINE.finditer(text))


def test_the_table_has_every_row_once(table):
    assert [line[1] for line in table] == KNOWN


def test_every_row_has_a_test_or_says_why_not(table):
    assert [] == [line[1] for line in table if not line[3].strip() and not line[4].strip()]


def test_no_mark_names_a_row_that_there_is_not(marks):
    assert sorted(set(marks) - set(KNOWN)) == []


def test_the_table_names_the_tests_that_are_marked(table, marks):
    """What changes the marks changes the table: `pytest tests/test_rows.py --update`."""
    assert {line[1]: line[3].strip() for line in table} == {name: cell(marks.get(name, [])) for name in KNOWN}


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("@pytest.mark.row('R1', 'L2')\ndef test_a(): pass", ["R1", "L2"]),
        ("pytestmark = [pytest.mark.alone, pytest.mark.row('R1')]\n@pytest.mark.row('L2')\ndef test_a(): pass", ["R1", "L2"]),
        ("class TestA:\n    pytestmark = pytest.mark.row('R1')\n    def test_a(self): pass", ["R1"]),
        ("@pytest.mark.row('R1')\nclass TestA:\n    def test_a(self): pass", ["R1"]),
        ("TestA = pytest.mark.row('R1')(machine())", ["R1"]),
        ("@pytest.mark.row(ROW)\ndef test_a(): pass", ["not written out: ROW"]),
        ("def helper():\n    return '@pytest.mark.row(1)'\ndef test_a(): pass", []),
    ],
)
def test_every_way_to_mark_is_read(text, rows):
    [(_, found)] = marked(ast.parse(text).body, [])

    assert found == rows
