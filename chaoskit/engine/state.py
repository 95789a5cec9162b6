"""
What a run's journal says so far: records in, timeline out.

The live engine and `chaoskit report` of a crashed run use this same reader, so that neither can know more than the
journal does.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from chaoskit.agent.contract import Evidence
from chaoskit.engine.journal import Record
from chaoskit.engine.residue import Remnant, of_record
from chaoskit.judge.timeline import Fact, InjectionFacts, Interval, Mark, MarkKind, Sample, Timeline
from chaoskit.model.experiment import Expect

UNKNOWN = Fact(None)
AFTER_THE_WATCH = frozenset(("verdict", "lost", "residue", "teardown", "healed", "forgotten"))
"""Records of what comes when nobody watches the training any more: their time is no silence of it."""


@dataclass
class Entry:
    """One injection on one node, as far as the journal knows it."""

    name: str
    number: int
    node: str
    fault: str
    params: Mapping[str, Any]
    undo: Mapping[str, Any]
    whereabouts: Mapping[str, Any] = field(default_factory=dict)
    """`boot_id` and `site` of the node at the time: which machine, and which boot of it, the debt is of."""
    armed: bool = False
    refused: bool = False
    """Its node said no when it was to be armed: nothing is owed there, and nobody was asked to begin."""
    t0: Interval | None = None
    t1: Interval | None = None
    ended: bool = False
    healed: bool = False
    """Paid later: nothing is owed any more, though the run itself never saw it gone."""
    itself: str = ""
    """By the node itself, as it must when its controller dies, and what it said; empty when that took a `heal`."""
    forgotten: Mapping[str, str] = field(default_factory=dict)
    """`who`, `when` and `because` when somebody gave it up: it is owed all the same, by a node that never returns."""
    present: Fact = UNKNOWN
    exposed: Fact = UNKNOWN
    gone: Fact = UNKNOWN

    @property
    def owes(self) -> bool:
        """Whether an undo is owed, or may be: armed, and not proven gone."""
        return self.armed and not self.refused and not self.healed and self.gone.holds is not True

    def debt(self, run: str) -> dict[str, Any]:
        """Return what `heal` needs to pay this debt when the node's own ledger is gone."""
        named = {"entry": self.name, "run": run, "fault": self.fault, "params": dict(self.params), "undo": dict(self.undo)}
        return {**named, **self.whereabouts}


@dataclass
class RunState:
    """Everything that the records said."""

    head: Record = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    highest: int = -1
    """The highest step so far, kept beside the samples: it is asked for twenty times a second, of a day's steps if need be."""
    advanced: float = 0.0
    """When it was done, at the latest."""
    marks: list[Mark] = field(default_factory=list)
    blind: dict[float, float] = field(default_factory=dict)
    batch: dict[str, int] = field(default_factory=dict)
    gpus: dict[str, int] = field(default_factory=dict)
    baseline: tuple[float, float] | None = None
    aborted: str = ""
    trouble: str = ""
    denied: str = ""
    watched_until: float = 0.0
    teardown: list[str] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    """Nodes that could not be reached when the run ended."""
    residue: tuple[Remnant, ...] = ()
    """What the faults left behind though nothing is owed."""
    judged: bool = False

    def apply(self, record: Record) -> None:
        """Take one record in; a kind that this version does not know changes nothing."""
        if record["kind"] not in AFTER_THE_WATCH:
            self.watched_until = max(self.watched_until, float(record["at"]))
        take = _TAKE.get(record["kind"])
        if take is not None:
            take(self, record)

    def timeline(self) -> Timeline:
        """Return what the judge is given."""
        return Timeline(
            samples=tuple(self.samples),
            marks=tuple(self.marks),
            baseline=self.baseline,
            injections=tuple(self._facts(planned) for planned in self.head.get("planned", ())),
            blind=tuple(sorted(self.blind.items())),
            watched_until=self.watched_until,
            batch=self.batch,
            gpus=self.gpus,
            aborted=self.aborted,
            trouble=self.trouble,
            denied=self.denied,
        )

    def _facts(self, planned: Mapping[str, Any]) -> InjectionFacts:
        entries = [entry for entry in self.entries.values() if entry.number == planned["number"]]
        begun = [entry.t0 for entry in entries if entry.t0 is not None]
        harmed = [entry for entry in entries if entry.armed and not entry.refused]
        return InjectionFacts(
            fault=planned["fault"],
            detail=planned["detail"],
            targets=tuple(planned["targets"]),
            one_shot=planned["one_shot"],
            expect=Expect(**planned["expect"]) if planned.get("expect") else None,
            t0=min(begun, key=lambda t0: t0.lo, default=None),
            t1=_last_end(harmed),
            spread=max(t0.mid for t0 in begun) - min(t0.mid for t0 in begun) if begun else None,
            present=_every(entry.present for entry in harmed),
            exposed=_some(entry.exposed for entry in entries),
            gone=_every(Fact(True, entry.itself) if entry.itself and not planned["one_shot"] else entry.gone for entry in harmed),
            armed=bool(harmed),
            refused=any(entry.refused for entry in entries),
        )


