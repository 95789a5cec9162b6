"""
The ranks of the training under test, as processes of this node: which process is rank 4, and did it run just now.

A rank is known by the environment that its process began with: the run (TORCHELASTIC_RUN_ID, or SLURM_JOB_ID), RANK and
LOCAL_RANK. Its helpers, such as data loaders, inherit all three: the rank itself is the topmost of them. Two that claim to
be the same rank are refused, never chosen from. Standard library only, Python 3.8.
"""

from typing import Dict, List, NamedTuple, Optional

from chaoskit.agent import procs
from chaoskit.agent.contract import Evidence, Json, Refusal, Undo
from chaoskit.agent.host import Host
from chaoskit.agent.procs import Process

LOOK = 0.5
"""Seconds over which `ran` watches a process move."""


class Head(NamedTuple):
    """The topmost process of a rank. `local_rank` is None when its environment does not say."""

    process: Process
    rank: int
    local_rank: Optional[int]


def require_one(rank: Optional[int], local_rank: Optional[int]) -> None:
    """Refuse parameters that name a rank twice. Raises ValueError."""
    if rank is not None and local_rank is not None:
        raise ValueError("give rank or local_rank, not both")


def heads(run_id: str) -> List[Head]:
    """Return the topmost process of each rank of a run on this node, in the order of their pids."""
    ranked = _ranked(run_id)
    return [head for head in ranked.values() if _is_topmost(head, ranked)]


def family(run_id: str, rank: int) -> List[Process]:
    """Return every living process of a rank: its topmost one and the helpers that inherited its environment."""
    return [head.process for head in _ranked(run_id).values() if head.rank == rank]


def choose(host: Host, fault: str, rank: Optional[int] = None, local_rank: Optional[int] = None) -> Head:
    """
    Return the one process that is a rank, after its owner and cgroup were checked; with neither given, the node's lowest.

    Args:
        host: The node; its site's training says which run, whose, and in which cgroup.
        fault: Name of the fault, for the refusals.
        rank: Global rank.
        local_rank: Rank within the node.

    Raises:
        Refusal: The run or the rank is not here, is more than one process, or is not the training user's.
    """
    run_id = host.site.training.run_id
    if not run_id:
        raise refusal(host, fault, "the training's run id is not known here", "let chaoskit launch the training, or state its run id")
    found = heads(run_id)
    if not found:
        hint = "is it up on this node? TORCHELASTIC_RUN_ID (or SLURM_JOB_ID) and RANK must stand in its environment"
        raise refusal(host, fault, "no process of run {} has a rank on this node".format(run_id), hint)
    if local_rank is not None:
        asked, wanted = "local rank {}".format(local_rank), [head for head in found if head.local_rank == local_rank]
    else:
        number = min(head.rank for head in found) if rank is None else rank
        asked, wanted = "rank {}".format(number), [head for head in found if head.rank == number]
    head = _only(host, fault, asked, wanted, found)
    _check_owner(host, fault, head.process)
    return head


def captured(host: Host, head: Head) -> Undo:
    """Return what names a rank's process for ever, as JSON: `pid` with `start_time`, `uid`, `rank`, `run_id`, `cgroup` and more."""
    return {
        **head.process._asdict(),
        "rank": head.rank,
        "run_id": host.site.training.run_id,
        "cgroup": procs.cgroup(head.process.pid),
    }


def ran(host: Host, undo: Undo) -> Evidence:
    """Say whether a captured process ran just now: it used the CPU or its threads were switched, and nothing holds it."""
    who = named(undo)
    before, switched = procs.same(undo["pid"], undo["start_time"]), procs.switches(undo["pid"])
    host.sleep(LOOK)
    after = procs.same(undo["pid"], undo["start_time"])
    if before is None or after is None or after.dead:
        return Evidence(False, "{} is gone".format(who))
    readings: Dict[str, Json] = {
        "cpu_ticks": after.cpu - before.cpu,
        "switches": procs.switches(undo["pid"]) - switched,
        "state": after.state,
    }
    moved = not after.stopped and (readings["cpu_ticks"] > 0 or readings["switches"] > 0)
    return Evidence(moved, "{} {} in {} s".format(who, "ran" if moved else "did not run", LOOK), readings)


def named(undo: Undo) -> str:
    """Return how sentences call a captured process."""
    return "process {} of rank {}".format(undo["pid"], undo["rank"])


def refusal(host: Host, fault: str, what: str, hint: str) -> Refusal:
    """Return a refusal that names the node and the fault."""
    return Refusal(what, where="{} {}".format(host.site.node, fault), hint=hint)


def _ranked(run_id: str) -> Dict[int, Head]:
    found = {}
    for process in procs.everyone():
        env = {} if process.dead else procs.environ(process.pid)
        if env.get("RANK", "").isdigit() and procs.in_run(env, run_id):
            local = env.get("LOCAL_RANK", "")
            found[process.pid] = Head(process, int(env["RANK"]), int(local) if local.isdigit() else None)
    return found


def _is_topmost(head: Head, ranked: Dict[int, Head]) -> bool:
    parent = ranked.get(head.process.ppid)
    return parent is None or parent.rank != head.rank


def _only(host: Host, fault: str, asked: str, wanted: List[Head], found: List[Head]) -> Head:
    if not wanted:
        here = ", ".join(str(rank) for rank in sorted({head.rank for head in found}))
        raise refusal(host, fault, "{} does not run on this node".format(asked), "here are the ranks {}".format(here))
    if len(wanted) > 1:
        claimants = ", ".join("{} ({})".format(head.process.pid, head.process.comm) for head in wanted)
        hint = "end what an earlier run left behind, or wait until the training has restarted"
        raise refusal(host, fault, "rank {} is more than one process: {}".format(wanted[0].rank, claimants), hint)
    return wanted[0]


def _check_owner(host: Host, fault: str, process: Process) -> None:
    """Raise Refusal when the process is not the training user's, or stands outside of the training's cgroup."""
    training = host.site.training
    if training.user and process.uid != procs.uid_of(training.user):
        what = "process {} ({}) belongs to uid {}, not to {}".format(process.pid, process.comm, process.uid, training.user)
        raise refusal(host, fault, what, "correct the training's `user` in the inventory")
    group = procs.cgroup(process.pid)
    if training.cgroup and not procs.within(group, training.cgroup):
        what = "process {} ({}) stands in the cgroup {}, outside of {}".format(process.pid, process.comm, group, training.cgroup)
        raise refusal(host, fault, what, "correct the training's `cgroup` in the inventory")
