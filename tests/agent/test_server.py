"""What the agent answers: each verb's promise, over a real bridge, server and fuse."""

import os
import socket
import stat
import subprocess
import sys
import time

import pytest
from fair_watch import FairWatch

from chaoskit.agent.ledger import Ledger
from tests.support.open_files import open_files

ENTRY = "run1/1/n1"


def may_spare_from_oom():
    """Say whether a process of this test's may lower its score, in a child, for it stays so."""
    code = "with open('/proc/self/oom_score_adj', 'w') as file: file.write('-900')"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_hello_says_who_is_there(any_agent, archive):
    """The agent names itself by the hash of the file that runs."""
    hello = any_agent.connect().ask("hello", controller="tester")

    assert hello["agent"] == archive.sha256
    assert (hello["uid"], hello["hostname"]) == (0, os.uname().nodename)
    assert {"toy_file", "toy_shot"} <= set(hello["faults"])
    assert all(isinstance(note, str) for note in hello["notes"])
    # What this very process may not do, the agent may not either: it is told apart from what every run shows.
    told = [note for note in hello["frailties"] if note.startswith("the OOM killer may pick the agent")]
    assert (len(told), [note for note in hello["notes"] if note in told]) == (0 if may_spare_from_oom() else 1, [])


def test_an_injection_from_prepare_to_gone(any_agent, harm):
    """At T0, held for its span, ended by the node itself, proven at each moment; the answers tell when."""
    path = any_agent.file()
    channel = any_agent.connect()
    harm(channel, path, down=0.4, inject=False)
    facts = {verb: channel.ask(verb, entry=ENTRY)["evidence"]["holds"] for verb in ("witness", "gone", "exposed")}
    assert facts == {"witness": False, "gone": True, "exposed": True}

    watch = FairWatch()
    at = channel.ask("clock")["mono"] + 0.2
    injected = channel.ask("inject", entry=ENTRY, at=at)
    assert at <= injected["before"] <= injected["after"] < at + 0.1 + watch.spared()
    assert channel.ask("clock")["mono"] - injected["after"] >= 0.1, "the answer waits until every node has acted"
    assert not injected["ended"]
    assert path.read_text() == "harmed"
    assert [channel.ask(verb, entry=ENTRY)["evidence"]["holds"] for verb in ("witness", "gone")] == [True, False]

    ended = channel.ask("finish", entry=ENTRY)
    assert at + 0.4 <= ended["before"] <= ended["after"] < at + 0.6 + watch.spared()
    assert ended["evidence"]["holds"]
    assert path.read_text() == "whole"
    assert [channel.ask(verb, entry=ENTRY)["evidence"]["holds"] for verb in ("witness", "gone")] == [True, True]
    assert channel.ask("revert", entry=ENTRY) == ended
    assert channel.ask("finish", entry=ENTRY) == ended


def test_several_spans_are_injected_and_reverted_in_turn(any_agent, harm):
    """A flap of three closes its entry on the last revert only, and its stamps are the first start and the last end."""
    path = any_agent.file()
    channel, watch = any_agent.connect(), FairWatch()
    injected = harm(channel, path, down=0.1, times=3)
    ended = channel.ask("finish", entry=ENTRY)

    words = [line.split() for line in (any_agent.root / "a.log").read_text().splitlines()]
    assert [word for word, _ in words] == ["harm", "revert"] * 3
    start = injected["before"]
    for number, (_, stamp) in enumerate(words):
        assert 0 <= float(stamp) - start - number * 0.1 < 0.08 + watch.spared()
    (entry,) = channel.ask("entries", run="run1")["entries"]
    assert not {"undo", "site", "evidence"} & set(entry), "hundreds must fit a line"
    assert entry["t0"] == [injected["before"], injected["after"]]
    assert entry["t1"] == [ended["before"], ended["after"]]


def test_an_early_revert_cancels_what_was_to_come(agent, harm):
    """Reverting before T0 means that nothing ever happens; both askers hear of it."""
    path = agent.file()
    channel = agent.connect()
    harm(channel, path, inject=False)
    pending = channel.send("inject", entry=ENTRY, at=channel.ask("clock")["mono"] + 0.5)

    assert channel.ask("revert", entry=ENTRY)["evidence"]["holds"]
    with pytest.raises(RuntimeError, match="reverted before T0"):
        channel.wait(pending)
    time.sleep(0.6)
    assert not channel.ask("witness", entry=ENTRY)["evidence"]["holds"]


