"""An entry as it is read back: a field of the wrong type is an error that names the entry, and never half an entry."""

import json

import pytest

from chaoskit.agent.entry import Entry, fold
from chaoskit.errors import ProtocolError

NAMED = {"entry": "run/1/n1", "fault": "toy", "undo": {"content": "whole"}}
PLANNED = {"v": 1, "state": "planned", **NAMED, "holds": [[0.0, 1.0]]}


def folded(*records):
    return fold([json.dumps(record).encode() for record in records])


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("undo", ["whole"], "params, undo and site are objects"),
        ("params", "x", "params, undo and site are objects"),
        ("site", 7, "params, undo and site are objects"),
        ("holds", {"0": 1}, "holds and resources are lists, server is an object"),
        ("resources", "nic:eth0", "holds and resources are lists, server is an object"),
        ("server", [1, 2], "holds and resources are lists, server is an object"),
        ("fault", 7, "fault, run, boot_id and state are texts"),
        ("boot_id", ["b"], "fault, run, boot_id and state are texts"),
        ("lease", "30", "it holds no number where one is expected"),
        ("lease", True, "it holds no number where one is expected"),
        ("planned_at", 1e13, "it holds no number where one is expected"),
        ("holds", [[0.0, "end"]], "it holds no number where one is expected"),
        ("holds", [7], "not iterable"),
        ("t0", [1.0, None], "it holds no number where one is expected"),
        ("state", "forgotten", "unknown state 'forgotten'"),
    ],
)
def test_a_field_of_another_type_is_an_error_that_names_the_entry(field, value, says):
    """A journal's debt comes from a file that anybody may have edited."""
    with pytest.raises(ProtocolError, match=rf"entry 'run/1/n1' cannot be read: .*{says}"):
        Entry.from_json({**NAMED, field: value})


def test_what_a_name_tells_need_not_be_said_twice():
    """The run and the node stand in the entry's name."""
    assert (Entry.from_json(NAMED).run, Entry.from_json(NAMED).site) == ("run", {"node": "n1"})


def test_evidence_that_is_no_object_closes_nothing():
    """A line that says `reverted` with evidence that nobody can read is damage: the entry is owed still."""
    armed = {"v": 1, "state": "armed", "lease": 30.0}
    entry = folded(PLANNED, armed, {"v": 1, "state": "reverted", "evidence": "all well"})

    assert (entry.state, entry.open, entry.damage) == ("armed", True, ["line 3: evidence is no object"])


def test_a_line_of_another_schema_and_one_before_the_plan_are_damage():
    """Neither moves the entry on, and both are named."""
    entry = folded({"v": 1, "state": "armed", "lease": 30.0}, PLANNED, {"v": 2, "state": "reverted"})

    assert entry.state == "planned"
    assert entry.damage == ["line 1: 'armed' before anything was planned", "line 3: schema 2 is not 1"]
