"""The whole way with the real agent: over a real sshd, pushed, taken over by root, asked, lost and reached again."""

import os
import re
import signal
import socket
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fair_watch import FairWatch, until

from chaoskit.errors import AgentError, HostKeyError, InputError, NodeError, UnreachableError
from chaoskit.fleet.fleet import SshFleet
from chaoskit.fleet.push import WINDOW
from chaoskit.model.inventory import Inventory, InventoryFile, Node, RailSpec
from chaoskit.model.wire import Beat, Lines, TailEnd

TOYS = {path.stem: path for path in (Path(__file__).parents[1] / "agent" / "toys").glob("toy_*.py")}


def node(name, **values):
    plain = {"group": "workers", "gpus": 1, "rails": (), "address": "127.0.0.1", "machine_id": None, "mounts": (), "python": None}
    return Node(name=name, protected=False, **{**plain, **values})


@pytest.fixture
def fleets(tmp_path):
    made = []

    def make(server, *nodes, ssh=None, **file):
        values = {"allow": "lab", "shared": "accept", **file}
        named = {each.name: each for each in nodes or (node("n1"),)}
        inventory = Inventory("test", str(tmp_path / "site.yaml"), named, InventoryFile("test", {}, ssh=ssh or server.ssh(), **values))
        made.append(SshFleet(inventory, TOYS))
        return made[-1]

    yield make
    for fleet in made:
        fleet.close()


@pytest.fixture
def target(tmp_path):
    file = tmp_path / "target"
    file.write_text("fine")
    return file


def agent_pids(server):
    """Return the pids of the agents' servers inside the namespaces of this sshd."""
    inside = os.stat(f"/proc/{server.inner}/ns/pid").st_ino
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"serve" in words and os.stat(f"/proc/{pid}/ns/pid").st_ino == inside:
                found.append(int(pid))
        except OSError:
            continue
    return found


def test_an_agent_is_pushed_once_and_answers(sshd, fleets):
    first = fleets(sshd).connect(["n1"])["n1"]
    pushed = list((sshd.folder / "home/.cache/chaoskit").iterdir())
    stamps = [path.stat().st_mtime_ns for path in pushed]
    second = fleets(sshd).connect(["n1"])["n1"]

    assert first.hello == second.hello
    assert (first.hello.uid, first.connected, first.name) == (0, True, "n1")
    assert first.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert [path.name for path in pushed] == [f"agent-{first.hello.agent}.pyz"]
    assert [path.stat().st_mtime_ns for path in pushed] == stamps
    assert (sshd.folder / "home/.cache/chaoskit").stat().st_mode & 0o077 == 0


@pytest.mark.row("S15")
def test_a_pushed_file_that_was_tampered_with_is_refused_by_root_and_pushed_again(sshd, fleets):
    fleets(sshd).connect(["n1"])
    [pushed] = (sshd.folder / "home/.cache/chaoskit").iterdir()
    size = pushed.stat().st_size
    copy = Path(f"/proc/{sshd.inner}/root/var/lib/chaoskit/agent/{pushed.name.removeprefix('agent-')}")
    copy.unlink()
    pushed.write_bytes(b"#" * size)

    agent = fleets(sshd).connect(["n1"])["n1"]

    assert agent.hello.agent in pushed.name
    assert pushed.read_bytes()[:2] == b"PK"


