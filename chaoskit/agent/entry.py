"""One injection as the ledger knows it, and how the lines of its file tell of it. Standard library only, Python 3.8."""

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

from chaoskit.agent import lines
from chaoskit.agent.contract import NODE, Lifetime
from chaoskit.agent.paths import NAME_LIMIT, PART
from chaoskit.errors import ProtocolError

SCHEMA = 1

FARTHEST = 1e12
"""Seconds that no clock has counted: what a damaged line says beyond it (or not a number) is not believed."""

STATES = ("planned", "armed", "injecting", "injected", "reverted")
MARKS = ("reverting", "released", "failed")

Stamp = Optional[Tuple[float, float]]
Record = Mapping[str, Any]


def is_entry_name(text: Any) -> bool:
    """Say whether `text` is a well-formed RUN/NUMBER/NODE."""
    parts = text.split("/") if isinstance(text, str) else []
    return len(parts) == 3 and all(PART.match(part) for part in parts) and len(text) <= NAME_LIMIT


def entry_name(text: Any) -> str:
    """Return `text` when it is a well-formed RUN/NUMBER/NODE. Raises ProtocolError."""
    if not is_entry_name(text):
        raise ProtocolError("{!r} is not the name of an entry: expected RUN/NUMBER/NODE".format(text))
    return str(text)


def file_name(entry: str) -> str:
    """Return the ledger file's name; a comma never stands in a part, so it is one to one."""
    return entry_name(entry).replace("/", ",") + ".jsonl"


@dataclass(frozen=True)
class Entry:
    """
    One injection as the ledger knows it.

    `t0` and `t1` are (before, after) on CLOCK_MONOTONIC of boot `boot_id`; `lease`, `ends` and `reverting` are
    CLOCK_BOOTTIME: the deadline written at arming, the end of the last span, and when somebody last began to revert.
    `order` counts the entries of this node, so that newest first means what it says whatever the wall clock did;
    `planned_at` is wall time, for people. `server` is the pid and start time of the server that armed it; `failures`
    counts reverts after which the state was not back. `settled` is the boot in which it was closed, and `by` says by whom.
    """

    entry: str
    run: str
    fault: str
    params: Dict[str, Any]
    undo: Dict[str, Any]
    site: Dict[str, Any]
    boot_id: str = ""
    resources: List[str] = field(default_factory=list)
    holds: List[List[float]] = field(default_factory=list)
    lifetime: str = Lifetime.VOLATILE.value
    agent: str = ""
    controller: str = ""
    server: Dict[str, int] = field(default_factory=dict)
    order: int = 0
    planned_at: float = 0.0
    state: str = "planned"
    lease: float = 0.0
    ends: Optional[float] = None
    reverting: Optional[float] = None
    failures: int = 0
    t0: Stamp = None
    t1: Stamp = None
    evidence: Optional[Dict[str, Any]] = None
    says: str = ""
    settled: str = ""
    by: str = ""
    damage: List[str] = field(default_factory=list)

    @property
    def one_shot(self) -> bool:
        """True for a fault without spans, such as a kill: once injected there is nothing to undo."""
        return not self.holds

    @property
    def open(self) -> bool:
        """True while somebody owes a revert."""
        if self.one_shot and self.state in ("injecting", "injected"):
            return False
        return self.state in ("armed", "injecting", "injected")

    def to_json(self) -> Dict[str, Any]:
        """Return the entry as JSON."""
        data = asdict(self)
        data["open"] = self.open
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Entry":
        """
        Rebuild an entry from `to_json`'s output or from a journal, which knows entry, fault, params, undo and boot id.

        Raises:
            ProtocolError: A field is missing or of the wrong type.
        """
        name = entry_name(data.get("entry"))
        run, _, node = name.split("/")
        values = {one.name: data[one.name] for one in fields(cls) if data.get(one.name) is not None}
        values = {"run": run, "params": {}, "site": {"node": node}, **values, "entry": name}
        try:
            return replace(cls(**values), t0=_stamp(values.get("t0")), t1=_stamp(values.get("t1"))).checked()
        except (TypeError, ValueError) as error:
            raise ProtocolError("entry {!r} cannot be read: {}".format(name, error)) from error

    def checked(self) -> "Entry":
        """Return it when its fields have the types that the rest relies on. Raises TypeError, ValueError."""
        for mapping in (self.params, self.undo, self.site):
            if not isinstance(mapping, dict):
                raise TypeError("params, undo and site are objects")
        if not isinstance(self.holds, list) or not isinstance(self.resources, list) or not isinstance(self.server, dict):
            raise TypeError("holds and resources are lists, server is an object")
        for text in (self.fault, self.run, self.boot_id, self.state):
            if not isinstance(text, str):
                raise TypeError("fault, run, boot_id and state are texts")
        for number in (self.order, self.planned_at, self.lease, self.failures, *(moment for span in self.holds for moment in span)):
            _number(number)
        if self.state not in STATES:
            raise ValueError("unknown state {!r}".format(self.state))
        return self


