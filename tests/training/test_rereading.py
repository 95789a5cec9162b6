"""A log that is read again counts once, unless it is another log."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from chaoskit.training.rereading import Reread

LINES = st.lists(st.sampled_from(["a", "b", "c"]), max_size=12).map(tuple)


def chunks(data, lines):
    """Cut lines into reads, as a tailer might."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(lines)), max_size=4)))
    edges = [0, *cuts, len(lines)]
    return [lines[lo:hi] for lo, hi in pairwise(edges)]


def read(reread, data, lines):
    return [line for chunk in chunks(data, lines) for line in reread.fresh(chunk, 0.0)[0]]


@given(LINES, LINES, LINES, st.data())
def test_each_line_of_a_growing_log_is_taken_once_however_often_it_is_read_again(first, second, third, data):
    reread = Reread()
    seen = read(reread, data, first)
    for grown in (first + second, first + second + third):
        reread.begin()
        seen += read(reread, data, grown)
    assert tuple(seen) == first + second + third


@given(LINES, LINES, st.data())
def test_another_log_at_the_same_place_is_taken_whole(old, new, data):
    reread = Reread()
    read(reread, data, old)
    reread.begin()
    taken = tuple(read(reread, data, ("z", *new)))
    assert taken == ("z", *new)


def test_lines_held_back_keep_the_moment_after_which_they_were_written():
    reread = Reread()
    reread.fresh(("a", "b"), 1.0)
    reread.begin()
    assert reread.fresh(("a",), 5.0) == ((), 5.0)
    assert reread.fresh(("x",), 9.0) == (("a", "x"), 5.0)
    assert reread.fresh(("y",), 10.0) == (("y",), 10.0)
