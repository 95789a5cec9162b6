"""The canary goes the whole way of a fault, through ledger, lease and fuse, and leaves the node exactly as it was."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chaoskit.agent import canary, cgroups, fuse, nftables
from chaoskit.agent.canary import KINDS, Canary
from chaoskit.agent.contract import Refusal, Site
from chaoskit.agent.host import Host
from chaoskit.agent.nftables import Table

pytestmark = [pytest.mark.alone, pytest.mark.row("L9", "L10")]

HOST = Host(Site("n1"))
ALL = ("table", "signal", "group")


def groups():
    """Return every group of ours; those of labs that others have up come and go."""
    every = {str(path) for root in cgroups.roots() for path in Path(root).glob("chaoskit-*")}
    return {path for path in every if "canary" in path}


def links():
    """Return every network device with its flags, addresses and counts of carrier changes, but those of labs."""
    told = json.loads(subprocess.run(["ip", "-d", "-j", "address"], capture_output=True, check=True, text=True).stdout)
    return [link for link in told if not link["ifname"].startswith(("ck", "veth"))]


def node(agent):
    """Return what a canary could leave on a node: tables, groups, marks, links, and every file of the agent's."""
    marks = sorted(os.listdir(canary.marks.FOLDER)) if os.path.isdir(canary.marks.FOLDER) else []
    ledger = sorted(path.name for path in (agent.root / "state" / "ledger").iterdir() if path.suffix != ".lock" or "," in path.name)
    return nftables.tables(), groups(), [name for name in marks if name.startswith("canary")], ledger


@pytest.fixture
def sent(any_agent):
    """Return a function that takes a canary along the way of a real fault and returns what it was asked on it."""
    channel = any_agent.connect()
    channel.ask("hello")

    def send(*kinds, entry="doctor-1/1/n1"):
        told = {
            "prepare": channel.ask(
                "prepare", run="doctor-1", entry=entry, fault="canary", params={"kinds": list(kinds)}, site=Site("n1").to_json()
            )
        }
        told["arm"] = channel.ask("arm", entry=entry, lease=20.0)
        for verb in ("inject", "witness", "audit", "revert", "gone", "forget"):
            told[verb] = channel.ask(verb, **({} if verb == "audit" else {"entry": entry}))
        return told

    return send


def test_all_of_it_is_armed_done_seen_and_taken_back_and_nothing_is_left(any_agent, sent):
    before, net = node(any_agent), links()
    told = sent(*ALL)

    assert told["prepare"]["undo"]["kinds"] == list(ALL)
    assert told["arm"]["deadline"] > 0
    assert told["witness"]["evidence"]["holds"]
    assert [debt["entry"] for debt in told["audit"]["debts"]] == ["doctor-1/1/n1"]
    assert told["gone"]["evidence"]["holds"]
    assert (before, net) == (node(any_agent), links())


def test_the_fuse_never_takes_what_was_forgotten_for_owed(any_agent):
    """It remembers what it has read as owed; once the lease is over, it would end the server for an entry that is gone."""
    channel = any_agent.connect()
    entry = "doctor-5/1/n1"
    channel.ask("prepare", run="doctor-5", entry=entry, fault="canary", params={"kinds": []}, site=Site("n1").to_json())
    channel.ask("arm", entry=entry, lease=2.0)
    channel.ask("inject", entry=entry)
    armed = time.monotonic()
    time.sleep(1.2)  # the fuse looks once a second
    channel.ask("revert", entry=entry)
    channel.ask("forget", entry=entry)
    server = any_agent.pids("serve")
    time.sleep(max(0.0, armed + 2.0 + fuse.BUSY + 2.0 - time.monotonic()))

    assert server == any_agent.pids("serve") != []
    channel.ask("hello")
    assert not (any_agent.root / "run" / "runs" / "doctor-5").exists()


