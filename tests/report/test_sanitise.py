"""Text from nodes and users is data in every report."""

import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaoskit.report import sanitise

HOSTILE = (
    "\x1b[31m",
    "\x1b]0;title\x07",
    "\x1b]52;c;ZXZpbA==\x1b\\",
    "\x1b]8;;http://x\x1b\\",
    "\x9b31m",
    "\x00",
    "\x08",
    "\ud800",
    "\ufffe",
    "\u202e",
    "]]>",
    "<b>",
    "&",
    "\r",
    "\r\n",
    "\n",
    " ",
    "[[ATTACHMENT|/etc/shadow]]",
    "[[",
    "[",
    "::set-output name=x::y",
    ":",
    "::",
    "##vso[task.setvariable]",
    "##",
    "##[error]",
    "##teamcity[testFailed]",
    "vso[",
    "{{7*7}}",
    "${x}",
    "%s",
)
ANY_TEXT = st.text(st.characters(codec=None), max_size=40)
HOSTILE_TEXT = st.lists(st.one_of(st.sampled_from(HOSTILE), ANY_TEXT), max_size=12).map("".join)
COMMANDS = (
    re.compile(r"\[\[ATTACHMENT\|", re.IGNORECASE),
    re.compile(r"^\s*::", re.MULTILINE),
    re.compile(r"##(vso|teamcity)?\[", re.IGNORECASE),
    re.compile("[\x1b\x9b\x9d\x07\x08\r\u202a-\u202e\u2066-\u2069]"),
)


@pytest.mark.row("S11")
@settings(max_examples=1000, deadline=None)
@given(HOSTILE_TEXT)
def test_any_text_is_xml_that_reads_back_as_written(raw):
    """Whatever a node prints, the XML file parses and says the sanitised text, as element text and as attribute."""
    said, one_line = sanitise.text(raw), sanitise.line(raw)
    element = ET.Element("failure", message=one_line)
    element.text = said

    read = ET.fromstring(ET.tostring(element, encoding="utf-8"))

    assert said == (read.text or "")
    assert one_line == read.get("message")


@pytest.mark.row("S11")
@settings(max_examples=1000, deadline=None)
@given(HOSTILE_TEXT)
def test_no_command_survives(raw):
    """Neither a terminal nor a CI runner finds a command in what is left, and sanitising again changes nothing."""
    said, one_line = sanitise.text(raw), sanitise.line(raw)

    for command in COMMANDS:
        assert command.search(said) is None
        assert command.search(one_line) is None
    assert "\n" not in one_line
    assert said == sanitise.text(said)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("a\x1b]0;own your title\x07b", "ab"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("nul\x00", "nul\ufffd"),
        ("lone \ud800", "lone \ufffd"),
        ("[[ATTACHMENT|/root/.ssh/id]]", "[ [ATTACHMENT|/root/.ssh/id]]"),
        ("[[attachment|x]]", "[ [attachment|x]]"),
        ("ok\n  ::set-env name=PATH::x", "ok\n  : :set-env name=PATH::x"),
        ("a ::b", "a ::b"),
        ("##vso[task]", "## vso[task]"),
        ("x ##[error]", "x ## [error]"),
        ("##teamcity[x]", "## teamcity[x]"),
        ("progress 10%\rprogress 20%", "progress 10%\nprogress 20%"),
        ("{{7*7}} ${x} %s <script>", "{{7*7}} ${x} %s <script>"),
    ],
)
def test_examples(raw, said):
    """Escapes go, forbidden characters show, commands are broken by a blank, everything else stays as it was."""
    assert said == sanitise.text(raw)


def test_a_command_does_not_form_when_lines_are_joined():
    """A line that starts with white space and `::` is broken as one line too."""
    assert ": :warning" == sanitise.line("\n\t::warning")
    assert "## [error]" == sanitise.line("##\x1b[0m[error]")


@given(st.integers(0, 200), st.sampled_from(["x", "é", "\U0001f600", "::\n"]))
@settings(max_examples=30, deadline=None)
def test_a_long_text_keeps_both_ends_and_names_the_cut(extra, filler):
    """A text over the cap ends within it, with its first and last characters and the number of bytes cut."""
    raw = "first" + filler * (sanitise.CAP + extra) + "last"

    said = sanitise.text(raw)

    assert len(said.encode()) <= sanitise.CAP
    assert said.startswith("first")
    assert said.endswith("last")
    assert re.search(r" \.\.\. \d+ bytes cut \.\.\. ", said)
    assert said == sanitise.text(said)


def test_a_long_line_is_cut():
    """One line of a table stays one line of bearable length."""
    assert sanitise.LINE_CAP == len(sanitise.line("y" * 5000))
