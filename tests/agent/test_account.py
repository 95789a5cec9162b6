"""What a node says to audit and heal, asked of the real agent: who holds a debt, strays by their tag, what nobody can read, purge."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chaoskit.agent.kin import told_by

APART = ["unshare", "--mount", "--net", "sh", "-c", 'mount -t tmpfs none /run; mount -t tmpfs none /sys/fs/cgroup; exec "$@"', "sh"]
"""Where no control group, link or mark of this machine is seen: what other tests make there is none of ours to sweep."""


@pytest.fixture
def agent(agent):
    """The agent, where the loader would have put it, and apart from whatever else is on this machine."""
    agent.before = APART
    agent.archive = installed(agent, Path(agent.archive).read_bytes())
    return agent


def installed(agent, content):
    folder = agent.root / "state" / "agent"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(content).hexdigest()}.pyz"
    path.write_bytes(content)
    return path


def version(agent):
    """Return another version of the agent on the same node."""
    other = type(agent)(agent.python, installed(agent, Path(agent.archive).read_bytes() + b"\n"), agent.root)
    other.before = APART
    return other


@pytest.fixture
def site(tmp_path):
    """Return what the inventory says of this node, with the folder in which toys leave things."""
    folder = tmp_path / "things"
    folder.mkdir()
    return {"node": "n1", "training": {"checkpoints": str(folder)}}


def things(site):
    return sorted(os.listdir(site["training"]["checkpoints"]))


def thing(site, name):
    Path(site["training"]["checkpoints"], name).touch()


def found(answer, fault="toy_tag"):
    return [(one["says"].split("/")[-1], one["ours"]) for one in answer["strays"] if one["fault"] == fault]


def ledger_of(agent, entry):
    return agent.root / "state" / "ledger" / (entry.replace("/", ",") + ".jsonl")


@pytest.mark.row("R10")
def test_an_audit_says_who_holds_a_debt_and_heal_leaves_it_alone_unless_told(agent, harm):
    """A fault that is being tested is no leftover: the run, its controller and the lease left are named."""
    channel, path = agent.connect(), agent.file()
    harm(channel, path, lease=30.0)

    (debt,) = channel.ask("audit")["debts"]
    assert (debt["held"]["run"], debt["held"]["controller"]) == ("run1", "tester")
    assert 20 < debt["held"]["left"] <= 30
    assert abs(debt["held"]["since"] - time.time()) < 60

    (left,) = channel.ask("heal", entries=None, debts=[])["results"]
    assert (left["entry"], left["healed"], left["held"]) == ("run1/1/n1", False, True)
    assert "run run1 of tester holds it" in left["says"]
    assert path.read_text() == "harmed"

    assert [one["healed"] for one in channel.ask("heal", entries=None, debts=[], live=True)["results"]] == [True]
    assert path.read_text() == "whole"


@pytest.mark.row("R2", "R12")
def test_a_debt_whose_revert_failed_is_owed_and_held_by_nobody(agent, harm):
    """The lease goes on, but the server has given up: whoever heals may try again."""
    channel, path = agent.connect(), agent.file()
    harm(channel, path, trouble="revert", lease=30.0)
    channel.ask("revert", entry="run1/1/n1")

    (debt,) = channel.ask("audit")["debts"]
    assert (debt["held"], debt["failures"]) == (None, 1)
    (result,) = channel.ask("heal", entries=None, debts=[])["results"]
    assert (result["healed"], result["held"]) == (False, False)
    assert "cannot be mended" in result["says"]


@pytest.mark.row("R2", "L3", "L18", "L46")
def test_a_stray_of_ours_is_swept_by_its_tag_and_what_is_foreign_stays(agent, site):
    """No ledger knows of it; what bears our tag goes, and nothing else is touched."""
    channel = agent.connect()
    for name in ("toy_tag-left", "foreign", "other"):
        thing(site, name)

    assert found(channel.ask("strays", site=site)) == [("toy_tag-left is ours", True), ("foreign is not ours", False)]
    assert things(site) == ["foreign", "other", "toy_tag-left"], "audit only reads"
    (result,) = channel.ask("sweep", site=site)["results"]
    assert (result["fault"], result["healed"]) == ("toy_tag", True)
    assert things(site) == ["foreign", "other"]
    assert channel.ask("sweep", site=site)["results"] == []


@pytest.mark.prove
def test_what_an_entry_explains_is_no_stray(agent, site):
    """The ledger knows of it: it is a debt, or a fault that is being tested."""
    channel = agent.connect()
    channel.ask("prepare", run="r", entry="r/1/n1", fault="toy_tag", params={"folder": site["training"]["checkpoints"]}, site=site)
    channel.ask("arm", entry="r/1/n1", lease=30.0, controller="tester")
    channel.ask("inject", entry="r/1/n1", at=None)
    thing(site, "toy_tag-b")

    assert found(channel.ask("strays", site=site)) == [("toy_tag-b is ours", True)]
    channel.ask("sweep", site=site)
    assert things(site) == ["toy_tag-a"]
    ledger_of(agent, "r/1/n1").unlink()
    assert found(channel.ask("strays", site=site)) == [], "the server knows of it all the same"


@pytest.mark.row("L4", "L5", "R12")
@pytest.mark.parametrize(("name", "words"), [("toy_tag-stuck", "it does not go"), ("toy_tag-lie", "it is still there")])
def test_a_stray_that_does_not_go_is_never_called_gone(agent, site, name, words):
    """One that cannot be swept, and one whose sweep lies; the others are swept all the same."""
    channel = agent.connect()
    for one in (name, "toy_tag-z", "toy_tag-b"):
        thing(site, one)

    results = channel.ask("sweep", site=site)["results"]
    assert {one["resource"].split("/")[-1]: one["healed"] for one in results} == {name: False, "toy_tag-z": True, "toy_tag-b": True}
    assert words in next(one["says"] for one in results if not one["healed"])
    assert things(site) == [name]


@pytest.mark.prove
@pytest.mark.row("R12", "L24")
def test_a_look_that_hangs_costs_its_own_answer_alone(agent, site):
    """What it would have found is unknown, and said so."""
    channel = agent.connect()
    thing(site, "hang")

    answer = channel.ask("strays", site=site)
    assert ["no end of it within" in says for says in answer["unread"]] == [True]
    assert answer["unread"][0].startswith("strays of toy_tag could not be looked for")


@pytest.mark.row("R5", "L2")
def test_an_entry_that_nobody_can_read_is_named_and_nothing_is_swept_that_it_may_explain(agent, site):
    """An entry of a later version, or of a damaged disk: what it owes is unknown, and so is whose our things are."""
    channel = agent.connect()
    channel.ask("audit")
    thing(site, "toy_tag-left")
    for lines, says in (
        (['{"v":9,"state":"planned"}'], "schema 9"),
        (['{"v":1,"state":"pla', '{"v":1,"state":"armed","lease":1.0}'], "after it come: armed"),
        (["garbage", "more garbage"], "none of its 2 lines"),
    ):
        ledger_of(agent, "r/1/n1").write_text("\n".join(lines) + "\n")

        (one,) = channel.ask("audit")["unreadable"]
        assert (one["entry"], says in one["says"], Path(one["path"]).exists()) == ("r/1/n1", True, True)
        (result,) = channel.ask("sweep", site=site)["results"]
        assert (result["healed"], "r/1/n1" in result["says"]) == (False, True)
        assert things(site) == ["toy_tag-left"]


@pytest.mark.row("R4", "R5")
def test_a_plan_that_was_torn_before_anything_was_armed_owes_nothing(agent):
    """Every later line comes after the first one is on disk."""
    channel = agent.connect()
    channel.ask("audit")
    for content in ("", '{"v":1,"state":"plan', "\0" * 64):
        ledger_of(agent, "r/1/n1").write_text(content)

        answer = channel.ask("audit")
        assert answer["unreadable"] == []
        assert any("r/1/n1: nothing of its plan reached the disk" in note for note in answer["notes"])


@pytest.mark.prove
def test_purge_is_refused_while_something_is_owed_and_then_takes_everything(agent, harm, site, until):
    """Ledger, sockets, copies of the agent and its processes; this server goes with its last connection."""
    channel, path = agent.connect(), agent.file()
    harm(channel, path)
    with pytest.raises(RuntimeError, match="still owed: run1/1/n1"):
        channel.ask("purge", site=site)
    channel.ask("revert", entry="run1/1/n1")
    thing(site, "toy_tag-left")
    with pytest.raises(RuntimeError, match="toy_tag-left is ours"):
        channel.ask("purge", site=site)
    channel.ask("sweep", site=site)

    removed = channel.ask("purge", site=site)["removed"]
    assert {str(agent.root / "run"), str(agent.root / "state")} <= set(removed)
    assert not (agent.root / "run").exists()
    assert not (agent.root / "state").exists()
    assert agent.pids("serve")
    channel.close()
    until(lambda: not agent.pids("serve") + agent.pids("fuse"))
    assert path.read_text() == "whole"


@pytest.mark.prove
def test_purge_ends_the_servers_of_other_versions(agent, site, until):
    """An older agent that idles is no reason to leave its folders; one that owes something is."""
    older = version(agent)
    older.connect().ask("clock")
    channel = agent.connect()
    channel.ask("clock")
    assert len(agent.pids("serve")) == 2
    other = f"there is another agent: {older.archive.name[:16]}"
    assert any(other in note for note in channel.ask("audit")["notes"])

    channel.ask("purge", site=site)
    until(lambda: len(agent.pids("serve")) == 1)
    channel.close()
    until(lambda: not agent.pids("serve") + agent.pids("fuse"))


@pytest.mark.row("R2")
def test_a_newer_agent_heals_what_an_older_one_that_died_has_left(agent, harm, until):
    """Another hash, the same ledger: the debt carries all that its payment needs."""
    older = version(agent)
    path = agent.file()
    harm(older.connect(), path)
    for verb, number in (("serve", signal.SIGSTOP), ("fuse", signal.SIGKILL), ("serve", signal.SIGKILL)):  # else it has a new fuse
        agent.kill(verb, number)
    until(lambda: not agent.pids("serve") + agent.pids("fuse"))
    assert path.read_text() == "harmed"

    channel = agent.connect()
    assert [(debt["entry"], debt["held"]) for debt in channel.ask("audit")["debts"]] == [("run1/1/n1", None)]
    assert [one["healed"] for one in channel.ask("heal", entries=None, debts=[])["results"]] == [True]
    assert path.read_text() == "whole"
    assert channel.ask("heal", entries=None, debts=[])["results"] == []


AB = "ab" * 32


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (f"python3 -I -S /s/agent/{AB}.pyz serve --state /s --run /r", ("serve", AB, "/s")),
        (f"python3 -I -S /s/agent/{AB}.pyz serve --run /r --state /s/", ("serve", AB, "/s")),
        (f"python3 -I -S /var/lib/chaoskit/agent/{AB}.pyz fuse --name n", ("fuse", AB, "/var/lib/chaoskit")),
        (f"python3 -I -S /var/lib/chaoskit/agent/{AB}.pyz tail", None),
        (f"vim /var/lib/chaoskit/agent/{AB}.pyz", None),
        (f"python3 /x/agent/{AB}.pyz serve --state /s", None),
        (f"python3 /s/{AB}.pyz serve --state /s", None),
        ("python3 /s/agent/metrics.pyz serve --state /s", None),
        ("python3 /opt/metrics.pyz serve", None),
        ("", None),
    ],
)
def test_a_command_line_tells_whose_process_it_is(argv, told):
    """Only servers and fuses last, and only what runs from the place where the loader puts agents is one."""
    assert told_by([*argv.split(), ""]) == told


STANDS_STILL = "import signal\nsignal.pause()\n"


@pytest.fixture
def stand_still(until):
    """Return a function that starts a script as `PATH serve --state STATE`; all are ended."""
    started = []

    def start(path, state, *before):
        started.append(subprocess.Popen([*before, sys.executable, str(path), "serve", "--state", str(state)]))
        until(lambda: str(path).encode() in Path(f"/proc/{started[-1].pid}/cmdline").read_bytes().split(b"\0")[:2])
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_purge_ends_no_process_of_anybody_else(agent, site, tmp_path, stand_still):
    """Another program that is a zipapp and serves, and the agent of a container whose folders bear the names of ours."""
    foreign = tmp_path / "metrics.pyz"
    foreign.write_text(STANDS_STILL)
    script = tmp_path / "script"
    script.write_text(STANDS_STILL)
    state, copy = agent.root / "state", agent.root / "state" / "agent" / f"{AB}.pyz"
    inside = f'mount -t tmpfs none {state}; mkdir -m 700 {copy.parent}; cp {script} {copy}; exec "$@"'
    others = [stand_still(foreign, state), stand_still(copy, state, "unshare", "--mount", "sh", "-c", inside, "sh")]
    channel = agent.connect()

    assert not [note for note in channel.ask("audit")["notes"] if "another agent" in note and str(state) in note]
    channel.ask("purge", site=site)
    assert [one.poll() for one in others] == [None, None]


def test_all_answers_fit_the_wire(agent, harm):
    """An audit of hundreds of debts is one line."""
    channel = agent.connect()
    channel.ask("audit")
    for number in range(300):
        entry = {"v": 1, "state": "planned", "entry": f"r/{number}/n1", "run": "r", "fault": "f", "params": {}, "site": {"node": "n1"}}
        entry |= {"undo": {"was": "x" * 4000}, "holds": [[0.0, 1.0]]}
        armed = {"v": 1, "state": "armed", "lease": 1.0}
        ledger_of(agent, f"r/{number}/n1").write_text(json.dumps(entry) + "\n" + json.dumps(armed) + "\n")

    assert len(channel.ask("audit")["debts"]) == 300


@pytest.mark.row("L46")
def test_a_training_whose_run_is_over_is_ours_and_ended_and_one_whose_run_goes_on_is_left_alone(agent, site, tmp_path, until):
    """Its controller was killed: audit tells it, a sweep ends it with its session; while the run has the node nobody touches it."""
    channel = agent.connect()
    order = {"argv": ["/bin/sh", "-c", "sleep 300 & sleep 300"], "env": {}, "cwd": "/", "log": str(tmp_path / "log")}
    for run in ("dead", "live"):
        channel.ask("spawn", key=f"training-{run}", **order)
    channel.ask("hold", run="live", controller="ada@laptop:7", lease=60.0, instead_of="")
    agent.kill("serve")
    channel = agent.connect()
    told = {one["resource"]: one for one in channel.ask("strays", site=site)["strays"] if one["fault"] == "training"}

    assert {name: (one["ours"], (one["held"] or {}).get("run")) for name, one in told.items()} == {
        "training:training-dead": (True, None),
        "training:training-live": (True, "live"),
    }
    results = {one["resource"]: one for one in channel.ask("sweep", site=site)["results"] if one["fault"] == "training"}
    assert (results["training:training-dead"]["healed"], results["training:training-live"]["healed"]) == (True, False)
    assert "run live of ada@laptop:7 has this node" in results["training:training-live"]["says"]
    alive = {run: channel.ask("spawned", key=f"training-{run}")["alive"] for run in ("dead", "live")}
    assert alive == {"dead": False, "live": True}
    with pytest.raises(RuntimeError, match="run live of ada@laptop:7 has this node"):
        channel.ask("purge", site=site)
    channel.ask("release", run="live")
    with pytest.raises(RuntimeError, match=r"training-live still run.*chaoskit heal"):
        channel.ask("purge", site=site)
    channel.ask("sweep", site=site)
    assert not channel.ask("spawned", key="training-live")["alive"]
    assert [one for one in channel.ask("strays", site=site)["strays"] if one["fault"] == "training"] == []
