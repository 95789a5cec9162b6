"""
One rank of the training is slower than the others for a while: the straggler that nothing alerts to.

Its processes get a part of the CPU time that they used just before, by a quota on a control group of our own *below* the
one they stand in. All others wait for it in every step. With `cpu: 50%` what the rank computes on the CPU takes twice as
long; how much longer a step takes depends on how much of it that is, and is what the run is judged by. A rank that only
feeds a GPU hides much of it: to slow the GPU itself there are `gpu_power_cap` and `gpu_clock_lock`.

The end is the node's own: what still lives is moved back to where it was, children born meanwhile too, and the group is
removed.
"""

import os
from dataclasses import dataclass
from typing import ClassVar, Dict, Optional, Sequence, Tuple

from chaoskit.agent import cpu_quota, procs, ranks
from chaoskit.agent.contract import Evidence, Fault, Json, Lifetime, Needs, Stray, Undo, seconds, share
from chaoskit.agent.cpu_quota import Home, Quota
from chaoskit.agent.host import Host
from chaoskit.agent.ranks import Head
from chaoskit.errors import NodeError

OURS = "chaoskit-rank_slow-"
"""How the names of our groups begin."""
MEASURE = 4.0
"""Seconds over which `prepare` measures what the rank uses; several steps, and far below the time that a verb has."""
FLOOR = 0.01
"""Cores: a rank that uses less waits for something else, and no quota slows it."""
LOOK = 0.5
LOOKS = 4
"""How often `exposed` looks, each `LOOK` seconds long, since a step may wait for a while."""
THROTTLED_WITHIN = 5.0
"""Seconds that `witness` waits for the quota to hold somebody back."""
SWEEPS = 10
"""How often `inject` looks for children that were born while it moved their parents."""
REAL_TIME = (os.SCHED_FIFO, os.SCHED_RR)


