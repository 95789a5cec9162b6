"""`chaoskit stop` on the lab: a real run in one process, ended by another while its fault is held."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from chaoskit.cli.main import main

pytestmark = pytest.mark.cluster

TRAINING = """\
  scripted: # a loop that says what a training says, without doing it
    launcher: command
    nodes: node1
    user: chaos
    start: [ssh, -F, {state}/ssh_config, node1, sh, {loop}]
    stop: [ssh, -F, {state}/ssh_config, node1, kill, "{{job}}"]
    log: {log}
    format: {{jsonl: {{step: step}}}}
"""
LOOP = """\
(n=0; while [ $n -lt 3000 ]; do n=$((n+1)); echo "{\\"step\\": $n}"; sleep 0.1; done) >$1 2>&1 </dev/null &
echo $!
"""
EXPERIMENT = """\
title: A long fault, to be ended from elsewhere
training: scripted
steady_state: {throughput: {within: 50%, for: 2s}}
method:
  - {fault: link_flap, target: {nodes: node1}, with: {rail: 1, down: 10m}}
"""


@pytest.fixture
def live_run(lab, tmp_path):
    """Start a run in a process of its own, and return its directory's parent once the link is down."""
    loop, log = f"/var/tmp/stop-{os.getpid()}.sh", f"/var/tmp/stop-{os.getpid()}.log"
    assert lab.ssh("node1", "tee", loop, stdin=LOOP.replace("$1", log)).returncode == 0
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text(lab.inventory_path.read_text() + TRAINING.format(state=lab.state_dir, loop=loop, log=log))
    (tmp_path / "long.yaml").write_text(EXPERIMENT)
    argv = [sys.executable, "-c", "from chaoskit.cli.main import entry; entry()", "run", "long.yaml", "-i", str(inventory)]
    process = subprocess.Popen(argv, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + 120
    while not any('"kind":"witness"' in path.read_text() for path in (tmp_path / "runs").glob("*/journal.jsonl")):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    yield process
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


@pytest.mark.row("L42")
def test_a_live_run_is_ended_reverted_and_judged(lab, tmp_path, live_run, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "down" == lab.ssh("node1", "cat", "/sys/class/net/rail1/operstate").stdout.strip()
    code = main(["stop", "--because", "the fabric team called"])

    last = capsys.readouterr().out.splitlines()[-1]
    assert code == 4
    assert last.startswith("ABORTED: long: ")
    said, _ = live_run.communicate(timeout=60)
    assert live_run.returncode == 4, said
    summary = json.loads((tmp_path / "runs" / "latest" / "summary.json").read_text())
    assert "with chaoskit stop: the fabric team called" in summary["reasons"][0]
    assert summary["injections"][0]["gone"]["holds"] is True
    left = [one["says"] for one in summary["residue"] if one["node"] == "node1" and one["kind"] == "expected"]
    assert any(says.startswith("carrier_changes of rail1 +") for says in left), summary["residue"]
    assert "up" == lab.ssh("node1", "cat", "/sys/class/net/rail1/operstate").stdout.strip()

    assert main(["stop"]) == 2
    assert "has ended already" in capsys.readouterr().err
