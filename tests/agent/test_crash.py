"""Whatever dies or hangs, the node mends itself, and what cannot be mended is listed until somebody does."""

import json
import os
import shutil
import signal
import time

import pytest
from fair_watch import FairWatch
from ledger_files import replan

LEASE = 1.5


def told(channel):
    """Return what an audit notes of this node itself: other tests have agents on this machine too."""
    return [note for note in channel.ask("audit")["notes"] if "another agent" not in note]


def entries(agent, run="run1"):
    return {entry["entry"]: entry for entry in agent.connect().ask("entries", run=run)["entries"]}


@pytest.mark.row("R1", "L1", "L12")
def test_a_killed_server_is_healed_at_once(any_agent, harm, until):
    """The fuse hears of the server's death without polling and reverts; the ledger says who did it."""
    path = any_agent.file()
    harm(any_agent.connect(), path, down=60.0)
    assert path.read_text() == "harmed"

    any_agent.kill("serve")
    waited = until(lambda: path.read_text() == "whole")

    assert waited < 1.0
    until(lambda: not any_agent.pids("fuse"))
    assert entries(any_agent)["run1/1/n1"]["state"] == "reverted"
    assert any_agent.connect().ask("audit")["debts"] == []


@pytest.mark.row("R1", "L12", "L24", "L47")
def test_a_stopped_server_is_killed_when_the_lease_is_over(any_agent, harm, until):
    """A server that hangs cannot hold a fault beyond its lease plus one second."""
    path = any_agent.file()
    harm(any_agent.connect(), path, down=60.0, lease=LEASE)
    deadline = json.loads((any_agent.root / "run" / "runs" / "run1" / "lease").read_text())["deadline"]

    watch = FairWatch()
    server = any_agent.kill("serve", signal.SIGSTOP)
    until(lambda: path.read_text() == "whole")

    assert 0.0 < time.clock_gettime(time.CLOCK_BOOTTIME) - deadline < 1.0 + watch.spared()
    assert server not in any_agent.pids("serve")


@pytest.mark.row("R1", "L12", "L24")
def test_a_stopped_server_cannot_outlive_the_end_of_the_fault(agent, harm, until):
    """The last span's end is absolute: no lease, however long, keeps a hanging server's fault."""
    path = agent.file()
    harm(agent.connect(), path, down=0.5, lease=60.0)

    agent.kill("serve", signal.SIGSTOP)

    assert until(lambda: path.read_text() == "whole") < 0.5 + 1.5


@pytest.mark.row("R1", "L1", "L18", "L47")
def test_a_killed_controller_loses_its_lease(any_agent, harm, until):
    """Without renewals the server itself reverts, and a later renewal says so instead of reviving anything."""
    path = any_agent.file()
    channel = any_agent.connect()
    harm(channel, path, down=60.0, lease=LEASE)

    channel.kill()
    waited = until(lambda: path.read_text() == "whole")

    assert waited < LEASE + 1.0
    again = any_agent.connect()
    assert again.ask("renew", run="run1", lease=30.0) == {"deadline": None, "expired": ["run1/1/n1"]}
    assert again.ask("audit")["debts"] == []


@pytest.mark.row("L47")
def test_renewals_keep_a_lease(agent, harm, until):
    """A renewed lease holds beyond its first length; what ends it is the last renewal."""
    path = agent.file()
    channel = agent.connect()
    harm(channel, path, down=60.0, lease=2.0)

    for _ in range(15):
        time.sleep(0.2)
        assert channel.ask("renew", run="run1", lease=2.0)["expired"] == []
    assert path.read_text() == "harmed"

    until(lambda: path.read_text() == "whole", seconds=4.0)


