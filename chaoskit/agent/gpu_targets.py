"""
The one GPU that a fault is about: which it is, whether it may be touched, and whether the training works on it.

Standard library only, Python 3.8.
"""

import os
from statistics import median
from typing import Dict, List, Optional, Sequence, Set, Tuple

from chaoskit.agent import gpus, marks, procs, ranks
from chaoskit.agent.contract import Json, Refusal, Stray, Undo
from chaoskit.agent.gpus import Chosen, Gpu, GpuError, Gpus, Sample
from chaoskit.agent.host import Host
from chaoskit.errors import NodeError

MPS = "nvidia-cuda-mps"
"""How the names of MPS's control daemon and server begin; the kernel keeps 15 bytes of them."""
KERNEL_MODULE = "/proc/driver/nvidia"
"""Where NVIDIA's kernel module shows itself; it takes settings from processes with CAP_SYS_ADMIN only."""
READ_WITHIN = 8.0
"""Seconds in which all GPUs must be read: `prepare` looks at one of them too, and has 20 s to answer."""
LOOKS, EVERY = 6, 0.3
"""How often `exposed` and `prepare` look, and how many seconds apart: a step may wait for others a while."""
WITNESS_LOOKS, WITNESS_EVERY = 20, 0.4
"""The same for `witness`, which has to see it under load: up to 8 s."""


def choose(host: Host, fault: str, index: Optional[int]) -> Gpu:
    """
    Return the GPU of an index; without one, that of the training's lowest rank here, else GPU 0.

    Raises:
        Refusal: There is none, it cannot be read, it is shared by MIG or MPS, or we lack the right to set it.
    """
    _require_right(host, fault)
    found = gpus.read_all(READ_WITHIN)
    wanted = _of_lowest_rank(host, found) if index is None else index
    gpu = next((gpu for gpu in found.gpus if gpu.index == wanted), None)
    if gpu is None:
        raise _unread(host, fault, found, wanted)
    _refuse_shared(host, fault, gpu)
    return gpu


def captured(host: Host, gpu: Gpu) -> Undo:
    """Return what names a GPU for ever, with the boot."""
    return {"index": gpu.index, "uuid": gpu.uuid, "pci": gpu.pci, "name": gpu.name, "boot_id": host.boot_id()}


def chosen(host: Host, undo: Undo) -> Chosen:
    """Return the captured GPU."""
    return Chosen(host.site.node, undo["index"], undo["uuid"], undo["pci"])


def marked(fault: str, what: str) -> List[Stray]:
    """Return what a fault's marks tell of, `what` being said of the GPU with the fields of the mark's undo."""
    found = []
    for mark in marks.standing(fault):
        if mark.undo is not None:
            says = "{} {}".format(gpus.label(mark.undo["index"], mark.undo["uuid"]), what.format(**mark.undo))
            found.append(Stray("gpu:{}".format(mark.undo["uuid"]), says, ours=True, tag={"mark": mark.path}))
    return found


def before(host: Host, fault: str, gpu: Gpu) -> Dict[str, Json]:
    """
    Return how it works without the fault: median SM clock in MHz and draw in W while it works; None when it idles.

    Raises:
        Refusal: It cannot be looked at.
    """
    try:
        samples = gpus.look(Chosen(host.site.node, gpu.index, gpu.uuid, gpu.pci), LOOKS, EVERY)
    except NodeError as error:
        raise ranks.refusal(host, fault, error.what, error.hint) from error
    clocks, draws = clocks_at_work(samples), [one.draw for one in samples if one.works and one.draw is not None]
    return {"clock_before": median(clocks) if clocks else None, "draw_before": median(draws) if draws else None}


def clocks_at_work(samples: Sequence[Sample]) -> List[int]:
    """Return the SM clocks of the looks at which the GPU worked."""
    return [one.sm_clock for one in samples if one.works and one.sm_clock is not None]


def training_on(host: Host, samples: Sequence[Sample]) -> List[int]:
    """Return the training's processes that computed on a GPU at some of the looks."""
    ours = {process.pid for process in procs.of_training(host.site.training)}
    return sorted({pid for one in samples for pid in one.pids or () if pid in ours})


