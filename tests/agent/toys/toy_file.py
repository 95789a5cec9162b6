"""A held fault for tests: a file's content is another for a while."""

import time
from dataclasses import dataclass
from typing import ClassVar, Tuple

from chaoskit.agent.contract import Evidence, Fault, Lifetime, Refusal, Undo
from chaoskit.agent.host import Host


@dataclass(frozen=True)
class ToyFile(Fault):
    """Writes `harmed` into a file, and back what stood in it."""

    lifetime: ClassVar[Lifetime] = Lifetime.VOLATILE

    path: str
    """The file."""
    down: float = 1.0
    """Seconds of one span."""
    times: int = 1
    """Number of spans."""
    hang: float = 0.0
    """Seconds that inject takes after the harm."""
    trouble: str = ""
    """`inject`, `revert`: that raises; `once`: its first revert raises; `hang`: revert never ends; `gone`: never proven."""

    def holds(self) -> Tuple[Tuple[float, float], ...]:
        return tuple((2 * number * self.down, (2 * number + 1) * self.down) for number in range(self.times))

    def resource(self, undo: Undo) -> Tuple[str, ...]:
        return ("file:" + self.path,)

    def prepare(self, host: Host) -> Undo:
        content = host.read(self.path)
        if content == "harmed":
            raise Refusal("{} is harmed already".format(self.path))
        return {"content": content, "harms": self._harms()}

    def inject(self, host: Host, undo: Undo) -> None:
        self._write("harmed")
        self._log("harm")
        if self.trouble == "inject":
            raise OSError("the toy broke half way")
        time.sleep(self.hang)

    def witness(self, host: Host, undo: Undo) -> Evidence:
        return Evidence(self._harms() > undo["harms"], "{} harms".format(self._harms()))

    def gone(self, host: Host, undo: Undo) -> Evidence:
        content = host.read(self.path)
        return Evidence(content == undo["content"] and self.trouble != "gone", "content is {}".format(content))

    def revert(self, host: Host, undo: Undo) -> None:
        self._log("revert")
        if self.trouble == "hang":
            time.sleep(3600)
        if self.trouble == "revert" or (self.trouble == "once" and self._count("revert") == 1):
            raise OSError("the toy cannot be mended")
        self._write(undo["content"])

    def exposed(self, host: Host, undo: Undo) -> Evidence:
        return Evidence(True, "always")

    def _write(self, text: str) -> None:
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(text)

    def _log(self, word: str) -> None:
        with open(self.path + ".log", "a", encoding="utf-8") as file:
            file.write("{} {:.6f}\n".format(word, time.monotonic()))

    def _harms(self) -> int:
        return self._count("harm")

    def _count(self, word: str) -> int:
        try:
            with open(self.path + ".log", encoding="utf-8") as file:
                return sum(1 for line in file if line.startswith(word))
        except FileNotFoundError:
            return 0
