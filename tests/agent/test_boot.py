"""What no reboot clears is mended at boot, by one unit that is there exactly while it is needed."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ledger_files import replan

from chaoskit.agent.boot import CHECK, NAME, Unit, announced
from chaoskit.agent.ledger import Entry, Ledger
from chaoskit.agent.paths import Paths
from tests.agent.conftest import Agent

pytestmark = pytest.mark.row("R9")

EARLIER = "an-earlier-boot"


@pytest.fixture
def node(archive, tmp_path):
    """An agent that runs from root's own copy, as the loader leaves it, on a machine whose units stand in a folder of this test."""
    folder = tmp_path / "state" / "agent"
    folder.mkdir(parents=True)
    units = tmp_path / "etc" / "systemd"
    units.mkdir(parents=True)
    made = Agent(sys.executable, shutil.copy(archive.path, folder / f"{archive.sha256}.pyz"), tmp_path)
    made.units = units
    made.unit = units / NAME
    made.link = units / "multi-user.target.wants" / NAME
    made.roots += ["--units", str(units)]
    yield made
    made.end()


def reboot(node, *entries):
    """Make the machine's boot another than that of the entries: /run is empty, and nothing of the agent runs."""
    for verb in ("fuse", "serve"):
        for pid in node.pids(verb):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(node.root / "run")
    for entry in entries:
        file = node.root / "state" / "ledger" / (entry.replace("/", ",") + ".jsonl")
        replan(file, boot_id=EARLIER)


def command_of(unit):
    """Return the unit's command line as systemd would run it."""
    (line,) = [line for line in unit.read_text().splitlines() if line.startswith("ExecStart=")]
    words = shlex.split(line.partition("=")[2].replace("\\n", "\n"))
    return [word.replace("%%", "%").replace("$$", "$") for word in words]


def boot(node):
    """Do what systemd does at boot: run the unit that is enabled, if one is."""
    assert node.link.exists()
    return subprocess.run(command_of(node.unit), check=False, capture_output=True, text=True, timeout=60)


def test_the_unit_is_there_exactly_while_a_persistent_debt_is(node, harm, until):
    """Before the harm, for as long as one is owed, and not an entry longer; faults that a reboot clears need none."""
    one, two, volatile = node.file("a"), node.file("b"), node.file("c")
    channel = node.connect()
    harm(channel, volatile)
    assert not node.unit.exists()

    channel.ask("prepare", run="run1", entry="run1/2/n1", fault="toy_stays", params={"path": str(one)}, site={"node": "n1"})
    assert not node.unit.exists()
    channel.ask("arm", entry="run1/2/n1", lease=30.0, controller="tester")
    assert node.link.exists()
    harm(channel, two, entry="run1/3/n1", fault="toy_stays")
    channel.ask("revert", entry="run1/2/n1")
    assert node.link.exists()

    node.kill("serve")  # the fuse pays, and the unit goes with the debt
    until(lambda: two.read_text() == "whole" and not node.unit.exists())
    assert not node.link.is_symlink()
    assert [path.name for path in node.units.iterdir()] == ["multi-user.target.wants"]


def test_a_debt_that_persists_is_healed_at_boot(node, harm):
    """Server and fuse died with the machine; the unit pays, and `audit` says that it did."""
    path, volatile = node.file("a"), node.file("b")
    channel = node.connect()
    harm(channel, path, entry="run1/1/n1", fault="toy_stays")
    harm(channel, volatile, entry="run1/2/n1", down=60.0)
    (debt,) = [debt for debt in channel.ask("audit")["debts"] if debt["fault"] == "toy_stays"]
    assert debt["prospects"] == "its lease ends it"
    node.kill_both()
    told = {debt["entry"]: debt["prospects"] for debt in node.connect().ask("audit")["debts"]}
    assert told == {
        "run1/1/n1": "persists: healed by chaoskit-heal.service at the next boot, or by `chaoskit heal`",
        "run1/2/n1": "waits for `chaoskit heal`",
    }
    reboot(node, "run1/1/n1", "run1/2/n1")
    volatile.write_text("whole")

    done = boot(node)
    assert (done.returncode, done.stderr) == (0, "")
    assert path.read_text() == "whole"
    assert not node.unit.exists()
    assert not (node.root / "run").exists(), "it needs nothing of /run"
    audit = node.connect().ask("audit")
    assert audit["debts"] == []
    assert audit["settled"] == [
        {"entry": "run1/1/n1", "fault": "toy_stays", "says": "healed at boot"},
        {"entry": "run1/2/n1", "fault": "toy_file", "says": "cleared by reboot"},
    ]


@pytest.mark.prove
def test_what_could_not_be_healed_at_boot_is_said_and_tried_again(node, harm):
    """The unit fails, stays, and says what is left; the next boot or `heal` pays, and the unit goes."""
    path, stuck = node.file("a"), node.file("stuck")
    harm(node.connect(), path, fault="toy_stays", stuck=str(stuck))
    reboot(node, "run1/1/n1")

    done = boot(node)
    assert done.returncode == 1
    assert "not healed at boot: run1/1/n1: revert failed" in done.stderr
    (debt,) = node.connect().ask("audit")["debts"]
    assert debt["prospects"].startswith(f"persists: {NAME} has not healed it: revert failed: OSError")
    assert node.link.exists()

    stuck.unlink()
    assert node.connect().ask("heal", entries=None)["results"][0]["healed"]
    assert path.read_text() == "whole"
    assert not node.unit.exists()