def test_a_one_shot_fault_ends_as_it_begins(any_agent, harm):
    """After a kill there is nothing to undo: no debt, its resource is free, and `gone` says what must be back."""
    path = any_agent.file()
    channel = any_agent.connect()
    assert harm(channel, path, fault="toy_shot")["ended"]

    assert not path.exists()
    assert channel.ask("witness", entry=ENTRY)["evidence"]["holds"]
    assert not channel.ask("gone", entry=ENTRY)["evidence"]["holds"]
    assert channel.ask("audit")["debts"] == []
    assert not channel.ask("finish", entry=ENTRY)["evidence"]["holds"]
    any_agent.file()
    harm(channel, path, entry="run1/2/n1", fault="toy_shot")


@pytest.mark.row("L8")
def test_a_taken_resource_is_refused_by_name(any_agent, harm):
    """Whoever comes second hears which run holds it, whose, and what to do."""
    path = any_agent.file()
    harm(any_agent.connect(), path, down=30.0, inject=False)

    with pytest.raises(RuntimeError, match=r"Refusal: n1: file:.*/a is taken by run run1 of tester since .* UTC \(toy_file armed\) \(wait"):
        harm(any_agent.connect(), path, entry="run2/1/n1")


@pytest.mark.row("R10", "L8")
def test_two_controllers_cannot_arm_one_resource(agent):
    """Both have prepared; exactly one arms."""
    path = agent.file()
    channels = [agent.connect(), agent.connect()]
    for run, channel in enumerate(channels):
        entry = {"run": f"run{run}", "entry": f"run{run}/1/n1"}
        channel.ask("prepare", **entry, fault="toy_file", params={"path": str(path)}, site={"node": "n1"})
    idents = [channel.send("arm", entry=f"run{run}/1/n1", lease=5.0, controller=f"c{run}") for run, channel in enumerate(channels)]

    outcomes = []
    for channel, ident in zip(channels, idents, strict=True):
        try:
            outcomes.append("armed" if channel.wait(ident) else "")
        except RuntimeError as error:
            outcomes.append(str(error)[:7])
    assert sorted(outcomes) == ["Refusal", "armed"]


def test_too_little_lease_refuses(agent, harm):
    """Less than half of it left at T0: nothing is injected."""
    path = agent.file()
    channel = agent.connect()
    harm(channel, path, lease=4.0, inject=False)

    with pytest.raises(RuntimeError, match="less than half of the lease"):
        channel.ask("inject", entry=ENTRY, at=channel.ask("clock")["mono"] + 2.5)
    assert path.read_text() == "whole"
    channel.ask("renew", run="run1", lease=30.0)
    channel.ask("inject", entry=ENTRY, at=None)


def test_t0_in_the_past_refuses(agent, harm):
    """An injection out of step with the other nodes is none."""
    channel = agent.connect()
    harm(channel, agent.file(), inject=False)
    with pytest.raises(RuntimeError, match="T0 is"):
        channel.ask("inject", entry=ENTRY, at=channel.ask("clock")["mono"] - 5.0)


@pytest.mark.row("R6")
def test_an_entry_is_used_once(agent, harm):
    """Not armed twice, not injected twice, not prepared again: a lost answer never repeats a harm."""
    channel = agent.connect()
    path = agent.file()
    harm(channel, path, down=0.1)
    with pytest.raises(RuntimeError, match="not armed"):
        channel.ask("inject", entry=ENTRY, at=None)
    with pytest.raises(RuntimeError, match="expected prepared"):
        channel.ask("arm", entry=ENTRY, lease=5.0, controller="")
    channel.ask("finish", entry=ENTRY)
    with pytest.raises(RuntimeError, match="used once"):
        harm(channel, path)


@pytest.mark.row("L2")
def test_an_injection_that_breaks_half_way_is_undone(agent, harm):
    """The error is the answer, and the harm that was done is gone by then."""
    path = agent.file()
    channel = agent.connect()
    with pytest.raises(RuntimeError, match="OSError: the toy broke half way"):
        harm(channel, path, trouble="inject")

    assert path.read_text() == "whole"
    assert channel.ask("audit")["debts"] == []


@pytest.mark.row("R12")
def test_a_revert_that_fails_once_is_tried_again(agent, harm):
    """A bounded number of times, and the answer is the last one's."""
    channel = agent.connect()
    harm(channel, agent.file(), trouble="once", down=30.0)

    assert channel.ask("revert", entry=ENTRY)["evidence"]["holds"]


