"""Abort conditions: pure questions about the run so far."""

from bisect import bisect_left, bisect_right
from collections.abc import Collection

from chaoskit.engine.state import RunState
from chaoskit.judge.timeline import MarkKind
from chaoskit.model.experiment import Abort, Slump
from chaoskit.model.units import show_duration, show_share

LOOK_BACK = 20
"""Lines of a log that are looked at for how many steps one tells of."""


def why_abort(abort: Abort, state: RunState, lost: Collection[str], now: float, pace: float = 0.0) -> str:
    """
    Return why the run must end early, as a sentence; empty when it goes on.

    Args:
        abort: The experiment's conditions.
        state: What was recorded so far.
        lost: Nodes unreachable that no fault explains.
        now: Controller's monotonic clock, seconds.
        pace: Seconds a step of the baseline; 0 when there is none yet.
    """
    if abort.nodes_unreachable is not None and len(lost) > abort.nodes_unreachable:
        return f"{len(lost)} nodes unreachable ({', '.join(sorted(lost))}), at most {abort.nodes_unreachable} allowed"
    if abort.no_progress is not None and (silent := silence(state, now)) > abort.no_progress:
        return f"no new step for {silent:.0f} s, at most {abort.no_progress:g} s allowed"
    if abort.throughput is not None and pace > 0:
        return _slump(abort.throughput, state, now, pace)
    return ""


def silence(state: RunState, now: float) -> float:
    """Return the seconds since a step beyond all earlier ones; 0 before the first, and for a training that ended."""
    if not state.samples or _has_ended(state):
        return 0.0
    return now - state.advanced


def _slump(slump: Slump, state: RunState, now: float, pace: float) -> str:
    since = now - slump.for_
    if _has_ended(state) or state.baseline is None or since < state.baseline[1]:
        return ""
    if any(start < now and end > since for start, end in state.blind.items()):
        return ""  # nobody saw what was done in that time
    share = done_since(state, since, now) * pace / slump.for_
    if share >= slump.below:
        return ""
    told = "throughput of {} of the baseline's at most over {}, at least {} required"
    return told.format(show_share(round(share, 3)), show_duration(slump.for_), show_share(slump.below))


def done_since(state: RunState, since: float, now: float) -> float:
    """
    Return the steps done from a moment until now, at most: also those that a restart made the training do again.

    Of a line that came after the moment and tells of steps from before it, their share counts. What was done since the
    last line is unknown, and counts as much as the line before told.
    """
    samples = state.samples
    first = bisect_right(samples, since, key=lambda sample: sample.t.hi)
    last = bisect_left(samples, now, key=lambda sample: sample.t.hi)
    done, told = 0.0, 0
    for at in range(max(first, 1), max(last, 1)):
        before, sample = samples[at - 1], samples[at]
        steps = sample.step - before.step
        if sample.session != before.session or steps <= 0:
            continue
        took = sample.t.hi - before.t.hi
        done += steps if took <= 0 else steps * (sample.t.hi - max(before.t.hi, since)) / took
        told = steps
    return done + (told or _told_before(state, min(first, len(samples) - 1)))


def _told_before(state: RunState, at: int) -> int:
    """Return the steps that the latest line up to a place told, which may be that of an earlier life; 1 when none is known."""
    for place in range(at, max(at - LOOK_BACK, 0), -1):
        before, sample = state.samples[place - 1], state.samples[place]
        if sample.session == before.session and sample.step > before.step:
            return sample.step - before.step
    return 1


def _has_ended(state: RunState) -> bool:
    return any(mark.kind is MarkKind.EXIT for mark in state.marks)
