"""
YAML text to plain values, with a position for each of them.

Only what JSON can say comes out: str, int, float, bool, None, lists and string-keyed dicts. Anchors, aliases, tags,
merge keys, duplicate keys and second documents are errors, and so is what `chaoskit.model.scalars` calls a trap. The
parser's events are read one by one, never its recursive composer, so that the depth is ours to bound.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from chaoskit.errors import InputError
from chaoskit.model.scalars import ScalarError, read_plain
from chaoskit.model.source import EnoughError, Location, Source

DEEPEST = 50
LARGEST = 1_000_000
MOST_VALUES = 50_000
"""Keys and values of one file; ranges keep an inventory of any size far below."""

_READ_HINTS: Mapping[type[Exception], str] = {
    FileNotFoundError: "check the path; it is taken from the current directory",
    IsADirectoryError: "name one YAML file in it",
    PermissionError: "the account that runs chaoskit must be able to read it",
}
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def read_source(path: Path) -> Source:
    """Read a YAML file. Raises InputError when it cannot be read at all; other problems stand in the source."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"cannot read the file: {what}", where=str(path), hint=_READ_HINTS.get(type(error), "")) from error
    return parse_source(data, str(path))


def parse_source(data: bytes, file: str) -> Source:
    """Parse YAML bytes; every problem of the YAML itself stands in the source's `problems`."""
    source = Source(file)
    with suppress(EnoughError):
        _read(data, source)
    return source


def _read(data: bytes, source: Source) -> None:
    """Fill the source. Raises EnoughError."""
    text = _decode(data, source)
    if text is None:
        source.whole = False
        return
    root = _tree(_only_printable(text, source), source)
    if root is not None:
        _Builder(source).build(root)
    if source.value is None and not source.problems:
        source.report((), "the file is empty", "it must hold `key: value` lines")


def _decode(data: bytes, source: Source) -> str | None:
    """Return the text, with U+FFFD after a reported place that is not UTF-8; None when nothing can be read."""
    if len(data) > LARGEST:
        source.report((), f"the file is larger than {LARGEST // 1_000_000} MB")
        return None
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in data[:4]:
        source.report((), "the file is UTF-16 or UTF-32", "save it as UTF-8")
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = error.object[: error.start].decode("utf-8-sig")
        source.report((), "the file is not UTF-8 from here on", "save it as UTF-8", at=_locate(before, len(before)))
        return data.decode("utf-8-sig", "replace")


def _only_printable(text: str, source: Source) -> str:
    """Report what may not stand in YAML, and put blanks there, so that the rest can be read."""
    for match in _UNPRINTABLE.finditer(text):
        source.report((), f"the character U+{ord(match[0]):04X} cannot stand in YAML", "remove it", at=_locate(text, match.start()))
    return _UNPRINTABLE.sub(" ", text)


def _locate(text: str, index: int) -> Location:
    before = text[:index]
    return before.count("\n") + 1, index - before.rfind("\n")


@dataclass(slots=True)
class _Node:
    """One YAML node; `items` are a list's values, or a mapping's keys and values in turn."""

    kind: str
    at: Location
    text: str = ""
    plain: bool = False
    tag: str | None = None
    anchor: str | None = None
    items: list["_Node"] = field(default_factory=list)


def _tree(text: str, source: Source) -> _Node | None:
    """Read events into a tree of bounded depth; at a syntax error, what was read before it."""
    root = _Node("nothing", (1, 1))
    try:
        return _grow(text, source, root)
    except yaml.YAMLError as error:
        source.whole = False
        if _is_tab(text, error):
            _report_tabs(source, text, _place(error))
            return _tree_without_tabs(text, source)
        _report_syntax(source, text, error)
        return root.items[0] if root.items else None


