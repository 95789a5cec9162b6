"""When nobody watched: silence of the logs that carry steps, unless something explains it."""

import math

from hypothesis import given
from hypothesis import strategies as st

from chaoskit.training.sight import SILENCE, Sight, _without


def beating(sight, nodes, start, end):
    for second in range(start, end + 1):
        for node in nodes:
            sight.heard(node, float(second))


def watching(*carriers):
    sight = Sight()
    beating(sight, ["n1", "n2"], 0, 10)
    for node in carriers:
        sight.carries(node, new_life=False)
    return sight


def test_a_tailer_that_beats_is_never_blind():
    sight = watching("n1")
    beating(sight, ["n1"], 11, 60)
    assert sight.spans(60 + SILENCE, []) == ()


def test_a_silent_carrier_is_blind_from_its_last_beat_on_growing_until_it_is_heard():
    sight = watching("n1")
    beating(sight, ["n2"], 11, 40)
    assert sight.spans(12.4, []) == ()
    assert sight.spans(13.0, []) == ((10.0, 13.0),)
    assert sight.spans(20.0, []) == ((10.0, 20.0),)
    sight.heard("n1", 21.0)
    assert sight.spans(21.5, []) == ((10.0, 21.0),)
    assert sight.spans(22.0, []) == ()


def test_any_live_log_that_carries_the_steps_will_do():
    sight = watching("n1", "n2")
    beating(sight, ["n2"], 11, 40)
    assert sight.spans(40.0, []) == ()
    sight.carries("n1", new_life=True)
    assert sight.spans(40.0, []) == ((10.0, 40.0),)


def test_a_reboot_explains_the_silence_before_it():
    """While the node is away nobody knows; once it is back with a new boot id the span is taken back."""
    sight = watching("n1")
    assert sight.spans(16.0, []) == ((10.0, 16.0),)
    sight.rebooted("n1", 17.0)
    assert sight.spans(17.0, []) == ((10.0, 10.0),)
    beating(sight, ["n1"], 18, 20)
    assert sight.spans(20.0, []) == ()


def test_workers_known_to_have_ended_explain_the_silence_until_they_run_again():
    sight = watching("n1")
    beating(sight, ["n2"], 11, 40)
    assert sight.spans(15.0, []) == ((10.0, 15.0),)
    assert sight.spans(30.0, [(11.0, math.inf)]) == ((10.0, 10.0),)
    assert sight.spans(40.0, [(11.0, 32.0)]) == ((32.0, 40.0),)


def test_before_the_first_step_every_log_counts():
    sight = Sight()
    sight.heard("n1", 0.0)
    assert sight.spans(2.0, []) == ()
    assert sight.spans(9.0, []) == ((0.0, 9.0),)


SPANS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)).map(sorted).map(tuple), max_size=6)


@given(st.tuples(st.integers(0, 50), st.integers(0, 50)).map(sorted).map(tuple), SPANS)
def test_cutting_holes_leaves_exactly_what_no_hole_covers(span, holes):
    def inside(spans, x):
        return any(lo < x < hi for lo, hi in spans)

    left = list(_without(span, holes))
    for x in (i + 0.5 for i in range(50)):
        assert inside(left, x) == (inside([span], x) and not inside(holes, x))


@given(st.lists(st.floats(0.1, 8.0), min_size=1, max_size=40))
def test_told_spans_add_up_to_every_silence_that_was_too_long(gaps):
    sight, now, told, expected = Sight(), 0.0, {}, {}
    sight.heard("n1", now)
    for gap in gaps:
        told.update(sight.spans(now + gap * 0.9, []))
        before, now = now, now + gap
        # The gap as the clock tells it: a sum of floats may have grown it past the limit by one bit.
        if now - before > SILENCE:
            expected[before] = now
        sight.heard("n1", now)
        told.update(sight.spans(now, []))
    assert told == expected