@pytest.mark.row("R12", "L3")
@pytest.mark.row("L3", "L11")
def test_what_somebody_else_has_healed_is_not_reverted_again(agent, harm):
    """A fuse, or an agent of another version, closed it: what others have made of the resource since is left to them."""
    path = agent.file()
    channel = agent.connect()
    harm(channel, path, down=30.0)
    closed = {"evidence": {"holds": True, "says": "back", "readings": {}}, "says": "back", "t1": (1.0, 2.0)}
    Ledger(str(agent.root / "state" / "ledger")).append(ENTRY, "reverted", **closed)
    path.write_text("of somebody else")

    assert channel.ask("revert", entry=ENTRY)["evidence"]["says"] == "back"
    assert path.read_text() == "of somebody else"


def test_what_cannot_be_reverted_stays_a_debt(agent, harm):
    """The answer says so, the ledger stays open, and another fault's revert is not held up by it."""
    channel = agent.connect()
    harm(channel, agent.file("a"), trouble="revert", down=30.0)
    harm(channel, agent.file("b"), entry="run1/2/n1", down=30.0)

    ended = channel.ask("revert", entry=ENTRY)
    assert not ended["evidence"]["holds"]
    assert "cannot be mended" in ended["evidence"]["says"]
    (debt, _) = channel.ask("audit")["debts"]
    assert (debt["entry"], debt["live"], debt["failures"]) == (ENTRY, True, 1)
    results = {one["entry"]: (one["healed"], one["held"]) for one in channel.ask("heal", entries=None)["results"]}
    assert results == {ENTRY: (False, False), "run1/2/n1": (False, True)}, "what a run holds is left alone, what failed is tried again"
    results = {one["entry"]: one["healed"] for one in channel.ask("heal", entries=None, live=True)["results"]}
    assert results == {ENTRY: False, "run1/2/n1": True}


def fill(state):
    """Leave no room on the ledger's disk, the rest of its last block included."""
    (state / "filler").write_bytes(b"")
    subprocess.run(["dd", "if=/dev/zero", f"of={state}/filler", "bs=4k"], check=False, capture_output=True)
    ledger = state / "ledger" / "run1,1,n1.jsonl"
    ledger.write_bytes(ledger.read_bytes().ljust(-(-ledger.stat().st_size // 4096) * 4096, b" "))


@pytest.mark.row("R3")
def test_a_full_disk_never_stands_in_the_way_of_a_revert(agent, harm):
    """Armed while there was room; the ledger's disk fills up; the fault ends all the same and the answer has a note."""
    state = agent.root / "state"
    state.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(state)], check=True)
    try:
        path = agent.file()
        channel = agent.connect()
        harm(channel, path, down=30.0)
        fill(state)

        ended = channel.ask("revert", entry=ENTRY)
        assert ended["evidence"]["holds"]
        assert "cannot be written" in ended["note"]
        assert path.read_text() == "whole"
        with pytest.raises(RuntimeError, match="cannot be written"):
            harm(channel, agent.file("b"), entry="run1/2/n1")
        assert (agent.root / "b").read_text() == "whole"
    finally:
        agent.end()
        subprocess.run(["umount", str(state)], check=True)


@pytest.mark.row("R3")
def test_an_injection_that_the_disk_refuses_is_answered_once(agent, harm):
    """It is refused before harm, and the revert that follows does not answer for it again: one request, one answer."""
    state = agent.root / "state"
    state.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(state)], check=True)
    try:
        path = agent.file()
        channel = agent.connect()
        harm(channel, path, inject=False)
        fill(state)
        ident = channel.send("inject", entry=ENTRY, at=None)
        with pytest.raises(RuntimeError, match="cannot be written"):
            channel.wait(ident)

        assert channel.ask("revert", entry=ENTRY)["evidence"]["holds"]
        assert channel.ask("clock")["mono"] > 0
        assert ident not in channel.answers
        assert path.read_text() == "whole"
    finally:
        agent.end()
        subprocess.run(["umount", str(state)], check=True)


@pytest.mark.parametrize(
    ("site", "words"),
    [
        ({"machine_id": "0" * 32}, "the inventory means 0000"),
        ({"require_allow_file": True}, "does not allow faults"),
    ],
)
def test_the_node_checks_before_harm(agent, harm, site, words):
    """It is the machine that the inventory means, and it allows this."""
    with pytest.raises(RuntimeError, match=words):
        harm(agent.connect(), agent.file(), site={"node": "n1", **site})


def test_the_allow_file_allows(agent, harm):
    """With the file, and with the right machine id, nothing refuses."""
    (agent.root / "etc").mkdir()
    (agent.root / "etc" / "allow").touch()
    channel = agent.connect()
    machine_id = channel.ask("hello")["machine_id"]

    harm(channel, agent.file(), site={"node": "n1", "require_allow_file": True, "machine_id": machine_id})


