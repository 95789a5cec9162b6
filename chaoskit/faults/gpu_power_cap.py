"""
One GPU gets less power: it goes on computing, only slower, as after a failed fan, a power brake or a wrong setting.

Nothing alerts, and every rank of a synchronous training waits for it. The limit is that of the whole board, so a GPU that
is shared (MIG, MPS) is refused. What is restored is the limit that was found, never the board's default. A limit ends with
the driver: on a node without persistence mode it is gone when the last process leaves the GPU, and that is no leak. A limit
that somebody else sets meanwhile (DCGM, a BMC, a person) is theirs: it is said, and left alone.
"""

from dataclasses import dataclass
from statistics import median
from typing import ClassVar, List, Optional, Sequence, Tuple

from chaoskit.agent import gpu_targets, gpus, marks, ranks
from chaoskit.agent.contract import Evidence, Fault, Lifetime, Needs, Refusal, Sign, Stray, Undo, seconds, share
from chaoskit.agent.gpus import Gpu, GpuError, Sample
from chaoskit.agent.host import Host

FAULT = "gpu_power_cap"
LOWER = 0.99
"""The SM clock is lower when its median is below this share of what it was: it wavers by a step of 15 MHz by itself."""


@dataclass(frozen=True)
class GpuPowerCap(Fault):
    """Cap the power of one GPU for a while, so that it computes more slowly."""

    gpu: Optional[int] = None
    """Index of the GPU on the node; left out, the one that the training's lowest rank there uses, else 0."""
    watts: Optional[float] = None
    """Power limit meanwhile, in W; give this or `share_of_default`."""
    share_of_default: Optional[float] = share(None)
    """Power limit meanwhile, as a share of the board's default limit; give this or `watts`."""
    hold: float = seconds(30.0)
    """How long the cap stays."""

    lifetime: ClassVar[Lifetime] = Lifetime.VOLATILE
    needs: ClassVar[Needs] = Needs(gpus=True)
    signs = (Sign.GPU_SLOW,)
    witness_lasts: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse parameters that make no sense together. Raises ValueError."""
        gpu_targets.one_of(("watts", "share_of_default"), (self.watts, self.share_of_default))
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
        """Capture the GPU's limit, and how fast it works without the cap."""
        gpu = gpu_targets.choose(host, FAULT, self.gpu)
        cap = self._cap(host, gpu)
        state = {"limit": gpu.limit, "cap": cap, "persistence": gpu.persistence, "max_clock": gpu.max_sm_clock}
        mark = marks.path_of(FAULT, "{}-{:.6f}".format(gpu.uuid, host.monotonic()))
        return {**gpu_targets.captured(host, gpu), **state, "mark": mark, **gpu_targets.before(host, FAULT, gpu)}

    def inject(self, host: Host, undo: Undo) -> None:
        """Set the limit, unless somebody has changed it since it was captured; that it is ours is written down before."""
        marks.put(undo["mark"], undo)
        gpu = gpu_targets.chosen(host, undo)
        # Exactly: what is neither the cap nor the captured limit would be taken for somebody else's, and never reverted.
        found, now, left = gpus.set_power_limit(gpu, undo["cap"], only_if=undo["limit"], exactly=True)
        if _same(left, undo["cap"]):
            return
        if not _same(found, undo["limit"]):
            what = "{} has a power limit of {:.0f} W now, and had {:.0f} W".format(gpu.label, found, undo["limit"])
            raise ranks.refusal(host, FAULT, what, "somebody else sets it (DCGM, a BMC, nvidia-smi): stop that, and run again")
        what = "{} took a power limit of {:.0f} W and showed {:.0f} W; it has {:.0f} W again".format(gpu.label, undo["cap"], now, left)
        hint = "state a limit that the driver keeps as it is; or something else holds it, see `nvidia-smi -q -d POWER`"
        if not _same(left, undo["limit"]):
            what = (
                "{} took a power limit of {:.0f} W and showed {:.0f} W; then it did not take the {:.0f} W that it had, and shows {:.0f} W"
            )
            what = what.format(gpu.label, undo["cap"], now, undo["limit"], left)
            hint = "set it by hand: nvidia-smi -i {} -pl {:g}".format(undo["uuid"], undo["limit"])
        raise GpuError(what, node=host.site.node, hint=hint)

    def witness(self, host: Host, undo: Undo) -> Evidence:
        """Under load, at enough looks, the limit holds the clocks down, by the driver's own reason, to less than they were."""
        gpu = gpu_targets.chosen(host, undo)
        looks = (gpu_targets.WITNESS_LOOKS, gpu_targets.WITNESS_EVERY)
        samples = gpus.look(gpu, *looks, reasons=gpus.POWER_CAP, limit=undo["cap"])
        held = [one for one in samples if one.works and (one.reasons or 0) & gpus.POWER_CAP and _same(one.limit, undo["cap"])]
        clocks = gpu_targets.clocks_at_work(held)
        usual = undo["clock_before"] or undo["max_clock"] or 0
        slower = len(clocks) >= gpus.ENOUGH and median(clocks) < LOWER * usual
        says = "{}, whose limit is {:.0f} W, ".format(gpu.label, samples[-1].limit or 0)
        if not clocks:
            says += "was not held down by it in {} looks: it drew {}".format(len(samples), _most(samples))
        elif len(clocks) < gpus.ENOUGH:
            says += "was held down by it in {} of {} looks only: it drew {}".format(len(clocks), len(samples), _most(samples))
        else:
            kind = "" if undo["clock_before"] else " at the most"
            says += "is held down by it to {}; it was {:.0f} MHz{} without".format(gpu_targets.words(clocks), usual, kind)
        return Evidence(slower, says, {**gpu_targets.readings(samples), "limit": samples[-1].limit, "clock_before": undo["clock_before"]})

    def gone(self, host: Host, undo: Undo) -> Evidence:
        """The limit is the captured one; or it is nothing of ours any more, which is said."""
        gpu = gpu_targets.chosen(host, undo)
        try:
            limit = gpus.look(gpu, 1, 0.0)[0].limit
        except GpuError as error:
            why = gpu_targets.over(host, undo, error)
            if why is None:
                raise
            return Evidence(True, why)
        readings = {"limit": limit, "captured": undo["limit"], "cap": undo["cap"]}
        if _same(limit, undo["limit"]):
            return Evidence(True, "{} has its power limit of {:.0f} W".format(gpu.label, undo["limit"]), readings)
        if limit is None or _same(limit, undo["cap"]):
            says = "{} has a power limit of {:.0f} W, and had {:.0f} W".format(gpu.label, limit or 0, undo["limit"])
            return Evidence(False, says, readings)
        return Evidence(True, self._elsewhere(host, undo, gpu.label, limit), readings)

    def revert(self, host: Host, undo: Undo) -> None:
        """Restore the captured limit where ours still stands; one that somebody else has set since is theirs."""
        _put_back(host, undo)

    @classmethod
    def strays(cls, host: Host) -> Sequence[Stray]:
        """Every cap that our mark tells of; any other limit than the board's default is somebody else's, as far as anybody knows."""
        ours = gpu_targets.marked(FAULT, "was capped by us at {cap:.0f} W, and had {limit:.0f} W")
        known = {stray.resource for stray in ours}
        return ours + [stray for stray in _limited(host) if stray.resource not in known]

    @classmethod
    def sweep(cls, host: Host, stray: Stray) -> None:
        """Put back the limit that the mark's undo has, where the cap still stands."""
        undo = marks.read(stray.tag["mark"])
        if undo is not None:
            _put_back(host, undo)

    def exposed(self, host: Host, undo: Undo) -> Evidence:
        """A process of the training computes on the GPU, which drew more than the cap allows."""
        gpu = gpu_targets.chosen(host, undo)
        samples = gpus.look(gpu, gpu_targets.LOOKS, gpu_targets.EVERY)
        pids = gpu_targets.training_on(host, samples)
        above = any(one.draw is not None and one.draw > undo["cap"] for one in samples)
        says = "{} drew {}, {} the cap of {:.0f} W".format(gpu.label, _most(samples), "above" if above else "not above", undo["cap"])
        if not pids:
            says = gpu_targets.unused(gpu, samples)
        return Evidence(bool(pids) and above, says, {**gpu_targets.readings(samples), "pids": pids, "cap": undo["cap"]})

    def _cap(self, host: Host, gpu: Gpu) -> float:
        """Return the limit to set, in W. Raises Refusal when the board does not take it, or it would be no cap."""
        if gpu.limit is None or gpu.min_limit is None or gpu.max_limit is None or gpu.default_limit is None:
            raise _refusal(host, "{} ({}) does not let its power be limited".format(gpu.label, gpu.name), "choose another GPU or fault")
        cap = float(self.watts) if self.watts is not None else round(float(self.share_of_default or 0) * gpu.default_limit, 1)
        range_of = "{:.0f} to {:.0f} W".format(gpu.min_limit, gpu.max_limit)
        if not gpu.min_limit <= cap <= gpu.max_limit:
            what = "{} does not take a power limit of {:.0f} W".format(gpu.label, cap)
            raise _refusal(host, what, "it takes {}; its default is {:.0f} W".format(range_of, gpu.default_limit))
        if cap > gpu.limit - 2 * gpus.SAME:
            what = "a power limit of {:.0f} W is no cap: {} has {:.0f} W now".format(cap, gpu.label, gpu.limit)
            raise _refusal(host, what, "state less; it takes {}".format(range_of))
        return cap

    def _elsewhere(self, host: Host, undo: Undo, label: str, limit: float) -> str:
        booted = "the node booted since" if undo["boot_id"] != host.boot_id() else "the driver was loaded anew, or DCGM, a BMC or a person"
        return "{} has a power limit of {:.0f} W, neither ours ({:.0f}) nor the one found ({:.0f}): {} set it, and it is left alone".format(
            label, limit, undo["cap"], undo["limit"], booted
        )


