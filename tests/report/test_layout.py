"""Rows of a table as lines of a given width."""

from hypothesis import given
from hypothesis import strategies as st

from chaoskit.report.layout import Row, firm, lines


def laid_out(row, width):
    return [line.text for line in lines(row, width)]


def test_a_long_value_goes_on_below_its_start():
    """The label stands once, and words stay whole."""
    row = Row("  because  the training died and nothing started it", hang=11)

    assert ["  because  the training died and", "           nothing started it"] == laid_out(row, 33)


def test_a_row_without_a_hang_is_never_broken():
    """A command stays one line, so that it can be copied."""
    assert ["  rerun  chaoskit run x.yaml"] == laid_out(Row("  rerun  chaoskit run x.yaml"), 10)


def test_the_word_at_the_right_edge_keeps_its_style_at_every_width():
    """It stands at the edge, or two blanks after a text that fills the line."""
    row = Row("plane_loss   lab", "bold", right="PASSED")

    assert ["plane_loss   lab              PASSED"] == laid_out(row, 36)
    for width in (10, 24, 36):
        (line,) = lines(row, width)
        assert "PASSED" == line.text[line.start : line.end]


def test_an_aside_follows_where_it_fits_and_else_stands_below_whole():
    """A remark is never torn at the edge of the line."""
    row = Row("  settle time  2 s  ok  ", hang=15, aside="(steady after 22 s)")

    assert ["  settle time  2 s  ok  (steady after 22 s)"] == laid_out(row, 43)
    assert ["  settle time  2 s  ok", "               (steady after 22 s)"] == laid_out(row, 42)


def test_what_belongs_together_is_not_torn():
    """A phase keeps its figure, and a fact its `not`."""
    row = Row("  phases  " + firm("new process 1.3 + first step 0.3 = 1.6 s, 1.6 s of it lost"), hang=10)

    told = ["  phases  new process 1.3 +", "          first step 0.3 =", "          1.6 s,", "          1.6 s of it lost"]
    assert told == laid_out(row, 31)


@given(st.lists(st.text("ab", min_size=1, max_size=12), min_size=1, max_size=30), st.integers(41, 120))
def test_lines_fit_and_no_word_is_lost(words, width):
    """Whatever the value, every line fits and all its words are there, in order."""
    told = laid_out(Row("  because            " + " ".join(words), hang=21), width)

    assert all(len(line) <= width for line in told)
    assert words == " ".join(told).split()[1:]