def test_while_it_stands_it_is_there_and_after_the_controllers_death_the_lease_takes_it_away(any_agent):
    """What the doctor proves by it: that the node heals itself."""
    channel = any_agent.connect()
    channel.ask("hello")
    before = node(any_agent)
    channel.ask(
        "prepare", run="doctor-2", entry="doctor-2/1/n1", fault="canary", params={"kinds": ["table", "group"]}, site=Site("n1").to_json()
    )
    channel.ask("arm", entry="doctor-2/1/n1", lease=2.0)
    channel.ask("inject", entry="doctor-2/1/n1")
    assert {table.name for table in nftables.tables()} - {table.name for table in before[0]}
    assert groups() > before[1]
    channel.kill()
    again = any_agent.connect()
    answer = again.ask("finish", entry="doctor-2/1/n1")
    assert answer["evidence"]["holds"]
    again.ask("forget", entry="doctor-2/1/n1")

    assert before == node(any_agent)


def test_an_open_entry_is_not_forgotten_and_no_other_faults_at_all(any_agent):
    channel = any_agent.connect()
    channel.ask("prepare", run="doctor-3", entry="doctor-3/1/n1", fault="canary", params={"kinds": []}, site=Site("n1").to_json())
    channel.ask("arm", entry="doctor-3/1/n1", lease=20.0)
    with pytest.raises(RuntimeError, match="owes an undo"):
        channel.ask("forget", entry="doctor-3/1/n1")
    channel.ask("revert", entry="doctor-3/1/n1")
    channel.ask("prepare", run="run", entry="run/1/n1", fault="toy_file", params={"path": str(any_agent.file())}, site=Site("n1").to_json())
    with pytest.raises(RuntimeError, match="is no canary's"):
        channel.ask("forget", entry="run/1/n1")


def test_what_is_not_to_be_had_is_said_and_what_was_done_before_it_is_taken_back():
    """As where a security module refuses what the rights allow."""
    fault = Canary(("table", "group"))
    undo = fault.prepare(HOST)
    os.mkdir(undo["groups"][0])  # somebody has that name already
    try:
        with pytest.raises(Refusal, match=r"an empty control group cannot be had: .*File exists"):
            fault.inject(HOST, undo)
    finally:
        fault.revert(HOST, undo)
    assert fault.gone(HOST, undo).holds
    assert Table("inet", "chaoskit_canary_" + undo["tag"]) not in nftables.tables()


def test_what_the_node_may_not_do_is_not_tried(archive):
    script = """
import sys
sys.path.insert(0, sys.argv[1])
from chaoskit.agent.canary import Canary
from chaoskit.agent.contract import Site
from chaoskit.agent.host import Host
print(Canary(("table", "signal")).prepare(Host(Site("n1")))["kinds"])
"""
    bare = [
        "setpriv",
        "--bounding-set",
        "-net_admin",
        "--inh-caps",
        "-net_admin",
        sys.executable,
        "-I",
        "-S",
        "-c",
        script,
        str(archive.path),
    ]
    done = subprocess.run(bare, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "['signal']"


@pytest.mark.row("L35")
def test_the_power_limit_that_is_set_is_the_one_that_was_there(gpus):
    gpus.edit(0, limit=512_345)
    fault = Canary(("power",))
    undo = fault.prepare(HOST)
    try:
        fault.inject(HOST, undo)
        assert gpus.read(0)["limit"] == 512_345
    finally:
        fault.revert(HOST, undo)
    gpus.edit(0, failure="no_permission", failing="nvmlDeviceSet")
    with pytest.raises(Exception, match=r"(?i)permission"):
        fault.inject(HOST, undo)
    fault.revert(HOST, undo)
    assert gpus.read(0)["limit"] == 512_345


def test_one_whose_ledger_is_lost_is_known_and_swept():
    fault = Canary(("group",))
    undo = fault.prepare(HOST)
    fault.inject(HOST, undo)
    mine = [stray for stray in Canary.strays(HOST) if stray.resource == "canary:" + undo["tag"]]
    for stray in mine:
        assert stray.ours
        Canary.sweep(HOST, stray)

    assert len(mine) == 2
    assert fault.gone(HOST, undo).holds


def test_each_kind_has_words_and_an_unknown_one_is_refused():
    assert set(KINDS) == {"table", "signal", "group", "power"}
    with pytest.raises(Refusal, match="there is no canary 'flap'"):
        Canary(("flap",)).prepare(HOST)
    assert json.dumps(Canary(ALL).prepare(HOST))