def test_an_injection_from_prepare_to_gone(sshd, fleets, target):
    fleet = fleets(sshd)
    agent = fleet.connect(["n1"])["n1"]
    run, entry = "run1", "run1/1/n1"
    prepared = agent.prepare(run, entry, "toy_file", {"path": str(target), "down": 2.0}, fleet.site("n1")).result()
    assert agent.exposed(entry).result().holds
    agent.arm(entry, 30.0).result()
    watch, at = FairWatch(), time.monotonic() + 1.0
    future = agent.inject(entry, at)
    time.sleep(0.1)
    assert target.read_text() == "fine"
    t0 = future.result()
    assert target.read_text() == "harmed"
    assert agent.witness(entry).result().holds
    assert agent.renew(run, 30.0).result() == ()
    ended = agent.finish(entry).result()

    assert prepared.undo["content"] == "fine"
    assert prepared.resources == (f"file:{target}",)
    assert at <= t0.hi <= at + 0.05 + watch.spared()
    assert t0.lo <= at + 0.005 + watch.spared()
    assert t0.spread < 0.01 + watch.spared()
    assert at + 2.0 <= ended.t1.hi <= at + 2.1 + watch.spared()
    assert ended.gone.holds
    assert agent.gone(entry).result().holds
    assert target.read_text() == "fine"
    [known] = agent.entries(run).result()
    assert (known.entry, known.state) == (entry, "reverted")
    assert known.t0.lo <= t0.hi
    assert known.t0.hi >= t0.lo
    assert agent.audit().result() == ()


def test_a_refusal_keeps_the_agents_words_and_names_node_and_fault(sshd, fleets, target):
    fleet = fleets(sshd)
    agent = fleet.connect(["n1"])["n1"]
    target.write_text("harmed")

    error = agent.prepare("run2", "run2/1/n1", "toy_file", {"path": str(target)}, fleet.site("n1")).exception()

    assert isinstance(error, AgentError)
    assert error.kind == "Refusal"
    assert str(error).startswith("n1 toy_file: ")
    assert "is harmed already" in str(error)


@pytest.mark.row("L11")
def test_an_early_revert_is_idempotent(sshd, fleets, target):
    fleet = fleets(sshd)
    agent = fleet.connect(["n1"])["n1"]
    entry = "run3/1/n1"
    agent.prepare("run3", entry, "toy_file", {"path": str(target), "down": 30.0}, fleet.site("n1")).result()
    agent.arm(entry, 30.0).result()
    agent.inject(entry, None).result()
    finish = agent.finish(entry)
    first, second = agent.revert(entry).result(), agent.revert(entry).result()

    assert first == second == finish.result()
    assert first.gone.holds
    assert target.read_text() == "fine"


@pytest.mark.row("R1", "L4")
def test_a_killed_server_means_unknown_and_the_ledger_tells_after_reconnecting(sshd, fleets, target):
    fleet = fleets(sshd)
    agent = fleet.connect(["n1"])["n1"]
    run, entry = "run4", "run4/1/n1"
    agent.prepare(run, entry, "toy_file", {"path": str(target), "down": 30.0}, fleet.site("n1")).result()
    agent.arm(entry, 30.0).result()
    watch, t0 = FairWatch(), agent.inject(entry, None).result()
    finish = agent.finish(entry)
    for pid in agent_pids(sshd):
        os.kill(pid, signal.SIGKILL)
    error = finish.exception(10)

    assert isinstance(error, UnreachableError)
    assert "'finish' was pending; whether it took effect is unknown" in str(error)
    assert not agent.connected
    again = fleet.reconnect("n1").result()
    assert again is not agent
    assert again.revert(entry).result().gone.holds
    [known] = again.entries(run).result()
    assert known.state == "reverted"
    assert abs(known.t0.mid - t0.mid) < 0.002 + watch.spared()
    assert target.read_text() == "fine"


def test_debts_are_healed_by_the_ledger_and_by_the_journal(sshd, fleets, target):
    fleet = fleets(sshd)
    agent = fleet.connect(["n1"])["n1"]
    entry = "run5/1/n1"
    prepared = agent.prepare("run5", entry, "toy_file", {"path": str(target), "down": 60.0}, fleet.site("n1")).result()
    agent.arm(entry, 30.0).result()
    agent.inject(entry, None).result()
    [debt] = agent.audit().result()
    assert debt.held.run == "run5"
    assert [each["held"] for each in agent.heal(None, []).result()] == [True]
    assert target.read_text() == "harmed"
    [healed] = agent.heal(None, [], live=True).result()

    assert (debt.entry, healed["entry"], healed["healed"]) == (entry, entry, True)
    assert target.read_text() == "fine"
    target.write_text("harmed")
    journal = {"entry": "run6/1/n1", "fault": "toy_file", "params": {"path": str(target)}, "undo": prepared.undo, "boot_id": agent.boot_id}
    [healed] = agent.heal([], [journal]).result()
    assert healed["healed"], healed["says"]
    assert target.read_text() == "fine"


