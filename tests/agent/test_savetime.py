"""A child that watches a real folder; what it does on network storage is tried by tests/faults/storage_cases.py."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fair_watch import until

from chaoskit.agent import savetime, savetime_child
from tests.support.open_files import open_files

PARENT = """
import os, sys
from chaoskit.agent import savetime, savetime_child
savetime.watch(savetime.viewer_of(os.getpid())._replace(pid=0), sys.argv[1], 600.0, float(sys.argv[2]))
"""


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def folders(pid):
    """Return what a process has open; nothing of one that is gone."""
    try:
        return open_files(pid)
    except OSError:
        return []


@pytest.mark.prove
def test_a_child_whose_parent_died_ends_by_itself(tmp_path):
    """It may stand in the training's control group, where nobody would look for it."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path), "5"])
    child = 0
    try:
        until(lambda: children(parent.pid))
        child = children(parent.pid)[0]
        until(lambda: str(tmp_path) in folders(child))
        parent.kill()
        parent.wait()
        until(lambda: str(tmp_path) not in folders(child))
    finally:
        parent.kill()
        parent.wait()
        if str(tmp_path) in folders(child):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def test_a_save_that_has_only_begun_is_waited_for(tmp_path):
    """A file is there before its data are: what is still empty after two looks is no save that is over."""
    me = savetime.viewer_of(os.getpid())._replace(pid=0)

    def writes():
        until(lambda: any(str(tmp_path) in folders(child) for child in children_of_all()))
        with (tmp_path / "step-1.pt").open("wb") as file:
            time.sleep(4 * savetime_child.POLL)
            file.write(b"x" * 1000)

    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(writes)
        seen = savetime.watch(me, str(tmp_path), 30.0, 40.0)
        written.result()

    assert seen["saved"] == 1000


def children_of_all():
    """Return the children of every thread of this process."""
    return [int(child) for task in os.listdir("/proc/self/task") for child in Path(f"/proc/self/task/{task}/children").read_text().split()]
