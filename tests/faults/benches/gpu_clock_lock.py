"""Where `gpu_clock_lock` is tried."""

import os

from simulated_gpus import edit, gpus, host, snapshot, training

from chaoskit.faults import load
from chaoskit.testing import Bench

OPERATORS = {"lock_low": 210, "lock_high": 1800}


def bench():
    """Two GPUs at work, both locked by their operator as the inventory declares: that lock must come back."""
    gpus()
    for index in (0, 1):
        edit(index, **OPERATORS)
    training()
    return load("gpu_clock_lock", {"mhz": 990, "hold": 1.0}), Bench(host(gpu_clocks="210-1800"), snapshot)


def no_library():
    """A node without NVIDIA's driver: the linker finds no libnvidia-ml.so.1."""
    del os.environ["LD_LIBRARY_PATH"]
    return {"mhz": 990}, host(gpu_clocks="default"), ("NVML Shared Library Not Found", "install NVIDIA's driver")


def unprivileged():
    """Good GPUs, and not root."""
    gpus()
    load("gpu_clock_lock", {"mhz": 990})  # nobody may not read what it still has to import
    os.setuid(65534)
    return {"mhz": 990}, host(gpu_clocks="default"), ("only root", "65534")


def undeclared():
    """An inventory that does not say whether the operator has locked the clocks: what to put back is not known."""
    gpus()
    return {"mhz": 990}, host(), ("the inventory does not say", "add `gpu_clocks: default` to this node in the inventory")


REFUSALS = {
    "wrong parameters": lambda: ({"mhz": 990, "share_of_max": 0.5}, host(), ("exactly one of mhz and share_of_max",)),
    "missing tools": no_library,
    "no rights": unprivileged,
    "in the way": undeclared,
}
