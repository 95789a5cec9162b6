"""
What asks NVML: a short child of its own, because an open handle blocks a GPU's reset, and a lost GPU hangs its caller.

It carries out one order and writes what it finds as JSON lines, each at once, so that its parent knows how far it came
when it must be killed. `gpus` starts it, from the zipapp or a source tree alike. Standard library and NVIDIA's `pynvml`
only, Python 3.8.
"""

import contextlib
import json
import signal
import time
from typing import Any, Callable, Dict, Iterator, List, Optional

import pynvml

ALARM = 2.0
"""Seconds after which the child ends itself, beyond its parent's deadline: the parent may be dead by then."""

ABSENT = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
"""How a single reading fails that this board or driver does not offer."""

Line = Dict[str, Any]


def main(order: Line) -> None:
    """
    Carry out one order: `do` is read, look, limit, clocks or counters; `within` the parent's deadline in seconds.

    Lines: {"driver"}, {"at": index} before a GPU is touched, {"gpu"}, {"sample"}, {"counters"}, and at the end {"done"} or {"failed"}.
    """
    # The default action ends us even inside the library, where no Python code would run.
    signal.setitimer(signal.ITIMER_REAL, order["within"] + ALARM)
    try:
        pynvml.nvmlInit()
        for line in ORDERS[order["do"]](order):
            _say(line)
    except pynvml.NVMLError as error:
        _say({"failed": _failure(error)})
        return
    _say({"done": True})
    with contextlib.suppress(pynvml.NVMLError):  # what was set stays set, however the library ends
        pynvml.nvmlShutdown()


def _say(line: Line) -> None:
    print(json.dumps(line), flush=True)


def _failure(error: "pynvml.NVMLError") -> Line:
    return {"code": error.value, "says": str(error)}


def _read(order: Line) -> Iterator[Line]:
    """Yield what every GPU from index `first` on shows, or why it cannot be read."""
    cuda = _maybe(pynvml.nvmlSystemGetCudaDriverVersion)
    yield {"driver": pynvml.nvmlSystemGetDriverVersion(), "cuda": cuda, "count": pynvml.nvmlDeviceGetCount()}
    for index in range(order["first"], pynvml.nvmlDeviceGetCount()):
        yield {"at": index}
        try:
            yield {"gpu": _gpu(index, pynvml.nvmlDeviceGetHandleByIndex(index))}
        except pynvml.NVMLError as error:
            yield {"unread": {"index": index, **_failure(error)}}


