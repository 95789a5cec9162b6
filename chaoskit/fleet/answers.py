"""
The border where a node's answers become typed values, once. What does not fit raises ProtocolError; nothing is guessed.

Stamps are mapped to controller time here as well, so that nothing behind this border knows the node's clock.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from chaoskit.agent.contract import Evidence
from chaoskit.agent.protocol import Message, need
from chaoskit.errors import ProtocolError
from chaoskit.fleet.channel import Round
from chaoskit.fleet.clocks import ClockMap, Trip
from chaoskit.model.interval import Interval
from chaoskit.model.wire import (
    UNREADABLE,
    Beat,
    Ended,
    Finding,
    Held,
    LedgerEntry,
    Lines,
    Prepared,
    Spawned,
    Stray,
    Strays,
    TailEnd,
    TailEvent,
)

FARTHEST = 1e11
"""Seconds that no clock of ours or of a node's shows: beyond it arithmetic with stamps loses what they mean."""

ClockOf = Callable[[str], ClockMap | None]
"""The clock map of a boot, by boot id; None when this controller never saw that boot."""


@dataclass(frozen=True, slots=True)
class Hello:
    """
    Who answered: the agent's hash and version, the machine and its boot, and sentences that a person should read.

    `notes` matter to every run, `frailties` (what the node refuses an agent that shall stay alive and awake) to the doctor.
    """

    agent: str
    version: str
    boot_id: str
    machine_id: str
    hostname: str
    python: str
    uid: int
    notes: tuple[str, ...]
    frailties: tuple[str, ...]


def texts(data: Message, name: str) -> tuple[str, ...]:
    """Return a list of texts."""
    values = need(data, name, list)
    if not all(isinstance(value, str) for value in values):
        raise ProtocolError(f"field {name!r}: expected a list of texts")
    return tuple(values)


def objects(data: Message, name: str) -> tuple[Message, ...]:
    """Return a list of objects."""
    values = need(data, name, list)
    if not all(isinstance(value, dict) for value in values):
        raise ProtocolError(f"field {name!r}: expected a list of objects")
    return tuple(values)


def moment(data: Message, name: str) -> float:
    """Return a reading of a clock."""
    value = float(need(data, name, float))
    if not abs(value) <= FARTHEST:
        raise ProtocolError(f"field {name!r}: expected a moment, got {value!r}")
    return value


def hello(data: Message) -> Hello:
    """Read the answer of `hello`."""
    return Hello(
        agent=need(data, "agent", str),
        version=need(data, "version", str),
        boot_id=need(data, "boot_id", str),
        machine_id=need(data, "machine_id", str, ""),
        hostname=need(data, "hostname", str),
        python=need(data, "python", str),
        uid=need(data, "uid", int),
        notes=texts(data, "notes"),
        frailties=texts(data, "frailties"),
    )


def trip(data: Message, round_: Round) -> Trip:
    """Read the answer of `clock` or `hello` as a round trip."""
    return Trip(round_.sent, round_.received, moment(data, "mono"), moment(data, "wall"))


def evidence(data: Message) -> Evidence:
    """Read an answer that holds evidence."""
    found = need(data, "evidence", dict)
    return Evidence(need(found, "holds", bool), need(found, "says", str), need(found, "readings", dict, {}))


def prepared(data: Message) -> tuple[Prepared, float]:
    """Read the answer of `prepare`; the number is the seconds from T0 to the end of the last span."""
    return Prepared(need(data, "undo", dict), texts(data, "resources")), max(map(_span_end, need(data, "holds", list)), default=0.0)


def _span_end(span: Any) -> float:
    if not isinstance(span, list) or len(span) != 2 or not all(_is_number(each) for each in span):
        raise ProtocolError(f"field 'holds': expected pairs of numbers, got {repr(span)[:80]}")
    return float(span[1])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= FARTHEST


def bracket(clock: ClockMap, before: float, after: float, received: float) -> Interval:
    """
    Return the controller's time of what a node did between two stamps.

    Args:
        clock: The node's clock.
        before: The stamp before, on the node's clock.
        after: The stamp after, on the node's clock.
        received: When the answer came; what it tells of had happened by then.
    """
    if before > after:
        raise ProtocolError(f"the stamp before ({before}) is later than the one after ({after})")
    lo, hi = clock.to_controller(before).lo, clock.to_controller(after).hi
    if lo > received:
        raise ProtocolError(f"a stamp lies {lo - received:.3f} s in the future")
    return Interval(lo, min(hi, received))


def stamped(clock: ClockMap, data: Message, round_: Round) -> Interval:
    """Read the `before` and `after` of an answer."""
    return bracket(clock, moment(data, "before"), moment(data, "after"), round_.received)


def injected(clock: ClockMap, data: Message, round_: Round) -> Interval:
    """Read the answer of `inject`, whose effect cannot be older than the request."""
    found = stamped(clock, data, round_)
    if found.hi < round_.sent:
        raise ProtocolError(f"the effect is stamped {round_.sent - found.hi:.3f} s before it was asked for")
    return found


def ended(clock: ClockMap, data: Message, round_: Round) -> Ended:
    """Read the answer of `finish` or `revert`."""
    return Ended(stamped(clock, data, round_), evidence(data))


