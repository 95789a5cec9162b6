"""`chaoskit doctor` on a lab of its own: a well one has nothing to mend, and of many planted defects each is named in one run."""

import base64
import json
import os
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from chaoskit.cli.main import main
from chaoskit.fleet.fleet import SshFleet
from chaoskit.lab import control
from chaoskit.model.load import load_inventory

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("can_have_lab")]

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
OWED = "old-run/1/node2"

OLD_PYTHON = """#!/bin/sh
echo '3.6 /opt/old/python3'
exit 1
"""


@pytest.fixture(scope="module")
def sick_lab(can_have_lab):
    """Return a lab of four training nodes that nobody else sees, since it will not be well for long."""
    name = f"test-doctor-{os.getpid()}"
    try:
        yield control.up(name=name, nodes=4)
    finally:
        control.down(name)


@pytest.fixture
def doctor(capsys, tmp_path, monkeypatch):
    """Return a function that examines a site: the exit code, and each node's findings by check and state."""
    monkeypatch.chdir(tmp_path)

    def run(inventory, *arguments):
        code = main(["doctor", "-i", str(inventory), "--json", *map(str, arguments)])
        told = json.loads(capsys.readouterr().out)
        assert code == told["exit_code"]
        found = {name: {(one["check"], one["state"]): one for one in findings} for name, findings in told["nodes"].items()}
        return code, found

    return run


def as_root(lab, node, script):
    """Run a shell script on a node."""
    done = lab.ssh(node, "sudo", "-n", "sh", "-es", stdin=script)
    assert done.returncode == 0, done.stderr
    return done.stdout


def states(found, node, state):
    return {check for check, known in found[node] if known == state}


@pytest.mark.prove
def test_a_lab_that_is_well_has_nothing_to_mend(sick_lab, doctor):
    """Every check was really made: none is missing, and none unknown; and what experiments do to it can be prepared."""
    code, found = doctor(sick_lab.inventory_path, EXPERIMENTS / "plane_loss.yaml", EXPERIMENTS / "node_kill.yaml")

    way = {"reach", "host key", "login", "python", "sudo", "agent", "machine"}
    looked = {"clock", "disk", "rails", "peers", "gpus", "jobs", "tools", "training", "leftovers", "alike", "canary"}
    assert {name: states(found, name, "defect") | states(found, name, "unknown") for name in found} == {name: set() for name in found}
    assert code == 0
    assert way | looked | {"prepare"} <= states(found, "node1", "ok")
    assert way | {"clock", "disk", "leftovers"} == states(found, "store1", "ok")


