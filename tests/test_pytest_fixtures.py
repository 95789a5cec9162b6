"""Experiments in Python, in pytests of their own, on a simulated site: what each way to end looks like."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from simulated_site import CONFTEST, INVENTORY

SUPPORT = Path(__file__).parent / "support"
FLAP = 'inject("link_flap", target=cluster.group("workers").pick(1, avoid="rendezvous"), rail=1, down="20s")'
YAML = """\
title: A kill is survived
method:
  - {fault: node_kill, target: {group: workers, pick: 1, avoid: [rendezvous]}}
budgets: {lost_steps: 12}
"""


@pytest.fixture
def project(pytester, monkeypatch):
    """Return a pytester whose pytests reach the simulated site."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")]))
    pytester.makeconftest(CONFTEST)
    (pytester.path / "site.yaml").write_text(INVENTORY)
    return pytester


class Ran:
    """What a pytest said: its lines, and its JUnit file."""

    def __init__(self, project, *args):
        self.result = project.runpytest_subprocess("--chaos-inventory", "site.yaml", "--junit-xml=all.xml", *args)
        self.text = self.result.stdout.str()
        root = ET.parse(project.path / "all.xml").getroot()
        self.suite = root.find("testsuite")
        self.cases = {}
        for case in self.suite.findall("testcase"):  # pytest writes a second one for an error beside a failure
            self.cases.setdefault(case.get("name"), []).append(case)
        self.path = project.path

    def kind(self, name):
        """Return how JUnit shows a test: `passed`, `failure`, `error` or `skipped`, or several of them."""
        return "+".join(child.tag for child in self._children(name, "failure", "error", "skipped")) or "passed"

    def told(self, name):
        """Return what JUnit tells of a test that is no success."""
        return "\n".join(f"{child.get('message')}\n{child.text}" for child in self._children(name, "failure", "error"))

    def _children(self, name, *tags):
        return [child for case in self.cases[name] for child in case if child.tag in tags]

    def properties(self, name):
        return {each.get("name"): each.get("value") for case in self.cases[name] for each in case.iter("property")}

    def summary(self, name):
        return json.loads((self.path / self.properties(name)["run_dir"] / "summary.json").read_text())


