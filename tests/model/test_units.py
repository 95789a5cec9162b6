"""Quantities with units: what is read, what is refused, and that showing is the inverse of reading."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaoskit.model.units import parse_duration, parse_pick, parse_share, show_duration, show_share


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("20s", 20.0), ("1.5m", 90.0), ("2h", 7200.0), ("1d", 86400.0), (" 5 s ", 5.0), (0, 0.0), ("365d", 31536000.0)],
)
def test_durations_are_seconds(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", [20, 1.5, "20", "-5s", "5 min", "366d", "s", "", "1e3s", "٣s", True, None, [], "9" * 400 + "s"])
def test_a_duration_without_its_unit_is_refused(text):
    with pytest.raises(ValueError, match="expected a duration"):
        parse_duration(text)


def test_a_bare_number_gets_a_hint():
    with pytest.raises(ValueError, match="did you mean 20s"):
        parse_duration(20)
    with pytest.raises(ValueError, match="did you mean 40%"):
        parse_share(0.4)


@pytest.mark.parametrize("text", [0.4, 40, "40", "-1%", "%", True, None, "1e1%"])
def test_a_share_without_its_sign_is_refused(text):
    with pytest.raises(ValueError, match="expected a percentage"):
        parse_share(text)


@pytest.mark.parametrize(("text", "quantity"), [("all", "all"), (3, 3), (0, 0), ("25%", 0.25)])
def test_a_pick_is_a_count_a_share_or_all(text, quantity):
    assert parse_pick(text) == quantity
    assert type(parse_pick(text)) is type(quantity)


@pytest.mark.parametrize("text", [-1, 0.5, "three", True, None, "All"])
def test_any_other_pick_is_refused(text):
    with pytest.raises(ValueError, match="expected a number of nodes"):
        parse_pick(text)


@settings(deadline=None)
@given(st.integers(min_value=0, max_value=10**10))
def test_a_shown_duration_reads_back(milliseconds):
    assert parse_duration(show_duration(milliseconds / 1000)) == pytest.approx(milliseconds / 1000)


@settings(deadline=None)
@given(st.integers(min_value=0, max_value=10_000))
def test_a_shown_share_reads_back(hundredths):
    assert parse_share(show_share(hundredths / 10_000)) == pytest.approx(hundredths / 10_000)