def test_a_server_that_dies_while_it_asks_its_fuse_is_paid_for(any_agent, harm, until):
    """The fuse's answer has nobody to go to any more: that is a death to pay for, not an error to end by."""
    path = any_agent.file()
    channel = any_agent.connect()
    harm(channel, path, down=60.0)

    any_agent.kill("fuse", signal.SIGSTOP)
    channel.ask("hello", controller="tester")
    time.sleep(0.3)  # the question goes out beside the answer
    any_agent.kill("serve")
    any_agent.kill("fuse", signal.SIGCONT)

    until(lambda: path.read_text() == "whole", seconds=4.0)


@pytest.mark.row("L2", "L5")
def test_a_file_of_somebody_elses_in_the_ledger_keeps_nothing_from_being_paid(agent, harm, until):
    """A copy that a person left there is named by `audit`; fuse, server and `heal` go on."""
    path, other = agent.file(), agent.file("b")
    channel = agent.connect()
    harm(channel, path, down=60.0)
    (agent.root / "state" / "ledger" / "copy of it.jsonl").write_text("what is this\n")

    agent.kill("serve")
    until(lambda: path.read_text() == "whole", seconds=4.0)

    channel = agent.connect()
    assert told(channel) == ["copy of it: nothing of its plan reached the disk, so nothing was armed by it"]
    harm(channel, other, entry="run1/2/n1", down=60.0)
    assert other.read_text() == "harmed"


@pytest.mark.row("R3", "L2")
def test_a_ledger_that_cannot_be_read_any_more_is_paid_from_the_fuses_memory(agent, harm, until):
    """A disk that fails under one file, or gives nothing at all, takes no debt away."""
    path = agent.file()
    harm(agent.connect(), path, down=60.0)
    file = agent.root / "state" / "ledger" / "run1,1,n1.jsonl"
    file.unlink()
    file.mkdir()  # reading it fails, and not because it is gone

    agent.kill("serve")
    until(lambda: path.read_text() == "whole", seconds=4.0)
    (damaged,) = agent.connect().ask("audit")["unreadable"]
    assert (damaged["entry"], damaged["says"]) == ("run1/1/n1", "it cannot be read: Is a directory")


@pytest.mark.row("R3", "L5")
def test_one_file_that_cannot_be_read_keeps_no_other_debt_from_being_paid(agent, harm):
    """`heal` pays what it can read, and `audit` names the rest."""
    path, other = agent.file(), agent.file("b")
    channel = agent.connect()
    harm(channel, path, down=60.0)
    harm(channel, other, entry="run1/2/n1", down=60.0)
    agent.kill_both()
    file = agent.root / "state" / "ledger" / "run1,2,n1.jsonl"
    file.unlink()
    file.mkdir()

    channel = agent.connect()
    assert [one["entry"] for one in channel.ask("heal", entries=None)["results"] if one["healed"]] == ["run1/1/n1"]
    assert path.read_text() == "whole"
    assert [one["entry"] for one in channel.ask("audit")["unreadable"]] == ["run1/2/n1"]


@pytest.mark.row("R2", "L2", "L3")
def test_when_both_are_killed_the_debt_is_listed_and_heal_pays_it(any_agent, harm):
    """A new server neither adopts nor reverts it unasked: it lists it, and pays when told."""
    path = any_agent.file()
    harm(any_agent.connect(), path, down=60.0)
    any_agent.kill_both()

    channel = any_agent.connect()
    (debt,) = channel.ask("audit")["debts"]
    assert (debt["entry"], debt["live"], debt["state"]) == ("run1/1/n1", False, "injected")
    assert path.read_text() == "harmed"
    path.write_text("harmed otherwise")
    with pytest.raises(RuntimeError, match="chaoskit heal"):
        harm(channel, path, entry="run2/1/n1", down=1.0)

    paid = {"entry": "run1/1/n1", "healed": True, "says": "content is whole", "held": False}
    assert channel.ask("heal", entries=None) == {"results": [paid]}
    assert path.read_text() == "whole"
    assert channel.ask("audit")["debts"] == []
    assert channel.ask("heal", entries=["run1/1/n1"])["results"][0]["says"] == "nothing is owed"