@pytest.mark.row("R6")
def test_the_end_of_a_connection_changes_nothing(agent, harm):
    """Another connection goes on with the entry; the lease alone ends it."""
    path = agent.file()
    channel = agent.connect()
    harm(channel, path, down=30.0)
    channel.close()

    assert path.read_text() == "harmed"
    assert agent.connect().ask("revert", entry=ENTRY)["evidence"]["holds"]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"[]",
        b"nonsense",
        b'{"do":7}',
        b'{"do":"nothing"}',
        b'{"do":"inject"}',
        b'{"do":"prepare","entry":"../../etc/1/x"}',
        b"\xff",
    ],
)
def test_garbage_is_answered_with_an_error(shared_agent, line):
    """One answer, and the connection lives on."""
    channel = shared_agent.connect()
    channel.raw(line + b"\n")

    assert channel.read()["error"]["kind"] == "ProtocolError"
    assert channel.ask("clock")["mono"] > 0


@pytest.mark.row("S9")
def test_an_oversize_line_closes_the_connection_with_an_error(shared_agent):
    """Nothing after it can be trusted; other connections do not notice."""
    other = shared_agent.connect()
    channel = shared_agent.connect()
    channel.raw(b"x" * (1 << 20))

    assert channel.read()["error"]["kind"] == "ProtocolError"
    with pytest.raises(EOFError):
        channel.read()
    assert other.ask("clock")["mono"] > 0


@pytest.mark.row("S6", "S7", "S14")
def test_the_socket_is_roots_alone(agent):
    """Directory 0700, socket 0600, even under an open umask; no port is listened on."""
    old = os.umask(0)
    try:
        agent.connect().ask("clock")
    finally:
        os.umask(old)

    (path,) = (agent.root / "run").glob("*/agent.sock")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for folder in (path.parent, path.parent.parent, agent.root / "state"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (server,) = agent.pids("serve")
    inodes = set(open_files(server))
    for table in ("tcp", "tcp6", "udp", "udp6"):
        with open(f"/proc/net/{table}") as file:
            assert not {f"socket:[{line.split()[9]}]" for line in file.readlines()[1:]} & inodes


STRANGER = """
import os, socket, sys
os.setgid(65534); os.setuid(65534)
wire = socket.socket(socket.AF_UNIX)
wire.settimeout(5)
wire.connect("/proc/self/fd/" + sys.argv[1])
print(wire.makefile().readline(), end="")
print(repr(wire.recv(100)))
"""


@pytest.mark.row("S6")
def test_another_user_is_refused_by_the_kernels_word(agent):
    """Even with the file modes out of the way, who asks is what counts."""
    agent.connect().ask("clock")
    (path,) = (agent.root / "run").glob("*/agent.sock")
    fd = os.open(path, os.O_PATH)
    path.chmod(0o666)
    done = subprocess.run([sys.executable, "-c", STRANGER, str(fd)], pass_fds=[fd], capture_output=True, text=True, check=False)
    os.close(fd)

    assert "PrivilegeError" in done.stdout, done.stderr
    assert "mono" not in done.stdout
    assert "refused: uid 65534 asked" in path.with_name("agent.log").read_text()


def test_many_connections_share_one_server(agent):
    """Bridges that start at the same moment start one server."""
    channels = [agent.connect() for _ in range(6)]
    for channel in channels:
        channel.ask("clock")

    assert len(agent.pids("serve")) == 1


@pytest.mark.row("S6")
def test_a_left_over_socket_is_no_server(agent):
    """After a crash the file still lies there; the next bridge starts afresh."""
    agent.connect().ask("clock")
    agent.kill("serve")
    (path,) = (agent.root / "run").glob("*/agent.sock")
    assert path.exists()

    assert agent.connect().ask("clock")["mono"] > 0


@pytest.mark.row("S5", "S6")
def test_a_stranger_in_the_path_is_refused(agent):
    """A run directory that is a link, or another user's, is not ours to use."""
    (agent.root / "elsewhere").mkdir()
    (agent.root / "run").symlink_to(agent.root / "elsewhere")
    channel = agent.connect()
    with pytest.raises(RuntimeError, match="PrivilegeError"):
        channel.ask("clock")


def test_the_socket_speaks_to_root_without_a_bridge(shared_agent):
    """The bridge adds nothing to the protocol."""
    shared_agent.connect().ask("clock")
    (path,) = (shared_agent.root / "run").glob("*/agent.sock")
    with socket.socket(socket.AF_UNIX) as wire:
        wire.connect(str(path))
        wire.sendall(b'{"id":"x","do":"clock"}\n')
        assert b'"id":"x"' in wire.recv(1000)