def _last_end(entries: list[Entry]) -> Interval | None:
    ends = [entry.t1 for entry in entries]
    known = [t1 for t1 in ends if t1 is not None]
    return max(known, key=lambda t1: t1.hi) if known and len(known) == len(ends) else None


def _every(facts: Iterable[Fact]) -> Fact:
    """One target that says no makes it no, one unknown makes it unknown."""
    known = list(facts)
    for answer in (False, None):
        for fact in known:
            if fact.holds is answer:
                return fact
    return Fact(True, known[0].says) if known else Fact(None, "never injected")


def _some(facts: Iterable[Fact]) -> Fact:
    """One target that says yes is enough: the training used the resource."""
    known = list(facts)
    for answer in (True, None):
        for fact in known:
            if fact.holds is answer:
                return fact
    return known[0] if known else Fact(None, "never injected")


def fact_of(evidence: Mapping[str, Any] | None, unknown: str = "") -> Fact:
    """Return a witness's evidence (as JSON) as a fact; None when nobody could say."""
    if evidence is None:
        return Fact(None, unknown)
    seen = Evidence.from_json(evidence)
    return Fact(seen.holds, seen.says)


def interval_of(pair: Any) -> Interval | None:
    """Return [lo, hi] as an interval."""
    return None if pair is None else Interval(float(pair[0]), float(pair[1]))


def _planned(state: RunState, record: Record) -> None:
    state.entries[record["entry"]] = Entry(
        record["entry"],
        record["number"],
        record["node"],
        record["fault"],
        record["params"],
        record["undo"],
        {name: record[name] for name in ("boot_id", "site") if name in record},
    )


def _entry_field(name: str, value: Callable[[Record], Any]) -> Callable[[RunState, Record], None]:
    def take(state: RunState, record: Record) -> None:
        setattr(state.entries[record["entry"]], name, value(record))

    return take


def _ended(state: RunState, record: Record) -> None:
    entry = state.entries[record["entry"]]
    entry.ended = True
    entry.t1 = interval_of(record.get("t1")) or entry.t1
    entry.gone = fact_of(record.get("evidence"), record.get("what", ""))


def _healed(state: RunState, record: Record) -> None:
    entry = state.entries[record["entry"]]
    entry.healed = True
    entry.itself = str(record.get("says", "")) if record.get("itself") is True else entry.itself


def _observed(state: RunState, record: Record) -> None:
    for lo, hi, step, session in record.get("samples", ()):
        state.samples.append(Sample(Interval(lo, hi), step, session))
        if step > state.highest:
            state.highest, state.advanced = step, hi
    state.marks += [
        Mark(Interval(*mark["t"]), MarkKind(mark["kind"]), mark["session"], mark["step"], mark["node"], mark["says"])
        for mark in record.get("marks", ())
    ]
    state.blind.update((start, end) for start, end in record.get("blind", ()))
    state.batch.update(record.get("batch") or {})
    state.gpus.update(record.get("gpus") or {})


def _text(name: str) -> Callable[[RunState, Record], None]:
    def take(state: RunState, record: Record) -> None:
        setattr(state, name, getattr(state, name) or record["why"])

    return take


_TAKE: dict[str, Callable[[RunState, Record], None]] = {
    "run": lambda state, record: setattr(state, "head", record),
    "method": lambda state, record: setattr(state, "head", {**state.head, "spec": record["spec"], "planned": record["planned"]}),
    "baseline": lambda state, record: setattr(state, "baseline", (record["start"], record["end"])),
    "observed": _observed,
    "planned": _planned,
    "exposed": _entry_field("exposed", lambda record: fact_of(record["evidence"], record.get("what", ""))),
    "armed": _entry_field("armed", lambda _: True),
    "refused": _entry_field("refused", lambda _: True),
    "injected": _entry_field("t0", lambda record: interval_of(record["t0"])),
    "witness": _entry_field("present", lambda record: fact_of(record["evidence"], record.get("what", ""))),
    "ended": _ended,
    "healed": _healed,
    "forgotten": _entry_field("forgotten", lambda record: {name: str(record[name]) for name in ("who", "when", "because")}),
    "aborted": _text("aborted"),
    "trouble": _text("trouble"),
    "denied": _text("denied"),
    "teardown": lambda state, record: state.teardown.append(record["why"]),
    "lost": lambda state, record: state.lost.update(record["nodes"]),
    "residue": lambda state, record: setattr(state, "residue", of_record(record)),
    "verdict": lambda state, _: setattr(state, "judged", True),
}
