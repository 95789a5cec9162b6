"""Generated trainings with known answers: what the judge says is what is true, in whatever order it is told."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from judged import values
from simulated_training import Training

from chaoskit.judge import judge
from chaoskit.judge.timeline import Interval, Spec
from chaoskit.judge.verdict import Outcome
from chaoskit.model.experiment import Budgets

SPEC = Spec(budgets=Budgets(), for_=0.0, gpus=8, price_per_gpu_hour=3.0)
WORST = ("time_to_detect", "time_to_resume", "time_to_recover", "time_to_steady", "settle_time")
TOTAL = ("lost_steps", "restarts", "boots", "lost_time")

share = st.floats(0.05, 0.9)
kills = st.fixed_dictionaries(
    {
        "after": share,
        "delay": st.floats(2.0, 60.0),
        "lost": st.integers(0, 35),
        "in_flight": st.integers(0, 1),
        "stillborn": st.integers(0, 3),
        "told": st.booleans(),
    }
)
stalls = st.fixed_dictionaries({"after": share, "length": st.floats(6.0, 80.0), "held": st.floats(0.1, 1.0)})
slows = st.fixed_dictionaries({"steps": st.integers(5, 60), "factor": st.floats(1.3, 4.0)})
shrugs = st.fixed_dictionaries({"after": share, "held": st.integers(3, 40)})
plans = {"kill": kills, "stall": stalls, "slow": slows, "shrug": shrugs}
deeds = st.one_of(*(st.tuples(st.just(name), how) for name, how in plans.items()))
courses = st.tuples(st.floats(0.05, 3.0), st.lists(st.tuples(deeds, st.integers(45, 70)), min_size=1, max_size=4))
common = settings(max_examples=60)


def trained(course):
    """Run a training through its deeds, each followed by steady steps. Delays count in steps, so that every pace fits."""
    pace, plan = course
    training = Training(pace)
    training.run(120)
    training.end_of_baseline()
    training.run(3)
    for (name, how), quiet in plan:
        given_how = {**how}
        for seconds in ("delay", "length"):
            if seconds in given_how:
                given_how[seconds] *= pace
        getattr(training, name)(**given_how)
        training.run(quiet)
    return training


def expected(truth):
    """The run's figures by their definitions: times are the worst, counts and losses the totals."""
    known = {name: [one[name] for one in truth if name in one] for name in (*WORST, *TOTAL)}
    figures = {name: max(known[name]) for name in WORST if known[name]}
    return figures | {name: sum(known[name]) for name in TOTAL}


@common
@given(courses)
@example((1.0, [(("kill", {"after": 0.4, "delay": 8.0, "lost": 10, "in_flight": 0, "stillborn": 0, "told": True}), 50)]))
def test_what_is_known_is_judged_exactly(course):
    training = trained(course)
    found = judge(training.timeline(), SPEC)

    truth = expected(training.truth)
    if any("time_to_detect" not in one for one in training.truth):
        assert found.quantities["time_to_detect"].value is None
        truth.pop("time_to_detect", None)
    measured = values(found.quantities)
    assert {name: measured[name] for name in truth} == pytest.approx(truth, abs=1e-6)
    assert measured["lost_gpu_hours"] == pytest.approx(truth["lost_time"] * 8 / 3600, abs=1e-9)
    assert measured["lost_cost"] == pytest.approx(truth["lost_time"] * 8 / 3600 * 3.0, abs=1e-9)
    assert (found.outcome, found.settled, found.phase) == (Outcome.PASSED, True, "steady")


@common
@given(courses)
def test_every_disruption_is_judged_by_itself(course):
    training = trained(course)
    found = judge(training.timeline(), SPEC)

    broken = [one for one in training.truth if one["time_to_resume"] > 0]
    assert [one.start.mid for one in found.disruptions] == pytest.approx([one["t0"] for one in broken])
    for disruption, truth in zip(found.disruptions, broken, strict=True):
        measured = values(disruption.quantities)
        names = [name for name in truth if name != "t0"]
        assert {name: measured[name] for name in names} == pytest.approx({name: truth[name] for name in names}, abs=1e-6)
        assert disruption.boots == truth["boots"]


