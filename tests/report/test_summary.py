"""The JSON summary."""

import json

from chaoskit.report import summary


def test_the_summary_is_strict_json_that_agrees_with_the_verdict(example, tmp_path):
    """Every way to end gives a file that strict JSON reads back, with the outcome, its exit code and every figure."""
    _, result = example
    path = tmp_path / "summary.json"

    summary.write(result, path)
    read = json.loads(path.read_text(), parse_constant=not_json)

    assert (summary.SCHEMA_VERSION, str(result.verdict.outcome)) == (read["schema_version"], read["outcome"])
    assert result.verdict.outcome.exit_code == read["exit_code"]
    assert set(result.verdict.quantities) == set(read["quantities"])
    assert [budget.name for budget in result.verdict.budgets] == [budget["name"] for budget in read["budgets"]]
    assert result.info.rerun == read["rerun"]


def not_json(name):
    raise AssertionError(f"{name} is not JSON")


def test_moments_count_from_the_start_of_the_run(results):
    """No figure depends on how long the controller had been up."""
    read = summary.document(results["passed"])

    assert 21.004 == read["injections"][0]["t0"]["value"]
    assert 5 == read["baseline"]["start"]
    assert {"value": 0.52, "lo": 0.49, "hi": 0.55, "unit": "share", "beyond": False, "note": ""} == read["quantities"]["throughput_during"]


def test_a_lower_bound_is_not_a_value(results):
    """What never came while we watched has a lower bound and nothing else."""
    read = summary.document(results["died"])["quantities"]["time_to_recover"]

    assert {"value": None, "lo": 300.0, "hi": None, "unit": "s", "beyond": True, "note": ""} == read


def test_what_must_be_felt_stands_beside_what_was(results):
    """An injection that states a step time says it, what was measured, and whether that is as stated; any other says null."""
    measured = {"value": 1.52, "lo": 1.49, "hi": 1.55, "unit": "", "beyond": False, "note": ""}

    assert summary.document(results["stated"])["injections"][0]["expect"] == {
        "step_time": 1.5,
        "within": 0.15,
        "state": "met",
        "measured": measured,
    }
    assert summary.document(results["hidden"])["injections"][0]["expect"]["state"] == "missed"
    assert summary.document(results["passed"])["injections"][0]["expect"] is None


def test_the_phases_are_there_and_foreign_text_is_data(results):
    """The ledger's segments are listed; a node's escapes are not."""
    read = summary.document(results["failed"])

    assert ["detect", "new process", "steady"] == [phase["ends"] for phase in read["phases"]]
    assert "[ [ATTACHMENT|/etc/shadow]]\ufffd" in read["disruptions"][0]["says"]
