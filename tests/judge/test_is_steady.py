"""Whether a first fault may begin now, told before it: the same as what the verdict says of it afterwards."""

from hypothesis import given
from hypothesis import strategies as st
from simulated_training import Training

from chaoskit.judge import is_steady, judge
from chaoskit.judge.timeline import Spec
from chaoskit.model.experiment import Budgets

SPEC = Spec(Budgets(), for_=5.0, gpus=3, checkpoint_every=10)


@given(
    courses=st.lists(st.tuples(st.integers(1, 40), st.sampled_from([0.5, 1.0, 1.02, 1.3, 3.0])), max_size=4),
    silent=st.floats(0.0, 20.0),
)
def test_it_says_what_the_verdict_would(courses, silent):
    training = Training(pace=0.25)
    training.run(120)
    training.end_of_baseline()
    for steps, factor in courses:
        training.run(steps, factor)
    now = training.now + silent
    training.now = now
    asked = is_steady(training.timeline(), SPEC, now)

    training.inject(now, None)
    told = judge(training.timeline(), SPEC)

    assert asked == all("not steady before the fault" not in why for why in told.reasons)


def test_without_a_baseline_nothing_is_steady():
    training = Training(pace=0.25)
    training.run(1)

    assert not is_steady(training.timeline(), SPEC, training.now)


def test_a_silence_under_way_is_not_steady():
    training = Training(pace=0.25)
    training.run(120)
    training.end_of_baseline()
    training.now += 20.0

    assert not is_steady(training.timeline(), SPEC, training.now)