def _gpu(index: int, handle: Any) -> Line:
    low, high = _maybe(pynvml.nvmlDeviceGetPowerManagementLimitConstraints, handle) or (None, None)
    memory = _maybe(pynvml.nvmlDeviceGetMemoryInfo, handle)
    mig = _maybe(pynvml.nvmlDeviceGetMigMode, handle)
    return {
        "index": index,
        "name": pynvml.nvmlDeviceGetName(handle),
        "uuid": pynvml.nvmlDeviceGetUUID(handle),
        "pci": pynvml.nvmlDeviceGetPciInfo(handle).busId,
        "vbios": _maybe(pynvml.nvmlDeviceGetVbiosVersion, handle),
        "limit": _watts(_maybe(pynvml.nvmlDeviceGetPowerManagementLimit, handle)),
        "default_limit": _watts(_maybe(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)),
        "min_limit": _watts(low),
        "max_limit": _watts(high),
        "max_sm_clock": _maybe(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM),
        "min_sm_clock": _lowest_clock(handle),
        "temperature": _maybe(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        "memory_total": memory and memory.total,
        "memory_used": memory and memory.used,
        # A change of mode waits for the next reset: both must say no.
        "mig": None if mig is None else any(mode == pynvml.NVML_DEVICE_MIG_ENABLE for mode in mig),
        "persistence": _flag(_maybe(pynvml.nvmlDeviceGetPersistenceMode, handle)),
        "mps_pids": _pids(_maybe(pynvml.nvmlDeviceGetMPSComputeRunningProcesses, handle)),
        **_sample(handle),
    }


def _lowest_clock(handle: Any) -> Optional[int]:
    """Return the lowest clock that can be asked for beside the highest memory clock, in MHz."""
    memory = _maybe(pynvml.nvmlDeviceGetSupportedMemoryClocks, handle)
    clocks = _maybe(pynvml.nvmlDeviceGetSupportedGraphicsClocks, handle, max(memory)) if memory else None
    return min(clocks) if clocks else None


def _sample(handle: Any) -> Line:
    """Return what moves: draw in W, SM clock in MHz, event reasons as NVML's bit mask, utilisation in percent, who computes."""
    utilisation = _maybe(pynvml.nvmlDeviceGetUtilizationRates, handle)
    return {
        "draw": _watts(_maybe(pynvml.nvmlDeviceGetPowerUsage, handle)),
        "sm_clock": _maybe(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
        "reasons": _reasons(handle),
        "utilisation": utilisation and utilisation.gpu,
        "pids": _pids(_maybe(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)),
    }


def _reasons(handle: Any) -> Optional[int]:
    """Return why the clocks are not at their highest; drivers before 535 know it by its older name only."""
    found: Optional[int] = _maybe(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if found is None:
        found = _maybe(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    return found


def _look(order: Line) -> Iterator[Line]:
    """
    Yield `times` samples of one GPU, `every` seconds.

    Ends early once, at work, `enough` of them showed a reason in the mask `reasons`, or the last `enough` a clock of `at_most`
    MHz or less; and at once when the power limit is not `limit` W.
    """
    handle = _find(order)
    shown, slow = 0, 0
    for number in range(order["times"]):
        if number:
            time.sleep(order["every"])
        sample = _sample(handle)
        sample["limit"] = _watts(_maybe(pynvml.nvmlDeviceGetPowerManagementLimit, handle))
        sample["capped"] = _capped(handle)
        yield {"sample": sample}
        if _works(sample):
            shown += bool((sample["reasons"] or 0) & order["reasons"])
            slow = slow + 1 if _at_most(sample["sm_clock"], order["at_most"]) else 0
        other = order["limit"] is not None and not _same(sample["limit"], order["limit"], order["same"])
        if other or max(shown, slow) >= order["enough"]:
            return


def _works(sample: Line) -> bool:
    """Say whether something computes on it, as `gpus.Sample.works` does."""
    return bool(sample["pids"]) if sample["utilisation"] is None else bool(sample["utilisation"])


def _at_most(clock: Optional[int], ceiling: Optional[int]) -> bool:
    return clock is not None and ceiling is not None and clock <= ceiling


def _capped(handle: Any) -> Optional[float]:
    """Return the seconds that the power limit has held the clocks down since the driver was loaded."""
    status = _maybe(pynvml.nvmlDeviceGetViolationStatus, handle, pynvml.NVML_PERF_POLICY_POWER)
    return None if status is None else float(status.violationTime) / 1e9


def _limit(order: Line) -> Iterator[Line]:
    """
    Set the power limit to `watts` if it is `only_if`; yield the limit before, what was read back, and what is left.

    With `exactly`, a limit that the driver keeps otherwise than it was asked to is replaced at once by the one before.
    """
    handle = _find(order)
    before = pynvml.nvmlDeviceGetPowerManagementLimit(handle)
    ours = _same(_watts(before), order["only_if"], order["same"])
    if ours:
        pynvml.nvmlDeviceSetPowerManagementLimit(handle, round(order["watts"] * 1000))
    after = left = pynvml.nvmlDeviceGetPowerManagementLimit(handle)
    if ours and order["exactly"] and not _same(_watts(after), order["watts"], order["same"]):
        with contextlib.suppress(pynvml.NVMLError):  # what is left says it
            pynvml.nvmlDeviceSetPowerManagementLimit(handle, before)
        left = pynvml.nvmlDeviceGetPowerManagementLimit(handle)
    yield {"limit": {"before": _watts(before), "after": _watts(after), "left": _watts(left)}}


def _clocks(order: Line) -> Iterator[Line]:
    """Lock the SM clock to the range `mhz`, or reset the lock when that is None."""
    handle = _find(order)
    if order["mhz"] is None:
        pynvml.nvmlDeviceResetGpuLockedClocks(handle)
    else:
        pynvml.nvmlDeviceSetGpuLockedClocks(handle, *order["mhz"])
    yield {"clocks": order["mhz"]}


def _find(order: Line) -> Any:
    """
    Return the handle of the GPU with a UUID, first looked for where it was: its index may move, and the others may hang.

    Raises:
        NVMLError: It is lost, or not there.
    """
    uuid, lost = order["uuid"], None
    found = _at(lambda: pynvml.nvmlDeviceGetHandleByPciBusId(order["pci"]), uuid)
    if found is not None:
        return found
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            if pynvml.nvmlDeviceGetUUID(handle) == uuid:
                return handle
        except pynvml.NVMLError as error:
            lost = error
    raise lost or pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)


def _at(get: Callable[[], Any], uuid: str) -> Any:
    try:
        handle = get()
        return handle if pynvml.nvmlDeviceGetUUID(handle) == uuid else None
    except pynvml.NVMLError as error:
        if error.value in (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED):
            raise
        return None


def _maybe(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return a reading; None where this board or driver does not offer it."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        if error.value in ABSENT:
            return None
        raise


def _watts(milliwatts: Optional[int]) -> Optional[float]:
    return None if milliwatts is None else milliwatts / 1000


def _same(one: Optional[float], other: float, within: float) -> bool:
    return one is not None and abs(one - other) <= within


def _flag(value: Optional[int]) -> Optional[bool]:
    return None if value is None else bool(value)


def _pids(processes: Optional[List[Any]]) -> Optional[List[int]]:
    return None if processes is None else sorted(process.pid for process in processes)


def _counters(_: Line) -> Iterator[Line]:
    """Yield what each GPU counts since its driver was loaded: errors of its memory, and nanoseconds that it was held back."""
    for index in range(pynvml.nvmlDeviceGetCount()):
        yield {"at": index}
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            yield {"counters": {"index": index, "values": {name: value for name, value in _counts(handle).items() if value is not None}}}
        except pynvml.NVMLError as error:
            yield {"unread": {"index": index, **_failure(error)}}


def _counts(handle: Any) -> Dict[str, Optional[int]]:
    ecc = {"ecc_corrected": pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, "ecc_uncorrected": pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED}
    held = {"held_back_by_power_ns": pynvml.NVML_PERF_POLICY_POWER, "held_back_by_heat_ns": pynvml.NVML_PERF_POLICY_THERMAL}
    errors = {name: _maybe(pynvml.nvmlDeviceGetTotalEccErrors, handle, kind, pynvml.NVML_VOLATILE_ECC) for name, kind in ecc.items()}
    times = {name: _maybe(pynvml.nvmlDeviceGetViolationStatus, handle, policy) for name, policy in held.items()}
    return {**errors, **{name: None if seen is None else int(seen.violationTime) for name, seen in times.items()}}


ORDERS: Dict[str, Callable[[Line], Iterator[Line]]] = {
    "read": _read,
    "look": _look,
    "limit": _limit,
    "clocks": _clocks,
    "counters": _counters,
}
