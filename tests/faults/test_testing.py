"""The conformance check finds each broken duty, and leaves no harm behind."""

import importlib
import os
import sys
from pathlib import Path

import pytest

from chaoskit.agent.contract import Site
from chaoskit.agent.host import Host
from chaoskit.testing import Bench, ConformanceError, check_fault


@pytest.fixture
def toys(monkeypatch):
    """Return the module of small faults, importable by the check's other process too."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    yield importlib.import_module("toys")
    del sys.modules["toys"]


@pytest.fixture
def bench(tmp_path):
    def snapshot():
        return {entry.name: Path(entry).read_text() for entry in os.scandir(tmp_path) if not entry.name.endswith(".mark")}

    (tmp_path / "file").write_text("content")
    return Bench(Host(Site("node7")), snapshot)


def test_a_sound_fault_passes(toys, bench, tmp_path):
    path = str(tmp_path / "file")

    undo = check_fault(toys.HideFile(path), bench)

    assert undo["path"] == path
    assert os.path.exists(path + ".mark")


BROKEN = {
    "NotADataclass": "it is a frozen dataclass",
    "Undocumented": "it has a docstring",
    "BareField": "every field has a docstring under it",
    "Overlaps": "its spans follow each other",
    "Meddles": "prepare changes nothing",
    "TuplesInTheUndo": "its undo survives JSON",
    "LocksNothing": "it names what it locks",
    "AlwaysWitnessed": "witness is false before inject",
    "NeverGone": "gone is true before inject",
    "Mute": "exposed is evidence",
    "RevertsBlindly": "revert is harmless when inject never ran",
    "DoesNothing": "witness is true after inject",
    "AlwaysGone": "gone is false while a held fault is applied",
    "RemembersInMemory": "gone is true after revert",
    "ForgetsTheHarm": "witness stays true after revert",
    "RevertsTwiceAsMuch": "a second revert is harmless",
}


@pytest.mark.row("L3", "L11", "L13")
@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_duty_is_named(name, toys, bench, tmp_path):
    """And the harm that was done until then is reverted."""
    path = tmp_path / "file"

    with pytest.raises(ConformanceError) as broken:
        check_fault(getattr(toys, name)(str(path)), bench)

    assert broken.value.duty == BROKEN[name]
    assert str(broken.value).startswith("{}: {}: ".format(name, BROKEN[name]))
    assert path.exists()


def test_every_toy_is_tried(toys):
    """A new toy without a line above would prove nothing."""
    names = {name for name, value in vars(toys).items() if isinstance(value, type) and issubclass(value, toys.HideFile)}

    assert names == {*BROKEN, "HideFile"}
