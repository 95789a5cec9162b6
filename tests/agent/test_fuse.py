"""When the fuse acts, as a function of what it reads."""

import dataclasses
import fcntl
import os
import subprocess
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaoskit.agent.fuse import SLACK, Fuse, due, owed_to
from chaoskit.agent.identity import Process
from chaoskit.agent.ledger import Entry, Ledger
from chaoskit.agent.paths import Paths, private_directory
from chaoskit.agent.reverting import GRACE

ENTRY = Entry(
    entry="r/1/n",
    run="r",
    fault="toy",
    params={},
    undo={},
    site={},
    holds=[[0.0, 1.0]],
    state="armed",
    lease=30.0,
    server={"pid": 7, "start_time": 9},
)


def test_the_lease_counts_and_the_ledgers_when_its_file_is_gone():
    """A deleted lease file never means that there is no deadline."""
    assert due(ENTRY, 50.0) == 50.0 + SLACK
    assert due(ENTRY, None) == 30.0 + SLACK


@pytest.mark.row("R7", "L47")
@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_no_renewal_moves_the_absolute_end(lease, ends):
    """The earlier of lease and last span's end."""
    assert due(dataclasses.replace(ENTRY, state="injected", ends=ends), lease) == min(lease, ends) + SLACK


@pytest.mark.row("R12")
def test_whoever_reverts_is_given_time_and_whoever_failed_is_not_killed_for_it():
    """A revert in progress has its grace; a revert that told of its failure is not a hanging server."""
    assert due(dataclasses.replace(ENTRY, reverting=40.0), 30.0) == 40.0 + GRACE
    assert due(dataclasses.replace(ENTRY, failures=1), 30.0) is None
    assert due(dataclasses.replace(ENTRY, failures=1, reverting=40.0), 30.0) == 40.0 + GRACE, "the next try hangs"


def test_only_the_watched_servers_open_entries_are_owed_newest_first():
    """Another server's entries, and closed ones, are none of this fuse's."""
    other = dataclasses.replace(ENTRY, server={"pid": 7, "start_time": 10})
    closed = dataclasses.replace(ENTRY, state="reverted")
    newer = dataclasses.replace(ENTRY, entry="r/2/n")

    assert owed_to([ENTRY, other, closed, newer], Process(7, 9)) == [newer, ENTRY]


@pytest.fixture
def stuck(tmp_path):
    """A server's process, and its lock held by somebody whom no signal ends (a thread of its that hangs in the kernel)."""
    paths = Paths(*(str(tmp_path / name) for name in ("state", "run", "etc")))
    files = paths.server("a" * 64)
    private_directory(files.directory)
    lock = os.open(files.lock, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    server = subprocess.Popen(["sleep", "60"])
    yield paths, files, Process.of(server.pid)
    server.kill()
    server.wait()
    os.close(lock)


def test_a_server_that_was_killed_and_does_not_let_go_is_paid_for(stuck, until):
    """A system call that never returns keeps the dead server's lock: no more harm can come from there, so the fuse goes on."""
    paths, files, server = stuck
    ledger = Ledger(paths.ledger)
    ledger.plan(dataclasses.replace(ENTRY, fault="no-such-fault", server=server.to_json(), boot_id="b"))
    ledger.append(ENTRY.entry, "armed", lease=time.clock_gettime(time.CLOCK_BOOTTIME) - 1.0)
    said = []

    class Told(Fuse):
        def _pay_all(self):
            said.extend(entry.entry for entry in self._owed())

    threading.Thread(target=Told(paths, files, server, "no-such-group").run, daemon=True).start()

    until(lambda: said == [ENTRY.entry], seconds=6.0)
    assert not server.alive()