@pytest.mark.row("R2", "R9")
def test_heal_pays_from_a_journal_when_the_ledger_is_gone(any_agent, harm):
    """A stateless node forgets; the controller's journal knows entry, fault, params, undo and boot id, and that is enough."""
    path = any_agent.file()
    channel = any_agent.connect()
    boot_id = channel.ask("hello", controller="t")["boot_id"]
    harm(channel, path, down=60.0)
    any_agent.kill_both()
    shutil.rmtree(any_agent.root / "state" / "ledger")

    channel = any_agent.connect()
    assert channel.ask("audit")["debts"] == []
    undo = {"content": "whole", "harms": 0}
    debt = {"entry": "run1/1/n1", "fault": "toy_file", "params": {"path": str(path), "down": 60.0}, "undo": undo, "boot_id": boot_id}
    broken = {"entry": "run1/2/n1", "fault": "no_such_fault", "params": {}, "undo": {}}
    results = {one["entry"]: one["healed"] for one in channel.ask("heal", entries=[], debts=[debt, broken, {"entry": 7}])["results"]}

    assert results == {"run1/1/n1": True, "run1/2/n1": False, "7": False}
    assert path.read_text() == "whole"


@pytest.mark.row("R1", "L12")
def test_a_dead_fuse_is_replaced_within_a_second(agent, harm, until):
    """While something is owed there is a fuse, and the new one does the old one's work."""
    path = agent.file()
    harm(agent.connect(), path, down=60.0)

    old = agent.kill("fuse")
    until(lambda: agent.pids("fuse") not in ([], [old]), seconds=1.5)
    channel = agent.connect()
    harm(channel, agent.file("b"), entry="run1/2/n1", down=60.0)  # arming waits for a fuse that answers
    agent.kill("serve")

    until(lambda: (agent.root / "b").read_text() == path.read_text() == "whole", seconds=2.0)


@pytest.mark.row("R12", "L24")
def test_a_fault_that_hangs_is_ended_from_outside(agent, harm, until):
    """The thread that hangs in a fault's inject cannot revert it: the fuse can."""
    path = agent.file()
    channel = agent.connect()
    harm(channel, path, down=60.0, lease=LEASE, hang=60.0, inject=False)
    channel.send("inject", entry="run1/1/n1", at=None)

    until(lambda: path.read_text() == "harmed")
    assert until(lambda: path.read_text() == "whole") < LEASE + 1.0


@pytest.mark.row("R7", "L15")
def test_a_lost_lease_reverts_the_newest_entry_first(agent, harm, until):
    """What was stacked last is taken off first."""
    first, second = agent.file("a"), agent.file("b")
    channel = agent.connect()
    harm(channel, first, entry="run1/1/n1", down=60.0, lease=LEASE)
    harm(channel, second, entry="run1/2/n1", down=60.0, lease=LEASE)
    server = agent.pids("serve")
    channel.kill()

    until(lambda: first.read_text() == second.read_text() == "whole", seconds=LEASE + 1.0)

    def stamp(path):
        return float((agent.root / (path.name + ".log")).read_text().splitlines()[-1].split()[1])

    assert stamp(second) < stamp(first)
    assert agent.pids("serve") == server, "it did this itself, and not the fuse in its place"


@pytest.mark.row("R9", "L3")
def test_after_a_reboot_a_volatile_entry_is_checked_and_closed(agent, harm):
    """Another boot id: what the reboot cleared is closed by a fresh read, what it did not stays a debt."""
    cleared, still = agent.file("a"), agent.file("b")
    channel = agent.connect()
    harm(channel, cleared, entry="run1/1/n1", down=60.0)
    harm(channel, still, entry="run1/2/n1", down=60.0)
    agent.kill_both()
    for number in (1, 2):
        ledger = agent.root / "state" / "ledger" / f"run1,{number},n1.jsonl"
        replan(ledger, boot_id="an-earlier-boot")
    cleared.write_text("whole")

    assert [debt["entry"] for debt in agent.connect().ask("audit")["debts"]] == ["run1/2/n1"]
    closed = entries(agent)["run1/1/n1"]
    assert (closed["state"], closed["says"]) == ("reverted", "cleared by reboot")


