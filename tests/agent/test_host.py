"""The node as a fault sees it: whatever it leans on may hang, and then nobody waits for it long."""

import subprocess
import sys

import pytest

HUNG_LOG = """
import os, socket, subprocess, sys, time
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/dev"], check=True)
daemon = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
daemon.bind("/dev/log")  # and it never reads
full = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
full.setblocking(False)
try:
    for _ in range(100_000):
        full.sendto(b"x", "/dev/log")
except BlockingIOError:
    pass
sys.path[:] = {path!r}
from chaoskit.agent.contract import Site
from chaoskit.agent.host import Host
from fair_watch import FairWatch
watch = FairWatch()
Host(Site("n1")).syslog("a line")
print(watch.took() < 5.0, flush=True)
os._exit(0)
"""


@pytest.mark.row("L24")
def test_a_log_daemon_that_hangs_keeps_no_revert_waiting():
    """Its disk may be the very thing that is broken: the line is given up, and the undo goes on."""
    argv = ["unshare", "--mount", sys.executable, "-c", HUNG_LOG.format(path=sys.path)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=20)

    assert done.stdout == "True\n", done.stderr


SUSPENDED = """
import os, sys, time
sys.path[:] = {path!r}
from chaoskit.agent.contract import Site
from chaoskit.agent.fuse import Fuse
from chaoskit.agent.host import Host
from chaoskit.agent.identity import Process
from chaoskit.agent.ledger import Entry, Ledger
from chaoskit.agent.paths import Paths
print(round((Host(Site("n1")).boottime() - time.monotonic()) / 1000.0))
paths = Paths({folder!r} + "/state", {folder!r} + "/run", {folder!r} + "/etc")
me, ledger = Process.of(os.getpid()), Ledger(paths.ledger)
watch = Fuse(paths, paths.server("a" * 64), me, "no-such-group")
entry = ledger.plan(Entry("run/1/n1", "run", "toy", {{}}, {{}}, {{"node": "n1"}}, holds=[[0.0, 9.0]], server=me.to_json(), boot_id="b"))
for seconds in (30.0, -30.0):
    ledger.append(entry.entry, "armed", lease=time.clock_gettime(time.CLOCK_BOOTTIME) + seconds)
    print(watch._overdue())
"""


@pytest.mark.row("R7", "R8")
def test_a_lease_counts_while_the_node_is_suspended(tmp_path):
    """They run on the clock that goes on in a suspended node, for server and fuse: not on the monotonic one, nor on the wall's."""
    script = SUSPENDED.format(path=sys.path, folder=str(tmp_path))
    argv = ["unshare", "--time", "--boottime", "1000000", "--fork", sys.executable, "-c", script]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=20)

    assert done.stdout.split() == ["1000", "False", "True"], done.stderr
