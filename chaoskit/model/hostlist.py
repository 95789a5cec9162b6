"""
Host lists such as `node[01-64],store1`: text to names and back, by ClusterShell, checked before and bounded after.

The grammar is smaller than ClusterShell's on purpose: no groups, wildcards or set operators, and only names that can
be handed to SSH. The size is computed before anything is expanded.
"""

import re
from collections.abc import Iterable, Iterator
from math import prod

from chaoskit.errors import InputError

MOST = 100_000
"""The most names that one host list may stand for."""
LONGEST_TEXT = 10_000
LONGEST_NAME = 253

NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
"""A host name that is safe in a command line, a file name and a report."""

_FOREIGN = re.compile(r"[^A-Za-z0-9_.,\[\]/ -]")
_ENDS = re.compile(r"[A-Za-z0-9\[](?:.*[A-Za-z0-9\]])?")
_NAME_HINT = f"names begin and end with a letter or a digit and have at most {LONGEST_NAME} characters"
_ITEM = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?:/([0-9]{1,9}))?)?")


class HostListError(InputError, ValueError):
    """A host list that cannot be used; `column` counts from 1 inside the text."""

    def __init__(self, what: str, column: int, *, hint: str = "") -> None:
        super().__init__(f"{what} at character {column}", hint=hint)
        self.column = column


def expand(text: str) -> tuple[str, ...]:
    """
    Return the host names of a host list in natural order, each once.

    Raises HostListError with the character where the list goes wrong.
    """
    _check_characters(text)
    _check_brackets(text)
    size = sum(_size(item, column) for column, item in _items(text))
    if size > MOST:
        raise HostListError(f"the host list stands for {size:,} names, more than {MOST:,},", 1)
    names = (text.strip(),) if NAME.fullmatch(text.strip()) else _cluster_shell(text)
    for name in names:
        if not NAME.fullmatch(name) or len(name) > LONGEST_NAME:
            column = max(text.find(name.rstrip("0123456789")[:8]), 0) + 1
            raise HostListError(f"{name[:60]!r} is not a host name", column, hint=_NAME_HINT)
    return names


def fold(names: Iterable[str]) -> str:
    """Return the shortest host list of these names, such as `node[1-4]`; empty for none."""
    found = sorted(set(names))
    if len(found) < 2:
        return "".join(found)
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet  # noqa: PLC0415 - loaded only when there is a range

    return str(NodeSet.fromlist(found, resolver=RESOLVER_NOGROUP))


def _cluster_shell(text: str) -> tuple[str, ...]:
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException  # noqa: PLC0415 - as above

    try:
        return tuple(NodeSet(text, resolver=RESOLVER_NOGROUP))
    except NodeSetException as error:
        raise HostListError(f"not a host list: {error}", 1) from error


def _check_characters(text: str) -> None:
    if len(text) > LONGEST_TEXT:
        raise HostListError(f"the host list is longer than {LONGEST_TEXT:,} characters", LONGEST_TEXT)
    if match := _FOREIGN.search(text):
        colon = re.search(r"\[[0-9]+:[0-9]+\]", text)
        hint = f"write ranges with a dash: {colon[0].replace(':', '-')}" if colon else "such as node[01-16],store1"
        raise HostListError(f"{match[0]!r} does not belong in a host list", match.start() + 1, hint=hint)


def _check_brackets(text: str) -> None:
    opened = 0
    for column, char in enumerate(text, 1):
        if char == "[":
            if opened:
                raise HostListError("a bracket inside a bracket", column)
            if text[column - 2 : column - 1] == "]":
                raise HostListError("two brackets without a letter between them", column)
            opened = column
        elif char == "]":
            if not opened:
                raise HostListError("a closing bracket without an opening one", column)
            opened = 0
    if opened:
        raise HostListError("a bracket that is never closed", opened)


def _items(text: str) -> Iterator[tuple[int, str]]:
    """Yield each comma-separated item with its column; commas inside brackets do not separate."""
    at = 0
    while at <= len(text):
        match = _ITEM.match(text, at)
        item = match[0] if match else ""
        if not item.strip():
            raise HostListError("a host name is missing", at + 1, hint="such as node[01-16],store1")
        yield at + 1 + len(item) - len(item.lstrip()), item.strip()
        at += len(item) + 1


def _size(item: str, column: int) -> int:
    outside = _BRACKET.sub("", item)
    for foreign in " /":
        if foreign in outside:
            raise HostListError(
                f"{foreign!r} inside the name {item[:60]!r}", column + item.index(foreign), hint="names are separated by commas"
            )
    if not _ENDS.fullmatch(item):
        raise HostListError(f"{item[:60]!r} is not a host name", column, hint=_NAME_HINT)
    return prod(_bracket_size(match[1], column + match.start() + 1) for match in _BRACKET.finditer(item))


def _bracket_size(inside: str, column: int) -> int:
    total = 0
    for part in inside.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise HostListError(f"{part.strip()!r} is not a range", column, hint="such as [01-16] or [1,3,5-8]")
        total += _range_size(match, column)
        column += len(part) + 1
    return total


def _range_size(match: re.Match[str], column: int) -> int:
    low, high, step = match[1], match[2] or match[1], int(match[3] or 1)
    if int(high) < int(low):
        raise HostListError(f"the range {match[0]} runs backwards", column, hint=f"did you mean {high}-{low}?")
    if len(high) != len(low) and any(len(end) > 1 and end.startswith("0") for end in (low, high)):
        width = max(len(low), len(high))
        hint = f"did you mean {low.zfill(width)}-{high.zfill(width)}?"
        raise HostListError(f"the ends of {match[0]} are padded differently", column, hint=hint)
    if step == 0:
        raise HostListError(f"the range {match[0]} has a step of zero", column)
    return (int(high) - int(low)) // step + 1