def ledger_entries(clock_of: ClockOf, entries: Sequence[Message], round_: Round) -> tuple[LedgerEntry, ...]:
    """Read entries of a ledger; stamps of a boot that this controller never saw stay unknown."""
    return tuple(_ledger_entry(clock_of, entry, round_.received) for entry in entries)


def _ledger_entry(clock_of: ClockOf, data: Message, received: float) -> LedgerEntry:
    clock = clock_of(need(data, "boot_id", str, ""))
    t0, t1 = (_stamp(clock, data.get(name), received) for name in ("t0", "t1"))
    return LedgerEntry(need(data, "entry", str), need(data, "state", str), t0, t1, data)


def _stamp(clock: ClockMap | None, pair: Any, received: float) -> Interval | None:
    if pair is None or clock is None:
        return None
    if not isinstance(pair, list) or len(pair) != 2 or not all(_is_number(each) for each in pair):
        raise ProtocolError(f"expected a pair of stamps, got {repr(pair)[:80]}")
    return bracket(clock, float(pair[0]), float(pair[1]), received)


def debts(clock_of: ClockOf, data: Message, round_: Round) -> tuple[LedgerEntry, ...]:
    """Read the answer of `audit`: what is owed and by whom it is held, then what nobody there can read."""
    owed = objects(data, "debts")
    entries = ledger_entries(clock_of, owed, round_)
    return (
        *(replace(entry, held=held(one)) for entry, one in zip(entries, owed, strict=True)),
        *(
            LedgerEntry(need(one, "entry", str), UNREADABLE, None, None, one, says=need(one, "says", str))
            for one in objects(data, "unreadable")
        ),
    )


def settled(data: Message) -> tuple[str, ...]:
    """Read from the answer of `audit` what reboots settled, as sentences."""
    return tuple(f"{need(one, 'entry', str)}: {need(one, 'fault', str)}: {need(one, 'says', str)}" for one in objects(data, "settled"))


def held(data: Message) -> Held | None:
    """Read who holds something; None when nobody does."""
    one = need(data, "held", dict, {})
    if not one:
        return None
    return Held(need(one, "run", str), need(one, "controller", str), moment(one, "since"), moment(one, "left"))


def strays(data: Message) -> Strays:
    """Read the answer of `strays`."""
    found = [
        Stray(
            *(need(one, "fault", str), need(one, "resource", str), need(one, "says", str)),
            *(need(one, "ours", bool), need(one, "do", str, ""), held(one)),
        )
        for one in objects(data, "strays")
    ]
    return Strays(tuple(found), texts(data, "unread"))


def swept(data: Message) -> tuple[tuple[Mapping[str, Any], ...], tuple[str, ...]]:
    """Read the answer of `sweep`: what became of each stray of ours, and the looks that failed."""
    results = objects(data, "results")
    for result in results:
        for name, kind in (("fault", str), ("resource", str), ("healed", bool), ("says", str)):
            need(result, name, kind)
        need(result, "held", bool, False)
    return results, texts(data, "unread")


def healed(data: Message) -> tuple[Mapping[str, Any], ...]:
    """Read the answer of `heal`."""
    results = objects(data, "results")
    for result in results:
        need(result, "entry", str)
        need(result, "healed", bool)
        need(result, "says", str)
        need(result, "held", bool)
    return results


def findings(data: Message) -> tuple[Finding, ...]:
    """Read the answer of `examine`."""
    return tuple(
        Finding(need(one, "check", str), _state(one), need(one, "says", str), need(one, "do", str, ""), need(one, "readings", dict, {}))
        for one in objects(data, "findings")
    )


def _state(data: Message) -> str:
    state = need(data, "state", str)
    if state not in ("ok", "note", "unknown", "defect"):
        raise ProtocolError(f"field 'state': expected a state of a finding, got {state[:80]!r}")
    return str(state)


def wall_offset(data: Message, round_: Round) -> Interval:
    """
    Read the answer of `clock` as the seconds that the node's wall clock is ahead of ours.

    It was read between asking and answer, so the offset is known to within the round trip.
    """
    ours = time.time() - time.monotonic()
    wall = moment(data, "wall")
    return Interval(wall - ours - round_.received, wall - ours - round_.sent)


def started(data: Message) -> Spawned:
    """Read the answer of `spawn`."""
    return Spawned(alive=True, pid=need(data, "pid", int), start_time=need(data, "start_time", int))


def spawned(data: Message) -> Spawned:
    """Read the answer of `spawned`."""
    return Spawned(alive=need(data, "alive", bool), pid=need(data, "pid", int), start_time=need(data, "start_time", int))


def tail_event(node: str, clock: ClockMap, data: Message, received: float) -> TailEvent:
    """Read an event of a tailer. Times err to the safe side: a line is no later than `at`, a beat no earlier."""
    stream, kind = need(data, "stream", str), need(data, "event", str)
    if kind == "lines":
        since = clock.to_controller(moment(data, "since")).lo
        at = min(clock.to_controller(moment(data, "at")).hi, received)
        return Lines(node, stream, texts(data, "lines"), min(since, at), at)
    if kind == "beat":
        return Beat(node, stream, min(clock.to_controller(moment(data, "at")).lo, received))
    if kind == "tail_end":
        return TailEnd(node, stream, received, need(data, "why", str))
    raise ProtocolError(f"unknown event {kind[:80]!r}")
