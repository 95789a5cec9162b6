"""`tests/TRACK_RECORD.md` keeps the bugs that escaped: what each was, what found it, and the test that it cannot pass again."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.row("R17")

TESTS = Path(__file__).parent
LINES = [line for line in (TESTS / "TRACK_RECORD.md").read_text(encoding="utf-8").splitlines() if re.match(r"\| B\d+ ", line)]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.split()[1])
def test_each_bug_says_what_found_it_and_names_a_test_that_there_is(line):
    _, wrong, found_by, test = (part.strip() for part in line.strip("|").split("|"))
    path, name = test.split("::")

    assert wrong
    assert found_by
    assert re.search(rf"^def {name}\(", (TESTS / path).read_text(encoding="utf-8"), re.MULTILINE)


def test_every_line_of_the_table_is_read_and_has_a_number_of_its_own():
    assert [line.split()[1] for line in LINES] == [f"B{number + 1}" for number in range(len(LINES))]
    assert len(LINES) == sum(line.startswith("| ") for line in (TESTS / "TRACK_RECORD.md").read_text(encoding="utf-8").splitlines()) - 1
