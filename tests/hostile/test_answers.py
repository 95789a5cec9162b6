"""What a node says is turned into typed values once, at the border: whatever it says, only our own errors come out."""

import time
from concurrent.futures import Future
from dataclasses import fields, is_dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import check, tried

from chaoskit.agent.protocol import DEEPEST, LineBuffer, decode, encode, error_from_json
from chaoskit.errors import ChaosError, NodeError, ProtocolError
from chaoskit.fleet import answers
from chaoskit.fleet.agent_client import AgentClient, Memory
from chaoskit.fleet.channel import Round
from chaoskit.fleet.clocks import ClockMap, Trip
from chaoskit.fleet.deadlines import Deadlines
from chaoskit.model.interval import Interval

pytestmark = pytest.mark.row("S9")

ODD_NUMBERS = [0, -1, 1e308, -1e308, 5e-324, 10**400, -(10**400), 2**63, 1e12, True, 1.5]
SCALARS = st.none() | st.booleans() | st.integers() | st.sampled_from(ODD_NUMBERS) | st.floats() | st.text(max_size=12)
FIELDS = [
    "agent", "version", "boot_id", "machine_id", "hostname", "python", "uid", "notes", "frailties", "mono", "wall", "evidence", "holds",
    "says", "readings", "undo", "resources", "before", "after", "entries", "debts", "entry", "state", "t0", "t1", "results",
    "healed", "findings", "check", "do", "pid", "start_time", "alive", "stopped", "stream", "event", "lines", "since", "at",
    "why", "expired",
]  # fmt: skip
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=6), max_leaves=20
)
ANSWERS = st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=12)


def known_clock():
    clock = ClockMap()
    clock.add(Trip(100.0, 100.001, 5000.0, 1.8e9))
    return clock


READERS = {
    "hello": lambda data, clock, round_: answers.hello(data),
    "trip": lambda data, clock, round_: answers.trip(data, round_),
    "evidence": lambda data, clock, round_: answers.evidence(data),
    "prepared": lambda data, clock, round_: answers.prepared(data),
    "stamped": lambda data, clock, round_: answers.stamped(clock, data, round_),
    "injected": lambda data, clock, round_: answers.injected(clock, data, round_),
    "ended": lambda data, clock, round_: answers.ended(clock, data, round_),
    "ledger_entries": lambda data, clock, round_: answers.ledger_entries({"b": clock}.get, answers.objects(data, "entries"), round_),
    "healed": lambda data, clock, round_: answers.healed(data),
    "debts": lambda data, clock, round_: answers.debts({"b": clock}.get, data, round_),
    "settled": lambda data, clock, round_: answers.settled(data),
    "held": lambda data, clock, round_: answers.held(data),
    "strays": lambda data, clock, round_: answers.strays(data),
    "swept": lambda data, clock, round_: answers.swept(data),
    "findings": lambda data, clock, round_: answers.findings(data),
    "wall_offset": lambda data, clock, round_: answers.wall_offset(data, round_),
    "started": lambda data, clock, round_: answers.started(data),
    "spawned": lambda data, clock, round_: answers.spawned(data),
    "tail_event": lambda data, clock, round_: answers.tail_event("n1", clock, data, 101.0),
}


def test_every_reader_of_answers_is_tried():
    """A new reader of `answers` must be added to the table above."""
    public = {name for name, found in vars(answers).items() if callable(found) and getattr(found, "__module__", "") == answers.__name__}

    assert {"Hello", "texts", "objects", "moment", "bracket", *READERS} == {name for name in public if not name.startswith("_")}


def intervals_in(value):
    if isinstance(value, Interval):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from intervals_in(getattr(value, field.name))
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from intervals_in(inner)


