"""When a line's moment was: the truth lies in the interval, and the interval is as narrow as what is known allows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaoskit.training.stamps import LINE_DELAY, Stamper

EPS = 1e-6


def reads(stamper, emitted, *, flush_every=1, offset=None, poll=0.02):
    """Write a line at each moment, flush after every few, read every `poll` seconds; return (moment, interval) pairs."""
    out, buffer, file, now, last = [], [], [], 0.0, 0.0
    for moment in [*emitted, emitted[-1] + 1.0]:
        while now < moment:
            if file:
                times = [None if offset is None else one + offset for one in file]
                out += zip(file, stamper.stamp(last, now, len(file), times), strict=True)
                file = []
            last, now = now, now + poll
        buffer.append(moment)
        if len(buffer) >= flush_every:
            file, buffer = file + buffer, []
    return out


def test_a_line_that_is_flushed_at_once_is_known_to_the_read_and_the_lines_own_delay():
    for moment, t in reads(Stamper(0.0), [0.5 + 0.1 * i for i in range(50)]):
        assert t.lo - EPS <= moment <= t.hi + EPS
        assert t.hi - t.lo <= 0.04 + LINE_DELAY + EPS


def test_lines_flushed_every_ten_steps_are_as_uncertain_as_ten_steps():
    """The worked history of late lines: every time carries an uncertainty of ten steps."""
    found = reads(Stamper(0.0), [float(i) for i in range(1, 101)], flush_every=10)
    for moment, t in found[20:]:
        assert t.lo - EPS <= moment <= t.hi + EPS
        assert t.hi - t.lo == pytest.approx(10, abs=0.2)


def test_fast_steps_that_fit_into_a_read_are_not_taken_for_buffered():
    found = reads(Stamper(0.0), [0.5 + 0.005 * i for i in range(400)])
    assert all(t.hi - t.lo < 0.15 for _, t in found[40:])


@given(
    st.lists(st.floats(0.03, 3.0), min_size=3, max_size=60),
    st.integers(1, 10),
    st.one_of(st.none(), st.floats(-1e9, 1e9)),
    st.floats(0.01, 0.2),
)
def test_the_truth_lies_in_the_interval(gaps, flush_every, offset, poll):
    """Whatever the pace, the buffering, the line's own clock and the poll. The first flushes teach the pace, so few lines are exempt."""
    moments, now = [], 1.0
    for gap in gaps:
        now += gap
        moments.append(now)
    for moment, t in reads(Stamper(0.0), moments, flush_every=flush_every, offset=offset, poll=poll):
        assert t.lo <= t.hi
        assert moment <= t.hi + 1e-3
        if flush_every == 1:
            assert t.lo <= moment + 1e-3


def test_a_stamp_in_the_line_beats_the_read_in_which_it_appeared():
    """A tailer that was away for ten seconds reads old lines at once; their own stamps say when each was."""
    stamper = Stamper(0.0)
    for i in range(20):
        stamper.stamp(float(i), i + 0.02, 1, [1000.0 + i])
    late = stamper.stamp(20.0, 30.0, 9, [1000.0 + i for i in range(21, 30)])
    for i, t in zip(range(21, 30), late, strict=True):
        assert t.lo <= i + 0.02
        assert t.hi >= i
        assert t.hi - t.lo < 0.1


def test_a_clock_that_is_set_is_learned_anew():
    stamper = Stamper(0.0)
    for i in range(10):
        stamper.stamp(float(i), i + 0.02, 1, [1000.0 + i])
    for i in range(10, 20):
        [t] = stamper.stamp(float(i), i + 0.02, 1, [500.0 + i])
        assert t.lo <= i + 0.02
        assert t.hi >= i - LINE_DELAY
        assert t.hi - t.lo < 0.1
    # Lines that are read late are placed by their own stamps, on the clock as it is now.
    for i, t in zip((21, 22), stamper.stamp(20.0, 30.0, 2, [521.0, 522.0]), strict=True):
        assert t.lo <= i + 0.02
        assert t.hi >= i
        assert t.hi - t.lo < 0.1
