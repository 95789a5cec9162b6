"""
The wire between controller and agent: one JSON object a line, UTF-8, at most `MAX_LINE` bytes.

    request   {"id": 7, "do": "prepare", ...}
    answer    {"id": 7, "ok": {...}}   or   {"id": 7, "error": {"kind": "Refusal", "what": "...", "hint": "..."}}
    event     {"event": "lines", ...}                                                       (never asked for by id)

Times are seconds on the node's CLOCK_MONOTONIC ("mono") unless named otherwise; the controller maps them.

| verb     | fields                                             | answer |
|----------|----------------------------------------------------|--------|
| hello    | controller                                         | agent (sha256), version, boot_id, machine_id, hostname, python, uid, mono, wall, notes (list of sentences), frailties (what may keep the agent from staying alive and awake: list of sentences) |
| clock    |                                                    | mono, wall |
| prepare  | run, entry, fault, params, site                    | undo, resources (list), holds (list of [start, end]) |
| exposed  | entry                                              | evidence |
| arm      | entry, lease (s), controller                       | deadline (boottime). Ledger fsynced: planned, armed; fuse running |
| inject   | entry, at (mono or null)                           | *deferred* until the first effect: before, after (mono), ended (bool: one-shot) |
| finish   | entry                                              | *deferred* until the last span is reverted: before, after, evidence (gone) |
| renew    | run, lease (s)                                     | deadline (boottime), expired (list of entries that the lease already ended) |
| witness  | entry                                              | evidence |
| gone     | entry                                              | evidence |
| revert   | entry                                              | before, after, evidence (gone). Idempotent |
| entries  | run                                                | entries: list of ledger entries (see `chaoskit.agent.ledger.Entry.to_json`) |
| audit    |                                                    | debts: list of open ledger entries of any run, each with `held` (null or {run, controller, since, left}); unreadable: list of {entry, says, path}; settled: list of {entry, fault, says}, what was closed by a reboot or after it; notes |
| heal     | entries (list of names, or null for all), debts (list of entries from a journal), live (bool: also what a run holds) | results: list of {entry, healed, says, held} |
| strays   | site                                               | strays: list of {fault, resource, says, ours, do, tag, held} that no entry explains; unread: list of sentences. Changes nothing |
| sweep    | site                                               | results: list of {fault, resource, healed, says, held} of the strays that are ours; unread |
| hold     | run, controller, lease (s), instead_of (a run whose controller is dead, or empty) | held: null, or {run, controller, since, left} when the node is another run's; nothing was changed then |
| release  | run                                                | {}. Gives the node back, if it is this run's |
| purge    | site                                               | removed: list of sentences. Refused while anything is owed; the server ends with its last connection |
| spawn    | key, argv, env, user, cwd, log                     | pid, start_time. A process of its own session and cgroup that outlives the agent; `log` gets its output, appended |
| spawned  | key                                                | alive, pid, start_time |
| stop     | key, grace (s)                                     | stopped (bool). SIGTERM to the session, SIGKILL after grace, waits until none is left |
| examine  | site, parts (list of {user, checks: {name: args}}) | findings: list of {check, state (ok, note, unknown, defect), says, do, readings}. Changes nothing |
| forget   | entry                                              | {}. Removes the closed entry of a canary |
| tail     | stream, path, user, whole (bool)                   | {}. Then events "lines": stream, lines (list of str), since (mono of the last read that found nothing), at (mono of this read); "beat" each second: stream, at; "tail_end": stream, why |
| untail   | stream                                             | {} |

An entry is named `RUN/NUMBER/NODE`; a run is the run directory's name. Standard library only, Python 3.8.
"""  # noqa: E501 - a table

import json
import re
from typing import Any, Dict, Iterator, List, Mapping, Optional, Type

from chaoskit.errors import AgentError, ChaosError, ProtocolError, RefusedError

MAX_LINE = 1 << 20
"""Bytes of the longest line, its newline included."""

DEEPEST = 64
"""Levels of lists and objects inside each other: whoever passes a message on (a journal, a report) recurses into it."""

LONGEST_WORDS = 2000
"""Characters of an error's text that are kept: it is read by a person."""

Message = Dict[str, Any]

