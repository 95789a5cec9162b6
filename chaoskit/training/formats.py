r"""
From log lines to events: the `format:` of a training.

    format: auto                                # any trainer that `chaoskit.training.known` knows
    format: megatron                            # one of them
    format: {regex: {step: 'iter (\d+) took', loaded: 'resumed at (?P<step>\d+)'}}
    format: {jsonl: {step: train.step, time: ts}}

`regex` maps event names to regular expressions, searched for in each line: `step`, `detect`, `old_gone`, `born`,
`group_up`, `loaded`, `exit`. Named groups carry values: `step` (of `step` and `loaded`; a single unnamed group will do),
and, all optional, `time` (the line's own stamp), `batch`, `session` (names the life that wrote the line), `rank` (of a
birth), `world`. What launchers print is read as well, except for the events that the expressions name themselves.

`jsonl` maps our fields to keys of each JSON line, nested keys by dots: `step`, `time`, `incarnation`, `batch`, `event` (its
value is one of the event names; without it every line with a step is a step).
"""

import difflib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from chaoskit.errors import InputError
from chaoskit.model.inventory import Format
from chaoskit.training.events import EventKind, LineReader, LogEvent, LogFormat
from chaoskit.training.known import KNOWN, Patterns
from chaoskit.training.launchers import LauncherReader, shorten

GROUPS = ("step", "time", "batch", "session", "rank", "world")
FIELDS = ("step", "time", "incarnation", "batch", "event")
REGEX_CAP = 4096
"""Characters of a line that a user's expression is tried on, so that a clumsy one stays affordable."""


def compile_format(spec: str | Format, where: str) -> LogFormat:
    """
    Return the reader factory for what an inventory says.

    Args:
        spec: A known name, `regex:` or `jsonl:`.
        where: The path of the value in the inventory, for error texts.

    Raises:
        InputError: With every problem found, one a line.
    """
    if isinstance(spec, str):
        return _named(spec, where)
    if bool(spec.regex) == bool(spec.jsonl):
        raise InputError("expected exactly one of regex and jsonl", where=where)
    return _regex(spec.regex, f"{where}.regex") if spec.regex else _jsonl(spec.jsonl, f"{where}.jsonl")


def _named(name: str, where: str) -> LogFormat:
    if name == "auto":
        return PatternFormat(tuple(KNOWN.values()))
    if name not in KNOWN:
        raise InputError(f"unknown format {name!r}{_meant(name, ('auto', *KNOWN))}", where=where)
    return PatternFormat((KNOWN[name],))


def _meant(name: str, known: Iterable[str]) -> str:
    known = [str(one) for one in known]
    near = difflib.get_close_matches(name, known, 1)
    return f", did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"


def _regex(given: Mapping[str, str], where: str) -> LogFormat:
    problems, patterns = [], []
    for name, text in given.items():
        try:
            patterns.append((EventKind(_checked(name, list(EventKind))), _compiled(name, text)))
        except ValueError as error:
            problems.append(f"{name}: {error}")
    if "step" not in given:
        problems.append("expected an expression for step, since steps are what a run is judged by")
    if problems:
        raise InputError("\n".join(problems), where=where)
    return PatternFormat((tuple(patterns),), REGEX_CAP)


def _checked(name: str, known: Iterable[str]) -> str:
    known = list(known)
    if name not in known:
        raise ValueError(f"unknown name{_meant(name, known)}")
    return name


def _compiled(name: str, text: str) -> re.Pattern[str]:
    try:
        pattern = re.compile(text)
    except re.error as error:
        place = "" if error.pos is None else f" at character {error.pos + 1}"
        raise ValueError(f"not a regular expression: {error.msg}{place}") from error
    if name == "step" and not pattern.groupindex and pattern.groups == 1:
        return pattern
    for group in pattern.groupindex:
        _checked(group, GROUPS)
    if name == "step" and "step" not in pattern.groupindex:
        raise ValueError("expected a group named step, such as (?P<step>\\d+)")
    return pattern


def _jsonl(given: Mapping[str, str], where: str) -> LogFormat:
    problems = []
    for field in given:
        try:
            _checked(field, FIELDS)
        except ValueError as error:
            problems.append(f"{field}: {error}")
    if "step" not in given:
        problems.append("expected the key of the step: step: KEY")
    if problems:
        raise InputError("\n".join(problems), where=where)
    return JsonFormat({field: tuple(key.split(".")) for field, key in given.items()})


