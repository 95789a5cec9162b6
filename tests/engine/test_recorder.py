"""What stands in a journal: no secret, but for what an undo needs, which is worth nothing unless it stands there as it is."""

import pytest
from simulated import SimClock

from chaoskit.engine.journal import Journal, read
from chaoskit.engine.recorder import Recorder
from chaoskit.model import secrets


@pytest.fixture
def hidden(monkeypatch):
    """Hide the folder of the checkpoints, as a variable called CHECKPOINT_KEY would."""
    monkeypatch.setattr(secrets, "_hidden", set())
    secrets.hide({"CHECKPOINT_KEY": "/mnt/ckpt"})


@pytest.mark.row("R2")
@pytest.mark.usefixtures("hidden")
def test_what_a_revert_needs_is_written_as_it_is_though_a_secret_looks_alike(tmp_path):
    """On a node without a disk the journal is the only copy; a folder that is called hidden there is undone nowhere."""
    book = Journal(tmp_path)
    recorder = Recorder(book, SimClock(), lambda event: None)
    needs = {"undo": {"directory": "/mnt/ckpt/llama"}, "params": {"path": "/mnt/ckpt"}, "site": {"training": {"checkpoints": "/mnt/ckpt"}}}
    recorder.record("planned", {"entry": "r/1/n1", "number": 1, "node": "n1", "fault": "slow", **needs, "detail": "fills /mnt/ckpt"})
    recorder.record("teardown", {"why": "/mnt/ckpt is full"})
    book.close()

    planned, teardown = read(tmp_path).records
    assert {name: planned[name] for name in needs} == needs
    assert recorder.state.entries["r/1/n1"].undo == needs["undo"]
    assert (planned["detail"], teardown["why"]) == ("fills [hidden]", "[hidden] is full")
