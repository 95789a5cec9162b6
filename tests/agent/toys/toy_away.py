"""A fault for tests that takes the agent away: it kills the process that it runs in, as a reboot would."""

import os
import signal
from dataclasses import dataclass
from typing import ClassVar, Tuple

from chaoskit.agent.contract import Evidence, Fault, Lifetime, Undo
from chaoskit.agent.host import Host


@dataclass(frozen=True)
class ToyAway(Fault):
    """Kills the agent."""

    lifetime: ClassVar[Lifetime] = Lifetime.IRREVERSIBLE
    takes_agent_away: ClassVar[bool] = True

    def resource(self, undo: Undo) -> Tuple[str, ...]:
        return ("agent",)

    def prepare(self, host: Host) -> Undo:
        return {"pid": os.getpid()}

    def inject(self, host: Host, undo: Undo) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def witness(self, host: Host, undo: Undo) -> Evidence:
        return Evidence(os.getpid() != undo["pid"], "pid {}".format(os.getpid()))

    def gone(self, host: Host, undo: Undo) -> Evidence:
        return Evidence(True, "the agent answers")

    def revert(self, host: Host, undo: Undo) -> None:
        """Nothing to undo."""

    def exposed(self, host: Host, undo: Undo) -> Evidence:
        return Evidence(True, "always")