def lines_of(events):
    return [line for event in events if isinstance(event, Lines) for line in event.lines]


def test_a_log_is_followed_with_its_times_on_our_clock(sshd, fleets, tmp_path):
    agent = fleets(sshd).connect(["n1"])["n1"]
    log = tmp_path / "log"
    log.write_text("old\n")
    events, ended = [], threading.Event()
    agent.tail("s1", str(log), None, True, lambda event: (events.append(event), isinstance(event, TailEnd) and ended.set())).result()
    until(lambda: any(isinstance(event, Beat) for event in events))
    watch = FairWatch()
    with log.open("a") as file:
        file.write("one\ntwo\nthr")
    written = time.monotonic()
    until(lambda: lines_of(events) == ["old", "one", "two"])
    spared = watch.spared()
    time.sleep(0.3)  # for what must not come: the line that has no end
    agent.close()

    assert ended.wait(5)
    assert lines_of(events) == ["old", "one", "two"]
    *_, last = [event for event in events if isinstance(event, Lines)]
    assert last.since <= written <= last.at + 0.005 + spared
    assert last.at - last.since < 0.5 + spared
    assert all(event.node == "n1" and event.stream == "s1" for event in events)
    assert isinstance(events[-1], TailEnd)


def test_more_than_a_window_of_log_comes_through(sshd, fleets, tmp_path):
    """The node may send only what it was granted; grants must follow what came in."""
    agent = fleets(sshd).connect(["n1"])["n1"]
    log = tmp_path / "log"
    lines = 5 * WINDOW // 4 // 1000
    log.write_text(("x" * 999 + "\n") * lines)
    seen, complete = [0], threading.Event()

    def count(event):
        if isinstance(event, Lines):
            seen[0] += len(event.lines)
            if seen[0] == lines:
                complete.set()

    agent.tail("s1", str(log), None, True, count).result()

    assert complete.wait(30), f"{seen[0]} of {lines} lines"


def test_a_process_outlives_the_connection_and_can_be_stopped(sshd, fleets, tmp_path):
    fleet = fleets(sshd)
    agent = fleet.connect(["n1"])["n1"]
    log = tmp_path / "out"
    started = agent.spawn(
        "job1", ["sh", "-c", "echo $WORD; exec sleep 60"], {"WORD": "hello", "PATH": "/usr/bin:/bin"}, None, "/", str(log)
    ).result()
    agent.close()
    again = fleet.reconnect("n1").result()
    seen = again.spawned("job1").result()

    assert started.alive
    assert (seen.alive, seen.pid, seen.start_time) == (True, started.pid, started.start_time)
    assert log.read_text() == "hello\n"
    assert again.stop("job1", 2.0).result()
    assert not again.spawned("job1").result().alive


def test_the_site_says_what_must_not_be_cut(sshd, fleets):
    rails = (RailSpec(netdev="eth2", plane="A"), RailSpec(netdev="eth3", plane="B"))
    nodes = node("n1", rails=rails, mounts=("/ckpt",)), replace(node("login", address="10.9.8.7"), protected=True)
    fleet = fleets(sshd, *nodes, allow="file", shared="refuse")
    fleet.connect(["n1"])
    site = fleet.site("n1")

    assert (site.control_addresses, site.protected_addresses) == (("127.0.0.1",), ("127.0.0.1", "10.9.8.7"))
    assert [(rail.index, rail.netdev, rail.plane) for rail in site.rails] == [(0, "eth2", "A"), (1, "eth3", "B")]
    assert (site.mounts, site.require_allow_file, site.shared) == (("/ckpt",), True, False)
    assert site.machine_id == Path("/etc/machine-id").read_text().strip()