def test_every_way_to_end(project):
    """One pytest: each test's JUnit, its run's own summary and the terminal say the same."""
    project.makepyfile(
        f"""
        import pytest, unittest

        def test_held(cluster, training, inject, site):
            '''A flap only slows it down.

            Nothing may restart.
            '''
            assert training.await_steady().steps > 20
            with {FLAP} as flap:
                assert site.harmed == list(flap.targets)
                recovery = training.await_recovery(within="2m")
            assert recovery.restarts == 0 and recovery.lost_steps == 0
            assert recovery.throughput_during >= 0.4
            assert recovery.settle_time <= 10
            assert flap.present and flap.exposed and flap.gone

        def test_left_early(cluster, training, inject, site):
            with {FLAP}:
                training.wait("5s")
                assert site.harmed
            assert not site.harmed
            assert training.await_recovery(within="1m").time_to_steady <= 10

        def test_kill(cluster, training, inject):
            inject("node_kill", target=cluster.nodes("node3"))
            recovery = training.await_recovery(within="10m")
            assert 0 < recovery.lost_steps <= training.checkpoint_interval + 1
            assert recovery.restarts == 1
            assert recovery.time_to_recover <= 60

        def test_nobody_waits(cluster, inject, site):
            {FLAP}

        def test_missed(cluster, training, inject):
            with inject("node_kill", target=cluster.nodes("node3")):
                recovery = training.await_recovery(within="10m")
            assert recovery.time_to_recover <= 3

        def test_undecided(cluster, training, inject):
            with inject("node_kill", target=cluster.nodes("node3")):
                recovery = training.await_recovery(within="10m")
            assert recovery.time_to_recover <= recovery.time_to_recover.value

        def test_void(cluster, training, inject, site):
            with {FLAP}:
                training.await_recovery(within="2m")

        def test_void_and_missed(cluster, training, inject, site):
            with {FLAP}:
                assert training.await_recovery(within="2m").time_to_steady <= 1

        def test_leaked(cluster, training, inject, site):
            with {FLAP}:
                training.wait("25s")

        def test_leaked_and_missed(cluster, training, inject, site):
            with {FLAP}:
                training.wait(1)
            assert training.step < 0

        def test_too_many(cluster, training, inject):
            inject("link_flap", target=cluster.nodes("node[2-3]"), rail=1, down="5s")

        @pytest.mark.chaos(blast_radius=2)
        def test_two_are_meant(cluster, training, inject):
            with inject("link_flap", target=cluster.nodes("node[2-3]"), together=True, rail=1, down="5s"):
                assert training.await_recovery(within="1m").restarts == 0

        def test_wrong(cluster, training, inject):
            inject("link_flop", target=cluster.nodes("node2"), down=5)

        def test_hangs(cluster, training, inject, site):
            with inject("link_flap", target=cluster.nodes("node2"), rail=1, down="90s"):
                site.clock.sleep(60)
                assert not site.harmed, "the node has healed itself"
                training.wait(1)

        def test_nothing(cluster, training):
            training.await_steady()

        def test_nowhere(cluster, training, inject):
            inject("link_flap", target=cluster.group("spares").pick(1), rail=1)

        def test_skips(cluster, training, inject, site):
            with {FLAP}:
                pytest.skip("changed my mind")

        def test_checks_each(cluster, training, inject, subtests):
            with {FLAP}:
                training.await_recovery(within="2m")
            for node in ("node1", "node2"):
                with subtests.test(node):
                    assert node == "node2", "node1 is not what is wanted"

        def test_each_undecided(cluster, training, inject, subtests):
            with inject("node_kill", target=cluster.nodes("node3")):
                recovery = training.await_recovery(within="10m")
            with subtests.test():
                assert recovery.time_to_recover <= recovery.time_to_recover.value

        @pytest.fixture
        def held(cluster, training, inject):
            with {FLAP}:
                training.wait(1)
                assert training.step < 0, "the fixture's own claim"
                yield

        def test_set_up(held):
            pass

        @pytest.fixture
        def changed(cluster, training, inject):
            with {FLAP}:
                pytest.skip("changed my mind")

        def test_set_up_skips(changed):
            pass

        class TestCased(unittest.TestCase):
            @pytest.fixture(autouse=True)
            def begin(self, training):
                self.training = training

            def test_cased(self):
                self.assertLess(self.training.step, 0)

        def test_unreachable(cluster, site, request):
            site.unreachable = True
            request.getfixturevalue("training")

        def test_breaks(cluster, training, inject, site):
            with {FLAP}:
                raise KeyError("oops")

        @pytest.mark.chaos(budgets={{"throughput_during": "90%"}})
        def test_budget(cluster, training, inject):
            with {FLAP}:
                training.await_recovery(within="2m")

        @pytest.mark.chaos(blast_radious=2)
        def test_mistyped(training):
            pass

        def test_dies(cluster, training, inject, site):
            inject("link_flap", target=cluster.nodes("node2"), rail=1, down="5s").await_end()
            site.training.dies_at = site.clock.now() + 1
            training.wait("5s")
            inject("link_flap", target=cluster.nodes("node2"), rail=1, down="5s")

        @pytest.mark.volatile
        def test_undeclared(cluster, inject):
            inject("node_kill", target=cluster.nodes("node3"))

        def test_chooses(cluster):
            assert list(cluster.group("workers")) == ["node1", "node2", "node3", "node4"]
            assert cluster.group("workers").pick("50%", avoid=["node1", "node[2-3]"])[0] == "node4"

        @pytest.fixture(autouse=True)
        def as_found(request):
            from simulated_site import SITE
            SITE.idle = "void" in request.node.name
            SITE.never_gone = "leaked" in request.node.name
            yield
            SITE.idle = SITE.never_gone = SITE.unreachable = False
        """
    )
    ran = Ran(project, "-p", "no:cacheprovider")

    kinds = {
        "test_held": ("passed", "PASSED"),
        "test_left_early": ("passed", "PASSED"),
        "test_kill": ("passed", "PASSED"),
        "test_nobody_waits": ("passed", "PASSED"),
        "test_missed": ("failure", "FAILED"),
        "test_undecided": ("error", "INCONCLUSIVE"),
        "test_void": ("error", "INCONCLUSIVE"),
        "test_void_and_missed": ("failure", "FAILED"),
        "test_leaked": ("error", "LEAKED"),
        "test_leaked_and_missed": ("failure+error", "LEAKED"),
        "test_too_many": ("error", "INCONCLUSIVE"),
        "test_two_are_meant": ("passed", "PASSED"),
        "test_wrong": ("error", "INCONCLUSIVE"),
        "test_hangs": ("error", "ABORTED"),
        "test_nothing": ("error", "INCONCLUSIVE"),
        "test_nowhere": ("error", "INCONCLUSIVE"),
        "test_skips": ("skipped+error", "ABORTED"),
        "test_checks_each": ("failure+failure", "FAILED"),
        "test_each_undecided": ("failure+error", "INCONCLUSIVE"),
        "test_set_up": ("error+error", "ABORTED"),
        "test_set_up_skips": ("skipped+error", "ABORTED"),
        "test_unreachable": ("error", "INCONCLUSIVE"),
        "test_breaks": ("failure", "FAILED"),
        "test_budget": ("failure", "FAILED"),
        "test_dies": ("failure", "FAILED"),
        "test_undeclared": ("error", "INCONCLUSIVE"),
    }
    assert kinds == {name: (ran.kind(name), ran.properties(name).get("outcome")) for name in kinds}
    assert {name: outcome for name, (_, outcome) in kinds.items()} == {name: ran.summary(name)["outcome"] for name in kinds}
    for name in kinds:
        assert (ran.path / ran.properties(name)["run_dir"] / "junit.xml").is_file()
    assert ("error", "passed") == (ran.kind("test_mistyped"), ran.kind("test_chooses"))
    assert "a unittest.TestCase cannot be an experiment" in ran.told("test_cased")
    assert {} == ran.properties("test_chooses")
    assert "6 passed" in ran.text.splitlines()[-1]  # an experiment that proved nothing is nowhere called passed
    assert pytest.ExitCode.TESTS_FAILED == ran.result.ret
    says_what_happened(ran)


