"""
One rank of the training dies at once, as from the out-of-memory killer, a segmentation fault or a lost GPU.

Only a process of *this* training is ever touched: its environment names the run and the rank, and pid, start time and
owner are read again, with the process pinned, before the signal goes out. What becomes of the other ranks is the test.
"""

from dataclasses import dataclass
from typing import ClassVar, Optional, Tuple

from chaoskit.agent import procs, ranks
from chaoskit.agent.contract import Evidence, Fault, Lifetime, Needs, Sign, Undo
from chaoskit.agent.host import Host

SIGNALS = ("KILL", "TERM", "ABRT", "SEGV")
DIES_WITHIN = 5.0
"""Seconds that `witness` waits for a signal on its way: freeing a trainer's memory takes the kernel a while."""
STEP = 0.01


@dataclass(frozen=True)
class RankKill(Fault):
    """Kill one rank of the training; which one is left out means the node's lowest."""

    rank: Optional[int] = None
    """Global rank (RANK) to kill; give this or `local_rank`, or neither."""
    local_rank: Optional[int] = None
    """Rank within the node (LOCAL_RANK) to kill."""
    signal: str = "KILL"
    """Signal to send: KILL, TERM, ABRT or SEGV."""

    lifetime: ClassVar[Lifetime] = Lifetime.IRREVERSIBLE
    needs: ClassVar[Needs] = Needs(capabilities=("KILL", "SYS_PTRACE"))
    signs = (Sign.PROCESS_KILLED,)
    needs_training: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse parameters that make no sense together. Raises ValueError."""
        ranks.require_one(self.rank, self.local_rank)
        if self.signal not in SIGNALS:
            raise ValueError("signal must be one of {}, not {!r}".format(", ".join(SIGNALS), self.signal))

    def resource(self, undo: Undo) -> Tuple[str, ...]:
        """Lock the rank."""
        return ("rank:{}".format(undo["rank"]),)

    def prepare(self, host: Host) -> Undo:
        """Find the one process that is this rank."""
        for name in self.needs.capabilities:
            procs.require_capability(name, host.site.node)
        return ranks.captured(host, ranks.choose(host, "rank_kill", self.rank, self.local_rank))

    def inject(self, host: Host, undo: Undo) -> None:
        """Send the signal to exactly the captured process."""
        if not procs.send(undo["pid"], undo["start_time"], undo["uid"], procs.signal_number(self.signal)):
            hint = "it ended by itself after it was found; run again"
            raise ranks.refusal(host, "rank_kill", "{} is gone or has another owner".format(ranks.named(undo)), hint)

    def witness(self, host: Host, undo: Undo) -> Evidence:
        """The captured process is no more, by pid and start time; only a signal on its way is waited for."""
        number = procs.signal_number(self.signal)
        end = host.monotonic() + DIES_WITHIN
        process = procs.same(undo["pid"], undo["start_time"])
        while process is not None and not process.dead and procs.dying(process.pid, number) and host.monotonic() < end:
            host.sleep(STEP)
            process = procs.same(undo["pid"], undo["start_time"])
        dead = process is None or process.dead
        says = "{} {}".format(ranks.named(undo), "is gone" if dead else "is alive")
        return Evidence(dead, says, {"pid": undo["pid"], "start_time": undo["start_time"], "state": process.state if process else None})

    def gone(self, host: Host, undo: Undo) -> Evidence:
        """Nothing on the node is owed: whether the training comes back is what the run is judged by."""
        return Evidence(True, "nothing to undo: a killed process is the training's to replace")

    def revert(self, host: Host, undo: Undo) -> None:
        """Do nothing: a kill cannot be undone."""

    def exposed(self, host: Host, undo: Undo) -> Evidence:
        """The process ran: it used the CPU or its threads were switched, and nothing holds it."""
        return ranks.ran(host, undo)
