"""
Whoever of us dies while a link is down, the node comes back as it was: controller, agent's server, fuse, or several.

The snapshots are read by iproute2 and procfs over plain ssh, not by chaoskit.
"""

import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from fair_watch import FairWatch

pytestmark = pytest.mark.cluster

HOLD = Path(__file__).parents[1] / "support" / "hold_link.py"
LEASE = 4.0
NODE = "node3"


def shell(lab, text):
    """Run a line of shell on the node, over plain ssh."""
    done = lab.ssh(NODE, f"export PATH=$PATH:/usr/sbin:/sbin; {text}")
    assert done.returncode == 0, done.stderr
    return done.stdout


def snapshot(lab):
    """Links, addresses, routes of all tables, rules and qdiscs of the node, without counters and timers."""
    raw = shell(lab, "ip addr; ip -4 route show table all; ip -6 route show table all; ip rule; tc qdisc")
    volatile = r"(valid_lft|preferred_lft|expires|age) \S+|\bssthresh\b.*|promiscuity \d+"
    return sorted(re.sub(volatile, "", line).strip() for line in raw.splitlines())


def link_is_up(lab):
    return "LOWER_UP" in shell(lab, "ip link show rail1")


def agent_pids(lab, verb):
    """Pids, in the node, of the agent's processes with this verb."""
    listing = shell(lab, "sudo -n ps -eo pid=,args=")
    return [int(line.split()[0]) for line in listing.splitlines() if re.search(rf"agent/\w+\.pyz {verb}\b", line)]


def kill_on_node(lab, number, pids):
    assert pids, "no such process of the agent on the node"
    shell(lab, f"sudo -n kill -{number} {' '.join(map(str, pids))}")


class Held:
    """A controller that holds the link down, and what the node looked like before."""

    def __init__(self, lab, run_dir) -> None:
        self.lab = lab
        self.run_dir = run_dir
        run_dir.mkdir(parents=True)
        self.before = snapshot(lab)
        self.process = subprocess.Popen(
            [sys.executable, HOLD, lab.inventory_path, NODE, run_dir, str(LEASE)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        said = []
        for line in self.process.stdout:
            said.append(line)
            if line == "holding\n":
                break
        assert said[-1:] == ["holding\n"], "".join(said)
        assert not link_is_up(lab)

    def kill_controller(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        return FairWatch()

    def restored_after(self, watch):
        """Wait until the node looks as before; return the seconds on the watch then. Polls every 0.1 s, gives up after 20 s."""
        while watch.took() < 20:
            if link_is_up(self.lab):
                up = watch.took()
                time.sleep(0.5)  # routes follow the link
                assert snapshot(self.lab) == self.before
                return up
            time.sleep(0.1)
        pytest.fail("the link is still down after 20 s")


@pytest.fixture
def held(lab, tmp_path):
    held = Held(lab, tmp_path / "runs" / f"hold-{uuid.uuid4().hex[:12]}")
    yield held
    held.process.kill()
    held.process.wait()
    shell(lab, "sudo -n ip link set rail1 up")


def cli(*args):
    done = subprocess.run(
        [sys.executable, "-c", "from chaoskit.cli.main import entry; entry()", *map(str, args)],
        check=False,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.row("L1", "L12", "L18", "L47")
def test_a_killed_controller_leaves_a_node_that_heals_itself(held, lab):
    watch = held.kill_controller()

    assert held.restored_after(watch) < LEASE + 1.0
    assert cli("audit", "--inventory", lab.inventory_path)[0] == 0


@pytest.mark.row("R1", "L12")
def test_a_killed_server_is_inherited_by_the_fuse(held, lab):
    kill_on_node(lab, 9, agent_pids(lab, "serve"))

    assert held.restored_after(FairWatch()) < LEASE + 1.0
    held.kill_controller()
    assert cli("audit", "--inventory", lab.inventory_path)[0] == 0


@pytest.mark.row("R1", "L24", "L47")
@pytest.mark.prove
def test_a_stopped_server_is_killed_by_the_fuse_when_the_lease_is_over(held, lab):
    kill_on_node(lab, "STOP", agent_pids(lab, "serve"))

    assert held.restored_after(FairWatch()) < LEASE + 1.0
    held.kill_controller()
    assert cli("audit", "--inventory", lab.inventory_path)[0] == 0


@pytest.mark.row("R2")
def test_with_server_and_fuse_killed_audit_names_the_debt_and_heal_pays_it(held, lab):
    kill_on_node(lab, 9, [*agent_pids(lab, "fuse"), *agent_pids(lab, "serve")])
    held.kill_controller()
    time.sleep(LEASE + 1.5)
    assert not link_is_up(lab)

    code, said = cli("audit", "--inventory", lab.inventory_path)
    assert (code, NODE in said, "link_flap" in said) == (5, True, True)
    assert not link_is_up(lab), "audit only reads"

    assert cli("heal", "--inventory", lab.inventory_path)[0] == 0
    held.restored_after(FairWatch())
    assert cli("audit", "--inventory", lab.inventory_path)[0] == 0


@pytest.mark.row("R2", "R9")
@pytest.mark.prove
def test_a_debt_is_paid_from_our_journal_when_the_node_lost_its_ledger(held, lab):
    kill_on_node(lab, 9, [*agent_pids(lab, "fuse"), *agent_pids(lab, "serve")])
    held.kill_controller()
    shell(lab, "sudo -n rm -rf /var/lib/chaoskit/ledger")
    runs = held.run_dir.parent

    code, said = cli("audit", "--inventory", lab.inventory_path, "--runs", runs)
    assert (code, "journal" in said) == (5, True)

    assert cli("heal", "--inventory", lab.inventory_path, "--runs", runs)[0] == 0
    assert held.restored_after(FairWatch()) < 2.0
    assert cli("audit", "--inventory", lab.inventory_path, "--runs", runs)[0] == 0
