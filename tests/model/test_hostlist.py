"""Host lists: what they stand for, what is refused before anything is expanded, and that folding is the inverse."""

import re

import pytest
from fair_watch import FairWatch
from hypothesis import given, settings
from hypothesis import strategies as st

from chaoskit.errors import InputError
from chaoskit.model.hostlist import LONGEST_NAME, MOST, NAME, HostListError, expand, fold


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node1", ("node1",)),
        ("node[1-3]", ("node1", "node2", "node3")),
        ("node[08-11]", ("node08", "node09", "node10", "node11")),
        ("gpu[001,003]", ("gpu001", "gpu003")),
        ("a[1-5/2]", ("a1", "a3", "a5")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("n[1-2].site.example", ("n1.site.example", "n2.site.example")),
        ("node10,node2, node[1,2]", ("node1", "node2", "node10")),
        (" store1 ", ("store1",)),
    ],
)
def test_ranges_are_expanded_in_natural_order_each_once(text, names):
    assert expand(text) == names


@pytest.mark.parametrize(
    ("text", "what", "column"),
    [
        ("", "missing", 1),
        ("a,,b", "missing", 3),
        ("a,", "missing", 3),
        ("node[1-4", "never closed", 5),
        ("node1-4]", "without an opening", 8),
        ("node[[1-4]]", "inside a bracket", 6),
        ("a[1-2][1-2]", "without a letter", 7),
        ("node[4-1]", "backwards", 6),
        ("node[01-004]", "padded differently", 6),
        ("node[1-004]", "padded differently", 6),
        ("node[]", "is not a range", 6),
        ("node[1,x]", "is not a range", 8),
        ("node[1-4/0]", "step of zero", 6),
        ("a b", "inside the name", 2),
        ("a/b", "inside the name", 2),
        ("-oProxyCommand=x", "does not belong", 15),
        ("-o", "is not a host name", 1),
        ("x,-v[1-2]", "is not a host name", 3),
        ("$(id)[1-2]", "does not belong", 1),
        ("a;rm -rf /[1-2]", "does not belong", 2),
        ("a\nb", "does not belong", 2),
        ("@all", "does not belong", 1),
        ("*", "does not belong", 1),
        ("a!b", "does not belong", 2),
        ("n[1-2]-", "is not a host name", 1),
        ("é1", "does not belong", 1),
    ],
)
def test_anything_else_is_refused_at_its_character(text, what, column):
    with pytest.raises(HostListError) as caught:
        expand(text)

    assert what in caught.value.what
    assert caught.value.column == column
    assert f"character {column}" in str(caught.value)


def test_the_colon_range_of_other_tools_gets_a_hint():
    with pytest.raises(InputError, match=re.escape("write ranges with a dash: [01-16]")):
        expand("node[01:16]")


@pytest.mark.parametrize("text", ["n[1-999999999]", "n[1-999]x[1-999]", "n[0-99999]x,m", ",".join(["n[1-99999999]"] * 100)])
def test_the_size_is_bounded_before_anything_is_expanded(text):
    watch = FairWatch()

    with pytest.raises(HostListError, match="more than 100,000"):
        expand(text)

    assert watch.took() < 0.5


HOSTILE = {
    "a bomb of three ranges": "a[0-999]b[0-999]c[0-999]",
    "a bomb of forty": "n" + "[1-2]a" * 40,
    "a bomb of one": "n[1-999999999]",
    "a bomb of many": ",".join(["n[1-99999999]"] * 100),
    "an option": "-oProxyCommand=x",
    "a short option": "-l",
    "an option as a range": "-v[1-2]",
    "a second command": "host;id",
    "a pipe": "host|id",
    "a substitution": "$(id)",
    "backticks": "`id`",
    "a new line": "a\nb",
    "a NUL": "a\0b",
    "a path": "../x",
    "two dots": "..",
    "a home": "~root",
    "a percent token": "%h",
    "a percent token inside": "a%h",
    "everything": "*",
    "a group": "@all",
    "another alphabet": "é1",
    "full-width digits": "n[１-２]",  # noqa: RUF001 - that is the point
    "a mark that turns the text": "n\u202e1",
    "a megabyte": "n" * 1_000_000,
    "a megabyte of ranges": "n[1-2]," * 150_000,
}


@pytest.mark.row("S3", "S1")
@pytest.mark.parametrize("case", HOSTILE)
def test_bombs_and_hostile_names_are_refused_before_anything_is_expanded(case, monkeypatch):
    """The library that expands never sees them; the refusal is short, whatever they are."""
    monkeypatch.setattr("chaoskit.model.hostlist._cluster_shell", lambda text: pytest.fail(f"expanded {text[:40]!r}"))
    watch = FairWatch()

    with pytest.raises(HostListError) as caught:
        expand(HOSTILE[case])

    assert watch.took() < 0.5
    assert len(str(caught.value)) < 300


def test_the_largest_list_is_expanded():
    assert len(expand(f"n[1-{MOST}]")) == MOST


def test_names_and_texts_are_bounded():
    assert expand("n" * LONGEST_NAME) == ("n" * LONGEST_NAME,)
    with pytest.raises(HostListError, match="is not a host name"):
        expand("n" * (LONGEST_NAME + 1))
    with pytest.raises(HostListError, match="longer than"):
        expand("n," * 10_000)


NAMES = st.from_regex(r"[a-z]{1,4}(-[0-9]{1,3})?([a-z][0-9]{1,3}){0,2}", fullmatch=True)


@settings(deadline=None)
@given(st.lists(NAMES, min_size=1, max_size=30))
def test_folding_and_expanding_are_inverse(names):
    assert set(expand(fold(names))) == set(names)


@settings(deadline=None)
@given(st.from_regex(r"[a-z]{1,3}(\[[0-9]{1,2}(-[0-9]{1,2})?(,[0-9]{1,2}){0,2}\][a-z]{0,2}){0,2}", fullmatch=True))
def test_what_was_expanded_folds_to_the_same_names(text):
    try:
        names = expand(text)
    except HostListError:
        return
    assert expand(fold(names)) == names


@settings(deadline=None)
@given(st.one_of(st.text(max_size=40), st.text("ab01-[],./ :", max_size=30)))
def test_any_text_is_safe_names_or_a_refusal(text):
    try:
        names = expand(text)
    except HostListError:
        return

    assert names
    assert all(NAME.fullmatch(name) for name in names)


def test_nothing_folds_to_nothing():
    assert fold([]) == ""
    assert fold(["node2", "node1", "node1"]) == "node[1-2]"
