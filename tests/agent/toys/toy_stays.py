"""A held fault for tests that no reboot clears: a line is written into a file on disk."""

import os
from dataclasses import dataclass
from typing import ClassVar, Tuple

from chaoskit.agent.contract import Evidence, Fault, Lifetime, Undo
from chaoskit.agent.host import Host


@dataclass(frozen=True)
class ToyStays(Fault):
    """Writes `harmed` into a file, durably, and back what stood in it."""

    lifetime: ClassVar[Lifetime] = Lifetime.PERSISTENT

    path: str
    """The file."""
    down: float = 60.0
    """Seconds of the span."""
    stuck: str = ""
    """A path; while it exists, no revert succeeds."""

    def holds(self) -> Tuple[Tuple[float, float], ...]:
        return ((0.0, self.down),)

    def resource(self, undo: Undo) -> Tuple[str, ...]:
        return ("file:" + self.path,)

    def prepare(self, host: Host) -> Undo:
        return {"content": host.read(self.path)}

    def inject(self, host: Host, undo: Undo) -> None:
        self._write("harmed")

    def witness(self, host: Host, undo: Undo) -> Evidence:
        return self.gone(host, undo)

    def gone(self, host: Host, undo: Undo) -> Evidence:
        content = host.read(self.path)
        return Evidence(content == undo["content"], "content is {}".format(content))

    def revert(self, host: Host, undo: Undo) -> None:
        if self.stuck and os.path.exists(self.stuck):
            raise OSError("{} is there".format(self.stuck))
        self._write(undo["content"])

    def exposed(self, host: Host, undo: Undo) -> Evidence:
        return Evidence(True, "always")

    def _write(self, text: str) -> None:
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