def says_what_happened(ran):
    """Messages speak of figures, point at the test's own line, and show what happened when."""
    missed = ran.told("test_missed")
    assert re.search(r"time_to_recover 6\.\d+ s ±0\.\d+, and not at most 3", missed.splitlines()[0])
    section = ran.text.partition("= FAILURES =")[2].partition("chaoskit: what happened")[2]
    words = ("steady: 4 steps/s", "node_kill on node3 begins", "detect", "checkpoint loaded", "first step", "lost steps")
    assert sorted(section.index(word) for word in words) == [section.index(word) for word in words]
    lines = (ran.path / "test_every_way_to_end.py").read_text().splitlines()
    line = next(number for number, line in enumerate(lines, 1) if 'nodes("node[2-3]"), rail=1, down="5s"' in line)
    assert f"test_every_way_to_end.py:{line}:1: blast_radius: node[2-3] would be touched" in ran.told("test_too_many")
    assert '@pytest.mark.chaos(blast_radius="all")' in ran.told("test_too_many")
    assert "did you mean link_flap?" in ran.told("test_wrong")
    assert "time_to_recover between" in ran.told("test_undecided")
    assert "void: idle" in ran.told("test_void")
    assert "the lease ended before it was renewed; healed by the node itself" in ran.told("test_hangs")
    assert "did you mean blast_radius?" in ran.told("test_mistyped")
    assert "node2: no answer on port 22" in ran.told("test_unreachable")
    assert "node_kill is irreversible, and the test is marked as volatile" in ran.told("test_undeclared")
    stated = ran.summary("test_held")["experiment"]
    assert ("A flap only slows it down.", "Nothing may restart.") == (stated["title"], stated["why"])


def test_a_run_of_a_test_has_a_report(project):
    """`chaoskit report` works on it as on any other, and tells how to run the test again."""
    wants = "assert training.await_recovery('2m').restarts > 0"
    project.makepyfile(test_missed=f"def test_flap(cluster, training, inject):\n    with {FLAP}:\n        {wants}\n")
    ran = Ran(project, "--chaos-seed", "5")

    command = [sys.executable, "-c", "from chaoskit.cli.main import entry; entry()", "report", "runs/latest"]
    report = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ran.path)

    assert 1 == report.returncode, report.stdout + report.stderr
    assert "FAILED: test_flap: restarts 0, and not more than 0" in report.stdout
    assert "pytest test_missed.py::test_flap --chaos-seed 5 --chaos-inventory site.yaml" in report.stdout


