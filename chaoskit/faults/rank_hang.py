"""
One rank of the training stands still for a while, as when it hangs in a driver, a lock or a debugger: alive, and silent.

All threads of the rank's own process are stopped (SIGSTOP), those of its watchdog too; its helpers, such as data loaders,
go on and soon wait for it. Its connections stay open, so no peer sees anything but silence: whether somebody notices, and
when, is the test. A `hold` below the training's own timeout is a stall, one above it a restart. Work that is already
queued on a GPU goes on; collectives that need the process do not.

The end is the node's own: exactly this process, by pid and start time, goes on again (SIGCONT) when `hold` is over, when
the lease is, or when the agent dies. When the launcher has killed it meanwhile, there is nothing to undo.
"""

from dataclasses import dataclass
from typing import ClassVar, Dict, List, Optional, Sequence, Tuple

from chaoskit.agent import marks, procs, ranks
from chaoskit.agent.contract import Evidence, Fault, Json, Lifetime, Needs, Stray, Undo, seconds
from chaoskit.agent.host import Host
from chaoskit.agent.procs import Process

FAULT = "rank_hang"
STOPS_WITHIN = 5.0
"""Seconds that `witness` waits for threads that are in the kernel, such as those that wait for a disk."""
STEP = 0.01


@dataclass(frozen=True)
class RankHang(Fault):
    """Stop one rank of the training for a while, as if it hung; which one is left out means the node's lowest."""

    rank: Optional[int] = None
    """Global rank (RANK) to stop; give this or `local_rank`, or neither."""
    local_rank: Optional[int] = None
    """Rank within the node (LOCAL_RANK) to stop."""
    hold: float = seconds(5.0)
    """How long it stands still."""

    lifetime: ClassVar[Lifetime] = Lifetime.VOLATILE
    needs: ClassVar[Needs] = Needs(capabilities=("KILL", "SYS_PTRACE"))
    needs_training: ClassVar[bool] = True
    witness_lasts: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse parameters that make no sense together. Raises ValueError."""
        ranks.require_one(self.rank, self.local_rank)
        if self.hold <= 0:
            raise ValueError("hold must be longer than 0 s")

    def holds(self) -> Tuple[Tuple[float, float], ...]:
        """Return the one span."""
        return ((0.0, self.hold),)

    def resource(self, undo: Undo) -> Tuple[str, ...]:
        """Lock the rank."""
        return ("rank:{}".format(undo["rank"]),)

    def prepare(self, host: Host) -> Undo:
        """Find the one process that is this rank, and see that nothing else holds it."""
        for name in self.needs.capabilities:
            procs.require_capability(name, host.site.node)
        head = ranks.choose(host, "rank_hang", self.rank, self.local_rank)
        pid = head.process.pid
        debugger = procs.tracer(pid)
        if debugger:
            what = "a debugger (process {}) is attached to process {} of rank {}".format(debugger, pid, head.rank)
            raise ranks.refusal(host, "rank_hang", what, "detach it: it would be told of our signals first")
        if procs.held(pid):
            what = "process {} of rank {} is stopped already".format(pid, head.rank)
            raise ranks.refusal(host, "rank_hang", what, "find out who stopped it; `kill -CONT {}` lets it go on".format(pid))
        return {**ranks.captured(host, head), "mark": marks.path_of(FAULT, "{}-{}".format(pid, head.process.start_time))}

    def inject(self, host: Host, undo: Undo) -> None:
        """Stop exactly the captured process; that it was us is written down before, as a stop does not tell."""
        marks.put(undo["mark"], undo)
        if not procs.send(undo["pid"], undo["start_time"], undo["uid"], procs.signal_number("STOP")):
            marks.drop(undo["mark"])
            hint = "it ended by itself after it was found; run again"
            raise ranks.refusal(host, "rank_hang", "{} is gone or has another owner".format(ranks.named(undo)), hint)

    def witness(self, host: Host, undo: Undo) -> Evidence:
        """Every thread of the captured process is stopped; only threads that are in the kernel are waited for."""
        end = host.monotonic() + STOPS_WITHIN
        while _held(undo) and not _still(undo) and host.monotonic() < end:
            host.sleep(STEP)
        still = _still(undo)
        return Evidence(still, "{} {}".format(ranks.named(undo), "stands still" if still else "does not stand still"), _readings(undo))

    def gone(self, host: Host, undo: Undo) -> Evidence:
        """The captured process runs, or is no more: killed by its launcher while it stood still, so that nothing is owed."""
        if _living(undo) is None:
            return Evidence(True, "{} has ended: nobody is left to let go on".format(ranks.named(undo)), _readings(undo))
        held = _held(undo)
        return Evidence(not held, "{} {}".format(ranks.named(undo), "is held" if held else "is free to run"), _readings(undo))

    def revert(self, host: Host, undo: Undo) -> None:
        """Let the captured process go on if it is held; the kernel takes back a stop that is still on its way, too."""
        del host
        _let_go(undo)

    @classmethod
    def strays(cls, host: Host) -> Sequence[Stray]:
        """Every process that our mark says was stopped by us; any other stopped rank is somebody else's, as far as anybody knows."""
        del host
        ours = [mark for mark in marks.standing(FAULT) if mark.undo is not None]
        known = {mark.undo["pid"] for mark in ours if mark.undo is not None}
        return [_marked(mark) for mark in ours] + [stray for stray in _stopped() if stray.tag["pid"] not in known]

    @classmethod
    def sweep(cls, host: Host, stray: Stray) -> None:
        """Let exactly the marked process go on."""
        del host
        undo = marks.read(stray.tag["mark"])
        if undo is not None:
            _let_go(undo)

    def exposed(self, host: Host, undo: Undo) -> Evidence:
        """The process ran: it used the CPU or its threads were switched, and nothing holds it."""
        return ranks.ran(host, undo)


