"""
One GPU computes at a fixed lower clock, as a GPU that is too hot does, or one that somebody forgot to unlock.

A lock can be set and ended, but not read: neither the operator's own from before, nor ours afterwards. So the inventory must
say what holds on these nodes (`gpu_clocks`), and that is what is put back. That a lock is in force, or is gone, shows only
in the SM clock of a GPU that works; where it idles, the driver's word that it took the reset is all there is, and is said.
"""

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, List, Optional, Sequence, Set, Tuple

from chaoskit.agent import gpu_targets, gpus, marks, ranks
from chaoskit.agent.contract import Evidence, Fault, Lifetime, Needs, Refusal, Sign, Stray, Undo, seconds, share
from chaoskit.agent.gpus import Gpu, GpuError, Sample
from chaoskit.agent.host import Host
from chaoskit.errors import ChaosError

FAULT = "gpu_clock_lock"
STEP = 15
"""MHz from one clock of a GPU to the next: a lock is kept at the nearest one."""
LOOKS, EVERY = 3, 0.2
"""How often `gone` looks, and how many seconds apart."""
HELD_BY_OTHERS = 0x4 | 0x8 | 0x20 | 0x40 | 0x80
"""Event reasons that keep a clock low without any lock: power, heat, a power brake."""
_RANGE = re.compile(r"([0-9]+)-([0-9]+)")
_LOCKED: Set[str] = set()
"""Marks of what this process has locked: somebody may clear their folder meanwhile."""


