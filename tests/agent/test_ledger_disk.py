"""The disk under the ledger: no harm without a durable undo, and every part of a ledger says truly what is owed."""

import os
import types

import pytest

from chaoskit.agent import ledger as module
from chaoskit.agent import lines
from chaoskit.agent.ledger import Entry, Ledger, fold
from chaoskit.errors import RefusedError

pytestmark = pytest.mark.row("R3", "R4")

UNDO = {"content": "whole " * 400}
PLAN = Entry("run/1/n1", "run", "toy", {}, UNDO, {"node": "n1"}, holds=[[0.0, 1.0]], boot_id="b")
LIFE = (("armed", {"lease": 5.0}), ("injecting", {"ends": 9.0}), ("injected", {"t0": (1.0, 2.0)}), ("reverted", {"says": "back"}))


class Failing(types.ModuleType):
    """The module `os`, in which the call of this number fails, once or from there on."""

    def __init__(self, number, error, for_ever):
        super().__init__("os")
        self.__dict__.update(os.__dict__)
        self.count = 0
        for name in ("open", "write", "fsync"):
            setattr(self, name, self._failing(getattr(os, name), number, error, for_ever))

    def _failing(self, real, number, error, for_ever):
        def call(*args, **kwargs):
            self.count += 1
            if self.count == number or (for_ever and self.count > number):
                raise OSError(error, os.strerror(error))
            return real(*args, **kwargs)

        return call


def live(directory):
    """Live an entry's life as the agent does; return whether it harmed, and what was refused."""
    ledger = Ledger(directory)
    refused = []
    try:
        ledger.plan(PLAN)
        for state, more in LIFE[:2]:
            ledger.append(PLAN.entry, state, **more)
    except RefusedError as error:
        return False, [str(error)]
    for state, more in LIFE[2:]:
        try:
            ledger.append(PLAN.entry, state, **more)
        except RefusedError as error:
            refused.append(str(error))
    return True, refused


@pytest.mark.parametrize("error", ["ENOSPC", "EIO", "EROFS"])
@pytest.mark.parametrize("for_ever", [False, True])
def test_every_call_that_fails_is_a_refusal_before_harm_or_a_note_after(tmp_path, monkeypatch, error, for_ever):
    """Each open, write and fsync in turn, once and for ever: where there was harm its undo is on the disk and open or proven gone."""
    number, calls = 0, 0
    while number == calls:
        number += 1
        shim = Failing(number, getattr(__import__("errno"), error), for_ever)
        directory = str(tmp_path / f"{number}")
        os.mkdir(directory, 0o700)
        with monkeypatch.context() as patched:
            patched.setattr(module, "os", shim)
            patched.setattr(lines, "os", shim)
            patched.setattr("chaoskit.agent.paths.os", shim)
            harmed, refused = live(directory)
        calls = min(number, shim.count)  # fewer: the life has no call of this number any more
        entry = Ledger(directory).read(PLAN.entry)
        assert all(error in said or os.strerror(getattr(__import__("errno"), error)) in said for said in refused)
        if harmed:
            assert entry.undo == UNDO
            assert entry.open or (entry.state == "reverted")
        else:
            assert refused
    assert calls > 10


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """The bytes of a whole life, longer than several blocks."""
    ledger = Ledger(str(tmp_path_factory.mktemp("node") / "ledger"))
    ledger.plan(PLAN)
    for state, more in LIFE:
        ledger.append(PLAN.entry, state, **more)
    with open(ledger.path(PLAN.entry), "rb") as file:
        return file.read()


def test_every_prefix_is_a_valid_earlier_state(raw):
    """At whatever byte the power went."""
    states = ["planned", *(state for state, _ in LIFE)]
    for cut in range(len(raw) + 1):
        entry = fold(raw[:cut].split(b"\n"))
        whole = (raw[: cut + 1] if raw[cut : cut + 1] == b"\n" else raw[:cut]).count(b"\n")
        assert (entry and entry.state) == (states[whole - 1] if whole else None)
        assert entry is None or entry.undo == UNDO


def test_swapped_blocks_never_give_another_undo(raw):
    """Each pair of 512-byte blocks: what is read is what was written, or nothing, and then the file is named as unreadable."""
    blocks = [raw[at : at + 512] for at in range(0, len(raw), 512)]
    assert len(blocks) > 5
    for one in range(len(blocks)):
        for other in range(one):
            swapped = list(blocks)
            swapped[one], swapped[other] = swapped[other], swapped[one]
            entry = fold(b"".join(swapped).split(b"\n"))
            assert entry is None or entry.undo == UNDO


def test_a_plan_whose_name_did_not_reach_the_disk_harms_nothing(tmp_path, monkeypatch):
    """The folder is fsynced before anything is armed; where that fails, the plan is taken back."""
    ledger = Ledger(str(tmp_path / "ledger"))

    def refuse(path):
        if path == ledger.directory:
            raise OSError(5, "Input/output error", path)

    monkeypatch.setattr(module, "fsync_directory", refuse)
    with pytest.raises(RefusedError, match="Input/output error"):
        ledger.plan(PLAN)
    assert os.listdir(ledger.directory) == []
