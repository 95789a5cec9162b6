"""A fault that keeps every duty, on one file, and faults that each break one. Imported by name, also by another process."""

import os
from dataclasses import dataclass
from pathlib import Path

from chaoskit.agent.contract import Evidence, Fault, seconds


@dataclass(frozen=True)
class HideFile(Fault):
    """Rename a file for a while."""

    path: str = ""
    """The file."""
    down: float = seconds(1.0)
    """How long it is away."""

    def holds(self):
        return ((0.0, self.down),)

    def resource(self, undo):
        return ("file:" + undo["path"],)

    def prepare(self, host):
        return {"path": self.path, "away": self.path + ".away", "mark": self.path + ".mark"}

    def inject(self, host, undo):
        Path(undo["mark"]).touch()
        os.rename(undo["path"], undo["away"])

    def witness(self, host, undo):
        return Evidence(os.path.exists(undo["mark"]), "looked for the mark")

    def gone(self, host, undo):
        return Evidence(os.path.exists(undo["path"]), "looked for the file")

    def revert(self, host, undo):
        if os.path.exists(undo["away"]):
            os.rename(undo["away"], undo["path"])

    def exposed(self, host, undo):
        return Evidence(True, "it is there")


class NotADataclass(HideFile):
    """Its parameters are those of its parent."""


@dataclass(frozen=True)
class Undocumented(HideFile):
    pass


@dataclass(frozen=True)
class BareField(HideFile):
    """One field says nothing."""

    depth: int = 1


@dataclass(frozen=True)
class TuplesInTheUndo(HideFile):
    """JSON makes a list of it."""

    def prepare(self, host):
        return {**super().prepare(host), "pair": (1, 2)}


@dataclass(frozen=True)
class Meddles(HideFile):
    """Prepare writes."""

    def prepare(self, host):
        Path(self.path + ".prepared").touch()
        return super().prepare(host)


@dataclass(frozen=True)
class LocksNothing(HideFile):
    """No resource."""

    def resource(self, undo):
        return ()


@dataclass(frozen=True)
class AlwaysWitnessed(HideFile):
    """The witness does not look."""

    def witness(self, host, undo):
        return Evidence(True, "sure")


@dataclass(frozen=True)
class NeverGone(HideFile):
    """Gone does not see the file that is there."""

    def gone(self, host, undo):
        return Evidence(False, "no")


@dataclass(frozen=True)
class RevertsBlindly(HideFile):
    """Revert takes for granted that inject ran."""

    def revert(self, host, undo):
        super().revert(host, undo)
        Path(undo["path"]).write_text("reverted")


@dataclass(frozen=True)
class DoesNothing(HideFile):
    """Inject sends nobody anywhere."""

    def inject(self, host, undo):
        pass


@dataclass(frozen=True)
class AlwaysGone(HideFile):
    """Gone does not look."""

    def gone(self, host, undo):
        return Evidence(True, "sure")


@dataclass(frozen=True)
class RemembersInMemory(HideFile):
    """Revert works only in the process that injected."""

    def inject(self, host, undo):
        super().inject(host, undo)
        HideFile.injected = True

    def revert(self, host, undo):
        if getattr(HideFile, "injected", False):
            super().revert(host, undo)


@dataclass(frozen=True)
class ForgetsTheHarm(HideFile):
    """The witness is not monotone."""

    def witness(self, host, undo):
        return Evidence(not os.path.exists(undo["path"]), "looked for the file")


@dataclass(frozen=True)
class Mute(HideFile):
    """Evidence without a sentence."""

    def exposed(self, host, undo):
        return Evidence(True, "")


@dataclass(frozen=True)
class Overlaps(HideFile):
    """Spans that do not follow each other."""

    def holds(self):
        return ((0.0, 2.0), (1.0, 3.0))


@dataclass(frozen=True)
class RevertsTwiceAsMuch(HideFile):
    """A second revert after the harm changes something."""

    def revert(self, host, undo):
        if os.path.exists(undo["mark"]) and os.path.exists(undo["path"]):
            Path(undo["path"]).write_text("again")
        super().revert(host, undo)