def test_yaml_and_python_share_one_junit_and_are_repeated_alike(project):
    """Three times each: figures with min, median and max at the end and in JUnit; the same seed chooses the same nodes."""
    project.makepyfile(
        test_kills="""
        import pytest

        @pytest.mark.parametrize("node", ["node2", "node3"])
        def test_kill(cluster, training, inject, node):
            inject("node_kill", target=cluster.nodes(node))
            assert training.await_recovery(within="10m").restarts == 1

        def test_other():
            pass
        """
    )
    (project.path / "kill.yaml").write_text(YAML)
    ran = Ran(project, "kill.yaml", "test_kills.py", "--repeat", "3")

    kills = [f"kill[{number}-3]" for number in (1, 2, 3)]
    assert {"passed"} == {ran.kind(name) for name in ran.cases}, ran.text
    assert {*kills, "test_other"} == {name for name in ran.cases if "node" not in name}
    assert 6 == sum("node" in name for name in ran.cases)
    assert re.search(r"^kill, 3 times: 3 PASSED$", ran.text, re.MULTILINE)
    assert re.search(r"^test_kill\[node=node3\], 3 times: 3 PASSED$", ran.text, re.MULTILINE)
    assert re.search(r"^  time to recover +min [\d.]+ s, median [\d.]+ s, max [\d.]+ s$", ran.text, re.MULTILINE)
    assert "repeat.time_to_recover" in ran.properties("kill[3-3]")
    assert 3 == sum("repeat.time_to_recover" in ran.properties(name) for name in ran.cases)
    assert 1 == len({ran.summary(name)["injections"][0]["targets"][0] for name in kills})


def test_experiments_of_one_name_in_two_files_are_told_apart(project):
    """Each file's figures are its own; what shares its name is shown with its file."""
    for folder in ("one", "two"):
        (project.path / folder).mkdir()
        (project.path / folder / "kill.yaml").write_text(YAML)
    ran = Ran(project, "one/kill.yaml", "two/kill.yaml", "--repeat", "2")

    assert re.search(r"^one/kill.yaml::kill, 2 times: 2 PASSED$", ran.text, re.MULTILINE), ran.text
    assert re.search(r"^two/kill.yaml::kill, 2 times: 2 PASSED$", ran.text, re.MULTILINE)
    assert ["repeat.time_to_recover" in [each.get("name") for each in case.iter("property")] for case in ran.cases["kill[2-2]"]] == [
        True
    ] * 2


def test_an_option_repeat_of_the_project_stays_its_own(project):
    """Other projects have one; installing chaoskit must not break them."""
    project.makeconftest(f"{CONFTEST}\ndef pytest_addoption(parser):\n    parser.addoption('--repeat', type=int)\n")
    project.makepyfile("def test_own(request):\n    assert request.config.getoption('repeat') == 7\n")

    project.runpytest_subprocess("--repeat", "7").assert_outcomes(passed=1)


def test_plan_touches_nothing(project):
    """Every experiment's plan is shown, a refused one makes the exit code 1, and no run begins."""
    project.makepyfile(
        test_plan="""
        import pathlib, pytest

        @pytest.mark.chaos(blast_radius="50%", seed=3, budgets={"restarts": 0})
        @pytest.mark.volatile
        def test_flap(cluster, inject):
            \"\"\"A flap only slows it down.\"\"\"
            pathlib.Path("touched").touch()

        def test_other():
            pathlib.Path("touched").touch()
        """
    )
    (project.path / "kill.yaml").write_text(YAML)
    (project.path / "all.yaml").write_text(YAML.replace("pick: 1", "pick: all"))
    files = ("test_plan.py", "kill.yaml", "all.yaml")
    result = project.runpytest_subprocess("--chaos-plan", "--chaos-inventory", "site.yaml", "--chaos-seed", "9", *files)

    result.stdout.fnmatch_lines(
        [
            "A flap only slows it down.",
            "test_flap, seed 9, training default*",
            "budget: restarts at most 0",
            "touches 2 nodes at most; only volatile faults; *",
            "1. 0s after the baseline: node_kill on node*",
            "*all.yaml::all*",
            "refused: *blast_radius: node[[]2-4[]] would be touched*",
            "1 of 3 plans refused: all.yaml::all",
        ]
    )
    assert "test_other" not in result.stdout.str()
    assert 1 == result.ret
    assert not (project.path / "touched").exists()
    assert not (project.path / "runs").exists()


