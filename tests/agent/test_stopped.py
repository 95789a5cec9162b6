"""A process of ours that is stopped is neither dead nor of any use: what it holds is taken from it, and not before its time."""

import fcntl
import os
import signal
import subprocess
import sys
import time

import pytest
from ledger_files import add

from chaoskit.agent.ledger import Ledger
from chaoskit.agent.stopped import end_stopped_holders

pytestmark = pytest.mark.row("R1", "R2")

LEASE = 1.5
HOLD = "import fcntl, sys, time; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); time.sleep(60)"


@pytest.fixture
def holder(tmp_path):
    """A process that holds the lock of an entry, and the entry's ledger."""
    ledger = Ledger(str(tmp_path / "ledger"))
    with ledger.lock("run1/1/n1", must=True):
        path = next((tmp_path / "ledger").glob("*.lock"))
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n"
    yield ledger, process, str(path)
    process.kill()
    process.wait()
    process.stdout.close()


def test_the_lock_of_a_stopped_process_is_taken_from_it(holder):
    ledger, process, _ = holder
    process.send_signal(signal.SIGSTOP)

    with ledger.lock("run1/1/n1", must=False):
        assert process.wait(5) == -signal.SIGKILL


def test_the_lock_of_a_process_that_runs_is_waited_for(holder, until):
    ledger, process, path = holder
    assert end_stopped_holders(path) == []
    with open(path, "rb") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    assert process.poll() is None
    process.terminate()
    with ledger.lock("run1/1/n1", must=False):
        assert process.wait(5) == -signal.SIGTERM


def ledger_file(agent, entry="run1,1,n1"):
    return agent.root / "state" / "ledger" / f"{entry}.jsonl"


def test_a_server_that_stops_in_the_middle_of_its_revert_is_ended_at_the_lease_and_not_after_its_grace(agent, harm, until):
    """It said that it reverts, which gives it twenty seconds while it works at it, and none when it is stopped."""
    path = agent.file()
    harm(agent.connect(), path, down=60.0, lease=LEASE)
    agent.kill("serve", signal.SIGSTOP)
    add(ledger_file(agent), "reverting", boottime=time.clock_gettime(time.CLOCK_BOOTTIME))

    assert until(lambda: path.read_text() == "whole") < LEASE + 2.0


def test_a_stopped_server_that_failed_once_is_not_left_alone_either(agent, harm, until):
    """One that tried and told is left to itself, but not when it is stopped: nobody else would ever try."""
    path = agent.file()
    harm(agent.connect(), path, down=60.0, lease=LEASE)
    agent.kill("serve", signal.SIGSTOP)
    add(ledger_file(agent), "failed", boottime=1.0, says="denied")

    assert until(lambda: path.read_text() == "whole") < LEASE + 2.5


def test_when_server_and_fuse_are_stopped_the_debt_is_listed_and_heal_pays_it(any_agent, harm):
    """A connection ends the server that would never answer once its lease is over, and `heal` takes the lock from the fuse."""
    path = any_agent.file()
    harm(any_agent.connect(), path, down=60.0, lease=LEASE)
    server = any_agent.kill("serve", signal.SIGSTOP)
    any_agent.kill("fuse", signal.SIGSTOP)

    channel = any_agent.connect()
    (debt,) = channel.ask("audit")["debts"]
    assert (debt["entry"], debt["live"]) == ("run1/1/n1", False)
    assert server not in any_agent.pids("serve")
    assert channel.ask("heal", entries=None)["results"][0]["healed"]
    assert path.read_text() == "whole"
    assert channel.ask("audit")["debts"] == []


def test_a_stopped_server_keeps_its_lease_and_whoever_asks_hears_of_it(agent, harm, until):
    """It may be let go on: until its lease is over nobody ends it, and the error says how."""
    path = agent.file()
    harm(agent.connect(), path, down=60.0, lease=60.0)
    server = agent.kill("serve", signal.SIGSTOP)

    with pytest.raises(RuntimeError, match=rf"process {server}\) is stopped.*kill -CONT {server}"):
        agent.connect().ask("audit")
    os.kill(server, signal.SIGCONT)

    assert agent.connect().ask("audit")["debts"][0]["live"]
    assert path.read_text() == "harmed"
