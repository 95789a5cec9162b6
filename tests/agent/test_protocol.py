"""The wire: what is written can be read, and what cannot be read is an error and never a surprise."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaoskit.agent import protocol
from chaoskit.agent.contract import Refusal
from chaoskit.agent.protocol import LineBuffer, answer, decode, encode, error_from_json, error_to_json, failure, need
from chaoskit.errors import ProtocolError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), JSON))
def test_a_message_survives_the_wire(message):
    """Encoding then decoding changes nothing, and a message is exactly one line."""
    line = encode(message)

    assert line.count(b"\n") == 1
    assert decode(line[:-1]) == message


@pytest.mark.row("S9")
@given(st.binary(max_size=300))
def test_garbage_is_a_protocol_error(data):
    """Any bytes decode to an object or raise ProtocolError, nothing else."""
    try:
        message = decode(data)
    except ProtocolError:
        return
    assert isinstance(message, dict)


@pytest.mark.parametrize(
    "line",
    [b"", b"[]", b"7", b'{"a":NaN}', b'{"a":-Infinity}', b'{"a":1,"a":2}', b'{"a":"\xff"}', b"[" * 100_000, b'{"a":' * 50_000, b"{}{}"],
)
def test_what_is_not_one_plain_object_is_refused(line):
    """NaN, duplicate keys, bad UTF-8, depth and anything but an object are errors."""
    with pytest.raises(ProtocolError):
        decode(line)


@pytest.mark.row("S9")
def test_a_message_is_at_most_so_deep():
    """Whoever passes it on recurses into it; what is wide, or holds brackets as text, is no deeper for that."""
    allowed, deeper = (b'{"a":' + b"[" * levels + b"]" * levels + b"}" for levels in (protocol.DEEPEST - 1, protocol.DEEPEST))
    wide = json.dumps({"a": [{"b": [[]]}] * 100, "c": "[" * 100}).encode()

    assert decode(allowed)
    assert decode(wide) == json.loads(wide)
    with pytest.raises(ProtocolError, match="more than 64 levels"):
        decode(deeper)


@pytest.mark.row("S9")
@pytest.mark.parametrize("line", [rb'{"a":"\ud800"}', rb'{"\udfff":1}', rb'{"a":"\udc00\ud800"}'])
def test_half_a_character_is_refused_and_a_whole_one_is_read(line):
    """Nobody could write it to a file; both halves together are one character."""
    with pytest.raises(ProtocolError):
        decode(line)
    assert decode(rb'{"a":"\ud83d\ude00"}') == {"a": "\U0001f600"}


@pytest.mark.parametrize("value", [float("nan"), b"bytes", object()])
def test_what_json_cannot_carry_is_not_sent(value):
    """The writer refuses what no reader could read."""
    with pytest.raises(ProtocolError):
        encode({"a": value})


def test_a_message_longer_than_a_line_is_not_sent():
    """MAX_LINE bounds both sides."""
    with pytest.raises(ProtocolError, match="longer than a line"):
        encode({"a": "x" * protocol.MAX_LINE})


@given(st.lists(st.binary(max_size=40).filter(lambda line: b"\n" not in line)), st.lists(st.integers(1, 50), max_size=30))
def test_lines_come_out_as_they_went_in_however_they_are_cut(lines, cuts):
    """The pieces in which bytes arrive change nothing."""
    data = b"".join(line + b"\n" for line in lines)
    buffer, out = LineBuffer(), []
    for cut in [*cuts, len(data) + 1]:
        out += buffer.feed(data[:cut])
        data = data[cut:]

    assert out == lines


@pytest.mark.row("S9", "L31")
def test_an_endless_line_is_an_error_before_it_fills_memory():
    """A megabyte without a newline ends it; the line before is still delivered."""
    buffer = LineBuffer()
    assert list(buffer.feed(b"{}\n")) == [b"{}"]
    for _ in range(15):
        assert list(buffer.feed(b"x" * 65_536)) == []
    with pytest.raises(ProtocolError, match="longer than"):
        list(buffer.feed(b"x" * 65_536))


def test_errors_keep_kind_text_and_hint():
    """A refusal on the node is a refusal on the controller, with node and fault named."""
    sent = json.loads(json.dumps(error_to_json(Refusal("eth0 is down", where="n1", hint="raise it"))))
    assert sent == {"kind": "Refusal", "what": "n1: eth0 is down", "hint": "raise it"}

    error = error_from_json(sent, node="n1", fault="link_flap")
    assert (error.kind, error.what, error.hint, error.node, error.fault) == ("Refusal", "n1: eth0 is down", "raise it", "n1", "link_flap")


def test_an_answer_and_a_failure_name_their_request():
    """An error that is none of ours is told by its class, and by its words where it has any."""
    assert answer(7, {"mono": 1.0}) == {"id": 7, "ok": {"mono": 1.0}}
    assert failure(7, KeyError("x")) == {"id": 7, "error": {"kind": "KeyError", "what": "'x'", "hint": ""}}
    assert failure(None, ValueError())["error"]["what"] == "ValueError"


def test_the_words_of_an_error_are_cut():
    """A person reads them."""
    assert len(error_from_json({"what": "x" * 100_000}).what) == protocol.LONGEST_WORDS + len("...")


@pytest.mark.row("S9", "S10")
@given(JSON)
def test_any_error_that_a_node_sends_becomes_text(data):
    """A hostile node's error is an AgentError, whatever it holds."""
    assert error_from_json(data).exit_code == 3


def test_fields_have_types():
    """A missing field, a wrong type and a bool for a number are errors that name the field."""
    message = {"a": 1, "b": True, "c": "x"}

    assert need(message, "a", float) == 1.0
    assert need(message, "b", bool) is True
    assert need(message, "d", str, "default") == "default"
    with pytest.raises(ProtocolError, match="no number is that large"):
        need({"e": 10**400}, "e", float)
    for name, kind in (("d", str), ("b", float), ("b", int), ("c", float), ("a", str)):
        with pytest.raises(ProtocolError, match=repr(name)):
            need(message, name, kind)
