"""Where `gpu_power_cap` is tried."""

import os

from simulated_gpus import edit, gpus, host, snapshot, training

from chaoskit.faults import load
from chaoskit.testing import Bench


def bench():
    """Two GPUs at work, one limited by its operator below the default, which must come back and not the default."""
    gpus()
    edit(1, limit=650000)
    return load("gpu_power_cap", {"watts": 315.0, "hold": 1.0}), Bench(training(), snapshot)


def no_library():
    """A node without NVIDIA's driver: the linker finds no libnvidia-ml.so.1."""
    del os.environ["LD_LIBRARY_PATH"]
    return {"watts": 315.0}, host(), ("NVML Shared Library Not Found", "install NVIDIA's driver")


def unprivileged():
    """Good GPUs, and not root."""
    gpus()
    load("gpu_power_cap", {"watts": 315.0})  # nobody may not read what it still has to import
    os.setuid(65534)
    return {"watts": 315.0}, host(), ("only root", "65534")


def partitioned():
    """A GPU in MIG mode, where a limit would strike others too."""
    gpus()
    edit(0, mig=1)
    return {"watts": 315.0, "gpu": 0}, host(), ("GPU 0", "MIG")


REFUSALS = {
    "wrong parameters": lambda: ({"watts": 315.0, "share_of_default": 0.5}, host(), ("exactly one of watts and share_of_default",)),
    "missing tools": no_library,
    "no rights": unprivileged,
    "in the way": partitioned,
}