def test_marks_choose(project):
    """Experiment files are marked by what their faults do, and every test that is an experiment as one."""
    project.makepyfile(test_marks="def test_flap(inject): pass\ndef test_other(): pass\n")
    (project.path / "kill.yaml").write_text(YAML)
    (project.path / "flap.yaml").write_text(YAML.replace("node_kill", "link_flap, with: {rail: 1}"))

    def chosen(expression):
        result = project.runpytest_subprocess("--collect-only", "-q", "-m", expression, "test_marks.py", "kill.yaml", "flap.yaml")
        return {line.rpartition("::")[2] for line in result.outlines if "::" in line}

    assert {"kill", "flap", "test_flap"} == chosen("chaos")
    assert {"kill"} == chosen("irreversible")
    assert {"flap"} == chosen("volatile")


def test_without_a_site_they_are_skipped_with_the_reason(project):
    """Nothing is injected by accident."""
    project.makepyfile("def test_flap(cluster, training, inject): pass\n")
    result = project.runpytest_subprocess("-rs")

    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*no site to run on: give --chaos-inventory FILE*"])


@pytest.mark.row("R11", "L36")
def test_a_signal_reverts_and_ends_pytest(project):
    """SIGTERM in a test's own code: the fault is gone, the run is aborted, no other test begins, and JUnit tells it."""
    project.makepyfile(
        """
        import os, signal

        def test_ended(cluster, training, inject, site):
            with inject("link_flap", target=cluster.nodes("node2"), rail=1, down="90s"):
                assert site.harmed
                os.kill(os.getpid(), signal.SIGTERM)
                training.wait("60s")

        def test_never(cluster, training, inject):
            assert False
        """
    )
    ran = Ran(project)

    assert pytest.ExitCode.INTERRUPTED == ran.result.ret, ran.text
    assert ("error", "ABORTED") == (ran.kind("test_ended"), ran.properties("test_ended")["outcome"])
    assert "ended by SIGTERM" in ran.told("test_ended")
    assert "test_never" not in ran.cases
    assert True is ran.summary("test_ended")["injections"][0]["gone"]["holds"]


SIGNALS = """
import os, pathlib, pytest, signal
from contextlib import suppress

def struck(number=signal.SIGTERM):
    os.kill(os.getpid(), number)

@pytest.fixture
def struck_and_failing(training):
    struck()
    assert False, "nobody asked for the signal"

@pytest.fixture
def hangs_before(training):
    struck()
    struck(signal.SIGINT)
    pathlib.Path("goes_on").touch()

@pytest.fixture
def hangs_after(training):
    yield
    struck()
    pathlib.Path("goes_on").touch()

def test_fixture_fails(struck_and_failing):
    pass

def test_fixture_hangs(hangs_before):
    pass

def test_teardown_hangs(cluster, hangs_after, inject):
    with inject("link_flap", target=cluster.nodes("node2"), rail=1, down="5s"):
        pass

def test_caught(cluster, training, inject):
    with inject("link_flap", target=cluster.nodes("node2"), rail=1, down="5s"):
        with suppress(Exception):
            struck()
            pathlib.Path("goes_on").touch()

def test_caught_twice(cluster, training, inject):
    with inject("link_flap", target=cluster.nodes("node2"), rail=1, down="90s"):
        with suppress(Exception):
            struck()
        struck()
        pathlib.Path("goes_on").touch()

def test_while_it_reverts(cluster, training, inject, monkeypatch):
    inject("link_flap", target=cluster.nodes("node2"), rail=1, down="5s").await_end()
    training.await_recovery(within="1m")
    closing = type(training._driver.session).conclude
    monkeypatch.setattr(type(training._driver.session), "conclude", lambda session: (closing(session), struck()))

def test_zz_never(cluster, training, inject):
    pathlib.Path("goes_on").touch()
"""