@pytest.mark.row("L39")
@common
@given(courses)
def test_the_losses_of_the_ledger_sum_to_the_lost_time(course):
    found = judge(trained(course).timeline(), SPEC)

    assert sum(phase.loss for phase in found.ledger) == pytest.approx(found.quantities["lost_time"].value.mid, abs=1e-9)
    for before, after in zip(found.ledger, found.ledger[1:], strict=False):
        assert before.end <= after.start
    assert all(phase.end >= phase.start for phase in found.ledger)


@common
@given(courses)
def test_goodput_and_lost_time_tell_the_same_story(course):
    found = judge(trained(course).timeline(), SPEC)

    elapsed = sum(phase.end - phase.start for phase in found.ledger)
    lost, goodput = (found.quantities[name].value.mid for name in ("lost_time", "window_goodput"))
    assert goodput == pytest.approx(1 - lost / elapsed if elapsed else 1.0, abs=1e-6)


@common
@given(courses, st.randoms(use_true_random=False))
def test_the_order_of_arrival_means_nothing(course, chance):
    timeline = trained(course).timeline()
    samples, marks = list(timeline.samples), list(timeline.marks)
    chance.shuffle(samples)
    chance.shuffle(marks)

    assert judge(replace(timeline, samples=tuple(samples), marks=tuple(marks)), SPEC) == judge(timeline, SPEC)


def blurred(timeline, spread):
    """The same course with this much uncertainty on every stamp."""

    def wide(t):
        return None if t is None else Interval(t.lo - spread, t.hi + spread)

    return replace(
        timeline,
        samples=tuple(replace(one, t=wide(one.t)) for one in timeline.samples),
        marks=tuple(replace(one, t=wide(one.t)) for one in timeline.marks),
        injections=tuple(replace(one, t0=wide(one.t0), t1=wide(one.t1)) for one in timeline.injections),
    )


@common
@given(courses, st.floats(0.0, 3.0), st.floats(0.0, 1.0))
def test_adding_uncertainty_only_widens(course, spread, part):
    timeline = trained(course).timeline()
    wide = judge(blurred(timeline, spread * course[0]), SPEC)
    narrow = judge(blurred(timeline, spread * part * course[0]), SPEC)

    for name, quantity in narrow.quantities.items():
        inner, outer = quantity.value, wide.quantities[name].value
        if inner is None:
            assert outer is None, name
        elif outer is not None:  # a fault held for less time than its stamps are sure to has no throughput
            assert outer.lo - 1e-6 <= inner.lo <= inner.hi <= outer.hi + 1e-6, name


@common
@given(courses, st.floats(0.0, 3.0))
def test_the_truth_lies_within_the_uncertainty(course, spread):
    training = trained(course)
    found = judge(blurred(training.timeline(), spread * course[0]), SPEC)

    for name, true in expected(training.truth).items():
        value = found.quantities[name].value
        if value is not None:
            assert value.lo - 1e-6 <= true <= value.hi + 1e-6, name


def seen_by(timeline, now):
    """What had been observed by now: an injection's end and proofs come with its time."""

    def so_far(one):
        if one.t0.hi > now:
            return replace(one, t0=None, t1=None, present=replace(one.present, holds=None), gone=replace(one.gone, holds=None))
        if one.t1 is not None and one.t1.hi > now:
            return replace(one, t1=None, gone=replace(one.gone, holds=None))
        return one

    return replace(
        timeline,
        samples=tuple(one for one in timeline.samples if one.t.hi <= now),
        marks=tuple(one for one in timeline.marks if one.t.hi <= now),
        injections=tuple(so_far(one) for one in timeline.injections),
        watched_until=now,
    )


@settings(max_examples=25)
@given(courses, st.integers(5, 15))
def test_once_settled_more_steady_steps_change_nothing(course, cuts):
    training = trained(course)
    training.run(60)
    whole = training.timeline()
    begin = training.baseline_end
    settled = None
    for cut in range(cuts * 4 + 1):
        found = judge(seen_by(whole, begin + (training.now - begin) * cut / (cuts * 4)), SPEC)
        if settled is not None:
            assert found.settled
            assert (found.outcome, found.quantities, found.ledger) == (settled.outcome, settled.quantities, settled.ledger)
        elif found.settled:
            settled = found
    assert settled is not None
