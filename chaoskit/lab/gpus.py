"""
The simulated GPUs of a node: a folder of small text files, which `nvml.c` reads as its driver's state.

What the files mean and the physics are told in `nvml.c`. In a node the folder is `STATE`, made anew at each boot, so
that limits and locks are lost by a reboot as a real driver's are. Tests make one of their own:

    gpus = Gpus(tmp_path / "gpus")
    gpus.make(count=1, machine_id="0" * 32)
    gpus.edit(0, failure="lost")                       # or mig=1, limit=400_000, lock_high=1200 ...
    gpus.edit(0, failure="hang", failing="nvmlDeviceSet")   # only functions whose names begin so
    gpus.add_client(pid, 0)                            # as a training does when it opens its GPU
    subprocess.run([sys.executable, "-c", "import pynvml; ..."], env=gpus.environment(library))
"""

import fcntl
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STATE = Path("/run/chaoskit-gpu")
"""Where a node has them; the same in `nvml.c`."""

VARIABLE = "CHAOSKIT_GPU_STATE"
"""Environment variable that names another folder."""

DRIVER = {"version": "580.95.05", "nvml": "13.580.95.05", "cuda": "13000"}

BOARD: dict[str, int | str] = {
    "name": "NVIDIA H100 80GB HBM3 (simulated)",
    "part": "SIM-00H100-0080",
    "vbios": "96.00.A5.00.01",
    "limit": 700_000,
    "limit_default": 700_000,
    "limit_min": 200_000,
    "limit_max": 700_000,
    "draw_idle": 70_000,
    "draw_busy": 620_000,
    "clock_idle": 345,
    "clock_min": 210,
    "clock_max": 1980,
    "clock_mem": 2619,
    "lock_low": 0,
    "lock_high": 0,
    "memory": 80 << 30,
    "memory_client": 34 << 30,
    "persistence": 1,
    "compute_mode": 0,
    "mig": 0,
    "failure": "",
    "failing": "",
}
"""A GPU as it comes: power in mW, clocks in MHz, memory in bytes; a `lock_high` of 0 means that its clock is not locked."""

FAILURES = ("", "lost", "no_permission", "not_supported", "hang", "unknown")

_NAMESPACE = uuid.UUID("0f8a3c55-5a0e-4c8f-8f0e-6d1d6a2f7b31")


class Gpus:
    """
    The GPUs of one node.

    Args:
        folder: Their state.
    """

    def __init__(self, folder: Path = STATE) -> None:
        self.folder = folder

    def make(self, *, count: int, machine_id: str, cores: float = 1.0) -> None:
        """
        Make fresh state, as a driver does when it loads.

        Args:
            count: Number of GPUs, 16 at most.
            machine_id: The node's; UUIDs and serial numbers derive from it, so that they stay over reboots.
            cores: Processor cores that the clients of one GPU get at its highest clock.
        """
        clients = self.folder / "clients"
        clients.mkdir(parents=True, mode=0o755)
        clients.chmod(0o1777)  # whoever trains opens a GPU; nobody removes another's entry
        (self.folder / "lock").touch(mode=0o644)
        (self.folder / "cores").write_text(f"{cores:g}\n", encoding="ascii")
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        for index in range(count):
            own = uuid.uuid5(_NAMESPACE, f"{machine_id}/{index}")
            self._write(index, {**BOARD, "uuid": f"GPU-{own}", "serial": str(own.int)[:13], "bus": 0x17 + 0x10 * index})
            (self.folder / f"meter{index}").write_text(f"{now} 0 0 {BOARD['draw_idle']} 0\n", encoding="ascii")
        self.load_driver()

    def load_driver(self) -> None:
        """Let the driver answer."""
        (self.folder / "driver").write_text("".join(f"{key} {value}\n" for key, value in DRIVER.items()), encoding="ascii")

    def unload_driver(self) -> None:
        """Let every call say that the driver is not loaded."""
        (self.folder / "driver").unlink()

    def read(self, index: int) -> dict[str, int | str]:
        """Return a GPU's fields, typed as in `BOARD`. Raises FileNotFoundError."""
        found: dict[str, int | str] = {}
        for line in self._file(index).read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(" ")
            found[key] = int(value) if isinstance(BOARD.get(key, 0 if key == "bus" else ""), int) else value
        return found

    def edit(self, index: int, **fields: int | str) -> None:
        """Change fields of a GPU in one step. Raises ValueError for one that there is not."""
        with self._locked():
            now = self.read(index)
            if unknown := sorted(set(fields) - set(now)):
                raise ValueError(f"a GPU has no {', '.join(unknown)}; it has {', '.join(now)}")
            if fields.get("failure", "") not in FAILURES:
                raise ValueError(f"there is no failure {fields['failure']!r}; there are {', '.join(FAILURES[1:])}")
            self._write(index, {**now, **fields})

    def add_client(self, pid: int, index: int, *, mps: bool = False) -> None:
        """Say that a process computes on a GPU; it does so while it lives and is not stopped."""
        (self.folder / "clients" / str(pid)).write_text(f"{index}{' mps' if mps else ''}\n", encoding="ascii")

    def remove_client(self, pid: int) -> None:
        """Say that a process has closed its GPU."""
        (self.folder / "clients" / str(pid)).unlink()

    def environment(self, library: Path) -> dict[str, str]:
        """Return what a process needs in its environment to find these GPUs; `library` is what `nvml.build` returned."""
        return {VARIABLE: str(self.folder), "LD_LIBRARY_PATH": str(library.parent)}

    def _file(self, index: int) -> Path:
        return self.folder / f"gpu{index}"

    def _write(self, index: int, fields: dict[str, int | str]) -> None:
        fresh = self.folder / f"gpu{index}.new"
        fresh.write_text("".join(f"{key} {value}\n" for key, value in fields.items()), encoding="utf-8")
        fresh.replace(self._file(index))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fd = os.open(self.folder / "lock", os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)
