"""
Plain values to frozen dataclasses, with every error in words for people and at its place in the file.

The types themselves say what is allowed: their annotations, defaults and `__post_init__`. Strict, as JSON is: text is
no number, a number is no text, and an unknown key is an error. pydantic could do this; it is not used here because
building its validators takes three times as long as reading the files, on the path of every `chaoskit plan`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from difflib import get_close_matches
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from chaoskit.model.source import Source, Where
from chaoskit.model.units import UNITS, Range, Unit

BAD: Any = object()
"""Stands for a value that was reported and cannot be used."""

_SCALARS: Mapping[type, str] = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
_LINES = "`key: value` lines"


def read_typed(source: Source, kind: type, value: Any, under: Where = ()) -> Any:
    """
    Return the value as `kind`, reporting every problem to the source.

    After problems this is what remains when faulty values give way to defaults, so that further checks can still find
    something; None when something faulty has no default.
    """
    made = _read(source, kind, value, under)
    return None if made is BAD else made


def did_you_mean(word: str, known: Sequence[str], what: str = "known") -> str:
    """Return a hint: the nearest of the known words, or a few of them."""
    if close := get_close_matches(word, known, n=1, cutoff=0.6):
        return f"did you mean {close[0]}?"
    shown = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "")
    return f"{what}: {shown}" if known else f"{what}: none"


def show(value: Any) -> str:
    """Return a value as an error shows it: short, and as YAML would say it."""
    if value is None:
        return "nothing"
    if isinstance(value, dict | list):
        return "a list" if isinstance(value, list) else _LINES
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def key_of(name: str) -> str:
    """Return a field's key in the file: `for_` and `with_` are `for` and `with` there."""
    return name.rstrip("_")


def _refuse(source: Source, path: Where, what: str, hint: str = "") -> Any:
    if not source.is_broken(path):
        source.report(path, what, hint)
    return BAD


def _read(source: Source, kind: Any, value: Any, path: Where) -> Any:
    """Read a value as any type that our files use; a type that is not known here is left to the fault that has it."""
    if path in source.broken:
        return BAD
    if kind in _SCALARS:
        return _scalar(source, kind, value, path)
    if isinstance(kind, type) and is_dataclass(kind):
        return _dataclass(source, kind, value, path)
    reader = _READERS.get(get_origin(kind))
    return reader(source, kind, value, path) if reader else value


def _annotated(source: Source, kind: Any, value: Any, path: Where) -> Any:
    bare, note = get_args(kind)[:2]
    if isinstance(note, Unit):
        return _with_unit(source, note, value, path)
    made = _read(source, bare, value, path)
    if made is BAD or not isinstance(note, Range):
        return made
    if made < note.least:
        return _refuse(source, path, f"expected at least {note.least:g}; found {show(value)}")
    if note.most is not None and made > note.most:
        return _refuse(source, path, f"expected at most {note.most:g}; found {show(value)}")
    return made


def _with_unit(source: Source, unit: Unit, value: Any, path: Where) -> Any:
    try:
        return unit.read(value)
    except ValueError as error:
        return _refuse(source, path, str(error))


def _one_of(source: Source, kind: Any, value: Any, path: Where) -> Any:
    """Of several types, take the one of the value's shape; errors then speak of that one alone."""
    kinds = get_args(kind)
    if value is None and NoneType in kinds:
        return None
    rest = [each for each in kinds if each is not NoneType]
    if isinstance(value, dict):
        rest = [each for each in rest if is_dataclass(each) or get_origin(each) is not None] or rest
    fitting = [each for each in rest if each in _SCALARS and _is_scalar(each, value)]
    return _read(source, (fitting or rest)[0], value, path)


def _literal(source: Source, kind: Any, value: Any, path: Where) -> Any:
    known = get_args(kind)
    if value in known and type(value) is type(known[known.index(value)]):
        return value
    words = [str(word) for word in known]
    close = get_close_matches(value, words, n=1) if isinstance(value, str) else []
    listed = f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]
    return _refuse(source, path, f"expected {listed}; found {show(value)}", f"did you mean {close[0]}?" if close else "")