def _put_back(host: Host, undo: Undo) -> None:
    try:
        gpus.set_power_limit(gpu_targets.chosen(host, undo), undo["limit"], only_if=undo["cap"])
    except GpuError as error:
        if gpu_targets.over(host, undo, error) is None:
            raise
    if "mark" in undo:  # not in the undo of an earlier version
        marks.drop(undo["mark"])


def _limited(host: Host) -> List[Stray]:
    """Return the GPUs whose limit is below the board's default. Raises GpuError: one of them cannot be read."""
    found = gpus.read_all(gpu_targets.READ_WITHIN)
    for one in found.unread:
        if one.code not in (gpus.LIBRARY_NOT_FOUND, gpus.DRIVER_NOT_LOADED):
            raise one.error(host.site.node)
    lower = [
        gpu for gpu in found.gpus if gpu.limit is not None and gpu.default_limit is not None and gpu.limit < gpu.default_limit - gpus.SAME
    ]
    told = "{} has a power limit of {:.0f} W, its default is {:.0f} W: its operator's, or left by a gpu_power_cap whose mark is lost"
    do = "where it should not be: nvidia-smi -i {} -pl {:g}"
    return [
        Stray(
            "gpu:" + gpu.uuid,
            told.format(gpu.label, gpu.limit or 0, gpu.default_limit or 0),
            do=do.format(gpu.uuid, gpu.default_limit or 0),
        )
        for gpu in lower
    ]


def _refusal(host: Host, what: str, hint: str) -> Refusal:
    return ranks.refusal(host, FAULT, what, hint)


def _same(one: Optional[float], other: float) -> bool:
    return one is not None and abs(one - other) <= gpus.SAME


def _most(samples: List[Sample]) -> str:
    draws = [one.draw for one in samples if one.draw is not None]
    return "{:.0f} W at the most".format(max(draws)) if draws else "nobody knows how much"
