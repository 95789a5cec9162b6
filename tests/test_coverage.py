"""
What must never err has a test for each of its branches: ledger, lease, protocol, journal, judge, and what cleans foreign text.

Each part is measured by the tests of its own folder alone, so that a branch is not called tested because a run of the whole
happened to pass through it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.row("R18"), pytest.mark.prove]

ROOT = Path(__file__).parents[1]
LONGEST = 1800
"""Seconds for the tests of a part on a bad day; they take a twentieth of that."""

PARTS = {
    "agent": (
        *(f"chaoskit/agent/{name}.py" for name in ("ledger", "entry", "lines", "lease", "protocol")),
        *(f"tests/agent/test_{name}.py" for name in ("ledger", "ledger_disk", "entry", "lines", "lease", "protocol", "debts", "node")),
    ),
    "journal": (
        *(f"chaoskit/engine/{name}.py" for name in ("journal", "replay", "state")),
        *(f"tests/engine/test_{name}.py" for name in ("journal", "journal_damage", "state", "run", "leftovers")),
    ),
    "judge": ("chaoskit/judge/*", "tests/judge"),
    "sanitiser": (
        *("chaoskit/report/sanitise.py", "chaoskit/report/quote.py", "chaoskit/model/secrets.py"),
        *(f"tests/report/test_{name}.py" for name in ("sanitise", "quote", "secrets")),
    ),
}


def not_covered(folder, modules, tests):
    """Run tests under coverage; return the files that were measured, and of each what no test went through."""
    settings = folder / "rc"
    # Names that only the type checker imports are for no test to reach.
    head, tail = "[run]\nbranch = True\ninclude =\n    ", "\n[report]\nexclude_also = if TYPE_CHECKING:\n"
    settings.write_text(head + "\n    ".join(modules) + tail)
    # What this session's own pytest put into the environment is nothing to the one below.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**inherited, "COVERAGE_FILE": str(folder / "data"), "COVERAGE_RCFILE": str(settings)}

    def coverage(*words):
        argv = [sys.executable, "-m", "coverage", *words]
        done = subprocess.run(argv, cwd=ROOT, env=environment, check=False, capture_output=True, text=True, timeout=LONGEST)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    coverage("run", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not (prove or cluster or alone)", *tests)
    coverage("json", "-q", "-o", str(folder / "found.json"))
    files = json.loads((folder / "found.json").read_text())["files"]
    missing = {name: (one["missing_lines"], one["missing_branches"]) for name, one in files.items()}
    return sorted(files), {name: lacks for name, lacks in missing.items() if lacks != ([], [])}


@pytest.mark.parametrize("part", PARTS)
def test_every_branch_has_a_test_of_its_own_folder(tmp_path, part):
    """All of them: a branch that no test takes is one that nobody knows."""
    modules = [path for path in PARTS[part] if path.startswith("chaoskit/")]
    measured, lacking = not_covered(tmp_path, modules, [path for path in PARTS[part] if path.startswith("tests/")])

    assert lacking == {}
    meant = {path.relative_to(ROOT).as_posix() for pattern in modules for path in ROOT.glob(pattern) if path.suffix == ".py"}
    assert set(measured) == meant


def test_what_no_test_takes_is_found(tmp_path):
    """Or the hundred per cent above would say nothing: of one test of lines alone, the writer is left over."""
    _, lacking = not_covered(tmp_path, ["chaoskit/report/quote.py", "chaoskit/report/sanitise.py"], ["tests/report/test_quote.py"])

    assert "chaoskit/report/sanitise.py" in lacking
