"""
Faults where the lab cannot try them: on cgroup v2, on a client of NFS, on the drivers of Debian's kernel.

Each is injected by the agent itself, and looked at with the machine's own tools, before, meanwhile and afterwards.
"""

import time
from contextlib import contextmanager
from dataclasses import replace

import pytest

from chaoskit.agent.contract import CONTROL_PATH, TrainingFacts
from chaoskit.errors import AgentError
from chaoskit.fleet.fleet import SshFleet
from chaoskit.model.load import load_inventory

pytestmark = [pytest.mark.prove, pytest.mark.alone]

RUN = "vm-run"
GROUP = "/sys/fs/cgroup/system.slice/rank.service"
RATE = 1 << 18
SLOW = 4.0
"""Seconds for a save, which takes twice as long at `RATE`, and a second on a busy machine at its own."""
RANK = """
import os, sys, time
while True:
    began = time.monotonic()
    while time.monotonic() - began < 2.0:
        sum(range(2000))
        time.sleep(0.005)
    began = time.monotonic()
    with open(sys.argv[1] + "/part", "wb") as file:
        file.write(os.urandom(2 << 20))
        file.flush()
        os.fsync(file.fileno())
    os.replace(sys.argv[1] + "/part", sys.argv[1] + "/checkpoint")
    print(time.monotonic() - began, flush=True)
"""
"""A rank that computes and saves 2 MiB by turns, and tells how long each save took."""


@pytest.fixture
def rank(tier):
    """Return a function that starts a rank of the account's, saving to a folder; it is ended afterwards."""
    machine = tier.one

    def start(folder):
        machine.ssh(f"cat >/run/rank.py <<'END'\n{RANK}\nEND")
        # A weight is what makes systemd hand a controller down to a unit.
        properties = "-p CPUWeight=90 -p IOWeight=90 --uid=chaos --setenv=RANK=0 --setenv=LOCAL_RANK=0"
        machine.ssh(f"systemd-run --quiet --unit=rank {properties} --setenv=TORCHELASTIC_RUN_ID={RUN} python3 /run/rank.py {folder}")
        saves(machine, 1)
        return TrainingFacts(run_id=RUN, user="chaos", checkpoints=folder)

    yield start
    machine.ssh("systemctl stop rank", check=False)


def saves(machine, count):
    """Wait until the rank has saved so many times more, and return how long the last save took."""
    command = "journalctl --quiet -o cat -u rank _TRANSPORT=stdout | wc -l"
    wanted = int(machine.ssh(command)) + count
    until = time.monotonic() + 120.0
    while int(machine.ssh(command)) < wanted:
        assert time.monotonic() < until, machine.ssh("systemctl status rank; journalctl -u rank -n 5", check=False)
        time.sleep(1.0)
    return float(machine.ssh("journalctl --quiet -o cat -u rank _TRANSPORT=stdout -n 1"))


@contextmanager
def struck(tier, fault, params, training, allow=()):
    """Inject a fault on vm1, proven present within and gone afterwards."""
    fleet = SshFleet(load_inventory(tier.inventory))
    try:
        agent = fleet.connect(["vm1"])["vm1"]
        run = f"vm-{time.time_ns()}"
        entry = f"{run}/1/vm1"
        agent.prepare(run, entry, fault, params, replace(fleet.site("vm1"), training=training, allow=allow)).result()
        exposed = agent.exposed(entry).result()
        assert exposed.holds, exposed.says
        agent.arm(entry, 300.0).result()
        agent.inject(entry, None).result()
        try:
            present = agent.witness(entry).result()
            assert present.holds, present.says
            yield
        finally:
            ended = agent.revert(entry).result()
        assert ended.gone.holds, ended.gone.says
    finally:
        fleet.close()


def group_of_rank(machine):
    """Return what the rank's group is: those below it, who stands in each, and what it hands down."""
    return machine.ssh(f"cd {GROUP}; find . -type d | sort; cat cgroup.procs cgroup.subtree_control io.max cpu.max")


