"""A one-shot fault for tests: a file is removed, and nobody brings it back."""

import os
from dataclasses import dataclass
from typing import ClassVar, Tuple

from chaoskit.agent.contract import Evidence, Fault, Lifetime, Undo
from chaoskit.agent.host import Host


@dataclass(frozen=True)
class ToyShot(Fault):
    """Removes a file."""

    lifetime: ClassVar[Lifetime] = Lifetime.IRREVERSIBLE

    path: str
    """The file."""

    def resource(self, undo: Undo) -> Tuple[str, ...]:
        return ("file:" + self.path,)

    def prepare(self, host: Host) -> Undo:
        return {"inode": os.stat(self.path).st_ino}

    def inject(self, host: Host, undo: Undo) -> None:
        os.unlink(self.path)

    def witness(self, host: Host, undo: Undo) -> Evidence:
        there = os.path.exists(self.path) and os.stat(self.path).st_ino == undo["inode"]
        return Evidence(not there, "the file is {}".format("there" if there else "gone"))

    def gone(self, host: Host, undo: Undo) -> Evidence:
        return Evidence(os.path.exists(self.path), "a new file must come")

    def revert(self, host: Host, undo: Undo) -> None:
        """A removed file stays removed."""

    def exposed(self, host: Host, undo: Undo) -> Evidence:
        return Evidence(True, "always")