def _let_go(undo: Undo) -> None:
    if _held(undo):
        procs.send(undo["pid"], undo["start_time"], None, procs.signal_number("CONT"))
    if "mark" in undo:  # not in the undo of an earlier version
        marks.drop(undo["mark"])


def _marked(mark: marks.Mark) -> Stray:
    undo: Undo = mark.undo or {}
    state = "stands still, stopped by us" if _held(undo) else "was stopped by us, and is free or gone"
    return Stray(
        "rank:{}".format(undo["rank"]), "{} {}".format(ranks.named(undo), state), ours=True, tag={"mark": mark.path, "pid": undo["pid"]}
    )


def _stopped() -> List[Stray]:
    """Return the ranks of any training that stand still by a signal."""
    found = []
    for process in procs.everyone():
        env = procs.environ(process.pid) if process.state == "T" else {}
        if env.get("RANK", "").isdigit() and (env.get("TORCHELASTIC_RUN_ID") or env.get("SLURM_JOB_ID")):
            says = "process {} ({}) of rank {} is stopped: not by us, or by a rank_hang whose mark is lost"
            do = "let it go on: kill -CONT {}".format(process.pid)
            resource = "rank:{}".format(env["RANK"])
            found.append(Stray(resource, says.format(process.pid, process.comm, env["RANK"]), do=do, tag={"pid": process.pid}))
    return found


def _living(undo: Undo) -> Optional[Process]:
    process = procs.same(undo["pid"], undo["start_time"])
    return None if process is None or process.dead else process


def _held(undo: Undo) -> bool:
    return _living(undo) is not None and bool(procs.held(undo["pid"]))


def _still(undo: Undo) -> bool:
    states = procs.states(undo["pid"]) if _living(undo) else []
    return bool(states) and all(state in "Tt" for state in states)


def _readings(undo: Undo) -> Dict[str, Json]:
    process = _living(undo)
    return {
        "pid": undo["pid"],
        "start_time": undo["start_time"],
        "state": process.state if process else None,
        "threads": procs.states(undo["pid"]) if process else [],
        "cpu_ticks": process.cpu if process else None,
    }
