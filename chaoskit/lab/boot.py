"""One life of one node: links, container, guards, sshd, storage, until it ends; run in a thread of its own."""

import json
import os
import random
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import IO

from chaoskit.errors import ChaosError
from chaoskit.lab import bundle, cgroups, gpus, namespaces, network, rootfs, storage
from chaoskit.lab.plan import LabPlan, NodePlan
from chaoskit.lab.requirements import program
from chaoskit.lab.status import NodeStatus, write_status

BOOT_ID = "/proc/sys/kernel/random/boot_id"
START_WITHIN = 30.0
"""Longest wait, in seconds, for a container or its sshd."""

GPUS = 1
"""GPUs a worker, as the inventory says."""

GPU_CORES = 0.8
"""
Share of the machine's processors that all GPUs together get at their highest clock. The rest is everybody else's: a GPU
that had to wait for a processor would be slower than its clock says.
"""


class Ending(Enum):
    """How a node's life ended; runc exits with 128 plus the signal by which the kernel ends a pid namespace."""

    REBOOT = 129
    POWER_OFF = 130
    CRASH = -1


class Boot(threading.Thread):
    """
    One life of a node, in a thread whose network namespace becomes the node's own.

    Args:
        plan: The lab.
        node: The node.
        count: Which boot this is, from 1.
    """

    def __init__(self, plan: LabPlan, node: NodePlan, count: int) -> None:
        super().__init__(name=f"{node.name} boot {count}", daemon=True)
        self.plan = plan
        self.node = node
        self.count = count
        self.boot_id = str(uuid.uuid4())
        self.folder = plan.node_dir(node)
        self.ending = Ending.CRASH
        self.says = ""

    def run(self) -> None:
        """Live; `ending` and `says` tell afterwards how it ended."""
        try:
            self._live()
        except (OSError, ChaosError) as error:
            self.says = str(error)
        except Exception as error:  # noqa: BLE001 - the thread's boundary: told in the node's status, other nodes go on
            self.says = f"{type(error).__name__}: {error}"

    def _live(self) -> None:
        self.tell("booting")
        namespaces.unshare(namespaces.CLONE_NEWNET)
        network.connect_node(self.plan, self.node, os.getpid())
        with (self.folder / "console.log").open("ab", buffering=0) as console:
            runc = self._start_container(console)
            try:
                self._bring_up_while_alive(runc)
                code = runc.wait()
            finally:
                self._bury(runc)
        self.ending = Ending(code) if code in (129, 130) else Ending.CRASH
        self.says = "" if self.ending is Ending.REBOOT else f"{self.ending.name.lower()}, runc said {code}"

    def _bury(self, runc: subprocess.Popen[bytes]) -> None:
        """Make sure that nothing of this life remains, also when the boot failed or somebody killed runc."""
        cgroups.kill(self.plan.name, self.node.name)
        try:
            runc.wait(timeout=START_WITHIN)
        except subprocess.TimeoutExpired:
            runc.kill()
            runc.wait()
        if (self.plan.state_dir / "runc" / self.node.name).exists():
            subprocess.run([*self._runc, "delete", "--force", self.node.name], capture_output=True, check=False)

    @property
    def _runc(self) -> list[str]:
        return [program("runc"), "--root", str(self.plan.state_dir / "runc")]

    def tell(self, state: str, pid: int | None = None, says: str = "") -> None:
        """Write the node's status."""
        write_status(self.plan, NodeStatus(self.node.name, state, self.count, self.boot_id, pid, says))

    def _start_container(self, console: IO[bytes]) -> subprocess.Popen[bytes]:
        home = self.folder / "bundle"
        home.mkdir(exist_ok=True)
        base = str(Path(sys.executable).resolve())
        binds = {**rootfs.separate_mounts(), rootfs.TOOLS: str(self.plan.state_dir / "opt"), **rootfs.interpreters()}
        rights = bundle.allowed(bundle.own_bounding_set())
        config = bundle.config(self.plan, self.node, root=self.folder / "root", python=base, binds=binds, rights=rights)
        (home / "config.json").write_text(json.dumps(config), encoding="utf-8")
        (self.folder / "pid").unlink(missing_ok=True)
        # A real machine's monotonic clock starts anew at boot; a random start keeps anybody from comparing two nodes' clocks.
        offset = random.SystemRandom().randrange(1_000, 10_000_000)
        argv = [
            program("unshare"),
            "--time",
            "--monotonic",
            str(offset),
            *self._runc,
            "run",
        ]
        argv += ["--bundle", str(home), "--pid-file", str(self.folder / "pid"), self.node.name]
        return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=console, stderr=console)

    def _bring_up_while_alive(self, runc: subprocess.Popen[bytes]) -> None:
        """Bring the node up; one that reboots or halts meanwhile has ended as any other."""
        try:
            self._bring_up(runc)
        except (OSError, ChaosError):
            if not _ends(runc):
                raise

    def _bring_up(self, runc: subprocess.Popen[bytes]) -> None:
        pid = self._await_pid(runc)
        namespaces.inside(pid, "mnt", self._guard_proc)
        if self.node.group == "workers":
            namespaces.inside(pid, "mnt", self._make_gpus)
        assert runc.stdin is not None  # noqa: S101 - opened as a pipe above
        runc.stdin.close()  # go
        self._await(runc, lambda: storage.answers_ssh(self.plan.address(self.node, "mgmt0")), "sshd does not answer")
        if self.node.group == "workers":
            self._mount_storage(runc, pid)
        if runc.poll() is None:
            self.tell("up", pid)

    def _guard_proc(self) -> None:
        """Make /proc/sys read only but for net, and give the node its own boot id; runs inside the node's mounts."""
        for path in ("/proc/sys", "/proc/sys/net"):
            namespaces.mount(path, path, flags=namespaces.MS_BIND)
        own = Path("/run/.boot_id")
        own.write_text(f"{self.boot_id}\n", encoding="ascii")
        own.chmod(0o444)
        namespaces.mount(str(own), BOOT_ID, flags=namespaces.MS_BIND)
        own.unlink()  # the mount keeps it, out of everybody's reach
        closed = namespaces.MS_NOSUID | namespaces.MS_NODEV | namespaces.MS_NOEXEC
        for path in (BOOT_ID, "/proc/sys"):
            namespaces.mount("", path, flags=namespaces.MS_REMOUNT | namespaces.MS_BIND | namespaces.MS_RDONLY | closed)

    def _make_gpus(self) -> None:
        """Load the GPUs' driver, as it were: fresh state, since limits do not outlive a boot; runs inside the node's mounts."""
        cores = len(os.sched_getaffinity(0)) * GPU_CORES / self.plan.workers
        gpus.Gpus().make(count=GPUS, machine_id=self.node.machine_id, cores=min(1.0, cores))

    def _await_pid(self, runc: subprocess.Popen[bytes]) -> int:
        file = self.folder / "pid"
        self._await(runc, file.exists, "the container does not start")
        return int(file.read_text(encoding="ascii"))

    def _mount_storage(self, runc: subprocess.Popen[bytes], pid: int) -> None:
        """Mount, however long store1 takes to come; give up only when this node ends."""
        self.tell("booting", pid, "waits for store1")
        store = self.plan.address(self.plan.store, "stor0")
        while runc.poll() is None:
            if storage.answers_ssh(store, within=0.5) and storage.mount(self.plan, self.node, pid):
                return
            time.sleep(0.02)

    def _await(self, runc: subprocess.Popen[bytes], ready: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + START_WITHIN
        while not ready():
            if runc.poll() is not None or time.monotonic() > end:
                raise ChaosError(what, where=self.node.name, hint=f"see {self.folder / 'console.log'}")
            time.sleep(0.004)


def _ends(runc: subprocess.Popen[bytes], within: float = 1.0) -> bool:
    try:
        runc.wait(timeout=within)
    except subprocess.TimeoutExpired:
        return False
    return True
