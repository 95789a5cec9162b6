"""Injection after injection in one server: nothing grows, nothing is left open."""

import os
from pathlib import Path

import pytest

from tests.support.open_files import open_files

pytestmark = pytest.mark.row("R13", "S7")

WARM = 5
"""Injections before the first look: what is made once is there then."""
MOST_GROWN = 5 << 10
"""kB that a server may grow by in a thousand injections."""


def state_of(pid, root):
    """Return what a server holds: descriptors by kind, threads, children, and files of its own."""
    fds = [target.partition(":")[0] for target in open_files(pid)]
    threads = len(os.listdir(f"/proc/{pid}/task"))
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    # Only what stays: a lease file moves with each renewal, and a folder may go while it is walked, which `os.walk` passes over.
    paths = [os.path.join(at, name) for at, folders, names in os.walk(root / "run") for name in [*folders, *names]]
    files = sorted(os.path.relpath(path, root) for path in paths if "lease" not in os.path.basename(path) and "runs/" not in path)
    return {"fds": sorted(fds), "threads": threads, "children": len(children), "files": files}


def memory_of(pid):
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1])


def listening():
    """Return the inodes of every listening TCP socket of this machine."""
    lines = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    return {fields[9] for fields in lines if fields[3] == "0A"}


def rounds(agent, harm, count, *, start):
    channel = agent.connect()
    for number in range(start, start + count):
        file = agent.file(f"f{number}")
        entry = f"soak/{number}/n1"
        harm(channel, file, entry=entry, down=60.0)
        channel.ask("renew", run="soak", lease=30.0)
        channel.ask("revert", entry=entry)
        assert file.read_text() == "whole"
    channel.close()


def soak(agent, harm, until, count):
    """Warm up, look, do `count` more, wait until the threads have ended, and look again."""
    rounds(agent, harm, WARM, start=0)
    (pid,) = agent.pids("serve")
    until(lambda: state_of(pid, agent.root)["threads"] <= 2, seconds=15.0)
    before, memory = state_of(pid, agent.root), memory_of(pid)
    rounds(agent, harm, count, start=WARM)
    until(lambda: state_of(pid, agent.root) == before, seconds=15.0)
    return memory_of(pid) - memory


def test_fifteen_injections_leave_the_server_as_it_was(agent, harm, until):
    """Descriptors, threads, children, sockets and files are back, and no port was ever listened on."""
    grown = soak(agent, harm, until, 15)
    (pid,) = agent.pids("serve")
    mine = set(open_files(pid))

    assert grown < MOST_GROWN
    assert not {f"socket:[{inode}]" for inode in listening()} & mine


@pytest.mark.prove
def test_a_thousand_injections_leave_the_server_as_it_was(agent, harm, until):
    """The whole row: a thousand in one process, less than 5 MB more."""
    grown = soak(agent, harm, until, 1000)

    print(f"the server grew by {grown} kB in 1000 injections")
    assert grown < MOST_GROWN