@pytest.mark.prove
def test_only_the_agent_that_was_armed_runs_at_boot(node, harm):
    """An agent that is gone, or another in its place, is not run, and the debt waits for `heal`."""
    path = node.file()
    harm(node.connect(), path, fault="toy_stays")
    reboot(node, "run1/1/n1")
    copy = node.archive
    whole = copy.read_bytes()

    copy.write_bytes(whole + b"\0")
    done = boot(node)
    assert (done.returncode, path.read_text()) == (1, "harmed")
    assert "is not the agent that was armed" in done.stderr
    copy.unlink()
    done = boot(node)
    assert (done.returncode, path.read_text()) == (1, "harmed")
    assert "No such file" in done.stderr

    copy.write_bytes(whole)
    assert boot(node).returncode == 0
    assert path.read_text() == "whole"


def test_without_its_unit_nothing_that_persists_is_armed(node, harm):
    """A unit that cannot be written is a refusal before the harm, and owes nothing."""
    path = node.file()
    node.units.rmdir()
    channel = node.connect()
    with pytest.raises(RuntimeError, match="the unit that would mend this node at boot cannot be written"):
        harm(channel, path, fault="toy_stays")
    assert path.read_text() == "whole"
    assert channel.ask("audit")["debts"] == []

    node.units.symlink_to("/tmp")
    with pytest.raises(RuntimeError, match="is not a directory"):
        harm(channel, path, entry="run1/2/n1", fault="toy_stays")
    assert path.read_text() == "whole"


@pytest.mark.row("S5")
def test_what_others_planted_in_its_place_is_replaced_and_never_followed(node, harm):
    """A link where the unit or its link goes."""
    elsewhere = node.root / "elsewhere"
    elsewhere.write_text("precious")
    node.link.parent.mkdir()
    node.unit.symlink_to(elsewhere)
    node.link.symlink_to(elsewhere)

    harm(node.connect(), node.file(), fault="toy_stays")
    assert elsewhere.read_text() == "precious"
    assert not node.unit.is_symlink()
    assert node.unit.stat().st_mode & 0o777 == 0o644
    assert os.readlink(node.link) == f"../{NAME}"


@pytest.mark.prove
def test_where_systemd_is_not_the_init_heal_pays(agent, harm):
    """No unit is written anywhere, and `audit` says who mends it."""
    if os.path.isdir("/run/systemd/system"):
        pytest.skip("systemd is this machine's init")
    path = agent.file()
    harm(agent.connect(), path, fault="toy_stays")
    agent.kill_both()
    (debt,) = agent.connect().ask("audit")["debts"]
    assert debt["prospects"] == "persists: waits for `chaoskit heal`"
    reboot(agent, "run1/1/n1")

    channel = agent.connect()
    assert channel.ask("heal", entries=None)["results"][0]["healed"]
    assert channel.ask("audit")["settled"] == [{"entry": "run1/1/n1", "fault": "toy_stays", "says": "healed after a reboot by heal"}]
    assert path.read_text() == "whole"


def test_a_unit_that_a_crash_left_goes_with_the_next_server(node, harm):
    """Armed and closed again, and killed before the unit went: nothing is owed, so a new server removes it."""
    Unit(str(node.units), Paths(*node.roots[1::2]).arguments()).write(["a" * 64])
    assert node.link.exists()

    node.connect().ask("hello", controller="tester")
    assert not node.unit.exists()


def test_agents_of_two_versions_each_mend_their_own(tmp_path):
    """One unit names every agent that armed what is owed, newest first, each once; its arguments are taken literally."""
    units = tmp_path / "units"
    units.mkdir()
    unit = Unit(str(units), ["--state", str(tmp_path / "chao$kit 100%")])
    ledger = Ledger(str(tmp_path / "ledger"), unit)
    for number, agent in enumerate(("a" * 64, "b" * 64, "a" * 64)):
        plan = Entry(
            f"run/{number}/n1", "run", "toy", {}, {}, {}, boot_id="b", lifetime="P", holds=[[0.0, 1.0]], agent=agent, state="armed"
        )
        with announced(ledger, ledger.plan(plan)):
            ledger.append(plan.entry, "armed", lease=1.0)

    assert command_of(Path(unit.path))[3:] == ["-c", CHECK, f"{'a' * 64},{'b' * 64}", "--state", str(tmp_path / "chao$kit 100%")]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze on this machine")
def test_systemd_reads_the_unit_without_complaint(node, harm):
    """By its own verifier."""
    harm(node.connect(), node.file(), fault="toy_stays")

    done = subprocess.run(["systemd-analyze", "verify", str(node.unit)], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr + done.stdout) == (0, "")