@pytest.mark.row("R11", "L36")
@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("test_fixture_fails", "ABORTED"),
        ("test_fixture_hangs", "ABORTED"),
        ("test_teardown_hangs", "PASSED"),
        ("test_caught", "ABORTED"),
        ("test_caught_twice", "ABORTED"),
        ("test_while_it_reverts", "PASSED"),
    ],
)
def test_no_signal_is_lost(project, name, outcome):
    """
    It ends pytest, and nothing else is injected.

    Whether it strikes a fixture that fails or hangs, a test that catches what it raises, or the reverts.
    """
    project.makepyfile(test_signals=SIGNALS)
    args = ("--chaos-inventory", "site.yaml", f"test_signals.py::{name}", "test_signals.py::test_zz_never")
    result = project.runpytest_subprocess(*args)

    assert pytest.ExitCode.INTERRUPTED == result.ret, result.stdout.str()
    assert not (project.path / "goes_on").exists()
    (path,) = project.path.glob(f"runs/*-{name}/summary.json")
    summary = json.loads(path.read_text())
    assert outcome == summary["outcome"]
    assert (outcome == "ABORTED") == ("aborted: ended by SIGTERM" in summary["reasons"])
    assert all(each["gone"]["holds"] for each in summary["injections"])


def test_an_interrupt_before_anything_began_leaves_a_verdict(project):
    """Ctrl-C on the way to the nodes: pytest ends as interrupted, and the run says why there is nothing in it."""
    project.makepyfile(
        """
        import pytest
        from simulated_site import SITE

        @pytest.fixture
        def before():
            SITE.interrupted = True

        def test_never(before, cluster, training, inject):
            assert False
        """
    )
    result = project.runpytest_subprocess("--chaos-inventory", "site.yaml")

    assert pytest.ExitCode.INTERRUPTED == result.ret, result.stdout.str()
    (summary,) = project.path.glob("runs/*-test_never/summary.json")
    assert "ABORTED" == json.loads(summary.read_text())["outcome"]


def test_reruns_by_a_mark_are_refused(project):
    """What pytest-rerunfailures reruns by a mark is refused like its option."""
    fake = "def pytest_sessionstart(session):\n    session.config.pluginmanager.register(object(), 'rerunfailures')\n"
    project.makeconftest(f"{CONFTEST}\n{fake}")
    project.makepyfile("import pytest\n@pytest.mark.flaky(reruns=2)\ndef test_flap(inject): pass\n")
    result = project.runpytest_subprocess("--chaos-inventory", "site.yaml")

    assert pytest.ExitCode.USAGE_ERROR == result.ret
    result.stderr.fnmatch_lines(["*marked `flaky`: a failed recovery must not be rerun into a green one*"])


@pytest.mark.prove
def test_nothing_more_begins_once_the_site_has_lost_what_it_may(project):
    """A node that leaked is lost; experiments of both kinds count, and a budget that is not spent ends nothing."""
    project.makepyfile(
        test_it=f"""
        import pytest

        @pytest.fixture(autouse=True)
        def leaking(site):
            site.never_gone = True

        @pytest.mark.chaos(seed=1)
        def test_first(cluster, training, inject):
            {FLAP}

        @pytest.mark.chaos(seed=3)
        def test_second(cluster, training, inject):
            {FLAP}

        def test_third(cluster, training, inject):
            {FLAP}
        """
    )
    some, one = Ran(project, "--chaos-lose-at-most", "9"), Ran(project, "--chaos-lose-at-most", "1")

    assert ["test_first", "test_second", "test_third"] == list(some.cases)
    assert ["test_first"] == list(one.cases)
    one.result.stdout.fnmatch_lines(["*1 node is lost (node?), and no more than 1 may be: mend what is lost first*"])
    wrong = project.runpytest_subprocess("--chaos-inventory", "site.yaml", "--chaos-lose-at-most", "0")
    wrong.stderr.fnmatch_lines(["*--chaos-lose-at-most: give a number from 1*"])
