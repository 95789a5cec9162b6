"""Lives out of samples and marks: by session, by steps that fall back, in any order of arrival."""

from hypothesis import given, settings
from hypothesis import strategies as st
from judged import at, mark, steps

from chaoskit.judge.incarnations import lives
from chaoskit.judge.timeline import Interval, MarkKind, Sample


def made(found):
    """Session and steps of each life."""
    return [(life.session, [point.step for point in life.points]) for life in found]


def test_a_session_is_a_life_however_late_its_lines_come():
    late = Sample(at(60.0), 11, "a")

    assert made(lives([*steps(5, 7, 50.0, session="b"), late, *steps(9, 10, 1.0)])) == [("a", [9, 10, 11]), ("b", [5, 6, 7])]


def test_a_step_that_falls_back_begins_a_life():
    assert made(lives([*steps(1, 5, 0.0, session=""), *steps(3, 6, 20.0, session="")])) == [("", [1, 2, 3, 4, 5]), ("", [3, 4, 5, 6])]


def test_the_same_step_from_several_ranks_is_one_step():
    twice = [sample for one in steps(1, 4, 0.0) for sample in (one, Sample(at(one.t.mid + 0.1), one.step, "a"))]
    found = lives(twice)

    assert made(found) == [("a", [1, 2, 3, 4])]
    assert [point.at for point in found[0].points] == [0.0, 1.0, 2.0, 3.0]


def test_swapped_lines_with_overlapping_stamps_are_no_new_life():
    swapped = [Sample(at(1.0), 1), Sample(Interval(2.0, 4.2), 3), Sample(Interval(2.0, 4.4), 2), Sample(at(5.0), 4)]
    found = lives(swapped)

    assert made(found) == [("", [1, 2, 3, 4])]
    assert [point.at for point in found[0].points] == sorted(point.at for point in found[0].points)


def test_a_step_that_surely_came_later_is_a_new_life_even_if_it_was_never_logged_before():
    assert made(lives([Sample(at(1.0), 10), Sample(at(2.0), 20), Sample(at(30.0), 15)])) == [("", [10, 20]), ("", [15])]


def test_lines_of_one_read_are_spread_over_it():
    found = lives([Sample(Interval(10.0, 20.0), step, "a") for step in range(1, 6)])

    assert [point.at for point in found[0].points] == [11.0, 13.0, 15.0, 17.0, 19.0]
    assert {(point.lo, point.hi) for point in found[0].points} == {(10.0, 20.0)}


def test_a_fall_back_inside_one_read_is_found_without_arrival_order():
    read = [Sample(Interval(10.0, 20.0), step) for step in (42, 50, 41, 49)]

    assert made(lives([*steps(40, 48, 0.0, session=""), *read])) == [("", [*range(40, 51)]), ("", [41, 42])]


def test_two_lines_of_one_read_are_the_end_of_one_life_and_the_begin_of_the_next():
    read = [Sample(Interval(10.0, 20.0), step) for step in (41, 49)]

    assert made(lives([*steps(40, 48, 0.0, session=""), *read])) == [("", [*range(40, 50)]), ("", [41])]


def test_a_life_without_a_step_is_known_by_its_birth():
    births = [mark(MarkKind.BORN, 12.0, "c"), mark(MarkKind.BORN, 10.0, "b")]
    found = lives([*steps(1, 5, 0.0), *steps(3, 6, 20.0, session="d")], births)

    assert made(found) == [("a", [1, 2, 3, 4, 5]), ("b", []), ("c", []), ("d", [3, 4, 5, 6])]
    assert [life.index for life in found] == [0, 1, 2, 3]
    assert [life.begin for life in found] == [0.0, 10.0, 12.0, 20.0]


def test_the_births_of_many_ranks_are_one_life():
    births = [mark(MarkKind.BORN, t, "b") for t in (10.2, 10.0, 10.1)]
    found = lives(steps(3, 6, 20.0, session="b"), births)

    assert len(found) == 1
    assert found[0].begin == 10.0


def test_births_that_nobody_names_are_one_life_when_no_step_follows():
    births = [mark(MarkKind.BORN, t) for t in (10.2, 10.0)]

    assert made(lives(steps(1, 5, 0.0, session=""), births)) == [("", [1, 2, 3, 4, 5]), ("", [])]
    assert made(lives(steps(1, 5, 20.0, session=""), births)) == [("", [1, 2, 3, 4, 5])]
    assert made(lives(steps(1, 5, 0.0, session="a"), births)) == [("a", [1, 2, 3, 4, 5])]


@settings(deadline=None)
@given(st.permutations([*steps(1, 6, 0.0, session=""), *steps(4, 8, 20.0, session=""), *steps(2, 4, 40.0, session="x")]))
def test_any_order_of_arrival_gives_the_same_lives(samples):
    assert made(lives(samples)) == [("", [1, 2, 3, 4, 5, 6]), ("", [4, 5, 6, 7, 8]), ("x", [2, 3, 4])]
