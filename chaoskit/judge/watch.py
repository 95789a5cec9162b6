"""Whether more watching could change the verdict, and what a live view shows now."""

from chaoskit.judge.disruptions import STALL
from chaoskit.judge.episodes import Course, Episode, Injected
from chaoskit.judge.intervals import EPS
from chaoskit.judge.timeline import InjectionFacts, Timeline
from chaoskit.judge.track import Track


def settled(track: Track, timeline: Timeline, found: Course) -> bool:
    """
    Say whether more watching of a steady training could not change any figure.

    True once the training is dead; or once every fault has ended and is proven gone or not, every episode is steady
    again for a whole window, and a whole window after the end of each fault that was not felt has passed.
    """
    if track.dead is not None:
        return True
    if track.blind_end or not all(_over(one) for one in timeline.injections):
        return False
    return all(one.steady is not None for one in found.episodes) and all(watched(track, one) for one in found.injected)


def _over(one: InjectionFacts) -> bool:
    """Say whether a fault has ended and is proven gone or not; one that is proven never to have begun is over too."""
    if one.t0 is None:
        return one.present.holds is False
    return (one.one_shot or one.t1 is not None) and one.gone.holds is not None


def watched(track: Track, one: Injected) -> bool:
    """Say whether steps were seen for a whole window after the end of a fault."""
    return one.end is not None and one.end.hi + track.baseline.window <= track.last + EPS


def phase(track: Track, found: Course) -> str:
    """Return what the run is in now; `Verdict.phase` lists the words."""
    if track.dead is not None:
        return "dead"
    if track.blind_end:
        return "blind"
    if any(one.held and one.t1 is None for one in found.injected):
        return "held"
    ongoing = [one for one in found.episodes if one.steady is None]
    return _of_episode(track, ongoing[-1]) if ongoing else "steady"


def _of_episode(track: Track, one: Episode) -> str:
    if one.resume is None and one.kind == STALL:
        return "stalled"
    if one.recover is None:
        return "recovering"
    return "reduced" if track.shrunk else "settling"
