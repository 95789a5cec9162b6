"""The lab's trainer, run for real under torchrun on loopback: resume, determinism, atomicity, SIGTERM."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fair_watch import FairWatch

from chaoskit import lab

TRAINER = Path(lab.__file__).parent / "trainer.py"
TINY = ["--hidden", "16", "--layers", "1", "--global-batch", "6"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
STEP = re.compile(r"step (\d+) loss (\S+) batch (\d+)")


def torchrun(ranks, *args):
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(TRAINER), *TINY, *args]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, env=ENVIRONMENT, check=True).stdout


def alone(*args):
    """Start one rank without torchrun."""
    environment = {**ENVIRONMENT, "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    argv = [sys.executable, str(TRAINER), *TINY, *args]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def steps(text):
    return {int(step): float(loss) for step, loss, _ in STEP.findall(text)}


def until(process, pattern):
    """Read lines until one matches; return all that were read."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if re.match(pattern, line):
            return lines
    raise AssertionError(f"no line matches {pattern}: {lines}")


@pytest.mark.row("L40")
@pytest.mark.prove
def test_losses_do_not_depend_on_the_world_size_and_a_resumed_run_goes_on_where_it_was(tmp_path):
    """One rank, two ranks with uneven shares, and two ranks going on from one rank's checkpoint tell one story."""
    one = torchrun(1, "--checkpoints", str(tmp_path / "one"), "--every", "5", "--steps", "10", "--truth", str(tmp_path))
    (tmp_path / "one" / "step-10.pt").unlink()
    two = torchrun(2, "--checkpoints", str(tmp_path / "one"), "--every", "5", "--steps", "10")
    assert "no checkpoint" in one
    assert re.search(r"^group up rank 0 world 1$", one, re.MULTILINE)
    assert "loaded step 5\n" in two
    assert list(steps(one)) == list(range(1, 11))
    assert list(steps(two)) == list(range(6, 11))
    for step, loss in steps(two).items():
        assert loss == pytest.approx(steps(one)[step], abs=2e-4)
    truth = [json.loads(line) for path in tmp_path.glob("rank0.*.jsonl") for line in path.read_text().splitlines()]
    assert [record["step"] for record in truth if record["event"] == "step"] == list(range(1, 11))
    assert [record["t"] for record in truth] == sorted(record["t"] for record in truth)


@pytest.mark.prove
def test_a_killed_run_leaves_only_whole_checkpoints_and_the_newest_readable_one_is_taken(tmp_path):
    """kill -9 in the midst of saving each step: whatever `latest` names can be read; a torn file is passed over with a warning."""
    process = alone("--checkpoints", str(tmp_path), "--every", "1", "--steps", "100000")
    until(process, r"saved step 20")
    process.kill()
    process.communicate()
    newest = int(re.fullmatch(r"step-(\d+)\.pt\n", (tmp_path / "latest").read_text())[1])
    torn = tmp_path / f"step-{newest + 7}.pt"
    torn.write_bytes((tmp_path / f"step-{newest}.pt").read_bytes()[:1000])
    (tmp_path / "latest").write_text(f"{torn.name}\n")
    again = alone("--checkpoints", str(tmp_path), "--every", "1", "--steps", str(newest + 1))
    said = again.communicate(timeout=30)[0]
    assert f"warning: checkpoint of step {newest + 7} cannot be read" in said
    # A newer whole file than `latest` named may have been in place when the kill came.
    loaded = int(re.search(r"^loaded step (\d+)$", said, re.MULTILINE)[1])
    assert loaded in (newest, newest + 1)
    assert again.returncode == 0


def test_sigterm_ends_a_rank_at_once_and_not_as_a_success(tmp_path):
    """An exit status of 0 would make torchrun wait for the other ranks at its exit barrier."""
    process = alone("--checkpoints", str(tmp_path), "--every", "1000", "--steps", "100000")
    until(process, r"step 3 ")
    watch = FairWatch()
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=10)[0]
    assert re.search(r"^stopped rank 0 after step \d+$", said, re.MULTILINE)
    assert process.returncode == 128 + signal.SIGTERM
    assert watch.took() < 2


def test_a_rank_whose_peer_is_silent_fails_after_the_timeout(tmp_path):
    """A peer that is stopped, not dead, is only noticed by the process group's own timeout."""
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(TRAINER), *TINY]
    argv += ["--checkpoints", str(tmp_path), "--steps", "1000000", "--timeout", "2"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=ENVIRONMENT)
    lines = until(process, r"step 2 ")
    peer = int(re.search(r"start rank 1 restart 0 pid (\d+)", "".join(lines))[1])
    os.kill(peer, signal.SIGSTOP)
    try:
        watch, stopped = FairWatch(), time.monotonic()
        until(process, r"failed rank 0 after step \d+: ")
        assert time.monotonic() - stopped > 1.5
        assert watch.took() < 10
    finally:
        os.kill(peer, signal.SIGKILL)
        process.communicate(timeout=30)