@pytest.mark.prove
def test_the_printed_lines_of_sudoers_are_all_that_the_account_needs(sick_lab, doctor, capsys):
    """With nothing else in sudoers the whole way works: agent, looks, canary; and a node is named with its lines."""
    assert main(["doctor", "-i", str(sick_lab.inventory_path), "--sudoers"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("# node[1-4],store1: /etc/sudoers.d/chaoskit")
    before = as_root(sick_lab, "node2", "cat /etc/sudoers")
    lines = [*printed[1:3], "chaos ALL=(root) NOPASSWD: /bin/sh, /usr/bin/sh"]  # a shell, so that this test can take it back
    as_root(
        sick_lab,
        "node2",
        "cat > /tmp/sudoers <<'X'\n" + "\n".join(lines) + "\nX\nvisudo -cf /tmp/sudoers && cat /tmp/sudoers > /etc/sudoers",
    )
    as_root(sick_lab, "node2", "rm -rf /var/lib/chaoskit/agent")
    try:
        _, found = doctor(sick_lab.inventory_path)
    finally:
        as_root(sick_lab, "node2", "cat > /etc/sudoers <<'X'\n" + before + "X")

    assert states(found, "node2", "defect") | states(found, "node2", "unknown") == set()
    assert {"sudo", "agent", "canary"} <= states(found, "node2", "ok")


@pytest.mark.prove
def test_a_machine_under_two_names_is_named(sick_lab, doctor, tmp_path):
    inventory = tmp_path / "inventory.yaml"
    known = (sick_lab.state_dir / "known_hosts").read_text().splitlines()
    address = next(line for line in known if line.startswith("node4,")).split()[0].split(",")[1]
    twin = f"  twin: {{group: twins, address: {address}, python: /opt/chaoskit-lab/bin/python}}\n"
    inventory.write_text(sick_lab.inventory_path.read_text().replace("  node4:\n", f"{twin}  node4:\n", 1))
    code, found = doctor(inventory)
    twins = {name: found[name]["machine", "defect"]["says"] for name in found if ("machine", "defect") in found[name]}

    assert code == 3
    assert list(twins.items()) in ([("twin", "this is the same machine as node4")], [("node4", "this is the same machine as twin")])


def leave_a_debt(lab):
    """Arm a link_flap on node2 as a run would, then kill the agent's server and fuse: nobody is left to pay."""
    fleet = SshFleet(load_inventory(lab.inventory_path))
    try:
        agent = fleet.connect(["node2"])["node2"]
        agent.prepare("old-run", OWED, "link_flap", {"rail": 1, "down": 5.0}, fleet.site("node2")).result()
        agent.arm(OWED, 300.0).result()  # whatever the machine is busy with, the server is dead before it ends
    finally:
        fleet.close()
    pids = as_root(lab, "node2", "ps -eo pid=,args= | awk '/agent.*[.]pyz (serve|fuse)/ && !/awk/ {print $1}'").split()
    assert len(pids) == 2
    as_root(lab, "node2", f"kill -9 {' '.join(pids)}")


SKEW = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *out)
{
    int result = syscall(SYS_clock_gettime, id, out);
    if (result == 0 && id == CLOCK_REALTIME) out->tv_sec += 5;
    return result;
}
"""


def set_clock_ahead(lab, node, folder):
    """Let every program that starts on a node from now on see a wall clock that is 5 s ahead; a lab's nodes have no clock of their own."""
    (folder / "skew.c").write_text(SKEW)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(folder / "skew.so"), str(folder / "skew.c")], check=True)
    library = base64.b64encode((folder / "skew.so").read_bytes()).decode()
    as_root(lab, node, f"echo {library} | base64 -d > /opt/skew.so; chmod 755 /opt/skew.so; echo /opt/skew.so > /etc/ld.so.preload")


def plant(lab, folder):
    """
    Break what an operator's site may have broken, and return the inventory to examine.

    node1: an old Python for the agent, and sudo wants a password. node2: a rail whose switch port is dead, a lost GPU,
    another user's job, a leftover of a dead run, a wall clock that is 5 s ahead, and no consent. node3: sudo wants a
    password, a rail is down, the disk is full, and somebody's queueing stands on the other rail. node4: a rail with another
    MTU than the others'. store1: another host key than the known one. And on all nodes the training's Python is not there.
    """
    as_root(lab, "node1", f"mkdir -p /opt/old; cat > /opt/old/python3 <<'X'\n{OLD_PYTHON}X\nchmod 755 /opt/old/python3")
    as_root(lab, "node1", "echo 'Defaults env_reset' > /tmp/sudoers; cat /tmp/sudoers > /etc/sudoers")
    as_root(lab, "node3", "mkdir -p /var/lib/chaoskit")
    pid = next(node.pid for node in lab.status().nodes if node.name == "node3")
    small = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "none", "/var/lib/chaoskit"]
    subprocess.run(["nsenter", "--mount", "--target", str(pid), *small], check=True)
    as_root(lab, "node3", "tc qdisc replace dev rail0 root handle 7: pfifo limit 500")
    as_root(lab, "node4", "ip link set rail1 mtu 1400; install -D /dev/null /etc/chaoskit/allow")
    as_root(lab, "node3", "ip link set rail1 down; echo 'Defaults env_reset' > /tmp/sudoers; cat /tmp/sudoers > /etc/sudoers")
    leave_a_debt(lab)
    set_clock_ahead(lab, "node2", folder)
    as_root(
        lab,
        "node2",
        """
        touch /dev/nvidia7
        nohup setpriv --reuid 4242 --clear-groups sleep 600 < /dev/nvidia7 > /dev/null 2>&1 &
        sed -i 's/^failure.*/failure lost/' /run/chaoskit-gpu/gpu0
        """,
    )
    switch = ["nsenter", "--net", "--target", str(lab.fabric_pid()), "ip"]
    ports = json.loads(subprocess.run([*switch, "-json", "link"], check=True, capture_output=True).stdout)
    port = next(link["ifname"] for link in ports if "node2" in link["ifname"] and "rail1" in link["ifname"])
    subprocess.run([*switch, "link", "set", port, "down"], check=True)
    known = (lab.state_dir / "known_hosts").read_text().splitlines()
    another = next(line.split()[-1] for line in known if line.startswith("node1,"))
    lines = [" ".join([*line.split()[:-1], another]) if line.startswith("store1,") else line for line in known]
    (folder / "known_hosts").write_text("\n".join(lines) + "\n")
    text = lab.inventory_path.read_text().replace(f"{lab.state_dir}/known_hosts", str(folder / "known_hosts"))
    first, second = text.split("  node2:\n", 1)
    first = first.replace("python: /opt/chaoskit-lab/bin/python", "python: /opt/old/python3")
    second = second.replace("    python: /opt/chaoskit-lab/bin/python\n    argv", "    python: /opt/none/bin/python\n    argv")
    inventory = folder / "inventory.yaml"
    inventory.write_text(f"{first}  node2:\n{second}".replace("allow: lab", "allow: file"))
    return inventory