def test_a_protected_node_without_an_address_is_looked_up_once(sshd, fleets, monkeypatch):
    """A lookup that fails may take many seconds, and each node asks for it."""
    fleet = fleets(sshd, node("n1"), replace(node("login", address="login.invalid"), protected=True))
    fleet.connect(["n1"])
    asked = []

    def look_up(name, *_, **__):
        asked.append(name)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    for _ in range(3):
        with pytest.raises(InputError, match="the address of the protected node login cannot be found"):
            fleet.site("n1")
    assert asked == [b"login.invalid"]


@pytest.mark.row("L5")
def test_every_node_that_fails_is_named_with_its_own_error_and_the_others_stay(sshd, fleets):
    fleet = fleets(
        sshd, node("n1"), node("n2", address="127.0.0.3"), node("n3", python="/usr/bin/python9"), node("n4", address="localhost")
    )

    with pytest.raises(ExceptionGroup, match="3 of 4 nodes") as caught:
        fleet.connect(["n1", "n2", "n3", "n4"])

    errors = {error.node: error for error in caught.value.exceptions}
    assert isinstance(errors["n2"], UnreachableError)
    assert "looked for /usr/bin/python9" in str(errors["n3"])
    assert isinstance(errors["n4"], HostKeyError)
    assert fleet.reached("n1").agent.connected


def test_one_machine_under_two_names_is_refused(sshd, fleets):
    fleet = fleets(sshd, node("n1"), node("n2"))
    fleet.connect(["n1"])

    with pytest.raises(ExceptionGroup) as caught:
        fleet.connect(["n2"])

    assert "n2: this is the same machine as n1" in str(caught.value.exceptions[0])


def test_another_machine_than_the_inventory_means_is_refused(sshd, fleets):
    error = fleets(sshd, node("n1", machine_id="0" * 32)).reconnect("n1").exception()

    assert isinstance(error, NodeError)
    assert f"the inventory means {'0' * 32}" in str(error)


def test_names_that_the_inventory_does_not_have_are_an_error(sshd, fleets):
    assert "no such node" in str(fleets(sshd).reconnect("n9").exception())


def test_the_clock_is_mapped_all_along(sshd, fleets):
    agent = fleets(sshd).connect(["n1"])["n1"]
    watch, before = FairWatch(), len(agent.clock._trips)
    until(lambda: len(agent.clock._trips) > before)

    now = time.monotonic()
    found = agent.clock.to_controller(now)  # one machine, so the truth is known
    assert found.lo <= now <= found.hi
    assert found.spread < 0.005 + watch.spared()
    assert agent.clock.from_wall(time.time()).lo <= time.monotonic()


def test_closing_ends_every_connection_and_nothing_on_the_node(sshd, fleets):
    fleet = fleets(sshd)
    agent = fleet.connect(["n1"])["n1"]
    threads = threading.active_count()
    fleet.close()

    assert not agent.connected
    assert threading.active_count() < threads
    assert agent_pids(sshd)
    assert isinstance(agent.renew("run1", 1.0).exception(0), UnreachableError)


def test_closing_does_not_wait_for_an_agent_that_never_answers(sshd, fleets, tmp_path):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\ncase "$4" in *print*version_info*) echo "3.11 $0"; exit 0;; esac\nexec sleep 60\n')
    python.chmod(0o755)
    fleet = fleets(sshd, node("n1", python=str(python)))
    waiting = fleet.reconnect("n1")
    for _ in range(300):
        if fleet._greeting:
            break
        time.sleep(0.02)
    time.sleep(0.3)
    watch = FairWatch()
    fleet.close()

    assert "closed on this side" in str(waiting.exception(5))
    assert watch.took() < 5


