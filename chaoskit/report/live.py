"""
A run while it happens: a status panel below a scrolling log on a terminal, plain lines elsewhere.

Both listen to the engine's events and say the same things; neither influences the run.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, cast

from chaoskit.engine.events import Event, Listener
from chaoskit.engine.result import RunInfo
from chaoskit.model.hostlist import fold
from chaoskit.report.quote import quote
from chaoskit.report.sanitise import line as clean
from chaoskit.report.stray import told_above

if TYPE_CHECKING:
    from rich.console import Group

PACE_OVER = 5.0
"""Seconds of steps that the pace shown is taken from."""
STEP_LINE_EVERY = 5.0
"""Seconds between the plain lines that say which step the training is at."""
LONGEST = 160
"""Characters of one line of the log; the table and the journal have what is longer."""
BURST = 5.0
"""Seconds in which one kind of sign that the training's logs give is told once: every node and every rank gives its own."""
QUIET = frozenset({"sample", "phase", "renewed"})
"""Kinds that change the status and are not worth a line of the log each."""
STYLES = {"injected": "bold red", "lost": "yellow", "trouble": "bold yellow", "aborted": "bold yellow", "ended": "green", "stage": "bold"}


@dataclass
class Status:
    """What a run is at, from its events so far."""

    stage: str = ""
    phase: str = ""
    at: float = 0.0
    step: int | None = None
    baseline_pace: float | None = None
    renewed: float | None = None
    open: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Entry -> what is in force or owed, and its node (empty when the words name it), until it is proven gone."""
    _steps: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=4096))

    def apply(self, event: Event) -> None:
        """Take one event in."""
        self.at = event.at
        if event.kind == "stage":
            self.stage = event.says
        elif event.kind == "phase":
            self.phase = event.says
        elif event.kind == "steady":
            self.baseline_pace = event.data.get("pace")
        elif event.kind == "renewed":
            self.renewed = event.at
        elif event.kind == "sample":
            self._sample(event.at, int(event.data["step"]))
        else:
            self._entry(event)

    def _sample(self, at: float, step: int) -> None:
        if self.step is not None and step < self.step:
            self._steps.clear()  # a new life of the training counts from its own first step
        self.step = step
        self._steps.append((at, step))
        while at - self._steps[0][0] > PACE_OVER:
            self._steps.popleft()

    def _entry(self, event: Event) -> None:
        entry = str(event.data.get("entry", ""))
        if event.kind in ("armed", "injected"):
            node = str(event.data.get("node", ""))
            ending = f" on {node}"
            self.open[entry] = (event.says.removesuffix(ending), node) if event.says.endswith(ending) else (event.says, "")
        elif event.kind == "ended" and event.data.get("gone"):
            self.open.pop(entry, None)

    @property
    def rate(self) -> float:
        """Steps a second over the last seconds; 0 when none was finished."""
        recent = [(at, step) for at, step in self._steps if self.at - at <= PACE_OVER]
        if len(recent) < 2:
            return 0.0
        return (recent[-1][1] - recent[0][1]) / max(self.at - recent[0][0], 1e-9)

    @property
    def training(self) -> str:
        """The training in a few words: step, rate, and the rate as a share of the baseline."""
        if self.step is None:
            return "no step yet"
        if len(self._steps) < 2:
            return f"step {self.step}"  # the first of a life: no pace yet
        share = f", {self.rate * self.baseline_pace * 100:.0f} % of baseline" if self.baseline_pace else ""
        return f"step {self.step}, {self.rate:.1f} steps/s{share}"

    @property
    def lease(self) -> str:
        """The faults that are in force or owed, and how long ago their leases were renewed."""
        if not self.open:
            return "nothing owed"
        ago = f", leases renewed {self.at - self.renewed:.0f} s ago" if self.renewed is not None else ""
        nodes: dict[str, list[str]] = {}
        for what, node in self.open.values():
            nodes.setdefault(what, []).append(node)
        told = (f"{what} on {fold(on)}" if any(on) else what for what, on in nodes.items())
        return f"{len(self.open)} owed{ago}: {'; '.join(told)}"


class Log:
    """The lines that an event is worth: none when it only moves the status, and of a burst of like signs the first."""

    def __init__(self) -> None:
        self._told: dict[str, float] = {}
        """Kind of sign -> when the last of its kind came."""

    def line(self, event: Event) -> str | None:
        """Return the event's line, if it gets one."""
        if event.kind in QUIET or (event.kind == "mark" and self._is_repeated(event)):
            return None
        return log_line(event.at, event.kind, _sign(event) if event.kind == "mark" else event.says)

    def _is_repeated(self, mark: Event) -> bool:
        kind = mark.says.partition(": ")[0]
        before = self._told.get(kind)
        self._told[kind] = mark.at
        return before is not None and mark.at - before < BURST


