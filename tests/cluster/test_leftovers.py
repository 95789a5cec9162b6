"""Audit and heal on the lab: what lies on a node without any ledger's knowing, and two controllers at one site."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster

NODE = "node2"
ROOT = Path(__file__).parents[2]
CLI = [sys.executable, "-c", "from chaoskit.cli.main import entry; entry()"]

PLANT = """
set -e
ip link add stray0 type bridge
tc qdisc add dev stray0 root handle c4a0: htb
ip link add foreign0 type bridge
tc qdisc add dev foreign0 root handle 5: pfifo
nft add table inet chaoskit_stray
nft add table inet theirs
mkdir /sys/fs/cgroup/cpu/chaoskit-rank_slow-dead
setsid sleep 600 >/dev/null 2>&1 </dev/null &
echo $! | tee /run/strays.pid > /sys/fs/cgroup/cpu/chaoskit-rank_slow-dead/cgroup.procs
mkdir -p /ckpt/strays
touch -d '1 hour ago' /ckpt/strays/.chaoskit-probe-deadbeef.7
"""
LOOK = """
tc qdisc show dev stray0; tc qdisc show dev foreign0; nft list tables; ls -A /ckpt/strays
ls -d /sys/fs/cgroup/cpu/chaoskit-rank_slow-* 2>/dev/null
"""
CLEAR = "ip link del stray0; ip link del foreign0; nft delete table inet theirs; kill $(cat /run/strays.pid); rm -rf /ckpt/strays"

ATTACHED = """\
  quiet: # somebody's training that says nothing, so that no baseline comes
    launcher: attach
    nodes: {node}
    run_id: quiet
    log: /var/log/chaoskit-quiet.log
    format: {{jsonl: {{step: step}}}}
"""
EXPERIMENT = """\
title: Waits for a baseline that does not come
training: quiet
steady_state: {{throughput: {{within: 50%, for: 2s}}}}
method:
  - {{fault: link_flap, target: {{nodes: {node}}}, with: {{rail: 1, down: 10m}}}}
