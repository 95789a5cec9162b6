"""The outcome of the run and the sentences that give its reasons, worst first."""

from collections.abc import Iterator, Sequence

from chaoskit.judge.episodes import Course, Episode
from chaoskit.judge.timeline import InjectionFacts, Timeline
from chaoskit.judge.track import Track
from chaoskit.judge.verdict import BudgetResult, BudgetState, Outcome
from chaoskit.judge.watch import watched
from chaoskit.judge.words import figure

Reason = tuple[Outcome, str]


def leaks(injections: Sequence[InjectionFacts]) -> Iterator[Reason]:
    """Name every injection that is not proven gone. One that was never armed and had no effect owes nothing."""
    for one in injections:
        if one.gone.holds is False or (one.gone.holds is None and (one.armed or one.t0 is not None)):
            why = one.gone.says or "nothing proves that the state before it is back"
            yield Outcome.LEAKED, f"leaked: {named(one)}: {why}"


def misses(budgets: Sequence[BudgetResult]) -> Iterator[Reason]:
    """Name every budget that was missed or could not be decided."""
    for one in budgets:
        if one.state is BudgetState.MISSED:
            yield Outcome.FAILED, one.says
        elif one.state is BudgetState.UNDECIDED:
            yield Outcome.INCONCLUSIVE, f"undecided: {one.says}"


def ends(track: Track, timeline: Timeline, found: Course) -> Iterator[Reason]:
    """Say how the training ended: dead, silent, unsteady, or not watched for long enough to know."""
    proven = any(one.present.holds and one.t0 is not None for one in timeline.injections)
    bad = Outcome.FAILED if proven else Outcome.INCONCLUSIVE
    if track.dead is not None:
        after = positive_time(track.dead.t.mid - found.injected[0].t0.mid)
        yield bad, f"the training died {after} after the fault and nothing started it again{_told(track.dead.says)}"
        return
    unsteady = [one for one in found.episodes if one.steady is None and one.certain]
    if unsteady:
        yield _unsteady(track, timeline, unsteady[-1], bad)
    elif any(one.steady is None for one in found.episodes):
        yield Outcome.INCONCLUSIVE, "the observer was blind and cannot say whether the training goes on"


def _unsteady(track: Track, timeline: Timeline, one: Episode, bad: Outcome) -> Reason:
    watched = positive_time(track.alive_until - one.start.mid)
    if track.blind_end:
        return Outcome.INCONCLUSIVE, f"the observer was blind from {watched} after the fault on"
    cut = timeline.cut_short or one.pending
    outcome = Outcome.INCONCLUSIVE if cut and bad is Outcome.FAILED else bad
    if one.resume is None:
        since = "the fault" if one.cause is not None else "its last step"
        return outcome, f"the training was silent until the watch ended, {watched} after {since}"
    if one.recover is None:
        return outcome, f"the training did not get beyond its earlier steps in the {watched} watched"
    if one.pending:
        return outcome, f"new steps came, but no whole window of {figure(track.baseline.window, 's')} was watched since"
    return outcome, f"{_level(track)}, never steady in the {watched} watched"


def _level(track: Track) -> str:
    start = max(track.last - track.baseline.window, track.times[0])
    share = figure(track.share_of_pace(start, track.last), "share") if track.last > start else "an unknown share"
    shrunk = "reduced: a smaller world goes on" if track.shrunk else "the training goes on"
    return f"{shrunk} at {share} of the baseline"


def unwatched(track: Track, found: Course) -> Iterator[Reason]:
    """Name what nobody could tell: a fault that was not felt so far, and no whole window was seen after its end."""
    if found.episodes:
        return
    for one in found.injected:
        if not one.felt and not watched(track, one):
            seen = positive_time(track.last - (one.end or one.t0).mid)
            since = "its end" if one.end else "its start"
            window = figure(track.baseline.window, "s")
            yield (
                Outcome.INCONCLUSIVE,
                f"not watched long enough to tell whether the training felt it: {seen} since {since}, where a window is {window}",
            )


def proofs(timeline: Timeline) -> Iterator[Reason]:
    """Name what was not proven about each fault: that it was there, and that the training used what it hit."""
    if not timeline.injections:
        yield Outcome.INCONCLUSIVE, "no fault was injected"
    for one in timeline.injections:
        if not one.targets:
            yield Outcome.INCONCLUSIVE, f"{one.fault}: zero targets"
        elif one.t0 is None and one.present.holds is None:
            begun = "armed, and nobody told whether it began" if one.armed and not one.refused else "never injected"
            yield Outcome.INCONCLUSIVE, f"{named(one)}: {begun}"
        elif not one.present.holds:
            yield Outcome.INCONCLUSIVE, f"not present: {named(one)}: {one.present.says or 'no witness saw it'}"
        elif one.exposed.holds is False:
            yield Outcome.INCONCLUSIVE, f"void: {one.exposed.says or f'the training did not use what {named(one)} hit'}"
        elif one.exposed.holds is None:
            why = one.exposed.says or "nothing says whether the training used what it hit"
            yield Outcome.INCONCLUSIVE, f"not known to be exposed: {named(one)}: {why}"


def circumstances(timeline: Timeline) -> Iterator[Reason]:
    """Name what ended the run early or kept it from being judged as planned."""
    if timeline.denied:
        yield Outcome.FAILED, timeline.denied
    if timeline.aborted:
        yield Outcome.ABORTED, f"aborted: {timeline.aborted}"
    if timeline.trouble:
        yield Outcome.INCONCLUSIVE, timeline.trouble


def decide(reasons: Sequence[Reason], notes: Sequence[str]) -> tuple[Outcome, tuple[str, ...]]:
    """Return the worst outcome, and every sentence once, worst first, the notes last."""
    outcome = Outcome.worst([one for one, _ in reasons])
    order = list(Outcome)
    ranked = sorted(reasons, key=lambda one: -order.index(one[0]))
    return outcome, tuple(dict.fromkeys([*(says for _, says in ranked), *notes]))


def named(one: InjectionFacts) -> str:
    """Name an injection, such as `link_flap plane B on node1, node2`."""
    what = one.detail if one.detail.startswith(one.fault) else f"{one.fault} {one.detail}".strip()
    return f"{what} on {', '.join(one.targets)}" if one.targets else what


def positive_time(seconds: float) -> str:
    """Return seconds that cannot be negative, as people read them."""
    return figure(max(seconds, 0.0), "s")


def _told(says: str) -> str:
    return f": {says}" if says else ""