def test_an_agent_of_another_hash_is_refused(sshd, fleets, tmp_path):
    """A stand-in that answers hello with a hash of its own."""
    ids = {"agent": "0" * 64, "version": "", "boot_id": "b", "machine_id": "m", "hostname": "h", "python": "3", "uid": 0}
    hello = {**ids, "notes": [], "frailties": []}
    stub = tmp_path / "stub.py"
    stub.write_text(
        "import json, sys, time\n"
        f"hello = {hello!r}\n"
        "for line in sys.stdin:\n"
        "    ok = dict(hello, mono=time.monotonic(), wall=time.time())\n"
        "    print(json.dumps({'id': json.loads(line)['id'], 'ok': ok}), flush=True)\n"
    )
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$4" in *print*version_info*) shift 3; echo "3.11 {python}"; exit 0;; esac\nexec /usr/bin/python3 {stub}\n'
    )
    python.chmod(0o755)

    error = fleets(sshd, node("n1", python=str(python))).reconnect("n1").exception()

    assert "another agent answered: 0000" in str(error)


@pytest.mark.parametrize(
    ("step", "ssh", "values"),
    [
        ("reach", {"port": 1}, {}),
        ("reach", {"config": "no-such-file"}, {}),
        ("host key", {"known_hosts": ("/dev/null",)}, {}),
        ("login", {"key": "not ours"}, {}),
        ("python", {}, {"python": "/no/such/python"}),
        ("machine", {}, {"machine_id": "0" * 32}),
    ],
)
def test_a_failure_says_at_which_step_of_the_way_to_the_agent_it_came(sshd, fleets, step, ssh, values):
    if "key" in ssh:  # a key that nobody may log in with: the server's own
        ssh = {"key": str(sshd.host_keys["rsa"])}
    error = fleets(sshd, node("n1", **values), ssh=replace(sshd.ssh(), **ssh)).reconnect("n1").exception()

    assert isinstance(error, NodeError)
    assert (error.step, error.also) == (step, ())


def test_a_node_is_examined_and_its_wall_clock_read(sshd, fleets):
    """The clock here is our own, so the interval must hold zero."""
    fleet = fleets(sshd)
    agent = fleet.connect(["n1"])["n1"]
    found = agent.examine(fleet.site("n1"), [{"user": None, "checks": {"disk": {}, "jobs": {"users": []}}}]).result()
    offset = agent.wall_offset().result()

    assert ("disk", "ok") in {(one.check, one.state) for one in found}
    assert offset.lo - 0.01 <= 0 <= offset.hi + 0.01
    assert offset.spread < 5


def test_a_glimpse_needs_no_agent_and_leaves_out_what_needs_root(sshd, fleets):
    fleet = fleets(sshd, node("n2"))
    before = agent_pids(sshd)
    found = fleet.glimpse("n2", {"disk": {}, "rails": {}, "jobs": {"users": []}, "consent": {}}).result()

    assert {one.check for one in found} == {"disk", "rails"}
    assert "ok" in {one.state for one in found if one.check == "disk"}
    assert agent_pids(sshd) == before


README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


@pytest.mark.row("S12", "L34")
def test_a_key_that_may_run_our_commands_only_is_enough_and_good_for_nothing_else(tmp_path, start, fleets):
    """Each command is refused until root has written its sum down; then the agent comes up, and a shell still does not."""
    [script] = re.findall(r"```sh\n(#!/bin/sh\n# The commands that a key.*?)```", README, re.DOTALL)
    allowed, told, gate = tmp_path / "commands", tmp_path / "told", tmp_path / "only"
    gate.write_text(script.replace("/etc/chaoskit/commands", str(allowed)).replace("logger -t chaoskit-only", f"echo >>{told}"))
    gate.chmod(0o755)
    server = start(tmp_path / "sshd", more=[f"ForceCommand {gate}", "DisableForwarding yes", "PermitTTY no"])

    for _ in range(5):
        try:
            agent = fleets(server).connect(["n1"])["n1"]
            break
        except ExceptionGroup:
            allowed.write_text("".join(f"{found}\n" for found in re.findall(r"refused ([0-9a-f]{64}): ", told.read_text())))
    assert agent.hello.uid == os.geteuid()
    assert len(allowed.read_text().split()) == 2, "the probe and the loader"

    options = ["-F", "none", "-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={server.known_hosts()}", "-i", server.client_key]
    shell = ["ssh", *options, "-p", str(server.port), "root@127.0.0.1", "id"]
    done = subprocess.run(shell, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert "not among the allowed commands" in done.stderr