@dataclass(frozen=True)
class GpuClockLock(Fault):
    """Lock the SM clock of one GPU for a while, so that it computes more slowly."""

    gpu: Optional[int] = None
    """Index of the GPU on the node; left out, the one that the training's lowest rank there uses, else 0."""
    mhz: Optional[int] = None
    """SM clock meanwhile, in MHz; give this or `share_of_max`."""
    share_of_max: Optional[float] = share(None)
    """SM clock meanwhile, as a share of the board's highest; give this or `mhz`."""
    hold: float = seconds(30.0)
    """How long the lock stays."""

    lifetime: ClassVar[Lifetime] = Lifetime.VOLATILE
    needs: ClassVar[Needs] = Needs(gpus=True)
    signs = (Sign.GPU_SLOW,)
    witness_lasts: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse parameters that make no sense together. Raises ValueError."""
        gpu_targets.one_of(("mhz", "share_of_max"), (self.mhz, self.share_of_max))
        if self.hold <= 0:
            raise ValueError("hold must be longer than 0 s")
        if self.gpu is not None and self.gpu < 0:
            raise ValueError("gpu is an index from 0 on, not {}".format(self.gpu))

    def holds(self) -> Tuple[Tuple[float, float], ...]:
        """Return the one span."""
        return ((0.0, self.hold),)

    def resource(self, undo: Undo) -> Tuple[str, ...]:
        """Lock the GPU."""
        return ("gpu:{}".format(undo["uuid"]),)

    def prepare(self, host: Host) -> Undo:
        """Take the declared clocks as what to put back, and see how fast the GPU works without our lock."""
        declared = _declared(host)
        gpu = gpu_targets.choose(host, FAULT, self.gpu)
        mhz = self._clock(host, gpu, declared)
        before = gpu_targets.before(host, FAULT, gpu)
        if declared and (before["clock_before"] or 0) > declared[1] + STEP:
            what = "{} works at {:.0f} MHz, and the inventory says that it is locked to {}-{}"
            hint = "correct `gpu_clocks` of this node in the inventory"
            raise _refusal(host, what.format(gpu.label, before["clock_before"], *declared), hint)
        mark = marks.path_of(FAULT, "{}-{:.6f}".format(gpu.uuid, host.monotonic()))
        return {**gpu_targets.captured(host, gpu), "mhz": mhz, "declared": declared, "mark": mark, **before}

    def inject(self, host: Host, undo: Undo) -> None:
        """Lock the clock; that it was locked is written down before, as nobody can read it later."""
        marks.put(undo["mark"], undo)
        _LOCKED.add(undo["mark"])
        try:
            gpus.lock_clocks(gpu_targets.chosen(host, undo), (undo["mhz"], undo["mhz"]))
        except GpuError as error:
            if error.code in gpus.SAID_NO:
                _drop(undo["mark"])  # there is none for certain; after a hang or an unknown error nobody knows
            raise

    def witness(self, host: Host, undo: Undo) -> Evidence:
        """The lock was set, and the GPU works at no more than its clock in the end, which is less than before."""
        gpu = gpu_targets.chosen(host, undo)
        if not os.path.exists(undo["mark"]):
            return Evidence(False, "{} is not locked by us".format(gpu.label))
        ceiling = undo["mhz"] + STEP
        samples = gpus.look(gpu, gpu_targets.WITNESS_LOOKS, gpu_targets.WITNESS_EVERY, at_most=ceiling)
        clocks = gpu_targets.clocks_at_work(samples)[-gpus.ENOUGH :]
        held = len(clocks) == gpus.ENOUGH and max(clocks) <= ceiling
        usual = undo["clock_before"]
        slower = held and (usual is None or usual > ceiling)
        says = "{}, locked to {} MHz, works at {}".format(gpu.label, undo["mhz"], gpu_targets.words(clocks))
        says += "; it was {:.0f} MHz before".format(usual) if usual else "; it idled before"
        return Evidence(slower, says, {**gpu_targets.readings(samples), "clock_before": usual, "mhz": undo["mhz"]})

    def gone(self, host: Host, undo: Undo) -> Evidence:
        """It works above the lock's clock; or the driver took the reset, and nothing that can be read speaks against it."""
        gpu = gpu_targets.chosen(host, undo)
        try:
            samples = gpus.look(gpu, LOOKS, EVERY)
        except GpuError as error:
            why = gpu_targets.over(host, undo, error)
            if why is None:
                raise
            return Evidence(True, why)
        clocks = gpu_targets.clocks_at_work(samples)
        readings = {**gpu_targets.readings(samples), "mhz": undo["mhz"]}
        if clocks and min(clocks) > undo["mhz"] + STEP:
            return Evidence(
                True, "{} works at {}, above our lock of {} MHz".format(gpu.label, gpu_targets.words(clocks), undo["mhz"]), readings
            )
        if os.path.exists(undo["mark"]):
            return Evidence(False, "{} was locked to {} MHz, and that was not ended".format(gpu.label, undo["mhz"]), readings)
        mute = _mute(undo, clocks, samples)
        if mute is None:
            says = "{} still works at {}, no more than our lock of {} MHz".format(gpu.label, gpu_targets.words(clocks), undo["mhz"])
            return Evidence(False, says, readings)
        return Evidence(True, "{} has no lock of ours, by the driver's word: {}".format(gpu.label, mute), readings)

    def revert(self, host: Host, undo: Undo) -> None:
        """
        Put back what the inventory declares, no lock or the operator's own, if we may have locked it in this boot.

        Without our mark, whatever lock there is is somebody else's; after a reboot none of ours is left.
        """
        if undo["mark"] in _LOCKED and not os.path.exists(undo["mark"]):
            with suppress(OSError, ChaosError):  # the lock is ended all the same
                marks.put(undo["mark"], undo)
        _put_back(host, undo)

    @classmethod
    def strays(cls, host: Host) -> Sequence[Stray]:
        """Every lock that our mark tells of; a lock without it cannot be read, by nobody."""
        del host
        return gpu_targets.marked(FAULT, "is locked to {mhz} MHz by us")

    @classmethod
    def sweep(cls, host: Host, stray: Stray) -> None:
        """Put back the clocks that the mark's undo has."""
        undo = marks.read(stray.tag["mark"])
        if undo is not None:
            _put_back(host, undo)

    def exposed(self, host: Host, undo: Undo) -> Evidence:
        """A process of the training computes on the GPU, which worked above the lock's clock."""
        gpu = gpu_targets.chosen(host, undo)
        samples = gpus.look(gpu, gpu_targets.LOOKS, gpu_targets.EVERY)
        pids, clocks = gpu_targets.training_on(host, samples), gpu_targets.clocks_at_work(samples)
        above = any(clock > undo["mhz"] + STEP for clock in clocks)
        relation = "above" if above else "not above"
        says = "{} worked at {}, {} the lock of {} MHz".format(gpu.label, gpu_targets.words(clocks), relation, undo["mhz"])
        if not clocks:
            says = "{} did not work".format(gpu.label)
        if not pids:
            says = gpu_targets.unused(gpu, samples)
        return Evidence(bool(pids) and above, says, {**gpu_targets.readings(samples), "pids": pids, "mhz": undo["mhz"]})

    def _clock(self, host: Host, gpu: Gpu, declared: Optional[Sequence[int]]) -> int:
        """Return the clock to lock to, in MHz. Raises Refusal when the board does not take it, or it would slow nothing."""
        if gpu.max_sm_clock is None:
            raise _refusal(host, "{} ({}) does not say its highest SM clock".format(gpu.label, gpu.name), "choose another GPU or fault")
        mhz = self.mhz if self.mhz is not None else round(float(self.share_of_max or 0) * gpu.max_sm_clock)
        low, high = gpu.min_sm_clock or 1, min(gpu.max_sm_clock, declared[1] if declared else gpu.max_sm_clock)
        if not low <= mhz < high:
            what = "an SM clock of {} MHz would not slow {}, or it does not go so low".format(mhz, gpu.label)
            raise _refusal(host, what, "state one from {} to below {} MHz".format(low, high))
        return mhz


