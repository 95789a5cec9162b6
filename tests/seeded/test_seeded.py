"""
Seeded bugs: each patch in this folder makes one promise a lie, and the test that it names must say so.

A suite that stays green over a planted bug is a suite that tests nothing. Each patch begins with two lines, `Bug:` and
`Caught by:` with the id of one test. A patch that no longer applies has to be written anew, for the same bug.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PATCHES = sorted(HERE.glob("*.patch"))
ENOUGH = 20
COPIED = ("chaoskit", "experiments", "inventories", "tests", "pyproject.toml", "README.md", "CONTRIBUTING.md")
LONGEST = 300
"""Seconds for a named test on a bad day; it takes a tenth of that."""

pytestmark = pytest.mark.row("R16")

each = pytest.mark.parametrize("patch", PATCHES, ids=[patch.stem for patch in PATCHES])


def said(patch, what):
    """Return what a line of a patch's head says."""
    [line] = re.findall(rf"^{what}: (\S.*)$", patch.read_text(encoding="utf-8").partition("\ndiff ")[0], re.MULTILINE)
    return line


NAMED = list(dict.fromkeys(said(patch, "Caught by") for patch in PATCHES))


def apply(patch, tree, *options):
    # One line beside each change may be another by now.
    return subprocess.run(["git", "apply", "-C1", *options, patch], cwd=tree, capture_output=True, text=True, check=False)


def run(tree, *ids, compiled=False):
    """Run tests on a copy of the project; nothing of the original is imported, and nothing compiled of a bug stays behind."""
    # What this session's own pytest put into the environment is nothing to the one below.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**inherited, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "" if compiled else "1"}
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", *ids]
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False, timeout=LONGEST * len(ids))


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """Return a copy of the project for all patches in turn, compiled so far as the named tests need it."""
    tree = tmp_path_factory.mktemp("seeded")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, tree)
    found = run(tree, "--collect-only", *NAMED, compiled=True)
    assert found.returncode == 0, found.stdout[-3000:]
    return tree


@pytest.fixture
def with_bug(copy, patch):
    """Return the copy with the bug of the test's patch in it, as that was when the copy was made."""
    patch = copy / patch.relative_to(ROOT)
    done = apply(patch, copy)
    assert done.returncode == 0, done.stderr
    yield copy
    assert apply(patch, copy, "--reverse").returncode == 0


def test_there_are_enough_of_them():
    """And each is another bug; most are caught by a test of their own."""
    assert len({said(patch, "Bug") for patch in PATCHES}) == len(PATCHES) >= ENOUGH
    assert len(NAMED) > len(PATCHES) * 0.8


@each
def test_a_seeded_bug_still_fits_the_code(patch):
    path, name = re.fullmatch(r"(tests/[\w/]+\.py)::(test_\w+)(?:\[.*\])?", said(patch, "Caught by")).groups()
    assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")
    done = apply(patch, ROOT, "--check")
    assert done.returncode == 0, done.stderr


@pytest.mark.prove
@pytest.mark.alone
def test_without_a_bug_every_named_test_passes(copy):
    done = run(copy, *NAMED)

    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.prove
@pytest.mark.alone
@each
def test_a_seeded_bug_is_caught_by_the_test_that_it_names(patch, with_bug):
    """It passes on the code as it is (above), and fails as soon as the bug is in it: by a failure, and by no error beside it."""
    bad = run(with_bug, said(patch, "Caught by"))

    assert bad.returncode == 1, bad.stdout[-3000:]
    assert re.match(r"\d+ failed(?!.* error)", bad.stdout.splitlines()[-1]), bad.stdout[-3000:]
