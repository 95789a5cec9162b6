"""The gate's second look at a test that failed, by the very functions of `dev`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
ONCE = """
from pathlib import Path

def test_{name}():
    seen = Path("{name}.seen")
    known = seen.exists()
    seen.touch()
    assert known
"""
NEVER = "def test_never(): assert False\n"


@pytest.fixture
def phase(tmp_path):
    """Return a function that runs a phase of the suite over some tests, and returns its exit code and what it said."""
    functions = "\n".join(
        re.search(rf"^{name}\(\) {{.*?}}$", (TOP / "dev").read_text(), re.MULTILINE | re.DOTALL)[0]
        for name in ("say", "phase", "second_look")
    )

    def phase(text, command="test"):
        (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow: takes long\n")
        (tmp_path / "test_these.py").write_text(text)
        script = f"set -euo pipefail\nbin={Path(sys.executable).parent}\ncommand={command}\n{functions}\nphase 'not slow'"
        done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    return phase


def test_what_passes_is_not_looked_at_again(phase):
    code, said = phase("def test_fine(): pass\n")

    assert code == 0
    assert said.count("test session starts") == 1


def test_what_failed_among_others_may_pass_by_itself_and_is_told(phase):
    code, said = phase(ONCE.format(name="one") + ONCE.format(name="two") + "def test_fine(): pass\n")

    assert code == 0
    assert "== 2 failed among others: once more, by themselves" in said
    assert "2 passed" in said
    assert "== they passed by themselves: still a defect" in said


def test_what_fails_by_itself_too_fails_the_gate(phase):
    code, said = phase(ONCE.format(name="one") + NEVER)

    assert code == 1
    assert "they passed by themselves" not in said


@pytest.mark.parametrize(
    ("text", "command", "expected"),
    [
        pytest.param("".join(ONCE.format(name=f"n{number}") for number in range(4)), "test", 1, id="four at once are no chance"),
        pytest.param(ONCE.format(name="one"), "prove", 1, id="a race has to show under prove"),
        pytest.param("import nothing_of_that_name\n", "test", 2, id="what cannot be collected"),
        pytest.param("", "test", 5, id="no test at all"),
    ],
)
def test_nothing_else_is_looked_at_again(phase, text, command, expected):
    code, said = phase(text, command)

    assert code == expected
    assert said.count("test session starts") == 1