def _tree_without_tabs(text: str, source: Source) -> _Node | None:
    """Try once more with each tab of the indentation as one space, which keeps every column, to find what else is wrong."""
    text = re.sub(r"^[ \t]+", lambda match: " " * len(match[0]), text, flags=re.MULTILINE)
    try:
        root = _grow(text, source, _Node("nothing", (1, 1)))
    except yaml.YAMLError:
        return None  # the tabs have been reported; what comes of them has not to be
    source.whole = True
    return root


def _grow(text: str, source: Source, top: _Node) -> _Node | None:
    """Hang the file's nodes under `top`, so that they are there after an error as well; return the root."""
    open_ = [top]
    for count, node in enumerate(_nodes(text, source)):
        if node is None:
            open_.pop()
            continue
        if count > MOST_VALUES:
            source.report((), f"more than {MOST_VALUES:,} keys and values", "write nodes as ranges, such as node[001-512]", at=node.at)
            source.whole = False
            break
        open_[-1].items.append(node)
        if node.kind in ("map", "list"):
            open_.append(node)
        if len(open_) > DEEPEST + 1:
            source.report((), f"more than {DEEPEST} levels inside each other", "six are plenty", at=node.at)
            source.whole = False
            break
    return top.items[0] if top.items else None


def _nodes(text: str, source: Source) -> Iterator[_Node | None]:
    """Yield each node as it begins, and None where a list or mapping ends; stop at a second document."""
    documents = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        mark = event.start_mark
        at = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                source.report((), "a second document begins here", "one file holds one experiment or one inventory", at=at)
                return
        elif isinstance(event, yaml.ScalarEvent):
            plain = event.style in (None, "")
            yield _Node("scalar", at, event.value, plain=plain, tag=event.tag, anchor=event.anchor)
        elif isinstance(event, yaml.AliasEvent):
            yield _Node("alias", at, event.anchor or "")
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            kind = "map" if isinstance(event, yaml.MappingStartEvent) else "list"
            yield _Node(kind, at, tag=event.tag, anchor=event.anchor)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            yield None