@pytest.mark.row("L13")
def test_a_fault_that_takes_the_agent_away_leaves_its_stamp(agent, harm, until):
    """The stamp fsynced just before the call is t0; a new agent witnesses, and nothing is owed."""
    channel = agent.connect()
    before = channel.ask("clock")["mono"]
    with pytest.raises(EOFError):
        harm(channel, None, entry="run1/1/n1", fault="toy_away")

    again = agent.connect()
    entry = entries(agent)["run1/1/n1"]
    assert entry["state"] == "injecting"
    assert before < entry["t0"][0] == entry["t0"][1] < again.ask("clock")["mono"]
    assert again.ask("witness", entry="run1/1/n1")["evidence"]["holds"]
    assert again.ask("audit")["debts"] == []
    until(lambda: not agent.pids("fuse"), seconds=5.0)


@pytest.mark.row("R9")
def test_the_pid_of_a_dead_server_is_not_taken_for_it(agent, harm):
    """A pid that was used again is another process: its start time differs, so the debt is not live."""
    harm(agent.connect(), agent.file(), down=60.0)
    agent.kill_both()
    ledger = agent.root / "state" / "ledger" / "run1,1,n1.jsonl"
    server = json.loads(ledger.read_text().splitlines()[0])["server"]
    replan(ledger, server={**server, "pid": 1})  # alive, and not ours

    (debt,) = agent.connect().ask("audit")["debts"]
    assert not debt["live"]


@pytest.mark.row("R5")
def test_damaged_ledger_lines_are_reported_and_skipped(agent, harm):
    """A torn last line and garbage in between hide neither the debt nor themselves."""
    path = agent.file()
    harm(agent.connect(), path, down=60.0)
    agent.kill_both()
    with open(agent.root / "state" / "ledger" / "run1,1,n1.jsonl", "ab") as file:
        file.write(b'\xff\xfe garbage\n{"v":1,"state":"rever')
    (agent.root / "state" / "ledger" / "run0,1,n1.jsonl").write_bytes(b"{")

    channel = agent.connect()
    audit = channel.ask("audit")
    assert [debt["entry"] for debt in audit["debts"]] == ["run1/1/n1"]
    assert len(told(channel)) == 3
    assert channel.ask("heal", entries=None)["results"][0]["healed"]
    assert path.read_text() == "whole"
    assert channel.ask("audit")["debts"] == []


@pytest.mark.row("R3", "R4")
def test_the_fuse_remembers_what_the_disk_forgot(agent, harm, until):
    """The ledger is deleted under a held fault, then the server dies: the fuse still knows the undo."""
    path = agent.file()
    harm(agent.connect(), path, down=60.0)
    time.sleep(0.1)
    shutil.rmtree(agent.root / "state" / "ledger")
    (agent.root / "state" / "ledger").mkdir(mode=0o700)

    agent.kill("serve")
    until(lambda: path.read_text() == "whole", seconds=2.0)
    until(lambda: not agent.pids("fuse"))


@pytest.mark.row("R1", "L47")
def test_a_stopped_fuse_is_replaced_before_arming(agent, harm, until):
    """Arming needs a fuse that answers, and not one that only exists."""
    channel = agent.connect()
    harm(channel, agent.file("a"), down=60.0)
    stopped = agent.kill("fuse", signal.SIGSTOP)
    harm(channel, agent.file("b"), entry="run1/2/n1", down=60.0)

    assert len(agent.pids("fuse")) == 2
    agent.kill("serve")
    until(lambda: (agent.root / "a").read_text() == (agent.root / "b").read_text() == "whole", seconds=2.0)
    os.kill(stopped, signal.SIGCONT)
    until(lambda: not agent.pids("fuse"))
