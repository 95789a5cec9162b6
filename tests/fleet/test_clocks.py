"""The clock map: the truth lies inside the interval, whatever the network does."""

from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaoskit.fleet.clocks import DRIFT, KEPT, ClockMap, Trip

ROUNDING = 1e-6

delays = st.floats(0, 2)
gaps = st.floats(0.001, 30)
offsets = st.floats(-1e7, 1e7)


class Node:
    """A node whose clock runs beside the controller's at a changing rate, asked over a network with any delays."""

    def __init__(self, offset):
        self.now = 1000.0
        self.mono = 1000.0 - offset
        self.truth = []  # (controller time, node time)

    def advance(self, seconds, rate):
        self.now += seconds
        self.mono += seconds * rate

    def trip(self, there, back, rate=1.0):
        sent = self.now
        self.advance(there, rate)
        mono = self.mono
        self.truth.append((self.now, mono))
        self.advance(back, rate)
        return Trip(sent, self.now, mono, wall=mono + 1e9)


rates = st.floats(1 - DRIFT / 2, 1 + DRIFT / 2)
histories = st.lists(st.tuples(gaps, delays, delays, rates), min_size=1, max_size=30)


def play(offset, history):
    node, clock = Node(offset), ClockMap()
    for gap, there, back, rate in history:
        node.advance(gap, rate)
        node.truth.append((node.now, node.mono))
        clock.add(node.trip(there, back, rate))
    node.advance(1.0, 1.0)
    node.truth.append((node.now, node.mono))
    return node, clock


@given(offsets, histories)
def test_the_true_moment_lies_inside_the_interval_for_any_delays_and_any_drift(offset, history):
    node, clock = play(offset, history)

    for now, mono in node.truth:
        found = clock.to_controller(mono)
        assert found.lo - ROUNDING <= now <= found.hi + ROUNDING


@given(offsets, histories)
def test_the_way_there_and_back_meets_itself(offset, history):
    node, clock = play(offset, history)

    for now, _ in node.truth:
        assert abs(clock.to_controller(clock.to_node(now)).mid - now) < 1e-5


@given(offsets, histories)
def test_order_on_the_node_is_kept(offset, history):
    node, clock = play(offset, history)
    mids = [clock.to_controller(mono).mid for _, mono in node.truth]

    assert all(later >= earlier - 2 * DRIFT for earlier, later in pairwise(mids))


@pytest.mark.row("R8")
@given(histories, st.floats(10, 1e6))
def test_a_jump_of_the_clock_is_a_new_piece_and_both_pieces_stay_true(history, jump):
    """A suspended node's clock stands still; what was mapped before stays right, and so does what comes after."""
    node, clock = play(0.0, history)
    before = list(node.truth)
    node.now += jump  # the controller's clock went on
    after = []
    for _ in range(3):
        node.advance(1.0, 1.0)
        clock.add(node.trip(0.001, 0.001))
        after.append(node.truth[-1])

    for now, mono in [*before[:-1], *after]:
        found = clock.to_controller(mono)
        assert found.lo - ROUNDING <= now <= found.hi + ROUNDING
    assert clock.to_controller(after[-1][1]).spread < 0.01


def test_the_fastest_trip_decides_the_uncertainty():
    node, clock = Node(5.0), ClockMap()
    for there, back in [(0.2, 0.3), (0.0005, 0.0005), (0.5, 0.1)]:
        node.advance(0.1, 1.0)
        clock.add(node.trip(there, back))

    assert clock.to_controller(node.truth[1][1]).spread <= 0.0005 + ROUNDING


def test_the_uncertainty_grows_by_the_drift_away_from_the_last_trip():
    clock = ClockMap()
    clock.add(Trip(10.0, 10.002, 5.0, 0.0))

    assert clock.to_controller(105.0).spread == pytest.approx(0.001 + 100 * DRIFT)


@given(offsets, histories)
def test_what_is_known_of_a_moment_only_gets_better(offset, history):
    """Leaving out a trip that others imply must lose nothing."""
    node, clock = Node(offset), ClockMap()
    seen = {}
    for gap, there, back, rate in history:
        node.advance(gap, rate)
        clock.add(node.trip(there, back, rate))
        for mono in [mono for _, mono in node.truth][-8:]:
            found = clock.to_controller(mono)
            assert found.spread <= seen.get(mono, inf) + ROUNDING
            seen[mono] = found.spread


def test_a_clock_that_was_never_asked_maps_nothing():
    for ask in (ClockMap().to_controller, ClockMap().to_node, ClockMap().from_wall):
        with pytest.raises(LookupError):
            ask(1.0)


def test_a_wall_stamp_between_two_readings_of_a_stepped_clock_may_lie_anywhere_in_between():
    clock = ClockMap()
    for now, wall in [(10.0, 1000.0), (20.0, 1010.0), (30.0, 1023.0)]:  # stepped by three seconds after 20
        clock.add(Trip(now, now, now, wall))

    steady, stepped = clock.from_wall(1005.0), clock.from_wall(1016.0)

    assert (steady.lo, steady.hi) == (pytest.approx(15.0, abs=0.02), pytest.approx(15.0, abs=0.02))
    assert (stepped.lo, stepped.hi) == (pytest.approx(23.0, abs=0.02), pytest.approx(26.0, abs=0.02))


def test_memory_is_bounded_and_the_newest_trips_stay():
    clock = ClockMap()
    for second in range(3 * KEPT):
        clock.add(Trip(second * 3.0, second * 3.0 + 0.001, second * 3.0, 0.0))

    assert clock.to_controller(3.0 * 3 * KEPT).spread < 0.01
    assert clock.to_controller(1.0).hi < inf