@pytest.mark.row("L46", "S8", "S12")
def test_every_planted_defect_is_named_in_one_run(sick_lab, doctor, tmp_path):
    """Sixteen defects on five nodes, none hidden by another, each with what to do; a leftover decides the exit code."""
    junit = tmp_path / "doctor.xml"
    code, found = doctor(plant(sick_lab, tmp_path), "--junit", junit)

    assert code == 5
    assert states(found, "node1", "defect") == {"python", "sudo"}
    assert "Python 3.6 is older than 3.8" in found["node1"]["python", "defect"]["says"]
    assert "`sudo -n` is refused for chaos" in found["node1"]["sudo", "defect"]["says"]
    assert "chaos ALL=(root) NOPASSWD: " in found["node1"]["sudo", "defect"]["do"]
    assert {"rails", "gpus", "disk", "leftovers", "clock", "agent"} <= states(found, "node1", "unknown")

    assert states(found, "node2", "defect") == {"rails", "gpus", "jobs", "leftovers", "training", "clock", "consent"}
    assert "rail1 (rail 1, plane B) has no signal" == found["node2"]["rails", "defect"]["says"]
    assert "GPU 0" in found["node2"]["gpus", "defect"]["says"]
    assert "of uid 4242 holds /dev/nvidia7" in found["node2"]["jobs", "defect"]["says"]
    assert OWED in found["node2"]["leftovers", "defect"]["says"]
    assert "/opt/none/bin/python is no program that chaos can run" in found["node2"]["training", "defect"]["says"]
    assert "5.0 s ahead of the others'" in found["node2"]["clock", "defect"]["says"]
    assert "/etc/chaoskit/allow does not exist" in found["node2"]["consent", "defect"]["says"]
    assert "canary" in states(found, "node2", "unknown")

    assert states(found, "node3", "defect") == {"sudo", "rails", "training", "disk", "alike"}
    assert "rail1 (rail 1, plane B) is down" == found["node3"]["rails", "defect"]["says"]
    assert "/var/lib/chaoskit has 1.0 MiB free" in found["node3"]["disk", "defect"]["says"]
    assert "qdisc of rail0 is pfifo 7:, and tbf 1ab0: on 2 of 3 in workers" in found["node3"]["alike", "defect"]["says"]
    assert "gpus" in states(found, "node3", "ok")
    assert {"jobs", "leftovers", "clock"} <= states(found, "node3", "unknown")

    assert states(found, "node4", "defect") == {"alike", "training"}
    assert "rail 1 MTU is 1400, and 1500 on 2 of 3 in workers" == found["node4"]["alike", "defect"]["says"]
    assert "consent" in states(found, "node4", "ok")

    assert states(found, "store1", "defect") == {"host key"}
    assert "changed" in found["store1"]["host key", "defect"]["says"]
    assert {"sudo", "disk", "leftovers"} <= states(found, "store1", "unknown")
    assert all(one["do"] for findings in found.values() for (_, state), one in findings.items() if state == "defect")
    suite = ET.parse(junit).getroot().find("testsuite")
    red = {(name, check) for name in found for check, state in found[name] if state == "defect"}
    assert len(red) <= int(suite.get("failures"))
