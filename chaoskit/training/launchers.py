"""
What launchers and collectives say by themselves: torchrun and its kin at LOGLEVEL=INFO, Slurm, NCCL, gloo.

These lines are read beside every line format, so that a failure is seen, and a new life begins, whatever the training
itself prints.
"""

import re
from collections.abc import Iterator

from chaoskit.training.events import EventKind, LogEvent

SAYS_CAP = 200
"""Characters of a line that are kept as evidence."""

FAILURES = re.compile(
    r"failed \(exitcode: -?\d+\)"
    r"|Worker group FAILED"
    r"|Detected \d+ new nodes"
    r"|Sending process \d+ closing signal"
    r"|Received \d+ death signal"
    r"|ChildFailedError|RendezvousConnectionError|RendezvousClosedError"
    r"|failed to send a keep-alive heartbeat"
    r"|Did not get (?:subsequent|initial) heartbeat"
    r"|Watchdog caught collective operation timeout"
    r"|failure detected by watchdog"
    r"|\bnccl(?:Remote|System|Unhandled\w*|Internal)Error\b|DistBackendError|DistNetworkError"
    r"|gloo/transport/|Gloo connectFullMesh failed"
    r"|srun: error: (?:Node failure on|\S+: task)"
    r"|error: \*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED"
    r"|^failed rank \d+ after step"
)
RANKS = re.compile(r"\bglobal_ranks=\[(\d+(?:, ?\d+)*)\]")


def shorten(text: str) -> str:
    """Return a line as evidence, cut to a readable length."""
    return text if len(text) <= SAYS_CAP else text[: SAYS_CAP - 1] + "…"


class LauncherReader:
    """
    Reads what an elastic agent says of the workers on its node.

    An agent tells its round's ranks in a block of lines, then `Starting worker group`; when it enters the rendezvous
    again its own old workers have ended. Restart counts are each agent's own and say nothing across nodes, so none is used.
    """

    def __init__(self) -> None:
        self._started = False
        self._rank: int | None = None

    def feed(self, text: str) -> Iterator[LogEvent]:
        """Return what a line tells."""
        if FAILURES.search(text):
            yield LogEvent(EventKind.DETECT, shorten(text))
        elif found := RANKS.search(text):
            self._rank = min(int(rank) for rank in found[1].split(","))
        elif "starting workers for entrypoint" in text:
            self._started, self._rank = False, None
        elif "Rendezvous'ing worker group" in text:
            # An agent that has only just started had no workers that could have ended.
            if self._started:
                yield LogEvent(EventKind.OLD_GONE, shorten(text))
            self._started = False
        elif text.endswith("Starting worker group"):
            self._started = True
            yield LogEvent(EventKind.BORN, shorten(text), rank=self._rank, by_agent=True)