def parse_time(value: Any) -> float | None:
    """
    Return a line's own stamp in seconds; None when it is none.

    Numbers count seconds, or milli-, micro- or nanoseconds when they would otherwise lie beyond the year 5000. Texts are
    ISO dates, with a comma allowed before the fraction; without a zone they are read as UTC, as only differences count.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        return _parse_date(value) if isinstance(value, str) else None
    if not math.isfinite(number):
        return None
    for _ in range(3):
        if abs(number) < 1e11:
            break
        number /= 1000
    return number


def _parse_date(text: str) -> float | None:
    try:
        moment = datetime.fromisoformat(text.strip().replace(",", "."))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _count(value: Any) -> int | None:
    """Return a count; None when the value is none (thousands may be separated by commas)."""
    try:
        number = int(str(value).replace(",", ""))
    except ValueError:
        return None
    return number if number >= 0 else None


@dataclass(frozen=True)
class PatternFormat:
    """Regular expressions for one or several trainers; the first trainer whose step is seen in a log keeps it."""

    trainers: tuple[Patterns, ...]
    cap: int | None = None

    def reader(self) -> LineReader:
        """Return a reader for one more log."""
        return PatternReader(self.trainers, self.cap)


class PatternReader:
    """Reads the lines of one log by regular expressions, and by what launchers say."""

    def __init__(self, trainers: tuple[Patterns, ...], cap: int | None) -> None:
        self._trainers = trainers
        self._cap = cap
        self._launcher = LauncherReader()
        self._own = {kind for kind, _ in trainers[0]} if cap else set()

    def feed(self, line: str) -> Iterator[LogEvent]:
        """Return what a cleaned line tells."""
        text = line[: self._cap] if self._cap else line
        for trainer in self._trainers:
            for kind, pattern in trainer:
                if (match := pattern.search(text)) and (event := _event(kind, match, line)):
                    if kind is EventKind.STEP:
                        self._trainers = (trainer,)
                    yield event
                    return
        yield from (event for event in self._launcher.feed(line) if event.kind not in self._own)


def _event(kind: EventKind, match: re.Match[str], line: str) -> LogEvent | None:
    values = match.groupdict()
    if not match.re.groupindex and match.re.groups == 1:
        values["step"] = match[1]
    step = _count(values.get("step"))
    if kind is EventKind.STEP and step is None:
        return None
    if kind is EventKind.LOADED and step is None and "step" in match.re.groupindex:
        step = 0  # the line that says that there was no checkpoint
    return LogEvent(
        kind,
        "" if kind is EventKind.STEP else shorten(line),
        step=step,
        time=parse_time(values.get("time")),
        batch=_count(values.get("batch")),
        session=values.get("session") or "",
        rank=_count(values.get("rank")),
        world=_count(values.get("world")),
    )


@dataclass(frozen=True)
class JsonFormat:
    """JSON lines; our field -> path of keys."""

    keys: Mapping[str, tuple[str, ...]]

    def reader(self) -> LineReader:
        """Return a reader for one more log."""
        return JsonReader(self.keys)


class JsonReader:
    """Reads JSON lines; what is not a JSON object is read as a launcher's line."""

    def __init__(self, keys: Mapping[str, tuple[str, ...]]) -> None:
        self._keys = keys
        self._launcher = LauncherReader()

    def feed(self, line: str) -> Iterator[LogEvent]:
        """Return what a line tells."""
        if not line.startswith("{"):
            yield from self._launcher.feed(line)
            return
        try:
            record = json.loads(line)
        except ValueError:
            return  # a torn or foreign line says nothing
        if event := self._event(record, line):
            yield event

    def _value(self, record: Any, field: str) -> Any:
        for key in self._keys.get(field, ("",)):
            if not isinstance(record, dict):
                return None
            record = record.get(key)
        return record

    def _event(self, record: Any, line: str) -> LogEvent | None:
        name = self._value(record, "event") if "event" in self._keys else "step"
        if name not in list(EventKind):
            return None
        kind, step, session = EventKind(name), _count(self._value(record, "step")), self._value(record, "incarnation")
        if kind is EventKind.STEP and step is None:
            return None
        event = LogEvent(kind, step=step, time=parse_time(self._value(record, "time")), batch=_count(self._value(record, "batch")))
        says = "" if kind is EventKind.STEP else shorten(line)
        return replace(event, says=says, session="" if session is None else str(session))


__all__ = ["JsonFormat", "LogFormat", "PatternFormat", "compile_format", "parse_time"]
