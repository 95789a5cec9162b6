"""The JUnit file, as its readers read it."""

import shutil
import subprocess
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chaoskit.judge.verdict import BudgetState, Outcome
from chaoskit.report import junit


def written(result, path):
    junit.write(result, path)
    return ET.parse(path).getroot().find("testsuite")


@pytest.mark.row("R15", "L16", "L28")
def test_each_outcome_reads_as_agreed(example, golden):
    """The file of each way to end is the one that a person once read and approved."""
    name, result = example
    root = ET.fromstring(junit.document(result, hostname="controller").tostring())
    ET.indent(root)

    golden(f"junit-{name}.xml", ET.tostring(root, encoding="unicode") + "\n")


def test_red_exactly_when_not_passed(example, tmp_path):
    """The file and the exit code never disagree, and the suite is never empty."""
    _, result = example
    suite = written(replace(result, teardown_errors=()), tmp_path / "junit.xml")
    told = {kind: len(suite.findall(f"testcase/{kind}")) for kind in ("failure", "error", "skipped")}

    assert (result.verdict.outcome is Outcome.PASSED) == (told["failure"] + told["error"] == 0)
    assert (result.verdict.outcome is Outcome.FAILED) == (told["failure"] > 0 and told["error"] == 0)
    assert (str(told["failure"]), str(told["error"]), str(told["skipped"])) == (
        suite.get("failures"),
        suite.get("errors"),
        suite.get("skipped"),
    )
    assert int(suite.get("tests")) == len(suite.findall("testcase")) == 1 + len(result.verdict.budgets)


@pytest.mark.row("L25")
def test_what_went_wrong_after_the_verdict_stands_apart_from_it(example, tmp_path):
    """A testcase of its own, which adds to the other testcases and changes none, and never turns a green file red."""
    _, result = example
    before = written(replace(result, teardown_errors=()), tmp_path / "before.xml")
    after = written(replace(result, teardown_errors=("node2: the training would not end",)), tmp_path / "after.xml")
    (apart,) = [case for case in after.iter("testcase") if case.get("name") == "teardown"]

    assert "node2: the training would not end" in apart.findtext("system-err")
    assert (apart.find("error") is None) == (result.verdict.outcome is Outcome.PASSED)
    assert [_tags(case) for case in after.iter("testcase") if case is not apart] == [_tags(case) for case in before.iter("testcase")]


def _tags(case):
    return case.get("name"), [child.tag for child in case]


def test_every_testcase_has_a_place_and_a_unique_name(example, tmp_path):
    """Names are unique and without random parts; file and line lead into the experiment file."""
    _, result = example
    suite = written(result, tmp_path / "junit.xml")
    cases = suite.findall("testcase")

    assert len(cases) == len({case.get("name") for case in cases})
    for case in cases:
        assert f"chaoskit.{result.info.name}" == case.get("classname")
        assert result.info.file == case.get("file")
        assert int(case.get("line")) >= 1
    for name in ("name", "tests", "failures", "errors", "skipped", "time", "timestamp", "hostname"):
        assert suite.get(name)


def test_a_budget_points_at_its_line(results, tmp_path):
    """An annotation lands on the budget in the YAML."""
    suite = written(results["passed"], tmp_path / "junit.xml")

    assert {"restarts": "14", "settle_time": "15", "lost_steps": "16", "run": "2", "throughput_during": "1"} == {
        case.get("name"): case.get("line") for case in suite.findall("testcase")
    }


def test_a_missed_budget_says_measured_and_limit(results, tmp_path):
    """The message is one line; the text repeats it first, since some readers show only the text, and ends with what to do."""
    failure = written(results["failed"], tmp_path / "junit.xml").find("testcase/failure")

    assert "time_to_steady 41.2 s, at most 30 s" == failure.get("message")
    assert "time_to_steady" == failure.get("type")
    assert failure.text.startswith(failure.get("message") + "\n")
    assert "chaoskit run experiments/rank_kill.yaml --seed 7" in failure.text
    assert "detect 0.6 + new process 4.0" in failure.text


@pytest.mark.row("L37")
def test_failed_set_up_is_one_error(results, tmp_path):
    """Nothing was injected: one error says why, and budgets that were not judged are skipped, not green."""
    suite = written(results["unreachable"], tmp_path / "junit.xml")

    assert ["run"] == [case.get("name") for case in suite.findall("testcase") if case.find("error") is not None]
    assert ["lost_steps"] == [case.get("name") for case in suite.findall("testcase") if case.find("skipped") is not None]
    assert "node3: no connection" in suite.find("testcase/error").get("message")


def test_a_run_without_budgets_is_not_empty(results, tmp_path):
    """Zero budgets still give the testcase `run`."""
    bare = replace(results["passed"], verdict=replace(results["passed"].verdict, budgets=()))

    assert ["run"] == [case.get("name") for case in written(bare, tmp_path / "junit.xml").findall("testcase")]


def test_a_budget_that_comes_twice_gets_a_counter(results, tmp_path):
    """GitLab drops the second testcase of a name."""
    budgets = results["passed"].verdict.budgets
    twice = replace(results["passed"], verdict=replace(results["passed"].verdict, budgets=(budgets[0], budgets[0])))

    names = [case.get("name") for case in written(twice, tmp_path / "junit.xml").findall("testcase")]

    assert ["run", "restarts", "restarts (2)"] == names


@pytest.mark.row("S11")
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.text(st.characters(codec=None), max_size=60))
def test_no_text_breaks_the_file(results, tmp_path, raw):
    """Whatever a node, a file name or a title says, the file parses and its verdict stands."""
    base = results["failed"]
    budget = replace(base.verdict.budgets[0], says=raw)
    info = replace(base.info, name="x" + raw, title=raw, file=raw, positions={}, inventory=raw)
    hostile = replace(base, info=info, verdict=replace(base.verdict, reasons=(raw,), budgets=(budget,)), notes=(raw,))

    suite = written(hostile, tmp_path / "junit.xml")

    assert "1" == suite.get("failures")


@pytest.mark.skipif(shutil.which("xmllint") is None, reason="xmllint is not installed")
def test_libxml_reads_it_too(example, tmp_path):
    """GitLab parses with libxml2, which is stricter than Python."""
    _, result = example
    written(result, tmp_path / "junit.xml")

    done = subprocess.run(["xmllint", "--noout", str(tmp_path / "junit.xml")], capture_output=True, check=False)

    assert (0, b"") == (done.returncode, done.stderr)


def test_measured_and_limit_are_properties(results, tmp_path):
    """Numbers are properties too, for readers that keep them; nothing stands only there."""
    suite = written(results["passed"], tmp_path / "junit.xml")
    told = {each.get("name"): each.get("value") for each in suite.findall("properties/property")}
    first = {each.get("name"): each.get("value") for each in suite.findall("testcase[@name='restarts']/properties/property")}

    assert ("PASSED", "1.8", "2") == (told["outcome"], told["settle_time.lo"], told["settle_time.hi"])
    assert {"measured": "0", "limit": "at most 0"} == first
    assert BudgetState.MET is results["passed"].verdict.budgets[0].state