class _Builder:
    """Turns the tree into plain values; reports every trap with its position and goes on."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.last: tuple[str | int, ...] = ()

    def build(self, root: _Node) -> None:
        """Fill the source. Of a file that was cut off, the last value may be half of what was meant: it counts as broken."""
        self.source.value = self.value(root, ())
        if not self.source.whole and self.last:
            self.source.broken.add(self.last)

    def value(self, node: _Node, path: tuple[str | int, ...]) -> Any:
        self.source.values[path] = node.at
        self.last = path
        self._refuse_extras(node, path)
        if node.kind == "map":
            return self._mapping(node, path)
        if node.kind == "list":
            return [self.value(item, (*path, index)) for index, item in enumerate(node.items)]
        return self._scalar(node, path)

    def _refuse_extras(self, node: _Node, path: tuple[str | int, ...]) -> None:
        if node.kind == "alias":
            self.source.report(path, f"the alias *{node.text} is not read", "write the value out", at=node.at)
        if node.anchor:
            self.source.report(path, f"the anchor &{node.anchor} is not read", "remove it; there are no aliases here", at=node.at)
        if node.tag:
            self.source.report(path, f"the tag {node.tag} is not read", "remove it", at=node.at)

    def _scalar(self, node: _Node, path: tuple[str | int, ...]) -> Any:
        if not node.plain or node.tag or node.kind == "alias":
            return self._text(node, path)
        try:
            return read_plain(node.text)
        except ScalarError as error:
            self.source.report(path, error.what, error.hint, at=node.at)
            return node.text

    def _text(self, node: _Node, path: tuple[str | int, ...]) -> str:
        # An escape in a quoted text can say what the file itself cannot hold.
        if match := _UNPRINTABLE.search(node.text):
            self.source.report(path, f"the text holds the character U+{ord(match[0]):04X}", "remove it", at=node.at)
        return node.text

    def _mapping(self, node: _Node, path: tuple[str | int, ...]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        # A mapping cut off by a syntax error may end with a key.
        for key_node, value_node in zip(node.items[::2], node.items[1::2], strict=False):
            key = self._key(key_node, path)
            if key is None:
                continue
            here = (*path, key)
            if key in found:
                first = self.source.keys[here][0]
                self.source.report(here, f"the key {key} stands here twice, first in line {first}", "remove one", at=key_node.at)
                continue
            self.source.keys[here] = key_node.at
            found[key] = self.value(value_node, here)
        return found

    def _key(self, node: _Node, path: tuple[str | int, ...]) -> str | None:
        """Return the key as text, also after a problem with it; None when it is none at all."""
        if node.kind in ("map", "list"):
            self.source.report(path, "a list or a mapping cannot be a key", "a text in { } or [ ] must be quoted", at=node.at)
            return None
        here = (*path, node.text)
        self._refuse_extras(node, here)
        if not isinstance(self._scalar(node, here), str):
            hint = f'write "{node.text}"' if node.text else "write a name before the colon"
            self.source.report(here, f"a key must be text; found {node.text or 'nothing'}", hint, at=node.at)
        return node.text


_SYNTAX: tuple[tuple[str, str, str], ...] = (
    ("mapping values are not allowed", "a `:` where no key can stand", "check the indentation, or quote a text that holds `: `"),
    (
        "did not find expected ',' or '}'",
        "a `,` or `}` is missing",
        'inside { } quote host ranges, such as "node[1-4]", and texts with `,`',
    ),
    (
        "did not find expected ',' or ']'",
        "a `,` or `]` is missing",
        'inside [ ] quote host ranges, such as "node[1-4]", and texts with `,`',
    ),
    ("did not find expected key", "this line does not belong to the mapping above", "check the indentation, and quotes around texts"),
    ("did not find expected '-' indicator", "this line does not belong to the list above", "check the indentation"),
    ("could not find expected ':'", "a key without its `:`", "check the lines just above as well"),
    ("found unexpected end of stream", "the file ends inside a quoted text", "close the quote"),
    ("did not find expected node content", "a value is missing, or begins with a character that must be quoted", ""),
    (
        "did not find expected <document start>",
        "this does not belong to what stands above",
        "check the indentation; one file holds one mapping",
    ),
    ("exceeded maximum nesting depth", f"more than {DEEPEST} levels inside each other", "six are plenty"),
    ("found undefined tag handle", "tags are not read", "quote a text that begins with !"),
)


def _place(error: yaml.YAMLError) -> Location:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    return (mark.line + 1, mark.column + 1) if mark else (1, 1)


def _line(text: str, number: int) -> str:
    lines = text.splitlines()
    return lines[number - 1] if number <= len(lines) else ""


def _is_tab(text: str, error: yaml.YAMLError) -> bool:
    line, col = _place(error)
    return _line(text, line)[col - 1 : col] == "\t"


def _report_syntax(source: Source, text: str, error: yaml.YAMLError) -> None:
    """Report the parser's error in words for people."""
    number, col = at = _place(error)
    problem = getattr(error, "problem", None) or str(error)
    before, char = _line(text, number)[: col - 1], _line(text, number)[col - 1 : col]
    if char and char in "@`%" and "cannot start any token" in problem:
        source.report((), f"a text cannot begin with {char}", "quote it", at=at)
    elif "did not find expected key" in problem and re.search(r"""['"]\s*$""", before):
        source.report((), "a text goes on after its closing quote", "write a quote inside twice, or use the other kind around it", at=at)
    else:
        what, hint = next(((what, hint) for part, what, hint in _SYNTAX if part in problem), (problem, ""))
        source.report((), what, hint, at=at)


def _report_tabs(source: Source, text: str, first: Location) -> None:
    source.report((), "a tab where only spaces may stand", "YAML is indented with spaces", at=first)
    for number, line in enumerate(text.splitlines(), 1):
        indent = line[: len(line) - len(line.lstrip())]
        if number > first[0] and "\t" in indent:
            source.report((), "a tab where only spaces may stand", "YAML is indented with spaces", at=(number, indent.index("\t") + 1))
