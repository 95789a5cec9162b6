"""A pid alone is nobody."""

import signal
import subprocess
import sys

import pytest

from chaoskit.agent.identity import Process, in_session, stat_of


@pytest.fixture
def sleeper():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    yield child
    child.kill()
    child.wait()


@pytest.mark.row("R9", "L22")
def test_the_same_pid_with_another_start_time_is_another_process(sleeper):
    """It is neither alive nor killed."""
    process = Process.of(sleeper.pid)
    stale = process._replace(start_time=process.start_time - 1)

    assert (process.alive(), stale.alive()) == (True, False)
    assert not stale.kill(signal.SIGKILL)
    assert process.alive()
    assert Process.from_json(process.to_json()) == process


def test_a_zombie_is_dead(sleeper):
    """Killed and not yet collected by its parent."""
    process = Process.of(sleeper.pid)
    assert process.kill(signal.SIGKILL)
    while process.alive():
        pass

    assert stat_of(sleeper.pid).state == "Z"
    assert not process.kill(signal.SIGKILL)
    assert in_session(sleeper.pid) == []


def test_nobody_has_no_identity():
    """A pid beyond any is an error."""
    with pytest.raises(ProcessLookupError):
        Process.of(1 << 30)


def test_names_cannot_confuse_the_reader(tmp_path):
    """A process may call itself anything, closing brackets and spaces too."""
    script = tmp_path / "a) R 1 (b"
    script.symlink_to("/bin/sleep")
    child = subprocess.Popen([str(script), "60"], start_new_session=True)
    try:
        assert stat_of(child.pid).session == child.pid
    finally:
        child.kill()
        child.wait()
