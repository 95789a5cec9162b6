"""One node of the lab as the matrix uses it: its folder for orders, the stand-in for its training, its ledger, its reboots."""

import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import node_snapshot
import points

from chaoskit.agent.entry import fold
from chaoskit.agent.lease import read_lease
from chaoskit.agent.paths import Paths
from chaoskit.lab import cgroups
from chaoskit.lab.control import ssh_argv
from chaoskit.lab.plan import STATE_ROOT

HERE = Path(__file__).parent
SETTLES_WITHIN = 20.0
STARTS = 3
"""How many times the stand-in is tried to be started."""


class Node:
    """
    A node of a lab that is up.

    Args:
        lab: The lab's name.
        name: The node's.
    """

    def __init__(self, lab, name):
        self.lab, self.name = lab, name
        self.base = {}
        self.status = {}

    # -- where it is ---------------------------------------------------------------------------------------------------

    def look(self):
        """Read anew which process is its first one; says whether it is up."""
        self.status = json.loads((STATE_ROOT / self.lab / "nodes" / self.name / "status.json").read_text())
        return self.status["state"] == "up" and Path(f"/proc/{self.status['pid']}/root/run").exists()

    @property
    def init(self):
        return self.status["pid"]

    @property
    def namespace(self):
        return os.readlink(f"/proc/{self.init}/ns/pid")

    def path(self, inside):
        """Return a path of the node as seen from here."""
        return Path(f"/proc/{self.init}/root") / inside.lstrip("/")

    @property
    def upper(self):
        """Its disk, which is there while it reboots too: to be read only, since the node has it mounted."""
        return STATE_ROOT / self.lab / "nodes" / self.name / "upper"

    @property
    def folder(self):
        return self.path(points.FOLDER)

    # -- being ready ---------------------------------------------------------------------------------------------------

    def begin(self):
        """Make it ready, and remember how it is."""
        self.look()
        self.path(points.FOLDER).mkdir(mode=0o755, exist_ok=True)
        self.path(f"/ckpt/{self.name}").mkdir(exist_ok=True)
        shutil.copy(HERE / "standin.py", self.path(points.FOLDER))
        self.end_training()
        self.start_training()
        self.base = self.settled()

    def start_training(self):
        """Start the stand-in, and wait until its rank computes on its GPU."""
        log = f"{points.FOLDER}/standin.log"
        program = f"/opt/chaoskit-lab/bin/python -I -S {points.FOLDER}/standin.py /ckpt/{self.name}/open"
        inner = f"PATH=/usr/bin:/bin setsid {program} >{log} 2>&1 </dev/null &"
        argv = [*ssh_argv(self.lab, self.name), "sudo", "-n", "sh", "-c", f"'{inner}'"]
        for _ in range(STARTS):  # a case that cuts every connection of the node cuts ours too
            self.end_training()
            with suppress(subprocess.SubprocessError):
                subprocess.run(argv, check=True, timeout=30, stdin=subprocess.DEVNULL)
                break
        else:
            raise RuntimeError(f"{self.name}: the stand-in does not start")
        self.wait(self.trains, "the stand-in does not train")

    def trains(self):
        """Whether its rank computes on its GPU, in the group that the GPU's driver made for it."""
        groups = [group for top in cgroups.folders(self.lab, self.name) for group in top.glob("gpu0-*/cgroup.procs")]
        return any(group.read_text().split() for group in groups)

    def end_training(self):
        for _ in range(2):  # the launcher first, or it starts another
            for pid, argv in points.commands(self.namespace):
                if any(word.endswith(b"/standin.py") for word in argv):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        with suppress(OSError):
            for client in self.path("/run/chaoskit-gpu/clients").iterdir():
                client.unlink()

    def settled(self):
        """Return a snapshot that has held still for a moment."""
        before, until = self.snapshot(), time.monotonic() + SETTLES_WITHIN
        while time.monotonic() < until:
            time.sleep(0.4)
            now = self.snapshot()
            if now == before:
                return now
            before = now
        raise RuntimeError(f"{self.name} does not hold still: {node_snapshot.differences(before, self.snapshot())}")

    def wait(self, condition, what, within=20.0):
        until = time.monotonic() + within
        while not condition():
            if time.monotonic() > until:
                raise RuntimeError(f"{self.name}: {what}")
            time.sleep(0.02)

    def come_back(self):
        """After a reboot: be the node that it is now, with a training."""
        self.wait(self.look, "it did not boot")
        self.wait(lambda: self.path("/run/sshd.pid").exists(), "no sshd")
        self.start_training()

    def rebooted(self):
        """Whether it is another boot than the one that was looked at last."""
        was = self.status["boot"]
        return not self.look() or self.status["boot"] != was

    # -- what is so ----------------------------------------------------------------------------------------------------

    def snapshot(self):
        return node_snapshot.snapshot(self.lab, self.name, self.init)

    def residue(self):
        """Return how it differs from how it was."""
        return node_snapshot.differences(self.base, self.snapshot())

    def entries(self):
        """Return what its ledger says, read from its disk."""
        found = [fold(path.read_bytes().split(b"\n")) for path in (self.upper / "var/lib/chaoskit/ledger").glob("*.jsonl")]
        return [entry for entry in found if entry is not None]

    def owed(self):
        return [entry for entry in self.entries() if entry.open]

    def lease(self, run):
        """Return the deadline of a run on the boot-time clock, or None."""
        with suppress(OSError):
            lease = read_lease(Paths(run=str(self.path("/run/chaoskit"))), run)
            return None if lease is None else lease.deadline
        return None

    def ends(self):
        """Return how many times a rank was ended."""
        with suppress(OSError):
            return len((self.folder / "ends").read_text().split())
        return 0

    # -- between cases -------------------------------------------------------------------------------------------------

    def order(self, order, *, busy):
        """Put an order in force."""
        for name in ("hit", "go", "log", "ends", "busy"):
            (self.folder / name).unlink(missing_ok=True)
        if busy:
            (self.folder / "busy").touch()
        points.put(str(self.folder / "order"), order)

    def hit(self):
        """Return what was written down when the order's point was reached, or None."""
        with suppress(OSError):
            return json.loads((self.folder / "hit").read_text())
        return None

    def found(self):
        """Return the points that were reached while they were being recorded: (role, point, nth)."""
        return read_points(self.folder / "log")

    def clear(self):
        """End what was stopped on purpose and is of no more use, and forget what is closed."""
        for pid, argv in points.commands(self.namespace):
            if any(word.endswith(b".pyz") for word in argv) or argv[0].startswith(b"sshd: chaos"):
                with suppress(OSError):
                    if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt":
                        os.kill(pid, signal.SIGKILL)
        for path in self.path("/var/lib/chaoskit/ledger").glob("*,*"):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.path("/run/chaoskit/runs"), ignore_errors=True)

    def end(self):
        """Take away what the matrix brought."""
        self.end_training()
        for verb in (b"fuse", b"serve"):
            for pid in points.agents(verb, self.namespace):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.path(f"/ckpt/{self.name}"), ignore_errors=True)


def read_points(path):
    """Return the points in a log, in their order: (role, point, nth)."""
    with suppress(FileNotFoundError):
        return [(role, point, int(nth)) for role, point, nth in (line.split() for line in Path(path).read_text().splitlines())]
    return []
