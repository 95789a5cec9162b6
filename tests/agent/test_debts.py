"""Paying what is owed: newest first, everyone gets a turn, and nothing is called paid that was not read back."""

import importlib.util
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from chaoskit.agent.contract import Site
from chaoskit.agent.debts import audit, heal, open_entries
from chaoskit.agent.host import Host
from chaoskit.agent.identity import Process
from chaoskit.agent.ledger import Entry, Ledger
from chaoskit.errors import RefusedError

TOY = Path(__file__).parent / "toys" / "toy_file.py"


class Toys:
    """A registry that carries the toy alone."""

    def __init__(self):
        spec = importlib.util.spec_from_file_location("toy_file", TOY)
        module = importlib.util.module_from_spec(spec)
        sys.modules["toy_file"] = module
        spec.loader.exec_module(module)
        self.kind = module.ToyFile

    def make(self, name, params):
        if name != "toy_file":
            raise RefusedError(f"no fault {name}")
        return self.kind(**params)


@pytest.fixture
def toys():
    yield Toys()
    del sys.modules["toy_file"]


@pytest.fixture
def host():
    return Host(Site("n1"))


@pytest.fixture
def ledger(tmp_path):
    return Ledger(str(tmp_path / "ledger"))


@pytest.fixture
def owe(ledger, host, tmp_path):
    """Return a function that writes an injected entry, with its harm, and returns the harmed file."""
    count = 0

    def make(*, boot_id=None, lifetime="V", fault="toy_file", **params):
        nonlocal count
        count += 1
        path = tmp_path / f"file{count}"
        path.write_text("harmed")
        name = f"run/{count}/n1"
        params = {"path": str(path), **params}
        undo = {"content": "whole", "harms": 0}
        plan = Entry(
            name,
            "run",
            fault,
            params,
            undo,
            {"node": "n1"},
            boot_id or host.boot_id(),
            holds=[[0.0, 9.0]],
            lifetime=lifetime,
            planned_at=count,
        )
        ledger.plan(plan)
        ledger.append(name, "armed", lease=1.0)
        ledger.append(name, "injected", t0=(1.0, 2.0))
        return path

    return make


@pytest.mark.row("R12", "L15")
def test_the_newest_is_paid_first_and_every_debt_gets_its_turn(ledger, toys, host, owe):
    """One that raises, one that this agent does not know: the others are paid all the same."""
    paths = [owe(), owe(trouble="revert"), owe(fault="unknown"), owe()]

    paid = heal(ledger, toys, host, None, [])

    assert [one.entry for one in paid] == [f"run/{number}/n1" for number in (4, 3, 2, 1)]
    assert [one.healed for one in paid] == [True, False, False, True]
    assert [path.read_text() for path in paths] == ["whole", "harmed", "harmed", "whole"]
    assert [entry.entry for entry in open_entries(ledger, toys, host.boot_id())] == [f"run/{number}/n1" for number in (2, 3)]


@pytest.mark.row("R12", "L3", "L4")
@pytest.mark.prove
def test_what_is_never_read_back_is_never_called_paid(ledger, toys, host, owe):
    """The revert ran and the file is whole, but the proof never comes: it stays a debt (after all the patience there is)."""
    path = owe(trouble="gone")

    assert [one.healed for one in heal(ledger, toys, host, None, [])] == [False]
    assert path.read_text() == "whole"
    assert [debt["entry"] for debt in audit(ledger, toys, host)["debts"]] == ["run/1/n1"]


@pytest.mark.row("R12", "L24")
def test_a_revert_that_hangs_keeps_nobody_waiting(ledger, toys, host, owe):
    """It gets its turn, is called unpaid, and the next debt is paid; the journal's debts too."""
    older, hanging = owe(), owe(trouble="hang")
    journal = [{"entry": "run/9/n1", "fault": "toy_file", "params": {"path": str(hanging), "trouble": "hang"}, "undo": {}}]

    paid = heal(ledger, toys, host, None, journal, turn=0.2)
    assert [(one.entry, one.healed) for one in paid] == [("run/2/n1", False), ("run/1/n1", True), ("run/9/n1", False)]
    assert paid[0].says == "no end of it within 0.2 s"
    assert older.read_text() == "whole"


@pytest.mark.row("L15", "L18")
def test_only_the_named_debts_are_paid(ledger, toys, host, owe):
    """A name that owes nothing is said to owe nothing."""
    first, second = owe(), owe()

    paid = heal(ledger, toys, host, ["run/2/n1", "run/9/n1"], [])
    assert [(one.entry, one.healed, one.says) for one in paid] == [
        ("run/2/n1", True, "content is whole"),
        ("run/9/n1", True, "nothing is owed"),
    ]
    assert (first.read_text(), second.read_text()) == ("harmed", "whole")


def test_the_ledger_comes_before_the_journal(ledger, toys, host, owe):
    """What the node knows itself is paid once and by its own record."""
    path = owe()
    journal = [{"entry": "run/1/n1", "fault": "toy_file", "params": {"path": str(path)}, "undo": {"content": "a lie", "harms": 0}}]

    paid = heal(ledger, toys, host, [], journal)
    assert [one.healed for one in paid] == [True]
    assert path.read_text() == "whole"
    assert heal(ledger, toys, host, [], journal)[0].says == "closed already: content is whole"
    assert path.read_text() == "whole"


