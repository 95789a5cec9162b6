"""
A small nvidia-smi for the people in a lab node: the usual table, lists, queries and settings.

A standalone script: it imports nothing but NVIDIA's pynvml and the standard library.

    nvidia-smi                                            the table
    nvidia-smi -L                                         one line a GPU
    nvidia-smi --query-gpu=index,power.draw --format=csv,noheader,nounits
    nvidia-smi -i 0 -pl 315                               power limit in watts, as root
    nvidia-smi -i 0 -lgc 210,1320 | -rgc                  lock the clocks, or unlock them, as root
"""

import argparse
import sys
from collections.abc import Callable
from typing import Any

import pynvml as nvml

Handle = Any  # pynvml's own pointer type

REASONS = {
    "gpu_idle": nvml.nvmlClocksEventReasonGpuIdle,
    "applications_clocks_setting": nvml.nvmlClocksEventReasonApplicationsClocksSetting,
    "sw_power_cap": nvml.nvmlClocksEventReasonSwPowerCap,
    "hw_slowdown": nvml.nvmlClocksEventReasonHwSlowdown,
    "sw_thermal_slowdown": nvml.nvmlClocksEventReasonSwThermalSlowdown,
}


def watts(milliwatts: int) -> str:
    """Return a power as nvidia-smi shows it."""
    return f"{milliwatts / 1000:.2f}"


def active(handle: Handle, reason: int) -> str:
    """Return whether a reason holds the clocks down."""
    return "Active" if nvml.nvmlDeviceGetCurrentClocksEventReasons(handle) & reason else "Not Active"


