"""What the watch shows at each moment of a course, and when it may stop."""

from dataclasses import replace

import pytest
from judged import BEFORE, NO, UNKNOWN, YES, injection, mark, steps, timeline

from chaoskit.judge import judge
from chaoskit.judge.timeline import MarkKind, Spec
from chaoskit.model.experiment import Budgets

SPEC = Spec(Budgets(), for_=10.0, gpus=4)
RESTART = [*BEFORE, *steps(41, 120, 58.4, session="b")]
STALL = [*BEFORE, *steps(51, 120, 63.0)]
BIRTH = mark(MarkKind.BORN, 54.4, "b")


def seen(samples, now, injections, marks=()):
    """What a course looks like now, with the injections as they are known now."""
    known = [sample for sample in samples if sample.t.hi <= now]
    return judge(timeline(known, [one for one in marks if one.t.hi <= now], injections, watched=now), SPEC)


@pytest.mark.row("L39")
@pytest.mark.parametrize(
    ("now", "phase"),
    [
        (51.0, "steady"),
        (55.0, "recovering"),
        (60.0, "recovering"),
        (68.0, "recovering"),
        (70.0, "settling"),
        (88.4, "steady"),
        (100.0, "steady"),
    ],
)
def test_the_phases_of_a_restart(now, phase):
    found = seen(RESTART, now, [injection()], [BIRTH])

    assert found.phase == phase
    assert found.settled is (now >= 88.4)


@pytest.mark.parametrize(("now", "phase"), [(52.0, "held"), (58.0, "held"), (62.0, "stalled"), (64.0, "settling"), (83.0, "steady")])
def test_the_phases_of_a_stall(now, phase):
    held = injection(50.4, 60.4) if now >= 60.4 else injection(50.4, one_shot=False, gone=UNKNOWN)
    found = seen(STALL, now, [held])

    assert found.phase == phase
    assert found.settled is (now >= 83.0)


def test_before_the_fault_it_is_steady_and_not_settled():
    found = seen(BEFORE, 50.0, [injection(None, present=UNKNOWN, gone=UNKNOWN)])

    assert (found.phase, found.settled) == ("steady", False)
    assert found.baseline is not None


@pytest.mark.parametrize(("now", "settled"), [(61.0, False), (80.0, False), (81.0, True)])
def test_a_fault_that_is_not_felt_is_settled_a_whole_window_after_its_end(now, settled):
    found = seen(steps(0, 200, 0.0), now, [injection(50.4, 60.4)])

    assert found.settled is settled
    assert found.phase == "steady"


@pytest.mark.row("L30")
@pytest.mark.parametrize(("gone", "settled"), [(YES, True), (NO, True), (UNKNOWN, False)])
def test_it_is_settled_only_once_the_fault_is_proven_gone_or_not(gone, settled):
    assert seen(RESTART, 110.0, [injection(gone=gone)]).settled is settled


@pytest.mark.row("L30")
def test_it_is_not_settled_while_a_fault_is_still_to_come():
    later = injection(None, present=UNKNOWN, gone=UNKNOWN)
    assert not seen(RESTART, 110.0, [injection(), later]).settled
    assert seen(RESTART, 110.0, [injection(), replace(later, present=NO)]).settled


def test_a_dead_training_is_settled_at_once_unless_a_life_follows():
    ends = mark(MarkKind.EXIT, 50.9, "a")
    assert seen(RESTART, 52.0, [injection()], [ends, BIRTH]).settled
    assert seen(RESTART, 52.0, [injection()], [ends, BIRTH]).phase == "dead"
    assert not seen(RESTART, 55.0, [injection()], [ends, BIRTH]).settled


def test_a_world_that_shrank_is_never_settled():
    found = judge(replace(timeline(RESTART, [BIRTH]), batch={"a": 40, "b": 30}), SPEC)

    assert (found.phase, found.settled) == ("reduced", False)
