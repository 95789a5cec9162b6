"""Names that become paths on the controller: a run's, a node's, a job's, and those that a node sends. None leads out of its folder."""

import json
import os
import sys
from pathlib import Path

import pytest
from escapes import ESCAPES, MARK
from simulated import SimClock, SimFleet, SimNode, Slow

from chaoskit.engine.audit import Ground
from chaoskit.engine.heal import heal
from chaoskit.engine.journal import Journal
from chaoskit.engine.remembered import remembered
from chaoskit.errors import InputError
from chaoskit.model.load import inventory_from
from chaoskit.model.yaml_source import parse_source
from chaoskit.training.command import _id_in
from chaoskit.training.placeholders import fill
from chaoskit.wiring import new_run_dir

pytestmark = pytest.mark.row("S4")

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGES = {
    **dict.fromkeys(("os.mkdir", "os.remove", "os.rmdir", "os.truncate"), 1),
    **dict.fromkeys(("os.rename", "os.link", "os.symlink"), 2),
}
"""Events of the interpreter's audit, and how many paths each begins with."""


class Written:
    """What this process makes, changes, renames or removes, by the interpreter's own audit."""

    def __init__(self):
        self.on = False
        self.paths = []
        sys.addaudithook(self._hear)

    def _hear(self, event, args):
        if self.on and event == "open" and isinstance(args[0], str | bytes) and args[2] & WRITES:
            self.paths.append(os.fsdecode(args[0]))
        elif self.on and event in CHANGES:
            self.paths += map(os.fsdecode, args[: CHANGES[event]])


@pytest.fixture(scope="module")
def written():
    found = Written()
    yield found
    found.on = False


def test_there_are_thirty_escapes():
    assert len(set(ESCAPES)) == len(ESCAPES) >= 30


@pytest.mark.parametrize("name", ESCAPES)
def test_a_run_its_log_and_its_checkpoints_lie_in_their_folders(tmp_path, name):
    """Whatever an experiment's file is called: `{run}` is the name of its directory."""
    made = new_run_dir(tmp_path / "runs", name)

    assert made.resolve().parent == (tmp_path / "runs").resolve()
    for pattern in ("/mnt/checkpoints/{run}", "/var/log/{run}"):
        assert os.path.dirname(os.path.normpath(fill(pattern, run=made.name))) == os.path.dirname(pattern)


@pytest.mark.parametrize("name", ESCAPES)
def test_a_job_names_no_other_folder(name):
    """What a site's command prints is an id, or an error."""
    job = _id_in(name)

    assert job == "" or os.path.normpath(f"/logs/{job}") == f"/logs/{job}"


@pytest.mark.parametrize("name", ESCAPES)
def test_a_node_names_no_other_folder(name):
    """`{node}` stands in a training's arguments, and a node's name in the ledger's files."""
    site = {"name": "s", "nodes": {name: {"group": "workers", "gpus": 1}}, "trainings": {"default": {"launcher": "attach", "log": "/l"}}}
    try:
        nodes = inventory_from(parse_source(json.dumps(site).encode(), "i.yaml")).nodes
    except InputError:
        return
    assert all("/" not in node and node.strip(".") for node in nodes)


@pytest.mark.parametrize("name", ESCAPES)
def test_what_a_node_says_that_it_owes_is_written_down_in_the_runs_own_folder(tmp_path, written, name):
    """A node names entries and runs as it likes; `heal` finds journals by looking for them, and adds to those alone."""
    runs = tmp_path / "runs"
    (runs / "old").mkdir(parents=True)
    book = Journal(runs / "old")
    book.append("run", 5.0, {"run": "old", "planned": [], "inventory": "sim"})
    entry = f"{name}/1/n1"
    undo = {"number": 1, "node": "n1", "fault": "slow", "params": {}, "undo": {"was": "fast"}}
    book.append("planned", 6.0, {"entry": entry, **undo})
    book.append("armed", 6.0, {"entry": entry})
    book.close()
    node = SimNode("n1", SimClock(), {"slow": Slow})
    fleet = SimFleet({"n1": node})
    agent = fleet.connect(["n1"])["n1"]
    for step in (lambda: agent.prepare(name, entry, "slow", {}, None), lambda: agent.arm(entry, 1e9), lambda: agent.inject(entry, None)):
        step()
    written.paths.clear()
    written.on = True
    try:
        heal(fleet, Ground(("n1",), "sim", runs))
    finally:
        written.on = False

    assert not node.slow
    assert remembered(runs, None) == {}
    assert {os.path.realpath(path) for path in written.paths} == {os.path.realpath(runs / "old" / "journal.jsonl")}
    assert not list(Path(tmp_path).rglob(f"*{MARK}*"))
