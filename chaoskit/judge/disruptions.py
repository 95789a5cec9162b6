"""
Where progress broke: a new incarnation, a gap between steps that is a stall, the end of the training.

A break after an injection's first effect and not yet explained by an earlier break starts at that injection's t0; any
other starts at the last step before it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from chaoskit.judge.incarnations import Life, Point
from chaoskit.judge.intervals import EPS
from chaoskit.judge.timeline import Interval, Mark, MarkKind
from chaoskit.judge.track import Track

RESTART, STALL, DEATH = "restart", "stall", "death"

SIGNS = (MarkKind.DETECT, MarkKind.OLD_GONE, MarkKind.BORN, MarkKind.EXIT)
"""Marks that say that a life ends or another begins."""


@dataclass(frozen=True, slots=True)
class Break:
    """
    One place where progress broke.

    Args:
        kind: `restart`, `stall` or `death`.
        before: Index of the last step before it; for a restart the last of the old life.
        after: The first step after it, None while there is none.
        first: When that step was done; wider than its stamp when lines before it are missing.
        certain: False when the stamps allow that there was no break at all.
        likely: Whether their best estimates say that there was one.
        boots: Lives that began in it.
        new: The life that goes on after a restart.
        unseen: Lines inside it never came, and the observer was blind then: a whole restart may be hidden in it.
    """

    kind: str
    before: int
    after: Point | None
    first: Interval | None
    certain: bool
    likely: bool = True
    boots: int = 0
    new: Life | None = None
    unseen: bool = False


def breaks(track: Track) -> list[Break]:
    """Return every break of the run, in order of the last step before it."""
    found = [*_stalls(track), *_restarts(track)]
    if (end := _open_end(track)) is not None:
        found.append(end)
    return sorted(found, key=lambda one: (one.before, one.after is None))


def causes(track: Track, found: Sequence[Break], starts: Mapping[int, Interval]) -> dict[int, int]:
    """
    Return which injection each break starts from: index of the break -> index of the injection.

    Args:
        track: The run.
        found: Its breaks, in order.
        starts: Injection -> its t0.
    """
    caused: dict[int, int] = {}
    for place, one in enumerate(found):
        began = onset(track, one)
        before = [(t0.lo, index) for index, t0 in starts.items() if t0.lo <= began + EPS]
        if before and (latest := max(before)[1]) not in caused.values():
            caused[place] = latest
    return caused


def onset(track: Track, one: Break) -> float:
    """Return the moment by which the break was under way: its first sign, or a gap too long to be normal."""
    last = track.points[one.before]
    end = one.after.at if one.after else track.alive_until
    signs = [mark.t.hi for mark in track.marks if mark.kind in SIGNS and last.lo - EPS <= mark.t.mid <= end]
    return min([end, last.hi + track.baseline.gap_limit, *signs])


def _stalls(track: Track) -> Iterator[Break]:
    limit, base = track.baseline.gap_limit, track.baseline
    place: dict[int, int] = {}
    for index, point in enumerate(track.points):
        before = place.get(point.life)
        place[point.life] = index
        if before is None or point.hi - track.points[before].at <= limit:
            continue
        last = track.points[before]
        if (last.lo, last.hi) == (point.lo, point.hi):
            continue  # lines of one read: the gap before the first of them stands for all
        lines = max((point.step - last.step) / base.stride, 1)
        likely = (point.at - last.at) / lines > limit
        if likely or point.hi - last.at > max(limit, base.gap_widest):
            first = point.t if lines == 1 else Interval(min(last.hi, point.lo), point.hi)
            unseen = lines >= 2 and track.was_blind(last.hi, point.lo)
            yield Break(STALL, before, point, first, (point.lo - last.hi) / lines > limit, likely, unseen=unseen)


def _restarts(track: Track) -> Iterator[Break]:
    old: Life | None = None
    boots = 0
    for life in track.lives:
        boots += 1
        if not life.points:
            continue
        if old is not None:
            yield Break(RESTART, _place(track, old), life.points[0], life.points[0].t, certain=True, boots=boots, new=life)
        old, boots = life, 0


def _place(track: Track, life: Life) -> int:
    """Return the index of a life's last step."""
    last = life.points[-1]
    return track.points.index(last, max(track.index_at(last.at - EPS), 0))


def _open_end(track: Track) -> Break | None:
    """Return the break that the watch ended in."""
    last = len(track.points) - 1
    unborn = [life for life in track.lives if not life.points and life.begin > track.points[last].lo]
    silence = track.alive_until - track.points[last].hi
    if track.dead is not None:
        return Break(DEATH, last, None, None, certain=True, boots=len(unborn))
    if unborn:
        return Break(RESTART, last, None, None, certain=True, boots=len(unborn))
    limit = track.baseline.gap_limit
    unseen = track.blind[-1][1] - track.points[last].lo if track.blind_end else 0.0
    if max(track.alive_until - track.points[last].lo, unseen) > max(limit, track.baseline.gap_widest):
        return Break(STALL, last, None, None, certain=silence > limit, likely=silence > limit)
    return None


def first_sign(track: Track, start: Interval, end: float) -> Mark | Point | None:
    """
    Return the stack's own first sign in [start, end]: a failure line, a new life's news, its first step, the end.

    Old processes that are gone are our own observation, not the stack's.
    """
    kinds = (MarkKind.DETECT, MarkKind.BORN, MarkKind.GROUP_UP, MarkKind.LOADED, MarkKind.EXIT)
    told: list[Mark | Point] = [mark for mark in track.marks if mark.kind in kinds]
    told += [life.points[0] for life in track.lives[1:] if life.points]
    seen = [one for one in told if one.t.hi >= start.lo - EPS and one.t.mid <= end + EPS]
    return min(seen, key=lambda one: one.t.mid, default=None)
