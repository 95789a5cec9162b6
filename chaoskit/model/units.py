"""
Quantities with units, as annotated types: what the file writes, and what our types hold.

`20s`, `1.5m`, `2h`, `250ms` are durations (seconds); `10%` is a share (0.10); `4MiB` and `500kB` are sizes (bytes). A
bare number where a unit belongs is an error that says which units there are, since `down: 20` meant minutes to somebody
once. The annotations are read by `chaoskit.model.typed`, and by pydantic when it writes the JSON Schema; they import
neither.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

DURATION = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*(ms|s|m|h|d)")
SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
PERCENT = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*%")
SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*(B|kB|MB|GB|TB|KiB|MiB|GiB|TiB)")
BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
LONGEST = 365 * SECONDS["d"]


def parse_duration(value: Any) -> float:
    """Return seconds. Raises ValueError with what was expected."""
    if isinstance(value, str) and (match := DURATION.fullmatch(value.strip())):
        seconds = float(match[1]) * SECONDS[match[2]]
        if seconds > LONGEST:
            raise ValueError(f"expected a duration of at most 365d; found {value!r}")
        return seconds
    if value == 0 and not isinstance(value, bool):
        return 0.0
    hint = f"; did you mean {value}s?" if _positive(value) else ""
    raise ValueError(f"expected a duration with its unit, such as 250ms, 20s, 2m or 1h; found {value!r}{hint}")


def parse_share(value: Any) -> float:
    """Return a fraction of one. Raises ValueError with what was expected."""
    if isinstance(value, str) and (match := PERCENT.fullmatch(value.strip())):
        return float(match[1]) / 100
    hint = f"; did you mean {value:.0%}?" if isinstance(value, float) and 0 < value <= 1 else ""
    raise ValueError(f"expected a percentage, such as 10%; found {value!r}{hint}")


def parse_size(value: Any) -> float:
    """Return bytes. Raises ValueError with what was expected."""
    if isinstance(value, str) and (match := SIZE.fullmatch(value.strip())):
        return float(match[1]) * BYTES[match[2]]
    raise ValueError(f"expected a size with its unit, such as 500kB, 4MiB or 1GiB; found {value!r}")


def parse_pick(value: Any) -> float | int | Literal["all"]:
    """Return a count (int), a fraction of one (float) or `all`. Raises ValueError with what was expected."""
    if value == "all":
        return "all"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and (match := PERCENT.fullmatch(value.strip())):
        return float(match[1]) / 100
    raise ValueError(f"expected a number of nodes, a percentage such as 25%, or all; found {value!r}")


def show_duration(seconds: float) -> str:
    """Return seconds as an experiment file writes them, in the largest unit that divides them, such as `90s` or `2m`."""
    milliseconds = round(seconds * 1000)
    if milliseconds == 0:
        return "0s"
    unit = next(unit for unit in ("d", "h", "m", "s", "ms") if milliseconds % round(SECONDS[unit] * 1000) == 0)
    return f"{milliseconds // round(SECONDS[unit] * 1000)}{unit}"


def show_share(share: float) -> str:
    """Return a share as an experiment file writes it, such as `40%` or `12.5%`."""
    return f"{share * 100:.10g}%"


def show_size(size: float) -> str:
    """Return bytes as an experiment file writes them, in the largest unit that divides them, such as `4MiB` or `500kB`."""
    units = sorted(BYTES, key=lambda unit: -BYTES[unit])
    unit = next((unit for unit in units if size >= BYTES[unit] and size % BYTES[unit] == 0), "B")
    return f"{size / BYTES[unit]:.10g}{unit}"


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


@dataclass(frozen=True, eq=False)
class Unit:
    """How the file writes a quantity: `read` takes its text and raises ValueError, `json_schema` says what it may be."""

    read: Callable[[Any], Any]
    json_schema: Mapping[str, Any]

    def __get_pydantic_json_schema__(self, _core: Any, _handler: Any) -> dict[str, Any]:
        """Tell pydantic what the file may hold, instead of what the type holds."""
        return dict(self.json_schema)


@dataclass(frozen=True)
class Range:
    """The least and the most that a number may be."""

    least: float
    most: float | None = None

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        """Add the bounds to what pydantic says of the number."""
        bounds = {"minimum": self.least} if self.most is None else {"minimum": self.least, "maximum": self.most}
        return {**handler(core), **bounds}


DURATION_UNIT = Unit(parse_duration, {"anyOf": [{"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?\s*(ms|s|m|h|d)$"}, {"const": 0}]})
SHARE_UNIT = Unit(parse_share, {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?\s*%$"})
SIZE_UNIT = Unit(parse_size, {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?\s*(B|kB|MB|GB|TB|KiB|MiB|GiB|TiB)$"})
PICK_UNIT = Unit(parse_pick, {"anyOf": [{"const": "all"}, {"type": "integer", "minimum": 0}, dict(SHARE_UNIT.json_schema)]})

Duration = Annotated[float, DURATION_UNIT]
"""Seconds."""
Share = Annotated[float, SHARE_UNIT]
"""A fraction of one."""
Pick = Annotated[float | int | Literal["all"], PICK_UNIT]
"""How many: a count (int), a fraction of one (float), or `all`."""
Count = Annotated[int, Range(0)]
"""A whole number, not negative."""
Positive = Annotated[int, Range(1)]
"""A whole number from 1."""
Port = Annotated[int, Range(1, 65535)]
"""A port number."""
Amount = Annotated[float, Range(0)]
"""A number, not negative."""
Ratio = Annotated[float, Range(1)]
"""How many times as much: a number from 1."""

UNITS: Mapping[str, Unit] = {"duration": DURATION_UNIT, "share": SHARE_UNIT, "size": SIZE_UNIT}
"""How a fault's parameter is written, by the `unit` in its field's metadata."""