def in_common(one: Iterable[str], other: Iterable[str]) -> List[str]:
    """Return the resources that two entries share; `NODE` is shared with whatever the other has."""
    mine, others = set(one), set(other)
    return [NODE] if NODE in mine | others else sorted(mine & others)


def oldest_first(entries: Iterable[Entry]) -> List[Entry]:
    """Return entries in the order in which they were planned on this node."""
    return sorted(entries, key=lambda entry: (entry.order, entry.planned_at))


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < FARTHEST:
        raise ValueError("it holds no number where one is expected")
    return float(value)


def _stamp(value: Any) -> Stamp:
    return None if value is None else (_number(value[0]), _number(value[1]))


def fold(raw: Iterable[bytes]) -> Optional[Entry]:
    """
    Return the entry that these ledger lines tell of, or None when none of them says what was planned.

    Lines that cannot be read are listed in `damage`, with their number, and otherwise skipped.
    """
    entry: Optional[Entry] = None
    damage: List[str] = []
    for number, record in lines.records(raw):
        try:
            if isinstance(record, Exception):
                raise record
            entry = _step(entry, record)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError, ProtocolError) as error:
            damage.append("line {}: {}".format(number, str(error)[:120]))
    return replace(entry, damage=damage) if entry is not None else None


def _step(entry: Optional[Entry], record: Record) -> Entry:
    if record["v"] != SCHEMA:
        raise ValueError("schema {} is not {}".format(record["v"], SCHEMA))
    state = record["state"]
    if state == "planned":
        return replace(Entry.from_json(record), state="planned") if entry is None else entry
    if entry is None:
        raise ValueError("{!r} before anything was planned".format(state))
    return _MOVES[state](entry, record)


def _armed(entry: Entry, record: Record) -> Entry:
    return replace(entry, state="armed", lease=_number(record["lease"]))


def _injecting(entry: Entry, record: Record) -> Entry:
    ends = record.get("ends")
    return replace(entry, state="injecting", ends=None if ends is None else _number(ends), t0=entry.t0 or _stamp(record.get("t0")))


def _injected(entry: Entry, record: Record) -> Entry:
    # The first span's start is t0; a fault that takes the agent away has left a stamp from before the call, now bettered.
    first = int(record.get("span", 0)) == 0
    ends = entry.ends if record.get("ends") is None else _number(record["ends"])
    return replace(entry, state="injected", t0=_stamp(record["t0"]) if first else entry.t0, ends=ends, reverting=None)


def _reverting(entry: Entry, record: Record) -> Entry:
    return replace(entry, reverting=_number(record["boottime"]))


def _released(entry: Entry, record: Record) -> Entry:
    return replace(entry, reverting=None, t1=_stamp(record["t1"]))


def _failed(entry: Entry, record: Record) -> Entry:
    failures = entry.failures + 1
    return replace(entry, reverting=None, failures=failures, **_outcome(record))


def _reverted(entry: Entry, record: Record) -> Entry:
    return replace(entry, state="reverted", settled=str(record.get("boot_id", "")), by=str(record.get("by", "")), **_outcome(record))


def _outcome(record: Record) -> Dict[str, Any]:
    evidence = record.get("evidence")
    if evidence is not None and not isinstance(evidence, dict):
        raise ValueError("evidence is no object")
    return {"t1": _stamp(record.get("t1")), "evidence": evidence, "says": str(record.get("says", ""))}


_MOVES = {
    "armed": _armed,
    "injecting": _injecting,
    "injected": _injected,
    "reverting": _reverting,
    "released": _released,
    "failed": _failed,
    "reverted": _reverted,
}