def unused(gpu: Chosen, samples: Sequence[Sample]) -> str:
    """Say that none of the training's processes computed on a GPU, and who did."""
    pids = sorted({pid for one in samples for pid in one.pids or ()})
    who = "process {} does".format(", ".join(map(str, pids))) if pids else "nobody does"
    return "no process of the training computes on {}: {}".format(gpu.label, who)


def over(host: Host, undo: Undo, error: GpuError) -> Optional[str]:
    """Say why nothing that was set on a GPU can be left, given why it cannot be asked; None when something may be."""
    if error.code == gpus.DRIVER_NOT_LOADED and not os.path.exists(KERNEL_MODULE):
        return "the driver is not loaded, and what was set ended with it"
    if error.code == gpus.NOT_FOUND and undo["boot_id"] != host.boot_id():
        return "{} is not on this node any more, which booted since".format(gpus.label(undo["index"], undo["uuid"]))
    return None


def _require_right(host: Host, fault: str) -> None:
    """Raise Refusal where NVML would let us read, and then not set: what the driver asks for is known without trying."""
    if os.geteuid() != 0:
        what = "NVML lets only root set a GPU, and the agent is uid {}".format(os.geteuid())
        raise ranks.refusal(host, fault, what, "run the agent as root (`become: sudo`)")
    if os.path.exists(KERNEL_MODULE):
        procs.require_capability("SYS_ADMIN", host.site.node)


def _of_lowest_rank(host: Host, found: Gpus) -> int:
    for pids in _by_rank(host):
        for gpu in found.gpus:
            if pids & set(gpu.pids or ()):
                return gpu.index
    return 0


def _by_rank(host: Host) -> List[Set[int]]:
    """Return the training's processes here, rank by rank; all together where there is no run id to tell them apart."""
    training = host.site.training
    if not training.run_id:
        return [{process.pid for process in procs.of_training(training)}]
    numbers = sorted({head.rank for head in ranks.heads(training.run_id)})
    return [{process.pid for process in ranks.family(training.run_id, number)} for number in numbers]


def _unread(host: Host, fault: str, found: Gpus, wanted: int) -> Refusal:
    for one in found.unread:
        if one.index in (wanted, None):
            return ranks.refusal(host, fault, one.why, one.hint)
    known = ", ".join(str(gpu.index) for gpu in found.gpus) or "none"
    return ranks.refusal(host, fault, "there is no GPU {}".format(wanted), "NVML shows on this node: {}".format(known))


def _refuse_shared(host: Host, fault: str, gpu: Gpu) -> None:
    if gpu.mig:
        what = "{} is in MIG mode, and a limit would strike all its instances, whosever they are".format(gpu.label)
        raise ranks.refusal(host, fault, what, "choose a GPU without MIG, or end it with `nvidia-smi -i {} -mig 0`".format(gpu.index))
    mps = [process.pid for process in procs.everyone() if process.comm.startswith(MPS) and not process.dead]
    if mps or gpu.mps_pids:
        who = ", ".join(str(pid) for pid in mps or gpu.mps_pids or ())
        what = "{} may be shared through MPS (process {}), so that nobody can say whose work a limit slows".format(gpu.label, who)
        raise ranks.refusal(host, fault, what, "end it with `echo quit | nvidia-cuda-mps-control`, or choose another node")


def words(clocks: Sequence[int]) -> str:
    """Return the SM clock of some looks as a sentence has it."""
    return "{:.0f} MHz".format(median(clocks)) if clocks else "not seen at work"


def seen_reasons(samples: Sequence[Sample]) -> int:
    """Return the mask of all event reasons that some looks showed."""
    mask = 0
    for one in samples:
        mask |= one.reasons or 0
    return mask


def readings(samples: Sequence[Sample]) -> Dict[str, Json]:
    """Return what some looks saw, by name, one value a look."""
    return {
        "draw": [one.draw for one in samples],
        "sm_clock": [one.sm_clock for one in samples],
        "utilisation": [one.utilisation for one in samples],
        "reasons": gpus.reason_names(seen_reasons(samples)),
        "power_capped_seconds": [one.capped for one in samples],
    }


def one_of(names: Tuple[str, str], values: Tuple[Optional[float], Optional[float]]) -> None:
    """Refuse parameters that say the same twice, or not at all. Raises ValueError."""
    if (values[0] is None) == (values[1] is None):
        raise ValueError("give exactly one of {} and {}".format(*names))
