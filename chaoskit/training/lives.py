"""
Which life of the training each line belongs to.

A life (the judge calls it an incarnation, a sample calls it a session) is what lies between two starts of the training's
processes. It is named by the log in which its rank 0 was born and a count, since nothing else is the same on all nodes
and new at each start: restart counts belong to one elastic agent, ports may be reused, pids are a node's own. Steps come
from rank 0's log (or from whoever alone prints them), so each sample takes the life that its own log is in.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from chaoskit.judge.timeline import Mark, MarkKind, Sample
from chaoskit.model.interval import Interval
from chaoskit.training.events import EventKind, LogEvent

MARKS: Mapping[EventKind, MarkKind] = {
    EventKind.DETECT: MarkKind.DETECT,
    EventKind.GROUP_UP: MarkKind.GROUP_UP,
    EventKind.LOADED: MarkKind.LOADED,
    EventKind.EXIT: MarkKind.EXIT,
}
ENDED = (EventKind.DETECT, EventKind.EXIT)
"""These speak of the life that ended, whichever log tells them."""


@dataclass
class Log:
    """What is known of one node's log."""

    node: str
    session: str | None = None
    """The life that began in this log; None when its lines belong to whichever life is the current one."""
    lives: int = 0
    expects_first_line: bool = False
    """The agent told a birth; the new process's own first line is still to come and is the same birth."""
    running: bool = False
    """Workers of this log were started and not yet seen ended."""
    failed_at: int = -1
    """How many steps had been done when it last told a failure; more failures without a step between tell nothing new."""


@dataclass
class Life:
    """One life: when it began, which (log, writer) prints its steps, the last of them."""

    name: str
    born: Interval
    logs: set[str] = field(default_factory=set)
    lead: tuple[str, str] | None = None
    lead_last: int = -1
    """The step that the lead printed last: another rank's lines may be read before its own, and then it is behind, not fallen back."""
    last: int = -1


@dataclass
class Told:
    """What has become of lines so far and was not yet taken."""

    samples: list[Sample] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    batch: dict[str, int] = field(default_factory=dict)
    world: dict[str, int] = field(default_factory=dict)


class Lives:
    """Turns events of all logs into samples and marks."""

    def __init__(self) -> None:
        self.told = Told()
        self.idle: list[tuple[float, float]] = []
        """Spans in which no worker ran, as some log told; the last one ends at infinity while it goes on."""
        self.steps = 0
        self._logs: dict[str, Log] = {}
        self._lives: list[Life] = [Life("", Interval(float("-inf"), float("-inf")))]
        self._gone: dict[str, Interval] = {}

    def take(self) -> Told:
        """Return what was told since the last call."""
        told, self.told = self.told, Told()
        return told

    def feed(self, node: str, event: LogEvent, t: Interval) -> bool:
        """Take in an event of a node's log; true when it made a sample."""
        log = self._logs.setdefault(node, Log(node))
        if event.kind is EventKind.STEP:
            return self._step(log, event, t)
        if event.kind is EventKind.BORN:
            self._born(log, event, t)
        elif event.kind is EventKind.OLD_GONE:
            self._old_gone(log, t)
        else:
            self._mark(log, event, t)
        return False

    def exited(self, t: Interval, says: str) -> None:
        """Note the end of the whole training, as the launcher knows it."""
        self._stopped(t)
        self.told.marks.append(Mark(t, MarkKind.EXIT, self._lives[-1].name, says=says))

    @property
    def stands_still(self) -> bool:
        """Whether no worker runs, as far as the logs tell."""
        return bool(self.idle) and self.idle[-1][1] == float("inf")

    def _stopped(self, t: Interval) -> None:
        if not self.idle or self.idle[-1][1] <= t.hi:
            self.idle.append((t.hi, float("inf")))

    def _works(self, t: Interval) -> None:
        """Workers run at t; a line from before the standstill that arrives late doesn't end it."""
        if self.idle and self.idle[-1][0] < t.mid < self.idle[-1][1]:
            self.idle[-1] = (self.idle[-1][0], max(self.idle[-1][0], t.lo))

    def _step(self, log: Log, event: LogEvent, t: Interval) -> bool:
        life = self._named(log, event, t)
        writer = (log.node, event.source)
        step = event.step
        assert step is not None  # noqa: S101 - the formats make no step event without one
        life.lead = life.lead or writer
        fell = False
        if writer == life.lead:
            fell, life.lead_last = step < life.lead_last, step
        # Several ranks may print the same step: it counts once. A step that falls back counts from the lead alone.
        if step == life.last or (step < life.last and not fell):
            return False
        life.last = step
        if event.batch is not None:
            self.told.batch[life.name] = event.batch
        self.steps += 1
        self._works(t)
        self.told.samples.append(Sample(t, step, life.name))
        return True

    def _named(self, log: Log, event: LogEvent, t: Interval) -> Life:
        """Return the life that an event belongs to; a line that names a new one begins it."""
        name = event.session or log.session
        if name is None:
            return self._lives[-1]
        for life in reversed(self._lives):
            if life.name == name:
                return life
        return self._begin(log, name, t, event.says)

    def _begin(self, log: Log, name: str, t: Interval, says: str) -> Life:
        self._tell_old_gone()
        life = Life(name, t, {log.node})
        self._lives.append(life)
        log.session = name
        self.told.marks.append(Mark(t, MarkKind.BORN, name, node=log.node, says=says))
        return life

    def _born(self, log: Log, event: LogEvent, t: Interval) -> None:
        log.running = True
        log.failed_at = -1
        self._works(t)
        if event.session:
            self._named(log, event, t)
            return
        if event.rank not in (0, None):
            log.session = None  # every round has one rank 0, and its birth stands for all
            return
        if event.by_agent or not log.expects_first_line:
            current = self._lives[-1]
            if event.rank is None and current.name and current.last < 0 and log.node not in current.logs:
                current.logs.add(log.node)  # one more log of the round that has just begun
                log.session = current.name
            else:
                log.lives += 1
                self._begin(log, f"{log.node}#{log.lives}", t, event.says)
        log.expects_first_line = event.by_agent

    def _old_gone(self, log: Log, t: Interval) -> None:
        """Old workers are gone when the last log has said so; told then, or at the next birth at the latest."""
        log.running = False
        self._stopped(t)
        self._gone[log.node] = t
        self._tell_old_gone_if_last()

    def rebooted(self, node: str) -> None:
        """A node came back from a reboot: none of its old workers can be left, though its log will never say so."""
        if log := self._logs.get(node):
            log.running = False
            self._tell_old_gone_if_last()

    def _tell_old_gone_if_last(self) -> None:
        if not any(other.running for other in self._logs.values()):
            self._tell_old_gone()

    def _tell_old_gone(self) -> None:
        if self._gone:
            node, t = max(self._gone.items(), key=lambda item: item[1].hi)
            self.told.marks.append(Mark(t, MarkKind.OLD_GONE, self._at(t), node=node))
            self._gone.clear()

    def _at(self, t: Interval) -> str:
        """Return the life that was the current one at a moment."""
        return next((life.name for life in reversed(self._lives) if life.born.mid <= t.mid), "")

    def _mark(self, log: Log, event: LogEvent, t: Interval) -> None:
        if event.kind is EventKind.DETECT:
            if log.failed_at == self.steps:
                return
            log.failed_at = self.steps
        if event.kind in ENDED:
            self._stopped(t)
            session = event.session or self._at(t)
        else:
            session = self._named(log, event, t).name
        if event.world is not None:
            self.told.world[session] = event.world
        self.told.marks.append(Mark(t, MARKS[event.kind], session, event.step, log.node, event.says))
