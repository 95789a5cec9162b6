"""
However pytest ends a test: what it injected is reverted, the verdict is written first, and no failure hides another.

Real pytests of their own on a simulated site: `-x`, `--maxfail`, `pytest.exit`, Ctrl-C, `pytest-timeout` by both of its ways,
`xfail`, a user's fixture that fails behind us, and a killed worker of xdist, which is refused at one site.
"""

import json
import os
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from simulated_site import CONFTEST, INVENTORY

pytestmark = pytest.mark.row("R11", "L25", "L36", "L37")

SUPPORT = Path(__file__).parents[1] / "support"
TESTS = """
import os, pytest, signal, time

def flap(cluster, inject):
    return inject("link_flap", target=cluster.nodes("node2"), rail=1, down="90s")

def test_fails(cluster, training, inject):
    flap(cluster, inject)
    assert training.step < 0, "what the test states"

def test_exits(cluster, training, inject):
    flap(cluster, inject)
    pytest.exit("enough", returncode=7)

def test_interrupted(cluster, training, inject):
    flap(cluster, inject)
    raise KeyboardInterrupt

def test_expects_failure(cluster, training, inject):
    flap(cluster, inject)
    pytest.xfail("we know")

@pytest.mark.timeout(TIMEOUT, method="signal")
def test_takes_too_long(cluster, training, inject):
    flap(cluster, inject)
    time.sleep(60)

@pytest.mark.timeout(TIMEOUT, method="thread")
def test_is_killed_for_it(cluster, training, inject):
    flap(cluster, inject)
    time.sleep(60)

@pytest.mark.timeout(TIMEOUT, method="signal")
def test_reverts_for_long(cluster, training, inject, site):
    flap(cluster, inject)
    undo = site.nodes["node2"].undo
    def slowly(entry):
        time.sleep(LONG)
        undo(entry)
    site.nodes["node2"].undo = slowly

@pytest.fixture
def behind():
    yield
    raise OSError("the fixture behind us")

def test_behind(behind, cluster, training, inject):
    flap(cluster, inject)
    assert training.step < 0, "what the test states"

def test_zz_next(cluster, training, inject):
    open("began", "w").close()
"""


@pytest.fixture
def project(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")]))
    pytester.makeconftest(CONFTEST)
    (pytester.path / "site.yaml").write_text(INVENTORY)
    pytester.makepyfile(test_endings=TESTS.replace("TIMEOUT", "6").replace("LONG", "9"))
    return pytester


class Ended:
    """What a pytest left: its exit code, its JUnit file's words, the journal and the summary of a test's run."""

    def __init__(self, project, name, *args):
        nodes = [f"test_endings.py::{each}" for each in (name, "test_zz_next")]
        self.result = project.runpytest_subprocess("--chaos-inventory", "site.yaml", "--junit-xml=all.xml", *args, *nodes)
        self.text = self.result.stdout.str()
        self.path = project.path
        self.name = name

    @property
    def kinds(self):
        (path,) = self.path.glob(f"runs/*-{self.name}/journal.jsonl")
        return [json.loads(line)["kind"] for line in path.read_text().splitlines()]

    @property
    def summary(self):
        (path,) = self.path.glob(f"runs/*-{self.name}/summary.json")
        return json.loads(path.read_text())

    @property
    def told(self):
        """Return what pytest's own JUnit has of the test: (tag, message) of each entry."""
        cases = [case for case in ET.parse(self.path / "all.xml").iter("testcase") if case.get("name") == self.name]
        return [(child.tag, child.get("message", "")) for case in cases for child in case if child.tag in ("failure", "error", "skipped")]

    @property
    def next_began(self):
        return (self.path / "began").exists()


@pytest.mark.parametrize(
    ("name", "args", "code", "outcome", "next_begins"),
    [
        ("test_fails", (), 1, "FAILED", True),
        ("test_fails", ("-x",), 1, "FAILED", False),
        ("test_fails", ("--maxfail=1",), 1, "FAILED", False),
        ("test_exits", (), 7, "ABORTED", False),
        ("test_interrupted", (), 2, "ABORTED", False),
        ("test_expects_failure", (), 1, "ABORTED", True),
        pytest.param("test_takes_too_long", (), 1, "FAILED", True, marks=pytest.mark.prove),
    ],
)
def test_it_is_reverted_and_judged_before_pytest_tells(project, name, args, code, outcome, next_begins):
    ended = Ended(project, name, *args)

    assert (code, outcome, next_begins) == (ended.result.ret, ended.summary["outcome"], ended.next_began), ended.text
    assert True is ended.summary["injections"][0]["gone"]["holds"]
    assert ended.kinds.index("ended") < ended.kinds.index("verdict")
    assert (list(ended.path.glob(f"runs/*-{name}/junit.xml")) != []) is True


def test_xfail_does_not_hide_what_a_run_harmed(project):
    """Pytest has it as expected to fail, which is green; the run's own error stands beside it."""
    ended = Ended(project, "test_expects_failure")

    assert ["skipped", "error"] == [tag for tag, _ in ended.told]
    assert "ABORTED" in ended.told[1][1]


@pytest.mark.prove
def test_a_time_limit_strikes_behind_the_reverts(project):
    """It struck in the middle of them: they are done, the verdict is whole, and then it fails the test."""
    ended = Ended(project, "test_reverts_for_long")

    assert 1 == ended.result.ret, ended.text
    assert True is ended.summary["injections"][0]["gone"]["holds"]
    assert ("verdict" in ended.kinds, True) == (True, any("Timeout" in message for _, message in ended.told)), ended.told


@pytest.mark.prove
def test_a_killed_pytest_can_be_reported(project):
    """By its other way pytest-timeout ends the process at once: nobody is left but the lease, and the journal says what is owed."""
    ended = Ended(project, "test_is_killed_for_it")

    assert 0 != ended.result.ret
    assert "armed" in ended.kinds
    assert "verdict" not in ended.kinds
    reported = project.run(os.sys.executable, "-c", "from chaoskit.cli.main import entry; entry()", "report", "latest")
    assert (5, "LEAKED") == (reported.ret, ended.summary["outcome"])
    assert list(ended.path.glob(f"runs/*-{ended.name}/junit.xml"))


def test_what_fails_behind_us_stands_beside_the_verdict(project):
    """A fixture of the user's own, torn down after the run: an error of its own, and the failure stays one."""
    ended = Ended(project, "test_behind")

    assert [("failure", True), ("error", True)] == [
        (tag, word in message) for (tag, message), word in zip(ended.told, ("what the test states", "the fixture behind us"), strict=True)
    ]
    assert "FAILED" == ended.summary["outcome"]


def test_workers_that_could_be_killed_are_refused(project):
    """Experiments at one site run one after another: with xdist no run begins, so that no killed worker leaves one."""
    result = project.runpytest_subprocess("--chaos-inventory", "site.yaml", "-n", "1")

    assert pytest.ExitCode.USAGE_ERROR == result.ret
    assert "cannot be used with pytest-xdist" in result.stderr.str()
    assert not (project.path / "runs").exists()