def _put_back(host: Host, undo: Undo) -> None:
    if undo["mark"] not in _LOCKED and not os.path.exists(undo["mark"]):
        return
    if undo["boot_id"] == host.boot_id():
        try:
            gpus.lock_clocks(gpu_targets.chosen(host, undo), undo["declared"])
        except GpuError as error:
            if gpu_targets.over(host, undo, error) is None:
                raise
    _drop(undo["mark"])


def _drop(mark: str) -> None:
    _LOCKED.discard(mark)
    marks.drop(mark)


def _declared(host: Host) -> Optional[List[int]]:
    """Return the operator's own lock as [lowest, highest] in MHz; None when the clocks are the driver's. Raises Refusal."""
    text = host.site.gpu_clocks
    found = _RANGE.fullmatch(text)
    if found:
        return [int(found.group(1)), int(found.group(2))]
    if text == "default":
        return None
    what = "nobody can read whether the GPUs' clocks are locked already, and the inventory does not say"
    if text:
        what = "the inventory's gpu_clocks is {!r}".format(text)
    hint = "add `gpu_clocks: default` to this node in the inventory, or the lock that is set by you, such as `gpu_clocks: 210-1410`"
    raise _refusal(host, what, hint)


def _mute(undo: Undo, clocks: Sequence[int], samples: Sequence[Sample]) -> Optional[str]:
    """Say why the clock cannot tell whether there is a lock; None when it can."""
    if not clocks:
        return "it idles, so that its clock says nothing"
    others = gpus.reason_names(gpu_targets.seen_reasons(samples) & HELD_BY_OTHERS)
    if others:
        return "its clock is held down by {}".format(", ".join(others))
    if undo["clock_before"] is not None and undo["clock_before"] <= undo["mhz"] + STEP:
        return "it worked at {:.0f} MHz before too".format(undo["clock_before"])
    return None


def _refusal(host: Host, what: str, hint: str) -> Refusal:
    return ranks.refusal(host, FAULT, what, hint)
