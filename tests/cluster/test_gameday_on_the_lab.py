"""
A game day on the lab: three Python tests and three experiment files under one pytest command, to its end and killed.

The snapshot of each node is read by iproute2 over plain ssh, not by chaoskit.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.prove]

TOP = Path(__file__).parents[2]
PYTHON = [
    "test_a_killed_rank_costs_at_most_one_checkpoint_interval",
    "test_a_link_that_flaps_restarts_nothing",
    "test_a_killed_rank_is_survived_while_a_link_is_down",
]
FILES = ["rank_kill", "plane_loss", "node_kill"]
NODES = ("node1", "node2", "node3", "node4")
LEASE = 30.0


def start(lab, folder):
    """Start the game day below a folder; its output goes to a file there."""
    items = ["experiments/gameday", *(f"experiments/{name}.yaml" for name in FILES)]
    options = ["--chaos-inventory", str(lab.inventory_path), "--chaos-out", str(folder / "runs"), f"--junit-xml={folder / 'all.xml'}"]
    with (folder / "out.txt").open("w") as out:
        argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *items, *options]
        return subprocess.Popen(argv, cwd=TOP, stdout=out, stderr=subprocess.STDOUT)


def cases(folder):
    """Return each testcase of the JUnit file by name, with its properties."""
    suite = ET.parse(folder / "all.xml").getroot().find("testsuite")
    return suite, {
        case.get("name"): (case, {each.get("name"): each.get("value") for each in case.iter("property")}) for case in suite.iter("testcase")
    }


def snapshot(lab, node):
    """Links, addresses, routes of all tables, rules and qdiscs of a node, without counters and timers."""
    read = "export PATH=$PATH:/usr/sbin:/sbin; ip addr; ip -4 route show table all; ip rule; tc qdisc"
    done = lab.ssh(node, read)
    assert done.returncode == 0, done.stderr
    volatile = r"(valid_lft|preferred_lft|expires|age) \S+|\bssthresh\b.*|promiscuity \d+"
    return sorted(re.sub(volatile, "", line).strip() for line in done.stdout.splitlines())


def audit(lab, folder):
    """Ask every node what it owes, and the journals of these runs what they remember."""
    command = [sys.executable, "-c", "from chaoskit.cli.main import entry; entry()", "audit", "-i", str(lab.inventory_path)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


def test_six_experiments_pass_under_one_command(lab, tmp_path):
    """Every test case is there, with its outcome, its figures and its run, and each run's own summary agrees."""
    process = start(lab, tmp_path)

    assert 0 == process.wait(1200), (tmp_path / "out.txt").read_text()
    suite, found = cases(tmp_path)
    assert ("6", "0", "0") == (suite.get("tests"), suite.get("failures"), suite.get("errors"))
    assert {*PYTHON, *FILES} == set(found)
    for name, (_, properties) in found.items():
        summary = json.loads(Path(properties["run_dir"], "summary.json").read_text())
        assert ("PASSED", "PASSED") == (properties["outcome"], summary["outcome"]), name
        assert all(injection["exposed"]["holds"] and injection["gone"]["holds"] for injection in summary["injections"])
        assert {"time_to_recover", "lost_steps", "seed"} <= set(properties)
    assert 0 == audit(lab, tmp_path).returncode


@pytest.mark.row("L36")
def test_killed_in_the_middle_it_leaves_the_lab_as_it_was(lab, tmp_path):
    """SIGTERM while a Python test holds a link down: within the lease every node is as before, and JUnit tells what was run."""
    before = {node: snapshot(lab, node) for node in NODES}
    process = start(lab, tmp_path)
    deadline = time.monotonic() + 900
    while not any('"kind":"witness"' in path.read_text() for path in tmp_path.glob(f"runs/*{PYTHON[1]}/journal.jsonl")):
        assert process.poll() is None, (tmp_path / "out.txt").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.1)

    os.kill(process.pid, signal.SIGTERM)
    since = time.monotonic()
    code = process.wait(300)
    after = {node: snapshot(lab, node) for node in NODES}
    while after != before and time.monotonic() < since + LEASE:
        time.sleep(0.5)
        after = {node: snapshot(lab, node) for node in NODES}

    assert before == after
    assert pytest.ExitCode.INTERRUPTED == code, (tmp_path / "out.txt").read_text()
    _, found = cases(tmp_path)
    assert set(PYTHON[:2]) == set(found)
    assert ("PASSED", "ABORTED") == tuple(found[name][1]["outcome"] for name in PYTHON[:2])
    assert "ended by SIGTERM" in found[PYTHON[1]][0].find("error").get("message")
    assert 0 == audit(lab, tmp_path).returncode
