"""Text from a node is data in every output: 60 payloads, each through everything that is shown or written; none of them acts."""

import io
import json
import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from chaoskit.engine.doctor import Diagnosis
from chaoskit.engine.events import Event
from chaoskit.engine.residue import Remnant
from chaoskit.model.wire import Finding
from chaoskit.report import doctor, doctor_junit, junit, live, summary, table

pytestmark = pytest.mark.row("S10", "S11")

VERBATIM = (
    *("{{7*7}}", "{% raw %}", "${x}", "$(id)", "`id`", "%s", "%n%n%n", "%(name)s", "{0.__class__}", "#{7*7}", "<%= 7*7 %>", "$HOME"),
    *("=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(1)", "=HYPERLINK('http://x')", "[link](http://x)", "![i](http://x)", "**bold**"),
    *("| a | b |", "`code`", "~~~", "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<svg/onload=alert(1)>", "]]>"),
    *("<![CDATA[x", "&lol;", "<!DOCTYPE x>", "<!-- x -->", "' or 1=1", "../../etc/passwd", "javascript:alert(1)", "[red]rich[/red]"),
    *("[bold]x", "\\u001b[31m", "\\x1b[2J", "%0d%0a", "--help"),
)
"""What is harmless as long as nobody interprets it: it stands in each output as it was sent."""
BROKEN = (
    *("\x1b[31mred", "\x1b[2J", "\x1b]0;title\x07", "\x1b]52;c;ZXZpbA==\x07", "\x1b]8;;http://x\x1b\\here", "\x9b31m", "\x1bc"),
    *("a\rb", "a\x08b", "\x00", "\x0b", "\x1f", "\u202eevil", "\u2066x\u2069", "\ufffe"),
    *("[[ATTACHMENT|/etc/shadow]]", "::set-output name=a::b", "##vso[task.complete]", "##teamcity[x]", "##[error]x"),
)
"""What a terminal, an XML reader or a CI system would obey by itself: it is broken, and the rest of it stays readable."""
PAYLOADS = (*VERBATIM, *BROKEN)

ACTS = (
    re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufffe\uffff]"),
    re.compile("\r"),
    re.compile(r"\[\[ATTACHMENT\|", re.IGNORECASE),
    re.compile(r"^\s*::", re.MULTILINE),
    re.compile(r"##(vso|teamcity)?\[", re.IGNORECASE),
)
TAG = "taint"


def outputs(result, payload):
    """Yield each output's name, and all of its text that came from a node."""
    text = f"{TAG} {payload}"
    tainted = replace(
        result,
        verdict=replace(result.verdict, reasons=(text,)),
        notes=(text,),
        teardown_errors=(text,),
        residue=(Remnant("node1", "kernel", text, ""),),
    )
    yield "table", table.plain([*table.verdict_table(tainted), table.closing(tainted)])
    yield "junit", "\n".join(texts(junit.document(tainted).tostring()))
    yield "summary", "\n".join(strings(json.loads(json.dumps(summary.document(tainted)))))
    plain = io.StringIO()
    live.PlainLines(plain)(Event(1.0, "note", text, {}))
    yield "log", plain.getvalue()
    found = Diagnosis("site", {"n1": (Finding("disk", "defect", text, text),)}, (Finding("planes", "note", text, text),))
    yield "doctor", table.plain([*doctor.table(found), doctor.closing(found)])
    yield "doctor JSON", "\n".join(strings(json.loads(json.dumps(doctor.document(found)))))
    yield "doctor JUnit", "\n".join(texts(doctor_junit.document(found).tostring()))


def texts(xml):
    """Return every text and attribute of a document, as its reader gets them."""
    for element in ET.fromstring(xml).iter():
        yield element.text or ""
        yield from element.attrib.values()


def strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from strings(one)


def test_there_are_sixty():
    assert len(set(PAYLOADS)) == len(PAYLOADS) == 60


@pytest.mark.parametrize("payload", PAYLOADS, ids=ascii)
def test_it_is_told_everywhere_and_acts_nowhere(results, payload):
    for name, text in outputs(results["failed"], payload):
        assert TAG in text, name
        assert not [pattern.pattern for pattern in ACTS if pattern.search(text)], name
        if payload in VERBATIM:
            joined = " ".join(text.split())
            assert " ".join(payload.split()) in joined, name


@pytest.mark.parametrize("payload", PAYLOADS, ids=ascii)
def test_a_terminal_gets_it_as_text_too(results, payload):
    """Through rich, which has a markup of its own: the same letters come out, and no escape but rich's own colours."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    table.show(table.verdict_table(replace(results["failed"], notes=(f"{TAG} {payload}",))), screen)
    colours = re.compile("\x1b\\[[0-9;]*m")
    text = colours.sub("", screen.getvalue())

    assert TAG in text
    assert not [pattern.pattern for pattern in ACTS if pattern.search(text)]
    if payload in VERBATIM:
        assert " ".join(payload.split()) in " ".join(text.split())
