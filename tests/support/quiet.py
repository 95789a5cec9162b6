"""A control: nothing happens in the world, so that whatever a run says of it is a false alarm."""

import os
from dataclasses import dataclass
from typing import ClassVar, Tuple

from chaoskit.agent.contract import Evidence, Fault, Undo, seconds
from chaoskit.agent.host import Host


@dataclass(frozen=True)
class Quiet(Fault):
    """Break nothing for a while, and say so by a file of its own."""

    down: float = seconds(4.0)
    """How long nothing is broken."""

    witness_lasts: ClassVar[bool] = False

    def holds(self) -> Tuple[Tuple[float, float], ...]:
        return ((0.0, self.down),)

    def resource(self, undo: Undo) -> Tuple[str, ...]:
        return ("file:" + undo["mark"],)

    def prepare(self, host: Host) -> Undo:
        return {"mark": "/run/chaoskit/quiet-{:.6f}".format(host.monotonic())}

    def inject(self, host: Host, undo: Undo) -> None:
        os.close(os.open(undo["mark"], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))

    def witness(self, host: Host, undo: Undo) -> Evidence:
        there = os.path.exists(undo["mark"])
        return Evidence(there, "the mark {}".format("stands" if there else "does not stand"))

    def gone(self, host: Host, undo: Undo) -> Evidence:
        there = os.path.exists(undo["mark"])
        return Evidence(not there, "the mark {}".format("stands" if there else "does not stand"))

    def revert(self, host: Host, undo: Undo) -> None:
        if os.path.exists(undo["mark"]):
            os.unlink(undo["mark"])

    def exposed(self, host: Host, undo: Undo) -> Evidence:
        return Evidence(True, "nothing was broken, for everybody")
