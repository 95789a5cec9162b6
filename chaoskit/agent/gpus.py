"""
The node's GPUs, read and set through NVML in short children with a deadline: nothing here holds a handle or can hang.

What NVML answers becomes plain types, and whatever goes wrong an error that names the GPU and says what to do. Power is in
watts, clocks in MHz. Standard library only, Python 3.8.
"""

import time
from dataclasses import dataclass
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from chaoskit.agent.nvml import Answer, ask, hang
from chaoskit.errors import NodeError

READ_WITHIN = 15.0
"""Seconds to read all GPUs of a node; without persistence mode, each takes one or two to wake."""
STALL = 5.0
"""Seconds without a word after which one GPU counts as hanging."""
SET_WITHIN = 8.0
"""Seconds to set something of one GPU."""
ENOUGH = 3
"""Looks that must show what is looked for."""
SAME = 1.0
"""Watts within which two power limits are one: a driver may keep another fraction than it was given."""

NO_PERMISSION, NOT_SUPPORTED, NOT_FOUND, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, IS_LOST = 4, 3, 6, 9, 12, 15
INVALID_ARGUMENT, FUNCTION_NOT_FOUND = 2, 13
"""NVML's error codes that callers tell apart (nvml.h, nvmlReturn_t)."""
SAID_NO = frozenset((INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND))
"""Those by which nothing was set for certain; after a time-out, an unknown error or a loss on the way nobody knows."""

HINTS = {
    NOT_SUPPORTED: "this board, its virtual machine or its driver does not offer it; choose another GPU",
    NO_PERMISSION: "NVML lets only root with CAP_SYS_ADMIN on the host do this; in a container or a guest it cannot be done",
    NOT_FOUND: "compare with `nvidia-smi -L`: it was taken out, or has fallen off the bus",
    DRIVER_NOT_LOADED: "load NVIDIA's driver, `modprobe nvidia`, and see `dmesg`",
    LIBRARY_NOT_FOUND: "install NVIDIA's driver; its libnvidia-ml.so.1 must be where the linker looks (`ldconfig -p`)",
    IS_LOST: "it has fallen off the bus: drain the node, then reset the GPU or reboot, which also ends whatever was set on it",
    16: "drain the node, then reset the GPU (`nvidia-smi --gpu-reset`) or reboot",
    17: "a cgroup or a security module keeps root from the device: see `ls -l /dev/nvidia*` and the kernel's log",
    18: "driver and library are of two versions: reboot, or load the driver that was installed last",
    13: "the driver is too old for this",
}
OTHERWISE = "see `nvidia-smi -q` and `dmesg | grep NVRM` on the node"