def _is_scalar(kind: type, value: Any) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float) if kind is float else isinstance(value, kind)


def _scalar(source: Source, kind: type, value: Any, path: Where) -> Any:
    if _is_scalar(kind, value):
        return float(value) if kind is float else value
    hint = f'write "{value}"' if kind is str and isinstance(value, int | float) and not isinstance(value, bool) else ""
    return _refuse(source, path, f"expected {_SCALARS[kind]}; found {show(value)}", hint)


def _mapping(source: Source, kind: Any, value: Any, path: Where) -> Any:
    if not isinstance(value, dict):
        return _refuse(source, path, f"expected {_LINES}; found {show(value)}")
    made = {key: _read(source, get_args(kind)[-1], item, (*path, key)) for key, item in value.items()}
    return {key: item for key, item in made.items() if item is not BAD}


def _sequence(source: Source, kind: Any, value: Any, path: Where) -> Any:
    if not isinstance(value, list):
        return _refuse(source, path, f"expected a list; found {show(value)}")
    made = [_read(source, get_args(kind)[0], item, (*path, index)) for index, item in enumerate(value)]
    # An index names an entry in every later check, so that a list with a hole in it is of no use.
    if any(item is BAD for item in made):
        return BAD
    return made if get_origin(kind) is list else tuple(made)


@lru_cache(maxsize=64)
def _fields(kind: type) -> Mapping[str, tuple["Field[Any]", Any]]:
    """Return each field of a dataclass with its type, by its key in the file."""
    hints = get_type_hints(kind, include_extras=True)
    return {key_of(item.name): (item, _with_metadata(item, hints[item.name])) for item in fields(kind) if item.init}


def _with_metadata(item: "Field[Any]", hint: Any) -> Any:
    """A fault says the unit of a parameter in its field's metadata, since nodes know no annotated types of ours."""
    unit = UNITS.get(item.metadata.get("unit", ""))
    if unit is None:
        return hint
    return Annotated[float, unit] | None if NoneType in get_args(hint) else Annotated[float, unit]


def _dataclass(source: Source, kind: type, value: Any, path: Where) -> Any:
    if not isinstance(value, dict):
        return _refuse(source, path, f"expected {_LINES}; found {show(value)}")
    known = _fields(kind)
    for key in value:
        if key not in known and not source.is_broken((*path, key)):
            source.report((*path, key), "unknown key", did_you_mean(key, list(known), "known keys"), at=source.key_at((*path, key)))
    made: dict[str, Any] = {}
    whole = True
    for key, (item, hint) in known.items():
        found = _read(source, hint, value[key], (*path, key)) if key in value else BAD
        if found is not BAD:
            made[item.name] = found
        elif item.default is MISSING and item.default_factory is MISSING:
            whole = False
            if key not in value:
                _missing(source, path, key)
    return _construct(source, kind, made, path) if whole else BAD


def _missing(source: Source, path: Where, key: str) -> None:
    # A file that was cut off, or a merge key that was refused, might have had it.
    if source.whole and (*path, "<<") not in source.broken and not source.is_broken((*path, key)):
        source.report((*path, key), "missing", f"add `{key}:` here", at=source.key_at(path))


def _construct(source: Source, kind: type, values: Mapping[str, Any], path: Where) -> Any:
    """Make the object; what its own `__post_init__` refuses stands at the whole of it."""
    try:
        return kind(**values)
    except ValueError as error:
        return _refuse(source, path, str(error))


_READERS: Mapping[Any, Callable[[Source, Any, Any, Where], Any]] = {
    Annotated: _annotated,
    Union: _one_of,
    UnionType: _one_of,
    Literal: _literal,
    tuple: _sequence,
    list: _sequence,
    Sequence: _sequence,
    Mapping: _mapping,
    dict: _mapping,
}
"""By the origin of a type."""