@dataclass(frozen=True)
class RankSlow(Fault):
    """Slow one rank of the training by a CPU quota for a while; which one is left out means the node's lowest."""

    rank: Optional[int] = None
    """Global rank (RANK) to slow; give this or `local_rank`, or neither."""
    local_rank: Optional[int] = None
    """Rank within the node (LOCAL_RANK) to slow."""
    cpu: float = share(0.5)
    """CPU time that it gets, as a share of what it used just before."""
    hold: float = seconds(20.0)
    """How long it is slow."""

    lifetime: ClassVar[Lifetime] = Lifetime.VOLATILE
    needs: ClassVar[Needs] = Needs(capabilities=("SYS_PTRACE",), features=(("cpu_quota",),))
    needs_training: ClassVar[bool] = True
    witness_lasts: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse parameters that make no sense together. Raises ValueError."""
        ranks.require_one(self.rank, self.local_rank)
        if not 0.01 <= self.cpu <= 0.95:
            raise ValueError("cpu must be from 1% to 95% of what the rank used")
        if self.hold <= 0:
            raise ValueError("hold must be longer than 0 s")

    def holds(self) -> Tuple[Tuple[float, float], ...]:
        """Return the one span."""
        return ((0.0, self.hold),)

    def resource(self, undo: Undo) -> Tuple[str, ...]:
        """Lock the rank and our own group; in v2 its group too, whose children may only have the cpu controller because of us."""
        shared = ("cgroup:{}".format(undo["home"]["folder"]),) if undo["home"]["version"] == 2 else ()
        return ("rank:{}".format(undo["rank"]), "cgroup:{}".format(undo["own"]), *shared)

    def prepare(self, host: Host) -> Undo:
        """Find the rank, its group and what it uses of the CPU."""
        for name in self.needs.capabilities:
            procs.require_capability(name, host.site.node)
        head = ranks.choose(host, "rank_slow", self.rank, self.local_rank)
        home = _home(host, head)
        used = _used(host, host.site.training.run_id, head.rank, MEASURE)
        if used < FLOOR:
            what = "process {} of rank {} used {:.1%} of a core in {:g} s, so that no quota would slow it".format(
                head.process.pid, head.rank, used, MEASURE
            )
            raise ranks.refusal(host, "rank_slow", what, "is it stopped, or does it only wait? choose a rank that computes")
        quota = cpu_quota.quota_for(max(self.cpu * used, cpu_quota.LEAST_RATE))
        own = os.path.join(home.folder, OURS + os.urandom(4).hex())
        return {**ranks.captured(host, head), "home": home._asdict(), "own": own, "used": used, **quota._asdict()}

    def inject(self, host: Host, undo: Undo) -> None:
        """Make the group, then move the rank into it: its topmost process first, then its helpers."""
        home = Home(**undo["home"])
        if _living_in(undo) != home.folder:
            hint = "it ended or was moved by itself after it was found; run again"
            raise ranks.refusal(host, "rank_slow", "{} is not in {} any more".format(ranks.named(undo), home.folder), hint)
        try:
            cpu_quota.make(undo["own"], home, Quota(undo["quota"], undo["period"]))
        except OSError as error:
            hint = "a quota above it may be smaller than {:.2f} cores: take that away, or choose a smaller `cpu`".format(
                undo["quota"] / undo["period"]
            )
            raise ranks.refusal(host, "rank_slow", "no group with a quota in {}: {}".format(home.folder, error), hint) from error
        cpu_quota.move(undo["pid"], undo["own"])
        for _ in range(SWEEPS):
            rest = [process.pid for process in ranks.family(undo["run_id"], undo["rank"]) if _stands_in(process.pid, home.folder)]
            if not rest:
                break
            for pid in rest:
                cpu_quota.move(pid, undo["own"])

    def witness(self, host: Host, undo: Undo) -> Evidence:
        """The quota held the rank back: the kernel counted it."""
        end = host.monotonic() + THROTTLED_WITHIN
        while os.path.isdir(undo["own"]) and not cpu_quota.throttled(undo["own"])[0] and host.monotonic() < end:
            host.sleep(0.05)
        times, held = cpu_quota.throttled(undo["own"])
        moved = _living_in(undo) == undo["own"]
        says = "{} was held back {} times, for {:.2f} s in all".format(ranks.named(undo), times, held)
        if not moved:
            says = "{} does not stand in our group".format(ranks.named(undo))
        readings: Dict[str, Json] = {"nr_throttled": times, "throttled_seconds": held, "members": cpu_quota.members(undo["own"])}
        return Evidence(moved and times > 0, says, readings)

    def gone(self, host: Host, undo: Undo) -> Evidence:
        """Our group is no more, so that nobody stands in it, and its parent is as it was."""
        home = Home(**undo["home"])
        there = os.path.isdir(undo["own"])
        changed = home.version == 2 and os.path.isdir(home.folder) and cpu_quota.handed_down(home.folder) != home.handed_down
        says = "the group of rank {} is removed".format(undo["rank"])
        if there:
            says = "the group of rank {} is there: {}".format(undo["rank"], undo["own"])
        elif changed:
            says = "{}/cgroup.subtree_control is not as it was".format(home.folder)
        return Evidence(not there and not changed, says, {"group": there, "parent_changed": changed, "stands_in": _living_in(undo)})

    def revert(self, host: Host, undo: Undo) -> None:
        """Move back what is still alive, and remove our group."""
        trouble = cpu_quota.remove(undo["own"], Home(**undo["home"]))
        if trouble:
            hint = "move its processes to {} by hand, then run chaoskit heal".format(undo["home"]["folder"])
            raise NodeError("not put back: {}".format("; ".join(trouble)), node=host.site.node, fault="rank_slow", hint=hint)

    @classmethod
    def strays(cls, host: Host) -> Sequence[Stray]:
        """Every group of our name."""
        del host
        return [_stray(path, version) for path, version in cpu_quota.named(OURS)]

    @classmethod
    def sweep(cls, host: Host, stray: Stray) -> None:
        """Move back what stands in the group, and remove it; whether its parent had the controller before nobody knows, so it stays."""
        own = stray.tag["own"]
        trouble = cpu_quota.remove(own, Home(os.path.dirname(own), stray.tag["version"], handed_down=True))
        if trouble:
            raise NodeError("; ".join(trouble), node=host.site.node, fault="rank_slow", hint="move its processes up by hand, and rmdir it")

    def exposed(self, host: Host, undo: Undo) -> Evidence:
        """The rank used more of the CPU than the quota allows."""
        allowed, rates = undo["quota"] / undo["period"], []
        for _ in range(LOOKS):
            rates.append(_used(host, undo["run_id"], undo["rank"], LOOK))
            if rates[-1] > allowed:
                break
        above = "above" if rates[-1] > allowed else "not above"
        says = "rank {} used {:.2f} cores, {} the {:.2f} of the quota".format(undo["rank"], rates[-1], above, allowed)
        return Evidence(rates[-1] > allowed, says, {"cores": rates, "allowed": allowed, "used_before": undo["used"]})


def _stray(path: str, version: int) -> Stray:
    says = "the group {} slows {} processes".format(path, len(cpu_quota.members(path)))
    return Stray("cgroup:" + path, says, ours=True, tag={"own": path, "version": version})


def _home(host: Host, head: Head) -> Home:
    """Return the group in which ours is to be made. Raises Refusal."""
    pid = head.process.pid
    try:
        home = cpu_quota.home(pid)
        real_time = [thread for thread in os.listdir("/proc/{}/task".format(pid)) if os.sched_getscheduler(int(thread)) in REAL_TIME]
    except cpu_quota.MissingError as error:
        raise ranks.refusal(host, "rank_slow", str(error), error.hint) from error
    except OSError as error:
        raise ranks.refusal(host, "rank_slow", "process {} ended: {}".format(pid, error.strerror), "run again") from error
    if real_time:
        what = "process {} of rank {} has real-time threads, which no quota slows".format(pid, head.rank)
        raise ranks.refusal(host, "rank_slow", what, "start the training without a real-time policy")
    others = [entry.name for entry in os.scandir(home.folder) if entry.name.startswith(OURS)]
    if others or os.path.basename(home.folder).startswith(OURS):
        there = os.path.join(home.folder, others[0]) if others else home.folder
        hint = "`chaoskit audit` tells whose it is and `chaoskit heal` removes it; if it is nobody's, move its processes up and rmdir it"
        raise ranks.refusal(host, "rank_slow", "the group {} of an earlier run is in the way".format(there), hint)
    return home


def _used(host: Host, run_id: str, rank: int, span: float) -> float:
    """Return the cores that all processes of a rank used over a span of seconds from now."""
    start, before = host.monotonic(), _ticks(run_id, rank)
    host.sleep(span)
    after = _ticks(run_id, rank)
    passed = host.monotonic() - start
    return sum(ticks - before.get(who, 0) for who, ticks in after.items()) / os.sysconf("SC_CLK_TCK") / passed


def _ticks(run_id: str, rank: int) -> Dict[Tuple[int, int], int]:
    return {(process.pid, process.start_time): process.cpu for process in ranks.family(run_id, rank)}


def _living_in(undo: Undo) -> Optional[str]:
    """Return the folder of the group that the captured process stands in; None when it has ended."""
    process = procs.same(undo["pid"], undo["start_time"])
    return None if process is None or process.dead else cpu_quota.folder_of(process.pid)


def _stands_in(pid: int, folder: str) -> bool:
    return cpu_quota.folder_of(pid) == folder
