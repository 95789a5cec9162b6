"""
Samples and marks, in any order, to the lives of the training's processes.

A life (an *incarnation*) is a session, or the part of a session up to a step that falls back. Its steps are ordered by
time; lines that came in one read share one interval, and their best estimates are spread evenly over it. A line of the
old life that comes after the new life began stays the old life's.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, NamedTuple

from chaoskit.judge.timeline import Interval, Mark, MarkKind, Sample

Line = tuple[float, float, int, float]
"""Twice the middle, start, step and end: a sample as a plain tuple, which sorts by time; runs hold ten thousands of them."""
LO: Final = 1
STEP: Final = 2
HI: Final = 3


class Point(NamedTuple):
    """A finished step of one life: `at` is the best estimate within [lo, hi], `life` the life's index."""

    at: float
    lo: float
    hi: float
    step: int
    life: int

    @property
    def t(self) -> Interval:
        """When it was finished."""
        return Interval(self.lo, self.hi)

    @property
    def mid(self) -> float:
        """The middle of the interval, as `Interval.mid`."""
        return (self.lo + self.hi) / 2


@dataclass(frozen=True, slots=True)
class Life:
    """One incarnation; `points` are in order of step and time, empty when it died without a step."""

    index: int
    session: str
    born: Interval | None
    points: tuple[Point, ...]

    @property
    def begin(self) -> float:
        """Its birth where it was seen, else its first step."""
        return self.born.mid if self.born else self.points[0].at


def lives(samples: Iterable[Sample], marks: Sequence[Mark] = ()) -> tuple[Life, ...]:
    """Return every life in order of its beginning, also those that never made a step."""
    births = _births(marks)
    found: list[tuple[float, str, Interval | None, list[Line]]] = []
    by_session = _by_session(samples)
    for session, lines in by_session.items():
        for number, run in enumerate(_runs(lines)):
            born = births.get(session) if number == 0 else None
            found.append((born.mid if born else run[0][0] / 2, session, born, run))
    found += [(born.mid, session, born, []) for session, born in _stepless(births, by_session, marks)]
    found.sort(key=itemgetter(0, 1))
    return tuple(Life(index, session, born, _points(run, index)) for index, (_, session, born, run) in enumerate(found))


def _by_session(samples: Iterable[Sample]) -> dict[str, list[Line]]:
    grouped: dict[str, list[Line]] = {}
    for sample in samples:
        t = sample.t
        grouped.setdefault(sample.session, []).append((t.lo + t.hi, t.lo, sample.step, t.hi))
    return grouped


def _births(marks: Sequence[Mark]) -> dict[str, Interval]:
    """Return when each session was first seen: every rank tells its own birth, the earliest begins the life."""
    births: dict[str, Interval] = {}
    for mark in marks:
        if mark.kind is MarkKind.BORN and (mark.session not in births or mark.t.mid < births[mark.session].mid):
            births[mark.session] = mark.t
    return births


def _stepless(births: dict[str, Interval], stepped: dict[str, list[Line]], marks: Sequence[Mark]) -> Iterator[tuple[str, Interval]]:
    yield from ((session, born) for session, born in births.items() if session and session not in stepped)
    unnamed = [mark.t for mark in marks if mark.kind is MarkKind.BORN and not mark.session]
    last = max((line[HI] for line in stepped.get("", ())), default=None)
    after = [t for t in unnamed if last is not None and t.lo > last] or ([] if stepped else unnamed)
    if after:  # nobody names the lives: births after the last step are one life, as far as can be told
        yield "", min(after, key=lambda t: t.mid)


def _runs(lines: list[Line]) -> list[list[Line]]:
    """Cut one session's lines where a step falls back."""
    runs: list[list[Line]] = [[]]
    seen: set[int] = set()
    highest: Line | None = None
    for line in _in_order(lines):
        if highest is None or line[STEP] > highest[STEP]:
            highest = line
        elif line[STEP] == highest[STEP]:
            continue  # several ranks log the same step; the first counts
        elif line[STEP] in seen or line[LO] >= highest[HI]:  # done before, or surely later; else two lines were swapped
            runs.append([])
            seen, highest = set(), line
        runs[-1].append(line)
        seen.add(line[STEP])
    for run in runs:
        run.sort(key=itemgetter(STEP))
    return runs


def _in_order(lines: list[Line]) -> Iterator[Line]:
    """
    Order by time. Within one read first what goes on, then what fell back.

    The rule needs no arrival order, so that shuffled lines are judged the same.
    """
    top: int | None = None
    for tied in _reads(sorted(lines)):
        if top is not None and len(tied) > 1:
            reached = top
            tied.sort(key=lambda line: (line[STEP] <= reached, line[STEP]))
        yield from tied
        top = tied[-1][STEP]


def _reads(lines: list[Line]) -> Iterator[list[Line]]:
    """Group neighbours that share one interval: they came in one read."""
    start = 0
    for end in range(1, len(lines) + 1):
        if end == len(lines) or lines[end][LO] != lines[start][LO] or lines[end][HI] != lines[start][HI]:
            yield lines[start:end]
            start = end


def _points(run: list[Line], life: int) -> tuple[Point, ...]:
    """Make the points of a life; estimates never run backwards."""
    points: list[Point] = []
    latest = float("-inf")
    for tied in _reads(run):
        _, lo, _, hi = tied[0]
        each = (hi - lo) / len(tied)
        for place, line in enumerate(tied):
            latest = max(latest, lo + each * (place + 0.5))
            points.append(Point(latest, lo, hi, line[STEP], life))
    return tuple(points)