QUERIES: dict[str, tuple[str, Callable[[Handle], object]]] = {
    "index": ("", nvml.nvmlDeviceGetIndex),
    "name": ("", nvml.nvmlDeviceGetName),
    "uuid": ("", nvml.nvmlDeviceGetUUID),
    "serial": ("", nvml.nvmlDeviceGetSerial),
    "pci.bus_id": ("", lambda handle: nvml.nvmlDeviceGetPciInfo(handle).busId),
    "driver_version": ("", lambda _: nvml.nvmlSystemGetDriverVersion()),
    "pstate": ("", lambda handle: f"P{nvml.nvmlDeviceGetPerformanceState(handle)}"),
    "persistence_mode": ("", lambda handle: "Enabled" if nvml.nvmlDeviceGetPersistenceMode(handle) else "Disabled"),
    "mig.mode.current": ("", lambda handle: "Enabled" if nvml.nvmlDeviceGetMigMode(handle)[0] else "Disabled"),
    "temperature.gpu": ("", lambda handle: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
    "utilization.gpu": ("%", lambda handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
    "memory.total": ("MiB", lambda handle: nvml.nvmlDeviceGetMemoryInfo(handle).total >> 20),
    "memory.used": ("MiB", lambda handle: nvml.nvmlDeviceGetMemoryInfo(handle).used >> 20),
    "power.draw": ("W", lambda handle: watts(nvml.nvmlDeviceGetPowerUsage(handle))),
    "power.limit": ("W", lambda handle: watts(nvml.nvmlDeviceGetPowerManagementLimit(handle))),
    "power.default_limit": ("W", lambda handle: watts(nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle))),
    "power.min_limit": ("W", lambda handle: watts(nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)[0])),
    "power.max_limit": ("W", lambda handle: watts(nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)[1])),
    "clocks.sm": ("MHz", lambda handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
    "clocks.mem": ("MHz", lambda handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
    "clocks.max.sm": ("MHz", lambda handle: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
    **{
        f"clocks_event_reasons.{name}": ("", lambda handle, reason=reason: active(handle, reason))  # type: ignore[misc]  # bound now
        for name, reason in REASONS.items()
    },
}
"""What --query-gpu can ask for: name -> unit and reading."""


def tried(reading: Callable[[Handle], object], handle: Handle) -> object:
    """Return a reading; what a GPU does not support, or has lost, stands as nvidia-smi puts it."""
    try:
        return reading(handle)
    except nvml.NVMLError as error:
        return f"[{error}]"


def query(handles: list[Handle], asked: str, form: str) -> str:
    """Return the CSV that --query-gpu asks for. Raises SystemExit for a field that there is not."""
    names, options = asked.split(","), form.split(",")
    if unknown := [name for name in names if name not in QUERIES]:
        sys.exit(f'Field "{unknown[0]}" is not a valid field to query. There are: {", ".join(QUERIES)}')
    with_unit = "nounits" not in options
    head = ", ".join(f"{name} [{QUERIES[name][0]}]" if with_unit and QUERIES[name][0] else name for name in names)
    lines = [] if "noheader" in options else [head]
    for handle in handles:
        values = [(QUERIES[name][0], tried(QUERIES[name][1], handle)) for name in names]
        lines.append(", ".join(f"{value} {unit}" if with_unit and unit and "[" not in str(value) else str(value) for unit, value in values))
    return "\n".join(lines)


def table(handles: list[Handle]) -> str:
    """Return what nvidia-smi shows when it is asked for nothing."""
    lines = [f"NVIDIA-SMI (chaoskit lab, simulated)   driver {nvml.nvmlSystemGetDriverVersion()}", ""]
    form = "{:>3}  {:<34} {:<17} {:>5} {:>5} {:>17} {:>17} {:>5} {:>9}  {}"
    lines.append(form.format("GPU", "name", "bus", "temp", "state", "power", "memory", "util", "SM clock", "held down by"))
    return "\n".join([*lines, *(form.format(*row(handle)).rstrip() for handle in handles), "", *processes(handles)])


def row(handle: Handle) -> list[str]:
    """Return a GPU's line of the table; what cannot be read stands as ERR!, as in the real one."""

    def cell(form: str, *names: str) -> str:
        values = [tried(QUERIES[name][1], handle) for name in names]
        return "ERR!" if any(str(value).startswith("[") for value in values) else form.format(*values)

    held = [word for word in REASONS if tried(QUERIES[f"clocks_event_reasons.{word}"][1], handle) == "Active"]
    return [
        *(cell("{}", name) for name in ("index", "name", "pci.bus_id")),
        cell("{}C", "temperature.gpu"),
        cell("{}", "pstate"),
        cell("{} / {} W", "power.draw", "power.limit"),
        cell("{} / {} MiB", "memory.used", "memory.total"),
        cell("{}%", "utilization.gpu"),
        cell("{} MHz", "clocks.sm"),
        ", ".join(held),
    ]


def processes(handles: list[Handle]) -> list[str]:
    """Return one line for each process that computes on a GPU."""
    found = []
    for handle in handles:
        running = tried(nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        if isinstance(running, list):
            found += [(nvml.nvmlDeviceGetIndex(handle), process.pid, (process.usedGpuMemory or 0) >> 20) for process in running]
    lines = [f"  GPU {index}  pid {pid}  {memory} MiB" for index, pid, memory in found]
    return ["processes:", *lines] if lines else ["no process computes on a GPU"]


def change(handle: Handle, args: argparse.Namespace) -> str:
    """Do the settings asked for on one GPU; return what was done."""
    name, done = f"GPU {nvml.nvmlDeviceGetPciInfo(handle).busId}", []
    if args.power_limit is not None:
        before = nvml.nvmlDeviceGetPowerManagementLimit(handle)
        nvml.nvmlDeviceSetPowerManagementLimit(handle, round(args.power_limit * 1000))
        done.append(f"Power limit for {name} was set to {args.power_limit:.2f} W from {watts(before)} W.")
    if args.lock_gpu_clocks:
        low, _, high = args.lock_gpu_clocks.partition(",")
        nvml.nvmlDeviceSetGpuLockedClocks(handle, int(low), int(high or low))
        done.append(f"GPU clocks set to (gpuClkMin {int(low)}, gpuClkMax {int(high or low)}) for {name}.")
    if args.reset_gpu_clocks:
        nvml.nvmlDeviceResetGpuLockedClocks(handle)
        done.append(f"All done: the clocks of {name} are not locked.")
    return "\n".join(done)


def parse(argv: list[str]) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(prog="nvidia-smi", description="The simulated GPUs of this lab node.", allow_abbrev=False)
    parser.add_argument("-L", "--list-gpus", action="store_true", help="one line a GPU")
    parser.add_argument("-i", "--id", help="index, UUID or PCI address of one GPU")
    parser.add_argument("--query-gpu", metavar="FIELD,...", help=", ".join(QUERIES))
    parser.add_argument("--format", default="csv", metavar="csv[,noheader][,nounits]", help="of --query-gpu")
    parser.add_argument("-pl", "--power-limit", type=float, metavar="WATTS", help="set the power limit")
    parser.add_argument("-lgc", "--lock-gpu-clocks", metavar="MIN,MAX", help="lock the clocks, in MHz")
    parser.add_argument("-rgc", "--reset-gpu-clocks", action="store_true", help="unlock the clocks")
    return parser.parse_args(argv)


def chosen(name: str | None) -> list[Handle]:
    """Return the GPU that -i names, or all of them."""
    if name is None:
        return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    if name.isdigit():
        return [nvml.nvmlDeviceGetHandleByIndex(int(name))]
    by = nvml.nvmlDeviceGetHandleByUUID if name.startswith("GPU-") else nvml.nvmlDeviceGetHandleByPciBusId
    return [by(name.encode())]


def answer(args: argparse.Namespace) -> str:
    """Return what the options ask for, done."""
    handles = chosen(args.id)
    if args.power_limit is not None or args.lock_gpu_clocks or args.reset_gpu_clocks:
        return "\n".join(change(handle, args) for handle in handles)
    if args.query_gpu:
        return query(handles, args.query_gpu, args.format)
    if args.list_gpus:
        return "\n".join(
            f"GPU {nvml.nvmlDeviceGetIndex(one)}: {QUERIES['name'][1](one)} (UUID: {QUERIES['uuid'][1](one)})" for one in handles
        )
    return table(handles)


def main(argv: list[str]) -> int:
    """Answer; the exit status is NVML's error."""
    args = parse(argv)
    try:
        nvml.nvmlInit()
        print(answer(args))
    except nvml.NVMLError as error:
        print(f"nvidia-smi: {error}", file=sys.stderr)
        return int(error.value)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