"""


def root(lab, text):
    """Run lines of shell on the node as root, over plain ssh."""
    return lab.ssh(NODE, "sudo", "-n", "env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "sh", stdin=text)


def cli(lab, *args, cwd):
    return subprocess.run([*CLI, *args, "-i", str(lab.inventory_path)], check=False, capture_output=True, text=True, cwd=cwd)


@pytest.fixture
def planted(lab):
    """Plant what faults leave, and things like it of somebody else, without any entry in any ledger."""
    done = root(lab, PLANT)
    assert done.returncode == 0, done.stderr
    yield
    root(lab, CLEAR)


@pytest.mark.row("R2", "L3", "L18", "L20", "L46")
def test_what_no_ledger_knows_of_is_leaked_then_swept_and_what_is_foreign_stays(lab, planted, tmp_path):
    """From a machine that has only the inventory: exit 5 until then, 0 after; by their tags alone, and once is enough."""
    before = root(lab, LOOK).stdout
    found = cli(lab, "audit", "--json", cwd=tmp_path)
    told = json.loads(found.stdout)

    assert (found.returncode, told["outcome"]) == (5, "LEAKED")
    leaked = {(one["node"], one["fault"], one["resource"].split("/")[-1]) for one in told["leaked"]}
    assert leaked == {
        (NODE, "storage_slow", "nic:stray0"),
        (NODE, "nftables", "nft:table inet chaoskit_stray"),
        (NODE, "rank_slow", "chaoskit-rank_slow-dead"),
        (NODE, "storage_slow", "ckpt"),
    } | {(node, fault, what) for node, fault, what in leaked if what == "ckpt"}  # every node sees the shared folder
    foreign = {one["resource"] for one in told["foreign"] if one["node"] == NODE}
    assert {"nic:foreign0", "nft:table inet theirs"} <= foreign
    assert root(lab, LOOK).stdout == before, "audit only reads"

    healed = cli(lab, "heal", cwd=tmp_path)
    assert healed.returncode == 0, healed.stdout
    after = root(lab, LOOK).stdout
    for ours in ("c4a0:", "chaoskit_stray", "rank_slow", "probe"):
        assert ours in before
        assert ours not in after
    for theirs in ("pfifo 5:", "inet theirs", "chaoskit_lab"):
        assert theirs in after
    again = cli(lab, "heal", cwd=tmp_path)
    assert (again.returncode, again.stdout.count("gone")) == (0, 0)


@pytest.mark.prove
@pytest.mark.row("R10", "L8")
def test_a_second_controller_is_refused_with_the_firsts_name_time_and_host_and_touches_nothing(lab, tmp_path):
    """The first one has not injected anything yet; the second one starts no training, arms nothing and says whose the node is."""
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text(lab.inventory_path.read_text() + ATTACHED.format(node=NODE))
    (tmp_path / "waits.yaml").write_text(EXPERIMENT.format(node=NODE))
    root(lab, "touch /var/log/chaoskit-quiet.log; chmod a+r /var/log/chaoskit-quiet.log")
    argv = [*CLI, "run", "waits.yaml", "-i", str(inventory), "--out"]
    first = subprocess.Popen([*argv, "first"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        deadline = time.monotonic() + 120
        while not any('"kind":"connected"' in path.read_text() for path in tmp_path.glob("first/20*/journal.jsonl")):
            assert first.poll() is None, first.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.1)
        (journal,) = tmp_path.glob("first/20*/journal.jsonl")
        state = "ip addr; ip route show table all; ls /var/lib/chaoskit/ledger; cat /run/chaoskit/holder | cut -d, -f1-3"
        time.sleep(2.0)
        before = root(lab, state).stdout
        second = subprocess.run([*argv, "second"], check=False, capture_output=True, text=True, cwd=tmp_path)

        assert second.returncode == 3, second.stdout
        last = second.stdout.splitlines()[-1]
        assert last.startswith(f"INCONCLUSIVE: waits: {NODE} belongs to run {journal.parent.name} of ")
        for part in (
            f"@{os.uname().nodename}:{first.pid}",
            "since 20",
            "s of its lease are left",
        ):
            assert part in last
        kinds = [json.loads(line)["kind"] for path in tmp_path.glob("second/20*/journal.jsonl") for line in path.read_text().splitlines()]
        assert not {"planned", "armed", "injected"} & set(kinds)
        assert root(lab, state).stdout == before
        assert first.poll() is None
    finally:
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=60)
    assert first.returncode == 4
    assert root(lab, "ls /run/chaoskit/holder").returncode != 0, "it gives the node back"


@pytest.mark.prove
@pytest.mark.row("R5", "L46")
def test_a_training_that_a_killed_controller_left_is_told_refused_beside_and_ended(lab, tmp_path):
    """`kill -9` on a run once its training steps: no second one is started beside it, audit is red, and heal ends it."""
    argv = [*CLI, "run", str(ROOT / "experiments" / "plane_loss.yaml"), "-i", str(lab.inventory_path)]
    first = subprocess.Popen([*argv, "--out", "first"], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 180
        while not any('"samples":[[' in path.read_text() for path in tmp_path.glob("first/20*/journal.jsonl")):
            assert first.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)
    finally:
        first.kill()
        first.wait()
    (left,) = tmp_path.glob("first/20*")
    trainers = "ps -eo args= | grep -v grep | grep -c torch.distributed.run"
    assert root(lab, trainers).stdout.strip() != "0"

    held = time.monotonic() + 120
    while (code := cli(lab, "audit", cwd=tmp_path).returncode) == 3:  # its hold has not ended
        assert time.monotonic() < held
        time.sleep(2.0)
    assert code == 5
    second = subprocess.run([*argv, "--out", "second"], check=False, capture_output=True, text=True, cwd=tmp_path)
    assert second.returncode == 3
    assert "a training is left over on" in second.stdout
    assert "`chaoskit heal` ends it" in second.stdout
    found = cli(lab, "audit", cwd=tmp_path)
    assert (found.returncode, found.stdout.count(f"processes of training-{left.name} still run")) == (5, 1)
    healed = cli(lab, "heal", cwd=tmp_path)
    assert healed.returncode == 0, healed.stdout
    assert f"ended: processes of training-{left.name}" in healed.stdout
    assert root(lab, trainers).stdout.strip() == "0"
    assert cli(lab, "audit", cwd=tmp_path).returncode == 0