@pytest.mark.row("R9")
def test_a_persistent_fault_is_owed_after_a_reboot_too(ledger, toys, host, owe):
    """Only what a reboot clears is looked at and closed."""
    owe(boot_id="earlier", lifetime="P").write_text("whole")
    owe(boot_id="earlier").write_text("whole")

    assert [debt["entry"] for debt in audit(ledger, toys, host)["debts"]] == ["run/1/n1"]


@pytest.mark.row("R9")
def test_a_journals_debt_of_an_earlier_boot_is_checked_not_undone(ledger, toys, host, owe, tmp_path):
    """What the reboot cleared is left alone; what it did not clear is undone."""
    path = tmp_path / "file"
    debt = {
        "entry": "run/1/n1",
        "fault": "toy_file",
        "params": {"path": str(path)},
        "undo": {"content": "whole", "harms": 0},
        "boot_id": "earlier",
    }

    path.write_text("whole")
    assert heal(ledger, toys, host, None, [debt])[0].says == "cleared by reboot: content is whole"
    assert not (tmp_path / "file.log").exists()

    path.write_text("harmed")
    assert heal(ledger, toys, host, None, [debt])[0].healed
    assert path.read_text() == "whole"


def test_a_journals_debt_of_another_machine_is_not_paid_here(ledger, toys, host, tmp_path):
    """Journals know nodes by name, and a name may mean another machine by now: nothing there is read, undone or called paid."""
    path = tmp_path / "file"
    path.write_text("harmed")
    debt = {
        "entry": "run/1/n1",
        "fault": "toy_file",
        "params": {"path": str(path)},
        "undo": {"content": "whole", "harms": 0},
        "site": {"node": "n1", "machine_id": "0" * 32},
    }

    (paid,) = heal(ledger, toys, host, None, [debt])
    assert not paid.healed
    assert "the inventory means 0000" in paid.says
    assert path.read_text() == "harmed"

    debt["site"]["machine_id"] = host.machine_id() or None
    assert heal(ledger, toys, host, None, [debt])[0].healed


@pytest.mark.row("R10", "L8")
@pytest.mark.parametrize(
    ("server", "held", "says"), [(True, True, "left alone: run other of tester holds"), (False, False, "pay that first")]
)
def test_a_journals_old_debt_reverts_nothing_that_somebody_elses_entry_holds(ledger, toys, host, tmp_path, server, held, says):
    """The same file, in another run that goes on: its fault is being tested; one that nobody is at is undone by its own record."""
    path = tmp_path / "file"
    path.write_text("harmed")
    resources = list(toys.kind(path=str(path)).resource({}))
    me = Process.of(os.getpid()).to_json() if server else {}
    undo = {"content": "whole", "harms": 0}
    plan = Entry("other/1/n1", "other", "toy_file", {"path": str(path)}, undo, {"node": "n1"}, host.boot_id(), resources, server=me)
    ledger.plan(replace(plan, holds=[[0.0, 9.0]], controller="tester"))
    ledger.append("other/1/n1", "armed", lease=host.boottime() + 30.0)
    ledger.append("other/1/n1", "injected", t0=(1.0, 2.0))
    debt = {"entry": "run/1/n1", "fault": "toy_file", "params": {"path": str(path)}, "undo": {"content": "older", "harms": 0}}

    (paid,) = heal(ledger, toys, host, [], [debt])
    assert (paid.healed, paid.held, says in paid.says) == (False, held, True)
    assert path.read_text() == "harmed"
    remembered = ledger.read("other/1/n1")
    ledger.append("other/1/n1", "reverted")
    # The server's thread that held it hears of its end a moment later.
    assert heal(ledger, toys, host, [], [debt], known=[remembered])[0].healed


@pytest.mark.row("R5", "L2")
def test_a_damaged_record_of_what_a_journal_paid_is_set_aside(ledger, toys, host, tmp_path):
    """Else it would be called unknown for ever: the next audit has no riddle, and the file is kept for whoever wonders."""
    path = tmp_path / "file"
    path.write_text("harmed")
    record = Path(ledger.path("run/1/n1"))
    record.write_text("garbage\nmore garbage\n")
    debt = {"entry": "run/1/n1", "fault": "toy_file", "params": {"path": str(path)}, "undo": {"content": "whole", "harms": 0}}

    assert heal(ledger, toys, host, [], [debt])[0].healed
    assert (path.read_text(), ledger.unreadable(), record.exists()) == ("whole", [], False)
    assert Path(f"{record}.damaged").read_text() == "garbage\nmore garbage\n"


def test_a_debt_of_this_agents_kind_is_live_while_its_server_is(ledger, toys, host, owe):
    """Without a server on record nobody is at it."""
    owe()
    (debt,) = audit(ledger, toys, host)["debts"]

    assert debt["live"] is False


@pytest.mark.row("R13")
def test_an_audit_reads_each_closed_entry_once(ledger, toys, host, owe):
    """A node that has seen thousands of injections answers as soon; a closed file that is damaged later is told all the same."""
    names = ["run/{}/n1".format(number) for number in (1, 2, 3)]
    for name in names:
        owe()
        ledger.append(name, "reverted")
    audit(ledger, toys, host)
    read, old = [], ledger.read
    ledger.read = lambda name: read.append(name) or old(name)

    assert audit(ledger, toys, host) == {"debts": [], "settled": [], "notes": []}
    assert sorted(read) == sorted(names)

    Path(ledger.path(names[0])).write_bytes(b"\0" * 40)
    (note,) = audit(ledger, toys, host)["notes"]
    assert "{} cannot be read".format(names[0]) in note
