"""YAML to plain values with positions; never anything but problems for bad bytes, and never unbounded work."""

import json

import pytest
import yaml
from fair_watch import FairWatch
from hypothesis import given, settings
from hypothesis import strategies as st

from chaoskit.errors import InputError
from chaoskit.model.yaml_source import LARGEST, parse_source, read_source

TEXT = """\
title: t
method:
  - fault: link_flap
    with: {down: 20s, "times": 1}
  - [1, 2.5, true, null, 'x']
"""


def test_values_and_positions():
    source = parse_source(TEXT.encode(), "e.yaml")

    assert source.problems == []
    assert source.value == {
        "title": "t",
        "method": [{"fault": "link_flap", "with": {"down": "20s", "times": 1}}, [1, 2.5, True, None, "x"]],
    }
    assert source.value_at(("method", 0, "with", "down")) == (4, 18)
    assert source.key_at(("method", 0, "with", "times")) == (4, 23)
    assert source.value_at(("method", 1, 4)) == (5, 26)
    assert source.value_at(("method", 0, "with", "nothing", "here")) == (4, 11)
    assert str(source.positions()["method.0.with"]) == "e.yaml:4:5"


def test_a_byte_order_mark_is_no_character():
    source = parse_source(b"\xef\xbb\xbftitle: t\n", "e.yaml")

    assert source.value == {"title": "t"}
    assert source.value_at(("title",)) == (1, 8)


def test_windows_line_ends_move_no_position():
    source = parse_source(TEXT.replace("\n", "\r\n").encode(), "e.yaml")

    assert source.value_at(("method", 1, 4)) == (5, 26)


@pytest.mark.parametrize(
    "bytes_",
    [b"[" * 100_000, b"{a: " * 100_000, b"- " * 100_000, b"? " * 100_000, b"a:\n" + b"".join(b"    " * n + b"- a:\n" for n in range(400))],
)
def test_depth_is_bounded_without_recursion(bytes_):
    watch = FairWatch()

    source = parse_source(bytes_, "e.yaml")

    assert any("more than 50 levels" in problem.what for problem in source.problems)
    assert watch.took() < 2


def test_fifty_levels_are_read():
    value = "x"
    for _ in range(49):
        value = [value]

    assert parse_source(json.dumps({"a": value}).encode(), "e.yaml").problems == []


def test_a_large_file_is_refused_unread():
    source = parse_source(b"a" * (LARGEST + 1), "e.yaml")

    assert [problem.what for problem in source.problems] == ["the file is larger than 1 MB"]


def test_many_problems_are_cut_short():
    source = parse_source(b"- on\n" * 5000, "e.yaml")

    assert len(source.problems) == 100
    assert source.problems[-1].what == "there are more problems than are shown"


def test_an_escape_cannot_smuggle_a_control_character():
    source = parse_source(b'a: "x\\0y"\n', "e.yaml")

    assert [str(problem) for problem in source.problems] == ["e.yaml:1:4: a: the text holds the character U+0000, remove it"]


@pytest.mark.parametrize("name", ["absent.yaml", "."])
def test_a_file_that_cannot_be_read_says_so(tmp_path, name):
    with pytest.raises(InputError, match=r"cannot read the file: .+ \(.+\)"):
        read_source(tmp_path / name)


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**15), 10**15),
        st.floats(-1e6, 1e6),
        st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "Zs"))),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text("abcxyz_", min_size=1), inner, max_size=4)),
    max_leaves=20,
)


@settings(deadline=None)
@given(st.dictionaries(st.text("abcxyz_", min_size=1), JSON, min_size=1, max_size=4))
def test_what_yaml_writes_is_read_back(value):
    """PyYAML quotes every text that it would not read back as text; those that only other readers misread are errors."""
    text = yaml.safe_dump(value, default_flow_style=None, allow_unicode=True, width=10_000)
    source = parse_source(text.encode(), "e.yaml")

    if not source.problems:
        assert source.value == yaml.safe_load(text)
    else:
        assert all("some YAML readers" in problem.what or "number" in problem.what for problem in source.problems)


@settings(deadline=None)
@given(
    st.one_of(
        st.binary(max_size=300),
        st.text("ab: -[]{}#&*!|>'\"%@`\n\t\r,?0123:e.~<=", max_size=120).map(str.encode),
        st.text(max_size=100).map(str.encode),
    )
)
def test_any_bytes_become_values_or_problems_with_positions(data):
    source = parse_source(data, "e.yaml")

    assert all(problem.line >= 1 and problem.col >= 1 for problem in source.problems)
    assert source.whole or source.problems
    json.dumps(source.value, allow_nan=False)
