"""A fault that only looks at the clock, for `bench_skew`: all lab nodes share the machine's wall clock, so it is the truth."""

import time
from dataclasses import dataclass
from typing import ClassVar, Tuple

from chaoskit.agent.contract import Evidence, Fault, Lifetime, Undo
from chaoskit.agent.host import Host

SEEN = []


@dataclass(frozen=True)
class BenchStamp(Fault):
    """Remembers when it was injected."""

    lifetime: ClassVar[Lifetime] = Lifetime.VOLATILE

    def holds(self) -> Tuple[Tuple[float, float], ...]:
        return ((0.0, 0.05),)

    def resource(self, undo: Undo) -> Tuple[str, ...]:
        return ("bench-stamp",)

    def prepare(self, host: Host) -> Undo:
        return {}

    def inject(self, host: Host, undo: Undo) -> None:
        SEEN.append(time.time())

    def witness(self, host: Host, undo: Undo) -> Evidence:
        return Evidence(True, "injected", {"wall": SEEN[-1]})

    def gone(self, host: Host, undo: Undo) -> Evidence:
        return Evidence(True, "nothing to undo")

    def revert(self, host: Host, undo: Undo) -> None:
        """There is nothing to undo."""

    def exposed(self, host: Host, undo: Undo) -> Evidence:
        return Evidence(True, "always")
