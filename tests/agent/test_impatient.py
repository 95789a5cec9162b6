"""A disk that does not answer keeps nobody waiting: here a FIFO stands where an entry's file should, and opening it hangs."""

import fcntl
import os
import threading
import time

import pytest
from fair_watch import FairWatch

from chaoskit.agent import impatient
from chaoskit.agent.impatient import Impatient
from chaoskit.errors import RefusedError

pytestmark = pytest.mark.row("R3")

HANGS, OTHER = "r1/1/n1", "r1/2/n1"


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    monkeypatch.setattr(impatient, "WITHIN", 0.3)
    (tmp_path / "ledger").mkdir()
    return Impatient(str(tmp_path / "ledger"))


def let_go(path):
    """End the hanging call: somebody writes nothing into the FIFO."""
    os.close(os.open(path, os.O_WRONLY))


def test_what_hangs_is_given_up_and_the_next_call_is_refused_at_once(ledger):
    os.mkfifo(ledger.path(HANGS))
    assert ledger.read_if_it_can(HANGS) is None
    assert ledger.hangs

    watch = FairWatch()
    with pytest.raises(OSError, match="the disk hangs"):
        ledger.open_entries()
    with pytest.raises(RefusedError, match="cannot be written"):
        ledger.append(OTHER, "reverted")
    with ledger.lock(OTHER, must=False):
        pass
    with pytest.raises(RefusedError, match="no lock"), ledger.unit_lock():
        pass
    assert watch.took() < 0.3


def test_once_the_disk_is_back_it_is_a_ledger_like_any(ledger):
    os.mkfifo(ledger.path(HANGS))
    with pytest.raises(OSError, match="not answered within"):
        ledger.open_entries()
    let_go(ledger.path(HANGS))
    os.unlink(ledger.path(HANGS))
    while ledger.hangs:
        time.sleep(0.01)

    assert ledger.open_entries() == []
    with ledger.unit_lock(), ledger.lock(OTHER, must=True):
        assert ledger.read(OTHER) is None


def test_a_lock_of_a_killed_holder_is_not_waited_for_and_any_other_is(ledger):
    """A thread of the killed one hangs in the kernel, with all that it holds."""
    holder = os.open(ledger._lock_path(OTHER), os.O_RDONLY | os.O_CREAT)
    fcntl.flock(holder, fcntl.LOCK_EX)
    release = threading.Timer(0.8, os.close, (holder,))
    release.start()
    begun = time.monotonic()
    with ledger.lock(OTHER, must=False):
        assert time.monotonic() - begun >= 0.7
    release.join()

    holder = os.open(ledger._lock_path(OTHER), os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    ledger.widowed = True
    watch, begun = FairWatch(), time.monotonic()
    with ledger.lock(OTHER, must=False):
        assert 0.3 <= time.monotonic() - begun
        assert watch.took() < 3.0
    os.close(holder)
