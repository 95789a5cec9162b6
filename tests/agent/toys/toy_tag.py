"""A held fault for tests whose harm bears a tag: a file of its name in a folder; it finds such files by itself."""

import os
import time
from dataclasses import dataclass
from typing import ClassVar, Sequence, Tuple

from chaoskit.agent.contract import Evidence, Fault, Lifetime, Stray, Undo
from chaoskit.agent.host import Host


@dataclass(frozen=True)
class ToyTag(Fault):
    """Makes a file `toy_tag-NAME` in the folder of the node's checkpoints."""

    lifetime: ClassVar[Lifetime] = Lifetime.VOLATILE

    folder: str
    """Where."""
    name: str = "a"
    """What it is called."""
    down: float = 30.0
    """Seconds."""

    def holds(self) -> Tuple[Tuple[float, float], ...]:
        return ((0.0, self.down),)

    def resource(self, undo: Undo) -> Tuple[str, ...]:
        return ("tag:" + self._path(),)

    def prepare(self, host: Host) -> Undo:
        return {"path": self._path()}

    def inject(self, host: Host, undo: Undo) -> None:
        with open(undo["path"], "w", encoding="utf-8"):
            pass

    def witness(self, host: Host, undo: Undo) -> Evidence:
        return Evidence(os.path.exists(undo["path"]), "looked")

    def gone(self, host: Host, undo: Undo) -> Evidence:
        return Evidence(not os.path.exists(undo["path"]), "looked")

    def revert(self, host: Host, undo: Undo) -> None:
        if os.path.exists(undo["path"]):
            os.unlink(undo["path"])

    def exposed(self, host: Host, undo: Undo) -> Evidence:
        return Evidence(True, "always")

    @classmethod
    def strays(cls, host: Host) -> Sequence[Stray]:
        folder = host.site.training.checkpoints
        if folder is None:
            return ()
        if os.path.exists(os.path.join(folder, "hang")):
            time.sleep(3600)
        paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
        ours = [Stray("tag:" + path, path + " is ours", ours=True, tag={"path": path}) for path in paths if "/toy_tag-" in path]
        return ours + [Stray("tag:" + path, path + " is not ours", do="look") for path in paths if path.endswith("/foreign")]

    @classmethod
    def sweep(cls, host: Host, stray: Stray) -> None:
        if stray.tag["path"].endswith("-stuck"):
            raise OSError("it does not go")
        if not stray.tag["path"].endswith("-lie"):
            os.unlink(stray.tag["path"])

    def _path(self) -> str:
        return os.path.join(self.folder, "toy_tag-" + self.name)
