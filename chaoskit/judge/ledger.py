"""
The lost time, cut into phases that add up to it exactly, and weighed with the GPUs allocated meanwhile.

Spans [a, b] of episodes that overlap are one span, so that no second is counted twice.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from chaoskit.judge.disruptions import Break, first_sign
from chaoskit.judge.episodes import SLOW, Episode
from chaoskit.judge.intervals import EPS, hull, total
from chaoskit.judge.timeline import Interval, Mark, MarkKind
from chaoskit.judge.track import Track
from chaoskit.judge.verdict import END_OF_WATCH, Phase

STEADY = "steady"
ORDER = (
    "detect",
    "old processes gone",
    "new process",
    "process group up",
    "checkpoint loaded",
    "first step",
    "recovery",
    STEADY,
    END_OF_WATCH,
)
"""The moments that may end a phase, in the order in which they come when all goes well."""


@dataclass(frozen=True, slots=True)
class Span:
    """[a, b] of one or more episodes, as indices of steps; `end` is None when it lasts to the end of the watch."""

    begin: int
    end: int | None
    episodes: tuple[Episode, ...]

    @property
    def certain(self) -> bool:
        """False when the stamps allow that nothing happened in it."""
        return any(one.certain for one in self.episodes)


@dataclass(frozen=True, slots=True)
class Loss:
    """What a set of spans cost: seconds, GPU-seconds, and the goodput in them; `open` while one goes on."""

    time: Interval
    gpu_seconds: Interval
    goodput: Interval
    open: bool


def spans(episodes: Iterable[Episode]) -> list[Span]:
    """Merge the episodes whose spans overlap. They come in order of their beginning."""
    merged: list[Span] = []
    for one in episodes:
        last = merged[-1] if merged else None
        if last is not None and (last.end is None or one.begin < last.end):
            end = None if last.end is None or one.end is None else max(last.end, one.end)
            merged[-1] = Span(last.begin, end, (*last.episodes, one))
        else:
            merged.append(Span(one.begin, one.end, (one,)))
    return merged


def loss(track: Track, found: Sequence[Span]) -> Loss:
    """Return what the spans cost together; nothing for none."""
    time = total([_lost(track, span) for span in found])
    weighed = total([_weighed(track, span) for span in found])
    elapsed = total([_elapsed(track, span) for span in found])
    useful = sum(_new_steps(track, span) * track.baseline.pace for span in found)
    goodput = Interval(_share(useful, elapsed.hi), _share(useful, elapsed.lo))
    if not all(span.certain for span in found):
        goodput = hull(goodput, Interval.at(1.0))
    return Loss(time, weighed, goodput, any(span.end is None for span in found))


def phases(track: Track, found: Sequence[Span]) -> tuple[Phase, ...]:
    """Return the ledger: the spans cut at their moments. The losses of a span sum to its lost time."""
    return tuple(phase for span in found for phase in _cut(track, span, _moments(track, span)))


def _share(useful: float, elapsed: float) -> float:
    return min(useful / elapsed, 1.0) if elapsed > 0 else 1.0


def _end(track: Track, span: Span) -> Interval:
    return Interval.at(track.alive_until) if span.end is None else track.points[span.end].t


def _last(track: Track, span: Span) -> int:
    return len(track.points) - 1 if span.end is None else span.end


def _new_steps(track: Track, span: Span) -> int:
    return track.tops[_last(track, span)] - track.tops[span.begin]


def _elapsed(track: Track, span: Span) -> Interval:
    return _end(track, span) - track.points[span.begin].t if span.end != span.begin else Interval.at(0.0)


def _lost(track: Track, span: Span) -> Interval:
    elapsed, useful = _elapsed(track, span), _new_steps(track, span) * track.baseline.pace
    lost = Interval(elapsed.lo - useful, elapsed.hi - useful)
    return lost if span.certain else hull(lost, Interval.at(0.0))


def _weighed(track: Track, span: Span) -> Interval:
    """Return the lost GPU-seconds: each part of the span weighed with the GPUs allocated in it."""
    changes = [(life.begin, "") for life in track.lives]
    parts = list(_cut(track, span, changes))
    most = max((track.gpus_at(part.start) for part in parts), default=0)
    middle = sum(part.loss * track.gpus_at(part.start) for part in parts)
    lost, plain = _lost(track, span), sum(part.loss for part in parts)
    return Interval(middle + (lost.lo - plain) * most, middle + (lost.hi - plain) * most)


def _cut(track: Track, span: Span, moments: Sequence[tuple[float, str]]) -> Iterator[Phase]:
    """Cut [a, b] at the moments inside it; empty segments are left out, the last ends with b or with the watch."""
    start, end = track.points[span.begin].mid, _end(track, span).mid
    last = _last(track, span)
    inside = sorted((t, ends) for t, ends in moments if start + EPS < t < end - EPS)
    mids = list(accumulate((point.mid for point in track.points[span.begin : last + 1]), max))
    done = [(start, "", track.tops[span.begin])]
    done += [(t, ends, track.tops[span.begin + bisect_right(mids, t + EPS) - 1]) for t, ends in inside]
    done.append((end, END_OF_WATCH if span.end is None else STEADY, track.tops[last]))
    for (begin, _, had), (until, ends, has) in pairwise(done):
        if until > begin or has > had:
            yield Phase(ends, begin, until, has - had, until - begin - (has - had) * track.baseline.pace)


def _moments(track: Track, span: Span) -> list[tuple[float, str]]:
    """Return the moments of the span's episodes, one name once at one time, in the order of `ORDER` when they coincide."""
    found = {moment for one in span.episodes for moment in _of_episode(track, one)}
    by_time: dict[float, str] = {}
    for t, name in sorted(found, key=lambda moment: (moment[0], ORDER.index(moment[1]))):
        by_time.setdefault(t, name)
    return list(by_time.items())


def _of_episode(track: Track, one: Episode) -> Iterator[tuple[float, str]]:
    broken = one.broken
    if one.kind == SLOW or broken is None:
        return
    until = one.recovered_at if one.recovered_at is not None else track.alive_until
    if (sign := first_sign(track, one.start, until)) is not None:
        yield sign.t.mid, "detect"
    yield from ((mark.t.mid, mark.kind.value) for mark in _told(track, one, broken, until))
    if one.resume is not None:
        yield one.resume.mid, "first step"
    if one.recover is not None:
        yield one.recover.mid, "recovery"


def _told(track: Track, one: Episode, broken: Break, until: float) -> Iterator[Mark]:
    """Return the last mark of each kind on the way from the old life to the new: a moment is over when every rank passed it."""
    old = track.lives[track.points[broken.before].life].session
    new = broken.new.session if broken.new else None
    resumed = broken.after.at if broken.after else until
    for kind in (MarkKind.OLD_GONE, MarkKind.BORN, MarkKind.GROUP_UP, MarkKind.LOADED):
        whose = {old, ""} if kind is MarkKind.OLD_GONE else {new, ""}
        fits = [mark for mark in track.marks if mark.kind is kind and (mark.session in whose or new is None)]
        inside = [mark for mark in fits if one.start.lo - EPS <= mark.t.mid <= resumed + EPS]
        yield from inside[-1:]