IDLE, CLOCKS_SET, POWER_CAP = 0x1, 0x2, 0x4
"""Event reasons (nvml.h, nvmlClocksEventReasons): nothing to do; clocks set by somebody; held down by the power limit."""
REASONS = {
    IDLE: "gpu_idle",
    CLOCKS_SET: "applications_clocks_setting",
    POWER_CAP: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""Their names, as nvidia-smi calls them."""


class GpuError(NodeError):
    """NVML refused or failed; `code` is its error code, None when it never answered in its own words."""

    def __init__(self, what: str, *, node: str = "", hint: str = "", code: Optional[int] = None) -> None:
        super().__init__(what, node=node, hint=hint)
        self.code = code


@dataclass(frozen=True)
class Gpu:
    """
    One GPU. Limits and draw in W, clocks in MHz, memory in bytes, temperature in degrees Celsius, utilisation in percent.

    `reasons` is NVML's mask of why the clocks are not at their highest. None stands for what the board does not offer.
    """

    index: int
    name: str
    uuid: str
    pci: str
    vbios: Optional[str]
    limit: Optional[float]
    default_limit: Optional[float]
    min_limit: Optional[float]
    max_limit: Optional[float]
    draw: Optional[float]
    sm_clock: Optional[int]
    max_sm_clock: Optional[int]
    min_sm_clock: Optional[int]
    reasons: Optional[int]
    utilisation: Optional[int]
    temperature: Optional[int]
    memory_total: Optional[int]
    memory_used: Optional[int]
    mig: Optional[bool]
    persistence: Optional[bool]
    pids: Optional[List[int]]
    mps_pids: Optional[List[int]]

    @property
    def label(self) -> str:
        """How sentences call it."""
        return label(self.index, self.uuid)


@dataclass(frozen=True)
class Unread:
    """A GPU that could not be read (`index` None: none of them could), why, and what to do."""

    index: Optional[int]
    why: str
    hint: str
    code: Optional[int] = None

    def error(self, node: str) -> GpuError:
        """Return it as an error."""
        return GpuError(self.why, node=node, hint=self.hint, code=self.code)


class Gpus(NamedTuple):
    """
    All GPUs of a node: those that answered, and those that did not. `driver` is its version, empty when it did not answer.

    `cuda` is the newest CUDA that the driver offers, as NVML writes it: 12040 is 12.4.
    """

    driver: str
    gpus: List[Gpu]
    unread: List[Unread]
    cuda: Optional[int] = None

    def to_json(self) -> Dict[str, Any]:
        """Return it as JSON: `gpus` and `unread` as lists of objects."""
        return {
            "driver": self.driver,
            "gpus": [dict(one.__dict__) for one in self.gpus],
            "unread": [dict(one.__dict__) for one in self.unread],
        }


class Sample(NamedTuple):
    """
    One look at a GPU: draw and limit in W, SM clock in MHz, event reasons, utilisation in percent, who computes on it.

    `capped` is a counter: seconds for which the power limit has held the clocks down.
    """

    draw: Optional[float]
    sm_clock: Optional[int]
    reasons: Optional[int]
    utilisation: Optional[int]
    pids: Optional[List[int]]
    limit: Optional[float]
    capped: Optional[float]

    @property
    def works(self) -> bool:
        """Whether something computes on it right now; boards that tell no utilisation count as working while a process is there."""
        return bool(self.pids) if self.utilisation is None else self.utilisation > 0


class LimitSet(NamedTuple):
    """Power limits around a setting, in W: before, as read back after it, and what is left, which may be the one before again."""

    before: float
    after: float
    left: float


@dataclass(frozen=True)
class Chosen:
    """The GPU that is meant, by what does not move: its index may, when another one is lost."""

    node: str
    index: int
    uuid: str
    pci: str

    @property
    def label(self) -> str:
        """How sentences call it."""
        return label(self.index, self.uuid)


def label(index: int, uuid: str) -> str:
    """Return how sentences call a GPU."""
    return "GPU {} ({})".format(index, uuid)


def reason_names(mask: int) -> List[str]:
    """Return the names of the event reasons in NVML's mask."""
    return [name for bit, name in REASONS.items() if mask & bit]


def read_all(within: float = READ_WITHIN) -> Gpus:
    """
    Read every GPU of this node; never raises for what a GPU or the driver does.

    A GPU that hangs costs its child, and the next child goes on behind it; `within` seconds are for all of them.
    """
    until = time.monotonic() + within
    seen = Gpus("", [], [])
    first, count = 0, 1
    while first < count:
        left = until - time.monotonic()
        if left <= 0:
            seen.unread.extend(
                Unread(index, "GPU {}: not read, others took all the time".format(index), OTHERWISE) for index in range(first, count)
            )
            break
        try:
            answer = ask({"do": "read", "first": first}, left, STALL)
        except NodeError as error:
            seen.unread.append(Unread(None, error.what, error.hint))
            break
        seen, count = _noted(seen, answer, count)
        if answer.at is None or answer.finished:
            break
        first = answer.at + 1
    return seen


def look(
    gpu: Chosen,
    times: int,
    every: float,
    *,
    reasons: int = 0,
    at_most: Optional[int] = None,
    limit: Optional[float] = None,
) -> List[Sample]:
    """
    Sample one GPU.

    Args:
        gpu: Which.
        times: How many looks at most.
        every: Seconds from one to the next.
        reasons: Mask of reasons; once `ENOUGH` looks at which it worked showed one of them the rest is left out.
        at_most: SM clock in MHz; once it was no more at the last `ENOUGH` looks at which it worked, the rest is left out.
        limit: Power limit in W; when it is another one, the rest is left out too.

    Raises:
        GpuError: It cannot be read.
        DeadlineError: NVML hangs.
    """
    ends = {"reasons": reasons, "at_most": at_most, "limit": limit, "enough": ENOUGH, "same": SAME}
    lines = _carry_out(gpu, {"do": "look", "times": times, "every": every, **ends}, SET_WITHIN + times * every)
    return [Sample(**line["sample"]) for line in lines if "sample" in line]


def set_power_limit(gpu: Chosen, watts: float, only_if: float, *, exactly: bool = False) -> LimitSet:
    """
    Set the power limit if it is `only_if`, else leave it alone.

    Args:
        gpu: Which.
        watts: The limit, in W.
        only_if: The limit that must be there before, in W.
        exactly: Where the driver keeps another limit than `watts`, set the one before again at once.

    Raises:
        GpuError: NVML refused.
        DeadlineError: NVML hangs; whether it took effect is unknown.
    """
    order = {"do": "limit", "watts": watts, "only_if": only_if, "same": SAME, "exactly": exactly}
    return LimitSet(**next(line["limit"] for line in _carry_out(gpu, order, SET_WITHIN) if "limit" in line))


def lock_clocks(gpu: Chosen, mhz: Optional[Sequence[int]]) -> None:
    """Lock the SM clock to a range in MHz, or end the lock when that is None. Raises as `set_power_limit`."""
    _carry_out(gpu, {"do": "clocks", "mhz": None if mhz is None else list(mhz)}, SET_WITHIN)


def _noted(seen: Gpus, answer: Answer, count: int) -> Tuple[Gpus, int]:
    """Add what a child found to what is known; returns the number of GPUs too."""
    driver, cuda = seen.driver, seen.cuda
    for line in answer.lines:
        if "driver" in line:
            driver, cuda, count = line["driver"], line["cuda"], line["count"]
        elif "gpu" in line:
            seen.gpus.append(Gpu(**line["gpu"]))
        elif "unread" in line:
            found = line["unread"]
            seen.unread.append(_unread(found["index"], found))
        elif "failed" in line:
            seen.unread.append(_unread(None, line["failed"]))
    if not answer.finished and answer.at not in [one.index for one in seen.gpus]:
        error = hang(answer)
        seen.unread.append(Unread(answer.at, error.what, error.hint))
    return seen._replace(driver=driver, cuda=cuda), count


def _unread(index: Optional[int], failure: Dict[str, Any]) -> Unread:
    who = "NVML" if index is None else "GPU {}".format(index)
    return Unread(index, "{}: {}".format(who, failure["says"]), HINTS.get(failure["code"], OTHERWISE), failure["code"])


def _carry_out(gpu: Chosen, order: Dict[str, Any], within: float) -> List[Dict[str, Any]]:
    answer = ask({**order, "uuid": gpu.uuid, "pci": gpu.pci}, within)
    for line in answer.lines:
        if "failed" in line:
            code, says = line["failed"]["code"], line["failed"]["says"]
            raise GpuError("{}: {}".format(gpu.label, says), node=gpu.node, hint=HINTS.get(code, OTHERWISE), code=code)
    if not answer.finished:
        error = hang(answer)
        raise type(error)("{}: {}".format(gpu.label, error.what), node=gpu.node, hint=error.hint)
    return answer.lines
