"""
The driver of a node's simulated GPUs: it makes whoever computes on one as slow as that GPU's clock says.

Run by process 1 of a node as a file, as root, by `python -I -S`; so it imports nothing but the standard library. What a
GPU's clock is says the library (`nvml.c`), so that there is one law. A client, which is a process with a file in the
state folder's `clients`, is moved into a cgroup of its own below the one it stands in, with a quota of processor time

    cores of a GPU at its highest clock * clock / highest clock * the client's share

in short periods, so that steps are slowed evenly; what a busy machine kept from it in one period it may take in the
next, where the kernel can do that (Linux 5.14), as it would else be slowed by more than its GPU. The share, 1 at the most
and when nothing is said, stands in the client's file: whoever computes all the time takes less, so that a busy machine
has it whenever it is due. Whoever started the client (the elastic agent of torchrun) stays outside. Nothing is polled:
inotify tells of new clients and of changed limits, a pidfd of a client's death.
"""

import ctypes
import os
import re
import select
import struct
import sys
from pathlib import Path
from typing import NamedTuple

STATE = Path("/run/chaoskit-gpu")
LIBRARY = Path(__file__).parent / "lib" / "libnvidia-ml.so.1"
PERIOD_US = 10_000
"""
Length of a period of the quota. At the usual 100 ms a step would be fast or slow by where in the period it falls. Shorter
ones are over before a virtual machine has its processor back: with both processors taken away for 8 ms at a time, a fifth of
all time, a step of 120 ms was 12 % slower than on a quiet machine with 5 ms, and 6 % with 10 ms.
"""

QUOTA_MIN_US = 1_000
"""The kernel takes no smaller quota; slower clients get longer periods."""

OTHERS = "gpu-others"
"""On cgroup v2: where the processes beside the clients stand, since a cgroup with children has no processes of its own."""

_CLOSE_WRITE, _MOVED_TO, _DELETE = 0x8, 0x80, 0x200
_EVENT = struct.Struct("iIII")


class Hierarchy:
    """The cgroup hierarchy that has the controller `cpu`; `unified` is version 2."""

    def __init__(self, root: Path, *, unified: bool) -> None:
        self.root = root
        self.unified = unified

    @classmethod
    def find(cls) -> "Hierarchy | None":
        """Return this node's; None when no hierarchy lets us set quotas."""
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
            before, _, after = line.partition(" - ")
            root, (kind, _, options) = Path(before.split()[4]), after.split()[:3]
            if kind == "cgroup" and "cpu" in options.split(","):
                return cls(root, unified=False)
            if kind == "cgroup2" and "cpu" in (root / "cgroup.controllers").read_text(encoding="ascii").split():
                return cls(root, unified=True)
        return None

    def home_of(self, pid: int) -> Path:
        """Return the cgroup that a process stands in. Raises OSError when it is gone."""
        for line in Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if (controllers == "") if self.unified else "cpu" in controllers.split(","):
                return self.root / path.lstrip("/")
        raise FileNotFoundError(f"process {pid} stands in no cgroup")

    def enclose(self, pid: int, name: str) -> Path:
        """Move a process into a cgroup of its own, below the one it stands in, and return that. Raises OSError."""
        home = self.home_of(pid)
        if home.name == name:  # by a driver before us
            return home
        if self.unified:
            home = self._prepared(home)
        group = home / name
        group.mkdir(exist_ok=True)
        (group / "cgroup.procs").write_text(str(pid), encoding="ascii")
        return group

    def _prepared(self, home: Path) -> Path:
        """Return the cgroup below which v2 lets us make one with a quota, the processes in it moved aside."""
        if home.name == OTHERS or home == self.root / "init":  # see `delegate_cgroup` of node_init
            return home.parent
        control = home / "cgroup.subtree_control"
        if home != self.root and "cpu" not in control.read_text(encoding="ascii").split():
            others = home / OTHERS
            others.mkdir(exist_ok=True)
            for pid in (home / "cgroup.procs").read_text(encoding="ascii").split():
                (others / "cgroup.procs").write_text(pid, encoding="ascii")
            control.write_text("+cpu", encoding="ascii")
        return home

    def limit(self, group: Path, cores: float) -> None:
        """Give a cgroup so many processors, or so much of one. Raises OSError."""
        period = max(PERIOD_US, round(QUOTA_MIN_US / cores))
        quota = max(QUOTA_MIN_US, round(period * cores))
        burst = group / ("cpu.max.burst" if self.unified else "cpu.cfs_burst_us")
        _write_if_there(burst, 0)  # a smaller quota than the burst is refused
        if self.unified:
            (group / "cpu.max").write_text(f"{quota} {period}", encoding="ascii")
        else:
            (group / "cpu.cfs_period_us").write_text(str(period), encoding="ascii")
            (group / "cpu.cfs_quota_us").write_text(str(quota), encoding="ascii")
        _write_if_there(burst, quota)


def _write_if_there(file: Path, number: int) -> None:
    if file.exists():
        file.write_text(str(number), encoding="ascii")