@tried(10, 1000)
@pytest.mark.parametrize("name", READERS)
def test_any_answer_becomes_a_value_or_a_protocol_error(name, examples):
    """No figure, type or depth that a node may send raises anything but ProtocolError, nor makes a stamp that is no number."""

    @given(ANSWERS)
    def holds(data):
        try:
            value = READERS[name](data, known_clock(), Round(100.5, 101.0))
        except ProtocolError:
            return
        for found in intervals_in(value):
            assert found.lo <= found.hi

    check(holds, examples)


@tried(20, 3000)
def test_any_bytes_are_lines_that_decode_or_a_protocol_error(examples):
    """What comes over the wire, in whatever pieces, is read or refused; what was read can be written again."""
    piece = st.binary(max_size=30) | ANSWERS.map(lambda data: repr(data).encode()) | st.sampled_from([b"\n", b'{"', b"\\ud800", b"[" * 99])

    @given(st.lists(piece, max_size=8))
    def holds(pieces):
        buffer = LineBuffer()
        for data in pieces:
            for line in buffer.feed(data):
                try:
                    message = decode(line)
                except ProtocolError:
                    continue
                assert decode(encode(message)[:-1]) == message

    check(holds, examples)


@pytest.mark.parametrize(
    "line",
    [
        b'{"a": "\\ud800"}',
        b'{"a": "\\uDFFF x"}',
        b'{"\\udc80": 1}',
        b'{"a":' + b"[" * DEEPEST + b"]" * DEEPEST + b"}",
        b'{"a":' * (DEEPEST + 1) + b"1" + b"}" * (DEEPEST + 1),
        b'{"a": ' + b"9" * 5000 + b"}",
    ],
)
def test_what_nobody_could_pass_on_is_refused_at_the_border(line):
    """Half a surrogate pair cannot be written to a file, and what is deep without end ends whoever recurses into it."""
    with pytest.raises(ProtocolError):
        decode(line)


def test_what_is_odd_but_sound_is_read():
    """A whole surrogate pair is a character, brackets inside texts are no depth, and a bound's own depth is allowed."""
    deep = "[" * (DEEPEST - 1) + "]" * (DEEPEST - 1)

    assert decode(b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}
    assert decode(b'{"a": "\\\\ud800"}') == {"a": "\\ud800"}
    assert decode(b'{"a": "' + b"[" * 999 + b'"}') == {"a": "[" * 999}
    assert decode(f'{{"a":{deep}}}'.encode())


@pytest.mark.parametrize("error", [{"what": "x" * 10**6}, {"hint": ["x" * 10**6]}, {"kind": "k" * 10**6}, ["x" * 10**6]])
def test_an_error_of_a_megabyte_is_cut_to_what_a_person_reads(error):
    """A node's error goes to the terminal, JUnit and the journal: it is bounded."""
    found = error_from_json(error, node="n1")

    assert len(str(found)) < 5000
    assert len(found.kind) < 2100


class Loop:
    """A stream whose other end is a function from each request to the bytes of its answer."""

    def __init__(self, reply):
        self.reply = reply
        self.closed = False

    def start(self, on_data, on_end):
        self.on_data, self.on_end = on_data, on_end

    def sendall(self, data):
        self.on_data(self.reply(decode(data[:-1])))

    def close(self):
        self.closed = True


@pytest.fixture(scope="module")
def deadlines():
    found = Deadlines()
    yield found
    found.close()


def client(deadlines, reply, base=None):
    """Make a client of a node whose clock read 1.0 at `base`, which is now unless told."""
    base = time.monotonic() if base is None else base
    made = AgentClient("n1", Loop(reply), deadlines, Memory())
    ids = {"agent": "a", "version": "1", "boot_id": "b", "hostname": "h", "python": "3", "uid": 0}
    hello = {**ids, "notes": [], "frailties": [], "mono": 1.0, "wall": 1.0}
    made._hello = answers.hello(hello)
    made._clock.add(Trip(base - 0.001, base, 1.0, 1.0))
    made._memory.clocks["b"] = made._clock
    return made