def test_a_rank_is_slowed_in_a_group_of_its_own_below_its_unit(tier, rank):
    """On cgroup v2 that is a threaded group, with a quota that holds it back; the unit is as it was afterwards."""
    training = rank("/srv/local/chaos")
    before = group_of_rank(tier.one)

    with struck(tier, "rank_slow", {"cpu": 0.2, "hold": 250.0}, training):
        below = f"{GROUP}/chaoskit-rank_slow-*"
        kind, quota, period = tier.one.ssh(f"cat {below}/cgroup.type {below}/cpu.max").split()
        assert kind == "threaded"
        assert 0 < int(quota) < int(period)
        held_back = f"grep nr_throttled {below}/cpu.stat"
        first = tier.one.ssh(held_back)
        time.sleep(2.0)
        assert tier.one.ssh(held_back) != first
    assert group_of_rank(tier.one) == before


def test_a_disk_is_slowed_for_the_ranks_unit(tier, rank):
    """By `io.max`: what the page cache writes back counts as well."""
    tier.one.ssh("mkfs.ext4 -q -F /dev/vdb && mkdir -p /ckpt && mount /dev/vdb /ckpt && chown chaos /ckpt")
    try:
        training = rank("/ckpt")
        before = group_of_rank(tier.one)

        with struck(tier, "storage_slow", {"rate": RATE, "ratio": 2.0, "hold": 250.0}, training):
            assert f"wbps={RATE}" in tier.one.ssh(f"cat {GROUP}/io.max")
            assert saves(tier.one, 2) > SLOW
        assert group_of_rank(tier.one) == before
        saves(tier.one, 1)  # one that had begun under the throttle
        assert saves(tier.one, 1) < SLOW
    finally:
        tier.one.ssh("systemctl stop rank; umount /ckpt", check=False)


def test_a_file_server_is_slowed_for_its_client(tier, rank):
    """By a cap toward it on the device that leads there; since homes lie on it, only where the experiment allows that."""
    tier.one.ssh("mkdir -p /home/chaos/ckpt", user="chaos")
    training = rank("/home/chaos/ckpt")
    before = tier.one.state("eth1")
    params = {"rate": RATE, "ratio": 2.0, "hold": 250.0}
    with (
        pytest.raises(AgentError, match="home directory /home/chaos lies on the same servers"),
        struck(tier, "storage_slow", params, training),
    ):
        pass

    with struck(tier, "storage_slow", params, training, allow=(CONTROL_PATH,)):
        assert "htb" in tier.one.state("eth1")["qdiscs"]
        assert saves(tier.one, 2) > SLOW
    assert tier.one.state("eth1") == before
    saves(tier.one, 1)  # as above
    assert saves(tier.one, 1) < SLOW


@pytest.mark.row("L11")
def test_somebody_elses_netem_is_told_refused_and_left_alone(tier, rank):
    """A delay that another tool has put on the way to the server is no business of ours: a cap would replace it."""
    training = rank("/srv/local/chaos")
    tier.one.ssh("mkdir -p /home/chaos/ckpt", user="chaos")
    tier.one.ssh("tc qdisc add dev eth1 root netem delay 5ms")
    try:
        before = tier.one.state("eth1")
        assert "a queueing discipline that is not ours (netem" in tier.chaoskit("audit")
        params = {"path": "/home/chaos/ckpt", "rate": RATE, "ratio": 2.0, "hold": 250.0}
        with (
            pytest.raises(AgentError, match=r"eth1 has a queueing discipline of its own \(netem"),
            struck(tier, "storage_slow", params, training, allow=(CONTROL_PATH,)),
        ):
            pass
        assert tier.one.state("eth1") == before
    finally:
        tier.one.ssh("tc qdisc del dev eth1 root")