# Made once: json.dumps and json.loads make a new one for every call with options, which costs as much as the work itself.
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def encode(message: Mapping[str, Any]) -> bytes:
    """
    Return a message as one line.

    Raises:
        ProtocolError: It does not fit a line, or holds what JSON cannot carry (NaN, bytes).
    """
    try:
        line = _ENCODER.encode(message).encode("utf-8", "replace") + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError("the message cannot be written as JSON: {}".format(error)) from error
    if len(line) > MAX_LINE:
        raise ProtocolError("a message of {} bytes is longer than a line may be ({})".format(len(line), MAX_LINE))
    return line


def decode(line: bytes) -> Message:
    """
    Return the message in a line.

    Raises:
        ProtocolError: The line is not one JSON object in UTF-8 with finite numbers.
    """
    try:
        message = _DECODER.decode(line.decode("utf-8"))
        if line.count(b"[") + line.count(b"{") > DEEPEST:
            _refuse_deep(message)
        if _HALF_PAIR.search(line):
            _ENCODER.encode(message).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise ProtocolError("expected one JSON object a line, got {!r}: {}".format(line[:80], error)) from error
    if not isinstance(message, dict):
        raise ProtocolError("expected a JSON object, got {!r}".format(line[:80]))
    return message


def _refuse_deep(message: Any) -> None:
    """Raise ValueError when lists and objects stand too deep inside each other. Never recurses."""
    level: List[Any] = [message]
    for _ in range(DEEPEST):
        level = [
            inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer) if isinstance(inner, (dict, list))
        ]
        if not level:
            return
    raise ValueError("more than {} levels inside each other".format(DEEPEST))


def _refuse_constant(name: str) -> None:
    raise ValueError("{} is not JSON".format(name))


def _unique(pairs: "list[tuple[str, Any]]") -> Message:
    message = dict(pairs)
    if len(message) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return message


# Half of a surrogate pair is text to JSON, and to nobody who has to write it to a file.
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")

_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_unique)


class LineBuffer:
    """Bytes as they come in, cut into lines. After an oversize line nothing more can be trusted: close the connection."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """
        Yield each line that `data` completes, without its newline.

        Raises:
            ProtocolError: More than `MAX_LINE` bytes came without a newline.
        """
        self._pending += data
        while True:
            end = self._pending.find(b"\n")
            if end + 1 > MAX_LINE or (end < 0 and len(self._pending) >= MAX_LINE):
                raise ProtocolError("a line is longer than {} bytes".format(MAX_LINE))
            if end < 0:
                return
            line = bytes(self._pending[:end])
            del self._pending[: end + 1]
            yield line


def answer(ident: Any, ok: Mapping[str, Any]) -> Message:
    """Return the answer to request `ident`."""
    return {"id": ident, "ok": ok}


def failure(ident: Any, error: BaseException) -> Message:
    """Return the answer that says why request `ident` failed."""
    return {"id": ident, "error": error_to_json(error)}


def error_to_json(error: BaseException) -> Message:
    """Return an exception as it crosses the wire: its class name, what happened and what to do."""
    kind = "Refusal" if isinstance(error, RefusedError) else type(error).__name__
    if isinstance(error, ChaosError):
        what = "{}: {}".format(error.where, error.what) if error.where else error.what
        return {"kind": kind, "what": what, "hint": error.hint}
    return {"kind": kind, "what": str(error) or kind, "hint": ""}


def error_from_json(data: Any, *, node: str = "", fault: str = "") -> AgentError:
    """Return the error that an agent sent; whatever it sent becomes text of an AgentError, never anything else."""
    if not isinstance(data, dict):
        return AgentError("the agent sent an error that is none: {}".format(_short(repr(data))), node=node, fault=fault)
    what, hint, kind = (_short(str(data.get(name, ""))) for name in ("what", "hint", "kind"))
    return AgentError(what, node=node, fault=fault, hint=hint, kind=kind or None)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_WORDS else text[:LONGEST_WORDS] + "..."


def need(message: Mapping[str, Any], name: str, kind: Type[Any], default: Optional[Any] = None) -> Any:
    """
    Return a typed field of a request; `float` also takes whole numbers, and nothing takes a bool for a number.

    Raises:
        ProtocolError: The field is missing (and has no default) or of another type.
    """
    value = message.get(name)
    if value is None:
        if default is None:
            raise ProtocolError("field {!r} is missing".format(name))
        return default
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError as error:
            raise ProtocolError("field {!r}: no number is that large".format(name)) from error
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ProtocolError("field {!r}: expected {}, got {}".format(name, kind.__name__, repr(value)[:80]))
    return value
