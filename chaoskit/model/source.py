"""A file that a person wrote: its plain value, where each part of it stands, and everything that is wrong with it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chaoskit.errors import InputError, Problem
from chaoskit.model.experiment import Position

MOST_PROBLEMS = 100
"""More are not worth reading; the last one says so."""
LONGEST_WORDS = 300
"""Characters of a problem's words: a text of a megabyte is quoted by its beginning."""


class EnoughError(Exception):
    """As many problems stand in a source as are shown: whoever reads on would only take time."""


Where = tuple[str | int, ...]
"""A path to a value: keys and list indices from the top."""
Location = tuple[int, int]
"""Line and column, from 1."""


def dotted(path: Where) -> str:
    """Return a path as errors show it, such as `method.0.with.down`."""
    return ".".join(str(part) for part in path)


@dataclass(slots=True)
class Source:
    """
    One file as read.

    `values` holds the place of each value, `keys` that of each mapping key. `broken` are the paths that already have a
    problem, so that nobody complains of them twice. `whole` is false when the file could not be read to its end.
    """

    file: str
    value: Any = None
    values: dict[Where, Location] = field(default_factory=dict)
    keys: dict[Where, Location] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    broken: set[Where] = field(default_factory=set)
    whole: bool = True

    def value_at(self, path: Where) -> Location:
        """Return the place of a value, or of the nearest thing around it."""
        return _nearest(path, self.values)

    def key_at(self, path: Where) -> Location:
        """Return the place of a key, or of the value or the nearest thing around it when there is no such key."""
        return self.keys.get(path) or self.value_at(path)

    def report(self, path: Where, what: str, hint: str = "", *, at: Location | None = None) -> None:
        """
        Add a problem with the value at a path; `at` is for one that stands elsewhere.

        Raises:
            EnoughError: It was the last that is shown.
        """
        if len(self.problems) >= MOST_PROBLEMS:
            raise EnoughError
        line, col = at or self.value_at(path)
        self.problems.append(Problem(self.file, line, col, *map(_short, (dotted(path), what, hint))))
        if path:
            self.broken.add(path)
        if len(self.problems) == MOST_PROBLEMS - 1:
            more = Problem(self.file, line, col, "", "there are more problems than are shown", "mend these first")
            self.problems.append(more)
            raise EnoughError

    def is_broken(self, path: Where) -> bool:
        """Say whether a problem was reported at this path, inside it or around it."""
        return any(path[: len(other)] == other or other[: len(path)] == path for other in self.broken)

    def raise_problems(self) -> None:
        """Raise an InputError with every problem in file order, if there are any."""
        if self.problems:
            unique = {str(problem): problem for problem in self.problems}
            raise InputError(problems=sorted(unique.values(), key=lambda problem: (problem.line, problem.col)))

    def positions(self) -> dict[str, Position]:
        """Return the position of every value by its dotted path; that of its key for a list or a mapping."""
        parents = {path[:-1] for path in self.values if path}
        leaves = {path: place for path, place in self.values.items() if path not in parents}
        return {dotted(path): Position(self.file, *place) for path, place in (self.values | self.keys | leaves).items()}


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_WORDS else f"{text[: LONGEST_WORDS - 3]}..."


def _nearest(path: Where, known: Mapping[Where, Location]) -> Location:
    for length in range(len(path), -1, -1):
        if place := known.get(path[:length]):
            return place
    return (1, 1)
