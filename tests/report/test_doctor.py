"""What a person and a machine read of a doctor's visit."""

import json
from xml.etree import ElementTree as ET

import pytest

from chaoskit.engine.doctor import Diagnosis
from chaoskit.model.wire import Finding
from chaoskit.report import doctor, doctor_junit, table

OK = tuple(Finding(check, "ok", "well") for check in ("reach", "sudo", "rails", "gpus"))
BLIND = "not looked at, since what comes before it failed"


def well(name, *others):
    """Return the findings of a node, some of which are others."""
    changed = {one.check for one in others}
    return (*(one for one in OK if one.check not in changed), *others)


def no_signal(name):
    return Finding("rails", "defect", f"{name}: eth2 has no signal", "check its cable")


SICK = Diagnosis(
    "staging",
    {
        **{f"n{number}": OK for number in range(1, 63)},
        "n63": well("n63", no_signal("n63"), Finding("gpus", "note", "GPU 3 is in MIG mode")),
        "n64": well("n64", no_signal("n64"), Finding("gpus", "note", "GPU 3 is in MIG mode")),
        "n65": (
            OK[0],
            Finding("sudo", "defect", "`sudo -n` is refused", "put into /etc/sudoers.d/chaoskit: " + "x" * 90),
            Finding("rails", "unknown", BLIND),
            Finding("gpus", "unknown", BLIND),
        ),
    },
    (Finding("planes", "note", "the inventory states no planes", "give each rail its `plane`"),),
)


def shown(found):
    return table.plain([*doctor.table(found), doctor.closing(found)])


def test_a_site_of_many_nodes_stays_readable(golden):
    """Nodes that are alike share a line, and what is wrong with several is told once."""
    text = shown(SICK)

    golden("doctor.txt", text)
    assert len(text.splitlines()) < 20


def test_a_line_to_copy_is_not_broken():
    assert f"-> put into /etc/sudoers.d/chaoskit: {'x' * 90}\n" in shown(SICK)


@pytest.mark.parametrize(
    ("findings", "word", "code"),
    [
        ((), "PASSED", 0),
        ((Finding("gpus", "note", "worth knowing"),), "PASSED", 0),
        ((Finding("gpus", "unknown", "no answer"),), "INCONCLUSIVE", 3),
        ((Finding("gpus", "defect", "lost"),), "INCONCLUSIVE", 3),
        ((Finding("gpus", "defect", "lost"), Finding("leftovers", "defect", "old/1/n1")), "LEAKED", 5),
        ((Finding("leftovers", "unknown", "no answer"),), "INCONCLUSIVE", 3),
    ],
)
def test_the_last_line_the_heading_the_json_and_the_exit_code_agree(findings, word, code):
    found = Diagnosis("site", {"n1": well("n1", *findings), "n2": OK}, ())
    lines, document = shown(found).splitlines(), doctor.document(found)

    assert lines[-1].startswith(f"{word}: ")
    assert lines[0].endswith(word)
    assert (document["outcome"], document["exit_code"], document["ready"]) == (word, code, code == 0)
    assert found.exit_code == code


def test_the_last_line_counts_nodes_and_not_what_could_not_be_looked_at_there():
    """Twelve dead nodes are twelve, and not 204 checks."""
    dead = tuple(Finding(check, "unknown", "no answer") for check in ("reach", "sudo", "rails", "gpus"))
    found = Diagnosis("site", {**{f"n{number}": dead for number in range(1, 13)}, "n13": OK}, ())

    assert shown(found).splitlines()[-1] == "INCONCLUSIVE: site: 12 of 13 nodes could not be looked at in full"


def test_the_json_holds_every_finding_under_a_schema_version():
    document = json.loads(json.dumps(doctor.document(SICK, ["experiments/plane_loss.yaml"])))

    assert (document["schema_version"], document["inventory"], document["defects"], document["unknown"]) == (1, "staging", 3, 2)
    assert document["experiments"] == ["experiments/plane_loss.yaml"]
    assert len(document["nodes"]) == 65
    assert document["nodes"]["n1"][0] == {"check": "reach", "state": "ok", "says": "well", "do": ""}
    assert [(one["check"], one["do"]) for one in document["site"]] == [("planes", "give each rail its `plane`")]


def test_what_a_node_says_steers_no_terminal_and_no_ci():
    evil = Finding("jobs", "defect", "pid 7 of \x1b[2Jeve\n::set-env name=x::y", "[[ATTACHMENT|/etc/passwd]]")
    found = Diagnosis("site", {"n1": well("n1", evil)}, ())

    for text in (shown(found), json.dumps(doctor.document(found))):
        assert "\x1b" not in text
        assert "\\u001b" not in text
        assert "\n::set-env" not in text
        assert "[[ATTACHMENT" not in text


def xml(found, tmp_path):
    """Write the JUnit file and return its testcases by (classname, name)."""
    path = tmp_path / "doctor.xml"
    doctor_junit.write(found, path, ["experiments/plane_loss.yaml"])
    root = ET.parse(path).getroot()
    return {(case.get("classname"), case.get("name")): case for case in root.iter("testcase")}, root.find("testsuite")


def test_in_junit_each_check_of_each_node_is_a_testcase_a_defect_a_failure_and_what_is_unknown_an_error(tmp_path):
    cases, suite = xml(SICK, tmp_path)
    told = {
        kind: sorted(
            f"{place.removeprefix('chaoskit.doctor.')} {name}" for (place, name), case in cases.items() if case.find(kind) is not None
        )
        for kind in ("failure", "error")
    }

    assert told == {"failure": ["n63 rails", "n64 rails", "n65 sudo"], "error": ["n65 gpus", "n65 rails"]}
    assert (len(cases), suite.get("tests"), suite.get("failures"), suite.get("errors")) == (65 * 4 + 1, str(65 * 4 + 1), "3", "2")
    failure = cases["chaoskit.doctor.n63", "rails"].find("failure")
    assert failure.get("message") == "n63: n63: eth2 has no signal"
    assert "-> check its cable" in failure.text


def test_junit_is_red_exactly_when_the_exit_code_is_not_0(tmp_path):
    for findings in ((), (Finding("gpus", "note", "x"),), (Finding("gpus", "unknown", "x"),), (Finding("leftovers", "defect", "x"),)):
        found = Diagnosis("site", {"n1": well("n1", *findings)}, ())
        _, suite = xml(found, tmp_path)
        assert (int(suite.get("failures")) + int(suite.get("errors")) > 0) == (found.exit_code != 0)
    _, suite = xml(Diagnosis("site", {"n1": OK}, (Finding("alike", "defect", "kernel differs"),)), tmp_path)
    assert suite.get("failures") == "1"


def test_what_a_node_says_stays_text_in_junit(tmp_path):
    evil = Finding("jobs", "defect", "pid 7 of \x1b[2Jeve\x00 ]]><x>", "[[ATTACHMENT|/etc/passwd]]")
    cases, _ = xml(Diagnosis("site", {"n1": (evil,)}, ()), tmp_path)
    text = (tmp_path / "doctor.xml").read_text()

    assert "\x1b" not in text
    assert "[[ATTACHMENT|" not in text
    assert cases["chaoskit.doctor.n1", "jobs"].find("failure").find("x") is None
