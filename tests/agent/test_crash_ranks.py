"""A rank that hangs, or is slow, is let go on whatever becomes of the agent: the fuse and `heal` work from the ledger alone."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chaoskit.agent import cpu_quota, mounts, procs, ranks

RANK = "import time\nwhile True: sum(range(5000)); time.sleep(0.001)"


@pytest.fixture
def trainer(until):
    """A process that is rank 4 of a run of its own."""
    run_id = "crash-{}".format(os.getpid())
    env = {"RANK": "4", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": run_id}
    process = subprocess.Popen([sys.executable, "-S", "-c", RANK], env=env)
    until(lambda: ranks.family(run_id, 4))
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def group(trainer, until):
    """The folder of a control group of the test's own, in which the trainer stands where CPU time is shared out."""
    top, _ = cpu_quota.located(Path("/proc/self/cgroup").read_text(encoding="ascii"), mounts.table())
    folder = Path(top) / "chaoskit-test-{}".format(os.urandom(4).hex())
    folder.mkdir()
    if not any((folder / name).exists() for name in ("cpu.cfs_quota_us", "cpu.max")):
        folder.rmdir()
        pytest.skip("this machine gives its control groups no cpu controller")
    (folder / "cgroup.procs").write_text(str(trainer.pid), encoding="ascii")
    yield str(folder)
    trainer.kill()
    trainer.wait()
    until(lambda: not cpu_quota.members(str(folder)))
    folder.rmdir()


@pytest.fixture
def hang(harm, trainer, until):
    """Return a function that stops the trainer through an agent."""
    site = {"node": "n1", "training": {"run_id": "crash-{}".format(os.getpid())}}

    def run(agent, hold=60.0, **more):
        channel = agent.connect()
        harm(channel, None, fault="rank_hang", site=site, rank=4, hold=hold, **more)
        until(lambda: procs.held(trainer.pid) == ["T"])
        assert channel.ask("witness", entry="run1/1/n1")["evidence"]["holds"]
        return channel

    return run


def let_go(trainer):
    return lambda: procs.held(trainer.pid) == []


@pytest.mark.row("L1", "L22")
def test_the_node_itself_ends_a_hang(agent, hang, trainer, until):
    """No controller is asked, and none is there."""
    hang(agent, hold=1.0).kill()

    until(let_go(trainer))


@pytest.mark.row("R1", "L12", "L22")
def test_when_the_server_is_killed_the_fuse_lets_the_rank_go_on(any_agent, hang, trainer, until):
    hang(any_agent)

    any_agent.kill("serve")

    until(let_go(trainer))
    until(lambda: not any_agent.pids("fuse"))
    assert any_agent.connect().ask("audit")["debts"] == []


@pytest.mark.row("R1", "L22", "L24")
def test_a_server_that_hangs_cannot_keep_a_rank_beyond_its_lease(agent, hang, trainer, until):
    hang(agent, lease=1.5)

    agent.kill("serve", signal.SIGSTOP)

    until(let_go(trainer))


@pytest.mark.row("R2", "L22")
def test_when_both_are_killed_heal_lets_the_rank_go_on(agent, hang, trainer, until):
    """Nobody is left on the node to do it; the debt is listed, and paid when told."""
    hang(agent)
    agent.kill_both()

    channel = agent.connect()
    (debt,) = channel.ask("audit")["debts"]
    assert (debt["fault"], procs.held(trainer.pid)) == ("rank_hang", ["T"])
    (paid,) = channel.ask("heal", entries=None)["results"]

    assert paid["healed"]
    until(let_go(trainer))


@pytest.mark.row("L11", "L22")
def test_a_debt_of_a_rank_that_was_killed_meanwhile_is_no_debt(agent, hang, trainer):
    """Its launcher has replaced it: `heal` says so, and touches nobody."""
    hang(agent)
    agent.kill_both()
    trainer.kill()
    trainer.wait()

    (paid,) = agent.connect().ask("heal", entries=None)["results"]

    assert paid["healed"]
    assert "has ended" in str(paid)


@pytest.mark.row("R1", "L12")
def test_when_the_server_is_killed_a_slow_rank_is_moved_back(agent, harm, trainer, group, until):
    """The fuse moves it, and removes the group."""
    channel = agent.connect()
    site = {"node": "n1", "training": {"run_id": "crash-{}".format(os.getpid())}}
    harm(channel, None, fault="rank_slow", site=site, rank=4, hold=60.0)
    until(lambda: cpu_quota.folder_of(trainer.pid) != group)
    assert channel.ask("witness", entry="run1/1/n1")["evidence"]["holds"]

    agent.kill("serve")

    until(lambda: cpu_quota.folder_of(trainer.pid) == group)
    until(lambda: not agent.pids("fuse"))
    assert [entry.name for entry in os.scandir(group) if entry.is_dir()] == []
    assert agent.connect().ask("audit")["debts"] == []