def _sign(mark: Event) -> str:
    """Return a sign from the training's logs: what, where, and the log's own words in short."""
    kind, _, says = mark.says.partition(": ")
    node = mark.data.get("node")
    place = f"{kind} on {node}" if node else kind
    return f"{place}: {quote(says)}" if says else place


def log_line(at: float, kind: str, says: str) -> str:
    """Return one line of the log."""
    text = clean(says)
    return f"{at:7.1f} s  {kind:<10}{text if len(text) <= LONGEST else text[: LONGEST - 3] + '...'}"


@contextmanager
def watching(info: RunInfo, file: IO[str]) -> Iterator[Listener]:
    """Yield the listener that shows a run on this file, a terminal or not."""
    if not file.isatty():
        yield PlainLines(file)
        return
    with _terminal(info, file) as listener:
        yield listener


class PlainLines:
    """One line an event; steps every few seconds, phases when they change."""

    def __init__(self, file: IO[str]) -> None:
        self._file: IO[str] | None = file
        self._status = Status()
        self._log = Log()
        self._next_step_line = 0.0

    def __call__(self, event: Event) -> None:
        """Show one event."""
        before = self._status.phase
        self._status.apply(event)
        if event.kind == "sample" and event.at >= self._next_step_line:
            self._next_step_line = event.at + STEP_LINE_EVERY
            self._print(log_line(event.at, "training", self._status.training))
        elif event.kind == "phase" and event.says != before:
            self._print(log_line(event.at, "phase", event.says))
        elif line := self._log.line(event):
            self._print(line)

    def _print(self, line: str) -> None:
        if self._file is None:
            return
        try:
            self._file.write(f"{line}\n")
            self._file.flush()
        except OSError:
            # The pipe or the terminal is closed: nobody watches any more, and that is no reason to end a run half way.
            self._file = None


class Lasting:
    """
    A terminal as rich writes to it, which may be closed under a run.

    Nobody watches any more then, and that must cost the run neither its reverts nor its reports.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        """Write what can be written."""
        with suppress(OSError):
            self._file.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush what can be flushed."""
        with suppress(OSError):
            self._file.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class Panel:
    """
    The last lines of a terminal: what the run is at, now.

    It is drawn again and again by a thread of rich's, so time goes on in it while nothing happens.
    """

    def __init__(self, info: RunInfo, clock: Callable[[], float] = time.monotonic) -> None:
        self._info = info
        self._clock = clock
        self._status = Status()
        self._zero = clock()
        """The clock at the start of the run."""
        self._lock = threading.Lock()

    def apply(self, event: Event) -> None:
        """Take one event in."""
        with self._lock:
            self._zero = min(self._zero, self._clock() - event.at)
            self._status.apply(event)

    def __rich__(self) -> "Group":
        """Return what stands there now."""
        with self._lock:
            self._status.at = max(self._status.at, self._clock() - self._zero)
            return _lines(self._info, self._status)


@contextmanager
def _terminal(info: RunInfo, file: IO[str]) -> Iterator[Listener]:
    """Keep a panel at the bottom of the terminal and scroll the log above it, a line an event."""
    from rich.console import Console  # noqa: PLC0415 - rich is loaded for a terminal only
    from rich.live import Live  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    console = Console(file=cast("IO[str]", Lasting(file)), highlight=False)
    panel, log = Panel(info), Log()

    def listen(event: Event) -> None:
        panel.apply(event)
        if line := log.line(event):
            console.print(Text(line, STYLES.get(event.kind, "")), no_wrap=True, overflow="ellipsis")

    with (
        Live(panel, console=console, refresh_per_second=8, transient=True),
        told_above(lambda line: console.print(Text(line, "bold yellow"))),  # whole: it stands nowhere else
    ):
        yield listen


def _lines(info: RunInfo, status: Status) -> "Group":
    from rich.console import Group  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    rows = (
        (info.name, info.title, "bold"),
        (f"{status.at:.0f} s", status.stage, ""),
        ("training", "; ".join(part for part in (status.training, status.phase) if part), "cyan"),
        ("faults", status.lease, "red" if status.open else "green"),
    )
    texts = (f"  {clean(name):<12}  {clean(value)}" for name, value, _ in rows)
    return Group(*(Text(text, row[2], overflow="ellipsis", no_wrap=True) for text, row in zip(texts, rows, strict=True)))
