"""The power goes at any moment of an entry's life: what the disk may have kept says truly what is owed."""

import os

import pytest
from forgetful_disk import ForgetfulDisk

from chaoskit.agent import ledger as module
from chaoskit.agent import lines
from chaoskit.agent.ledger import Entry, Ledger, fold

pytestmark = pytest.mark.row("R4")

UNDO = {"content": "whole " * 200}
PLAN = Entry("run/1/n1", "run", "toy", {}, UNDO, {"node": "n1"}, holds=[[0.0, 1.0]], boot_id="b")
BEFORE = (("armed", {"lease": 5.0}), ("injecting", {"ends": 9.0}))
AFTER = (("injected", {"t0": (1.0, 2.0)}), ("reverted", {"says": "back"}))
ALWAYS = ["planned", *(state for state, _ in BEFORE + AFTER)]


class Life:
    """An entry's life on a disk that forgets; at each moment all that a cut of the power could leave is read."""

    def __init__(self, directory, monkeypatch):
        self.disk = ForgetfulDisk(self.read)
        for place in (module, lines):
            monkeypatch.setattr(place, "os", self.disk)
        monkeypatch.setattr("chaoskit.agent.paths.os", self.disk)
        self.ledger = Ledger(directory)
        self.harmed = self.mended = False
        self.moments, self.seen, self.kept = 0, set(), []

    def live(self):
        self.ledger.plan(PLAN)
        for state, more in BEFORE:
            self.ledger.append(PLAN.entry, state, **more)
        self.harmed = True
        for state, more in AFTER:
            self.mended = state == "reverted"
            self.ledger.append(PLAN.entry, state, **more)
        self.read()

    def read(self):
        self.moments += 1
        for number, content in enumerate(self.disk.survivors(self.ledger.path(PLAN.entry))):
            entry = fold(content.split(b"\n")) if content else None
            self.seen.add(entry and entry.state)
            if number % 97 == 0:
                self.kept.append(content)
            assert entry is None or entry.undo == UNDO
            if self.harmed:
                assert entry is not None
                assert entry.open or self.mended


@pytest.fixture
def life(tmp_path, monkeypatch):
    return Life(str(tmp_path / "chaoskit" / "ledger"), monkeypatch)


def test_no_cut_of_the_power_loses_an_undo(life):
    """Bytes that were not synced are kept, torn, dropped or zeros, and the names of file and folders are there or not."""
    life.live()

    assert life.seen == {None, *ALWAYS}
    assert life.moments > 10
    last = list(life.disk.survivors(life.ledger.path(PLAN.entry)))
    assert [fold(content.split(b"\n")).state for content in last] == ["reverted"]


def test_what_was_left_is_gone_on_with(life, tmp_path, monkeypatch):
    """The boot that follows pays and writes that down behind whatever the file ends with."""
    life.live()
    monkeypatch.undo()
    left = [content for content in life.kept if content and fold(content.split(b"\n"))]
    assert len(left) > 5
    for number, content in enumerate(left):
        ledger = Ledger(str(tmp_path / f"{number}"))
        with open(ledger.path(PLAN.entry), "wb") as file:
            file.write(content)

        ledger.append(PLAN.entry, "reverted", says="at boot")

        assert ledger.read(PLAN.entry).state == "reverted"
        assert ledger.open_entries() == []


@pytest.mark.parametrize("forgotten", ["file", "folder", "folder above"])
def test_a_ledger_that_forgets_one_of_its_syncs_is_caught(life, monkeypatch, forgotten):
    """The shim is no decoration: without any one of them there is a cut of the power that loses an undo."""
    whole = life.disk.fsync
    file = life.ledger.path(PLAN.entry)
    unsynced = {"file": file, "folder": os.path.dirname(file), "folder above": os.path.dirname(life.ledger.directory)}[forgotten]
    monkeypatch.setattr(life.disk, "fsync", lambda fd: None if os.readlink(f"/proc/self/fd/{fd}") == unsynced else whole(fd))

    with pytest.raises(AssertionError):
        life.live()