class Order(NamedTuple):
    """What a client's file says: the GPU, and how much of its time the client takes."""

    gpu: int
    share: float

    @classmethod
    def of(cls, text: str) -> "Order | None":
        """Read `INDEX [KIND [SHARE]]`; None for anything else, as anybody may write there."""
        found = re.fullmatch(r"(\d{1,2})(?:\s+[a-z]+(?:\s+(0\.\d+|1))?)?\s*", text)
        return cls(int(found[1]), float(found[2] or 1)) if found else None


class Client:
    """A process that computes on a GPU, in its own cgroup; `handle` becomes readable when it is dead."""

    def __init__(self, pid: int, handle: int, order: "Order", group: Path | None) -> None:
        self.pid = pid
        self.handle = handle
        self.index = order.gpu
        self.share = order.share
        self.group = group
        self.cores = 0.0


class Driver:
    """Keeps clients and quotas as the state folder says."""

    def __init__(self, state: Path, library: Path) -> None:
        self.state = state
        self.library = ctypes.CDLL(str(library))
        self.cores = float((state / "cores").read_text(encoding="ascii"))
        self.hierarchy = Hierarchy.find()
        self.clients: dict[int, Client] = {}
        self.seen: dict[int, tuple[object, ...]] = {}
        self.poll = select.epoll()
        self.inbox = self._watch()

    def run(self) -> None:
        """Do what is to be done, then wait until something changes, for ever."""
        while True:
            self.settle()
            for handle, _ in self.poll.poll():
                if handle == self.inbox:
                    os.read(self.inbox, 1 << 16)

    def settle(self) -> None:
        """Take in new clients, let go of dead ones, set every quota, and turn the meters of GPUs that have changed."""
        for client in list(self.clients.values()):
            if select.select([client.handle], [], [], 0)[0]:
                self._bury(client)
        for entry in (self.state / "clients").iterdir():
            if entry.name.isdigit() and int(entry.name) not in self.clients:
                self._admit(entry)
        for client in self.clients.values():
            self._set_pace(client)
        for file in self.state.glob("gpu*[0-9]"):
            self._turn_meter(file, int(file.name[3:]))

    def _watch(self) -> int:
        libc = ctypes.CDLL(None, use_errno=True)
        inbox: int = libc.inotify_init1(os.O_CLOEXEC)
        for folder, mask in ((self.state, _MOVED_TO), (self.state / "clients", _CLOSE_WRITE | _MOVED_TO | _DELETE)):
            if inbox < 0 or libc.inotify_add_watch(inbox, str(folder).encode(), mask) < 0:
                raise OSError(ctypes.get_errno(), f"inotify: {os.strerror(ctypes.get_errno())}", str(folder))
        self.poll.register(inbox, select.EPOLLIN)
        return inbox

    def _admit(self, entry: Path) -> None:
        pid = int(entry.name)
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            entry.unlink(missing_ok=True)
            return
        try:
            order = Order.of(entry.read_text(encoding="ascii", errors="replace"))
            # An entry is a process's own, or root's: nobody slows down another's.
            theirs = entry.stat().st_uid in (0, Path(f"/proc/{pid}").stat().st_uid)
        except OSError:  # taken away while we looked
            order = None
        if order is None or not theirs:
            os.close(handle)
            return
        self.clients[pid] = Client(pid, handle, order, self._enclosed(pid, order.gpu))
        self.poll.register(handle, select.EPOLLIN)

    def _enclosed(self, pid: int, index: int) -> Path | None:
        if self.hierarchy is None:
            return None
        try:
            return self.hierarchy.enclose(pid, f"gpu{index}-{pid}")
        except OSError as error:
            print(f"gpu driver: process {pid} keeps its full pace: {error}", file=sys.stderr)
            return None

    def _bury(self, client: Client) -> None:
        self.poll.unregister(client.handle)
        os.close(client.handle)
        del self.clients[client.pid]
        (self.state / "clients" / str(client.pid)).unlink(missing_ok=True)
        if client.group is not None:
            try:
                client.group.rmdir()
            except OSError as error:  # its children live on there, or somebody was faster
                print(f"gpu driver: {client.group}: {error.strerror}", file=sys.stderr)

    def _set_pace(self, client: Client) -> None:
        cores = self.cores * client.share * self.library.chaoskit_gpu_pace(client.index) / 1_000_000
        if client.group is None or self.hierarchy is None or cores <= 0 or cores == client.cores:
            return
        try:
            self.hierarchy.limit(client.group, cores)
            client.cores = cores
        except OSError as error:
            print(f"gpu driver: {client.group}: {error}", file=sys.stderr)

    def _turn_meter(self, file: Path, index: int) -> None:
        """Tell the library of a change; its own writing to the folder is none."""
        now = (file.stat().st_ino, *sorted(client.pid for client in self.clients.values() if client.index == index))
        if now != self.seen.get(index):
            self.seen[index] = now
            self.library.chaoskit_gpu_changed(index)


if __name__ == "__main__":
    Driver(STATE, LIBRARY).run()