ASK = {
    "tick": lambda agent: agent.tick(),
    "exposed": lambda agent: agent.exposed("r/1/n1"),
    "arm": lambda agent: agent.arm("r/1/n1", 30.0),
    "inject": lambda agent: agent.inject("r/1/n1", None),
    "finish": lambda agent: agent.finish("r/1/n1"),
    "renew": lambda agent: agent.renew("r", 30.0),
    "witness": lambda agent: agent.witness("r/1/n1"),
    "gone": lambda agent: agent.gone("r/1/n1"),
    "revert": lambda agent: agent.revert("r/1/n1"),
    "entries": lambda agent: agent.entries("r"),
    "audit": lambda agent: agent.audit(),
    "heal": lambda agent: agent.heal(None, []),
    "wall_offset": lambda agent: agent.wall_offset(),
    "spawn": lambda agent: agent.spawn("k", ["x"], {}, None, "/", "/l"),
    "spawned": lambda agent: agent.spawned("k"),
    "stop": lambda agent: agent.stop("k", 1.0),
    "untail": lambda agent: agent.untail("s"),
}


@tried(4, 300)
@pytest.mark.parametrize("verb", ASK)
def test_whatever_a_node_answers_nobody_waits_for_ever(deadlines, verb, examples):
    """Each request ends: with a value or with an error that names the node, at once and not at its deadline."""

    @given(ANSWERS)
    def holds(data):
        def reply(request):
            try:
                return encode({"id": request["id"], "ok": data})
            except ProtocolError:
                return b'{"id": %d, "ok": {"mono": 1%s}}\n' % (request["id"], b"0" * 400)

        future: Future = ASK[verb](client(deadlines, reply))
        assert future.done()
        error = future.exception(0)
        assert error is None or (isinstance(error, ChaosError) and isinstance(error, NodeError) and error.node == "n1"), repr(error)

    check(holds, examples)


def test_a_number_that_no_float_holds_fails_its_own_request_at_once(deadlines):
    """Seen as OverflowError inside the reader: the request was taken off the list, and its caller waited for ever."""
    agent = client(deadlines, lambda request: b'{"id": %d, "ok": {"mono": 1%s, "wall": 1}}\n' % (request["id"], b"0" * 400))

    assert isinstance(agent.tick().exception(1), ProtocolError)


def test_a_defect_of_ours_in_reading_an_answer_leaves_nobody_waiting(deadlines):
    """What an answer's reader raises beyond our errors becomes the request's error, too."""

    def broken(data, round_):
        raise ZeroDivisionError("a mistake")

    agent = client(deadlines, lambda request: encode({"id": request["id"], "ok": {}}))
    future = agent._channel.request("clock", {}, within=5.0, convert=broken)

    assert "ZeroDivisionError: a mistake" in str(future.exception(1))


@pytest.mark.parametrize("away", [-1000.0, -5.0, 5.0, 1000.0])
def test_an_effect_before_it_was_asked_for_or_after_its_answer_is_a_lie(deadlines, away):
    """The first effect lies between request and answer: a stamp from elsewhere would move every figure of the verdict."""

    def reply(request):
        now = 1.0 + time.monotonic() - base
        return encode({"id": request["id"], "ok": {"before": now + away, "after": now + away, "ended": False}})

    base = time.monotonic()
    agent = client(deadlines, reply, base)

    assert isinstance(agent.inject("r/1/n1", None).exception(1), ProtocolError)


def test_an_effect_between_request_and_answer_is_taken(deadlines):
    """The honest node."""

    def reply(request):
        now = 1.0 + time.monotonic() - base
        return encode({"id": request["id"], "ok": {"before": now, "after": now, "ended": False}})

    base = time.monotonic()
    agent = client(deadlines, reply, base)

    assert agent.inject("r/1/n1", None).result(1).lo == pytest.approx(time.monotonic(), abs=1.0)
