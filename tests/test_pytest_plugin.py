"""The pytest plugin, in pytests of their own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

EXPERIMENT = (Path(__file__).parents[1] / "experiments" / "plane_loss.yaml").read_text()
# A port of this machine where nothing listens: every node is refused at once.
UNREACHABLE = """\
name: nowhere
ssh: {user: chaos, port: 9, known_hosts: [known_hosts]}
nodes: {"node[1-4]": {group: workers, gpus: 1, address: "127.0.0.{index}", rails: [{netdev: rail0, plane: A}, {netdev: rail1, plane: B}]}}
trainings: {default: {launcher: attach, log: /var/log/train.log}}
"""


@pytest.fixture
def project(pytester):
    """Return a pytester with one experiment and the inventory of a site that nobody can reach."""
    folder = pytester.mkdir("experiments")
    (folder / "plane_loss.yaml").write_text(EXPERIMENT)
    (pytester.path / "nowhere.yaml").write_text(UNREACHABLE)
    (pytester.path / "known_hosts").write_text("")
    return pytester


def test_without_a_site_experiments_are_skipped_with_the_reason(project):
    """Nothing is injected by accident, and the report says what is missing."""
    result = project.runpytest_subprocess()

    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["1 experiment skipped: no site to run on: give --chaos-inventory FILE*"])
    assert 0 == result.ret


def test_the_site_is_a_file_or_a_name_and_the_environment_is_no_consent(project, monkeypatch):
    """A variable that is set for the commands must not turn a plain test run into harm."""
    (project.mkdir("inventories") / "far.yaml").write_text(UNREACHABLE.replace("[known_hosts]", "[../known_hosts]"))
    result = project.runpytest_subprocess("--chaos-plan", "--chaos-inventory", "far")
    assert 0 == result.ret, result.stdout.str()
    result.stdout.fnmatch_lines(["*experiments/plane_loss.yaml::plane_loss*"])
    monkeypatch.setenv("CHAOSKIT_INVENTORY", "far")

    project.runpytest_subprocess().assert_outcomes(skipped=1)


def test_an_experiment_is_an_item_named_after_its_file(project):
    """Item ids are stable and readable."""
    result = project.runpytest_subprocess("--collect-only", "-q")

    result.stdout.fnmatch_lines(["experiments/plane_loss.yaml::plane_loss"])


def test_other_yaml_files_are_not_ours(project):
    """Another tool's file in a folder `experiments`, and YAML elsewhere, are not collected."""
    (project.path / "experiments" / "hydra.yaml").write_text("lr: 0.1\n")
    (project.path / "config.yaml").write_text("method: GET\n")

    result = project.runpytest_subprocess("--collect-only", "-q")

    assert "hydra" not in result.stdout.str()
    assert "config" not in result.stdout.str()


def test_a_file_named_on_the_command_line_is_taken_anywhere(project):
    """Whoever names a file means it."""
    (project.path / "plane_loss.yaml").write_text(EXPERIMENT)

    result = project.runpytest_subprocess("plane_loss.yaml")

    result.assert_outcomes(skipped=1)


def test_a_broken_experiment_is_an_error_with_every_position(project):
    """Problems are told as by the command line: file, line, column."""
    (project.path / "experiments" / "broken.yaml").write_text("method:\n  - fault: link_flop\n    target: {group: workers}\n")

    result = project.runpytest_subprocess("experiments/broken.yaml", "--chaos-inventory", "nowhere.yaml")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*experiments/broken.yaml:2:12: *link_flop*"])
    assert 1 == result.ret


@pytest.mark.row("L28")
def test_an_unreachable_site_is_an_error_and_not_a_failure(project):
    """Inconclusive is neither green nor a failed recovery, in the terminal and in pytest's own JUnit file; pytest's code stays."""
    result = project.runpytest_subprocess("--chaos-inventory", "nowhere.yaml", "--junit-xml=own.xml", "-rE")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["INCONCLUSIVE: plane_loss: *node1*"])
    assert 1 == result.ret
    suite = ET.parse(project.path / "own.xml").getroot().find("testsuite")
    assert ("1", "0") == (suite.get("errors"), suite.get("failures"))
    properties = {each.get("name"): each.get("value") for each in suite.iter("property")}
    assert "INCONCLUSIVE" == properties["outcome"]
    assert (project.path / properties["run_dir"] / "junit.xml").is_file()


def test_a_missing_inventory_is_told_once(project):
    """A mistyped path is a usage error, with pytest's own code for one, and not an error of every experiment."""
    result = project.runpytest_subprocess("--chaos-inventory", "nowhere")

    assert pytest.ExitCode.USAGE_ERROR == result.ret
    result.stderr.fnmatch_lines(["*--chaos-inventory: no inventory file 'nowhere'*"])


def test_xdist_is_refused(project):
    """Experiments at one site must not run at the same time; pytest says so before anything begins."""
    result = project.runpytest_subprocess("--chaos-inventory", "nowhere.yaml", "-n", "2")

    assert pytest.ExitCode.USAGE_ERROR == result.ret
    result.stderr.fnmatch_lines(["*--chaos-inventory cannot be used with pytest-xdist (-n)*"])


RERUNS = """
def pytest_addoption(parser):
    parser.addoption("--reruns", type=int)
    parser.addoption("--force-reruns", type=int)
    parser.addini("reruns", "")
"""


@pytest.mark.parametrize("args", [["--reruns", "2"], ["--force-reruns", "2"], ["-o", "reruns=2"], ["--reruns", "0", "--force-reruns", "1"]])
def test_reruns_are_refused(project, args):
    """A failed recovery is a finding; running it again until it is green hides it."""
    (project.path / "rerunfailures.py").write_text(RERUNS)

    result = project.runpytest_subprocess("-p", "rerunfailures", "--chaos-inventory", "nowhere.yaml", *args)

    assert pytest.ExitCode.USAGE_ERROR == result.ret
    result.stderr.fnmatch_lines(["*a failed recovery must not be rerun into a green one*"])


@pytest.mark.parametrize("args", [[], ["--reruns", "0", "-o", "reruns=2"]])
def test_no_reruns_are_not_refused(project, args):
    """The plugin may be installed; an option of 0 has precedence over the ini file."""
    (project.path / "rerunfailures.py").write_text(RERUNS)

    project.runpytest_subprocess("-p", "rerunfailures", "--chaos-inventory", "nowhere.yaml", *args).assert_outcomes(errors=1)


@pytest.mark.parametrize("option", ["--setup-only", "--setup-plan"])
def test_what_would_run_and_not_judge_is_refused(project, option):
    """An experiment's run is its set-up."""
    result = project.runpytest_subprocess("--chaos-inventory", "nowhere.yaml", option)

    assert pytest.ExitCode.USAGE_ERROR == result.ret
    result.stderr.fnmatch_lines(["*--chaos-plan shows them*"])
    assert not (project.path / "runs").exists()


def test_sigterm_unwinds_what_runs(project):
    """SIGTERM, which kills a plain pytest on the spot, lets every fixture tear down first, and pytest ends as interrupted."""
    project.makepyfile(
        """
        import pathlib, time, pytest

        @pytest.fixture
        def harm():
            pathlib.Path("harmed").touch()
            yield
            pathlib.Path("reverted").touch()

        def test_long(harm):
            time.sleep(60)
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "--chaos-inventory", "nowhere.yaml", "test_sigterm_unwinds_what_runs.py"],
        cwd=project.path,
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 30
    while not (project.path / "harmed").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGTERM)

    assert pytest.ExitCode.INTERRUPTED == process.wait(30)
    assert (project.path / "reverted").exists()
