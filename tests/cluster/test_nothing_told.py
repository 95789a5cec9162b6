"""A real run tells no secret to anybody, and opens no door: canaries in every place where a secret may be, and all sockets looked at."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from key_agent import add_keys, key_agent

pytestmark = [pytest.mark.cluster, pytest.mark.prove]

PASSPHRASE, TOKEN = "canary-5d1e passphrase", "canary-91b7-token"
NODE = "node1"

TRAINING = """\
  scripted:
    launcher: command
    nodes: {node}
    user: chaos
    start: [ssh, -F, {state}/ssh_config, {node}, sh, {loop}]
    stop: [ssh, -F, {state}/ssh_config, {node}, kill, "{{job}}"]
    log: {loop}.log
    format: {{jsonl: {{step: step}}}}
  failing:
    launcher: command
    nodes: {node}
    user: chaos
    start: [sh, -c, "echo cannot log in with $WANDB_API_KEY >&2; exit 7"]
    stop: ["true"]
    log: {loop}.log
    format: {{jsonl: {{step: step}}}}
"""
LOOP = """\
say() {{ printf '{{"step": %d}}\\nError: {token}\\n' $1; }}
(n=0; while [ $n -lt 3000 ]; do n=$((n+1)); say $n; sleep 0.1; done) >{log} 2>&1 </dev/null &
echo $!
"""
EXPERIMENT = """\
title: A flap, while all that could tell a secret is looked at
training: {training}
steady_state: {{throughput: {{within: 50%, for: 2s}}}}
method:
  - {{fault: link_flap, target: {{nodes: {node}}}, with: {{rail: 1, down: 6s}}}}
"""
CHAOSKIT = """
import logging, sys
logging.basicConfig(level=logging.DEBUG, filename="debug.log", force=True)
from chaoskit.cli.main import entry
entry()
"""


@pytest.fixture
def agent_with_a_key(lab, tmp_path):
    """The lab's key under a passphrase, in an ssh-agent: return the key's file, and the agent's socket."""
    key, sock, askpass = tmp_path / "key", tmp_path / "agent.sock", tmp_path / "askpass"
    key.write_bytes((lab.state_dir / "id_ed25519").read_bytes())
    key.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", PASSPHRASE, "-f", key], check=True, capture_output=True)
    askpass.write_text(f"#!/bin/sh\necho '{PASSPHRASE}'\n")
    askpass.chmod(0o700)
    with key_agent(sock):
        add_keys(sock, key, SSH_ASKPASS=str(askpass), SSH_ASKPASS_REQUIRE="force")
        askpass.unlink()
        yield key, sock


@pytest.fixture
def start(lab, tmp_path, agent_with_a_key):
    """Return a function that starts an experiment on a training, with a token in the environment and the key in the agent."""
    key, sock = agent_with_a_key
    loop = f"/var/tmp/told-{os.getpid()}.sh"
    assert lab.ssh(NODE, "tee", loop, stdin=LOOP.format(token=TOKEN, log=f"{loop}.log")).returncode == 0
    inventory = re.sub(r"(?m)^  key: .*$", f"  key: {key}", lab.inventory_path.read_text())
    inventory += TRAINING.format(node=NODE, state=lab.state_dir, loop=loop)
    (tmp_path / "inventory.yaml").write_text(inventory)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "SSH_AUTH_SOCK": str(sock), "WANDB_API_KEY": TOKEN}
    started = []

    def start(training):
        folder = tmp_path / training
        folder.mkdir()
        (folder / "e.yaml").write_text(EXPERIMENT.format(training=training, node=NODE))
        with (folder / "said").open("w") as said:
            argv = [sys.executable, "-c", CHAOSKIT, "run", "e.yaml", "-i", str(tmp_path / "inventory.yaml")]
            started.append(subprocess.Popen(argv, cwd=folder, env=environment, stdout=said, stderr=subprocess.STDOUT))
        return started[-1], folder

    yield start
    for process in started:
        process.terminate()
        process.wait(60)


def listeners(text):
    """Return the listening sockets of `ss -Hltunp`: protocol, address, and the pids that hold them."""
    rows = [line.split(None, 6) for line in text.splitlines()]
    return {(row[0], row[4], *re.findall(r"pid=(\d+)", row[6] if len(row) > 6 else "")) for row in rows if row[1] in ("LISTEN", "UNCONN")}


def root(lab, text):
    done = lab.ssh(NODE, f"sudo -n sh -c '{text}'")
    assert done.returncode == 0, done.stderr
    return done.stdout


def tellers(folder, word):
    """Return the files below a folder that hold a text, the planted ones aside."""
    found = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return [str(path.relative_to(folder)) for path in found if word.encode() in path.read_bytes()]


@pytest.mark.row("S7", "S13")
def test_a_run_listens_nowhere_and_tells_no_secret(lab, start):
    """Journal, reports, terminal, debug log, ledger, what the agent keeps, every command line: and every socket of node and controller."""
    before = listeners(root(lab, "ss -Hltunp"))
    controller, folder = start("scripted")
    commands, during = set(), None
    while controller.poll() is None:
        commands.update(subprocess.run(["ps", "-eww", "-o", "args="], capture_output=True, text=True, check=True).stdout.splitlines())
        held = any('"kind":"witness"' in path.read_text() for path in folder.glob("runs/*/journal.jsonl"))
        if held and during is None:
            during = listeners(root(lab, "ss -Hltunp"))
            ours = root(lab, "pgrep -f [a]gent/.*pyz").split()
            here = listeners(subprocess.run(["ss", "-Hltunp"], capture_output=True, text=True, check=True).stdout)
        time.sleep(0.2)
    said = (folder / "said").read_text()

    assert (controller.returncode, "; not exposed, present, not felt, reverted" in said) == (3, True), said  # a loop uses no rail
    assert during == before
    assert len(ours) >= 2  # server and fuse
    assert not [socket for socket in during if set(socket[2:]) & set(ours)]
    assert not [socket for socket in here if str(controller.pid) in socket[2:]]
    assert TOKEN in root(lab, f"cat /var/tmp/told-{os.getpid()}.sh.log")  # it was there to be told
    assert (folder / "debug.log").stat().st_size > 1000
    for secret in (TOKEN, PASSPHRASE):
        assert tellers(folder, secret) == []
        assert not [command for command in commands if secret in command]
        kept = root(lab, f'grep -rlsF "{secret}" /var/lib/chaoskit /run/chaoskit /etc/chaoskit /home /root; true')
        assert kept == ""


@pytest.mark.row("S13")
def test_a_command_of_the_site_that_prints_a_token_tells_it_to_nobody(start):
    """Its words are in the verdict, without the token."""
    controller, folder = start("failing")
    controller.wait(120)
    reports = [path.read_text() for path in folder.glob("runs/*/*") if path.suffix in (".xml", ".json", ".jsonl")]

    assert controller.returncode == 3
    assert sum("cannot log in with [hidden]" in text for text in (*reports, (folder / "said").read_text())) >= 3
    assert tellers(folder, TOKEN) == []
