"""The held channel against a fake agent at the other end of a real socket: what it may say, and what is made of it."""

import json
import resource
import socket
import threading
import time

import pytest

from chaoskit.agent.protocol import MAX_LINE
from chaoskit.errors import AgentError, DeadlineError, NodeError, ProtocolError, UnreachableError
from chaoskit.fleet.channel import Channel
from chaoskit.fleet.deadlines import Deadlines


class Peer:
    """The agent's end: reads requests, writes whatever a test wants."""

    def __init__(self):
        ours, self.theirs = socket.socketpair()
        self.sock = ours
        self.sock.settimeout(5)
        self.file = ours.makefile("rb")

    def request(self):
        return json.loads(self.file.readline())

    def say(self, data):
        self.sock.sendall(data if isinstance(data, bytes) else json.dumps(data).encode() + b"\n")

    def pour(self, data, times):
        """Write for long; say whether the other side cut it off."""
        try:
            for _ in range(times):
                self.say(data)
        except OSError:
            return True
        return False

    def answer(self, ok=None):
        request = self.request()
        self.say({"id": request["id"], "ok": ok or {}})
        return request

    def close(self):
        self.file.close()
        self.sock.close()


class SocketStream:
    """A socket as a stream: a thread reads it."""

    def __init__(self, sock):
        self.sock = sock
        self.sendall = sock.sendall

    def start(self, on_data, on_end):
        def read():
            try:
                while data := self.sock.recv(65536):
                    on_data(data)
            except ConnectionResetError:
                pass
            on_end()

        threading.Thread(target=read, daemon=True).start()

    def close(self):
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return


class Rig:
    def __init__(self, deadlines, **more):
        self.peer = Peer()
        self.events, self.lost = [], []
        on_event = more.pop("on_event", lambda message, at: self.events.append((message, at)))
        self.channel = Channel("n1", SocketStream(self.peer.theirs), deadlines, on_event=on_event, on_lost=self.lost.append, **more)

    def ask(self, do="witness", within=5.0, fields=None, **more):
        more.setdefault("convert", lambda data, round_: data)
        return self.channel.request(do, fields or {}, within=within, **more)

    def await_lost(self):
        for _ in range(1000):
            if self.lost:
                return self.lost[0]
            time.sleep(0.005)
        raise AssertionError("the channel was not lost")


@pytest.fixture(scope="module")
def deadlines():
    found = Deadlines()
    yield found
    found.close()


@pytest.fixture
def rigs(deadlines):
    made = []

    def make(**more):
        made.append(Rig(deadlines, **more))
        return made[-1]

    yield make
    for rig in made:
        rig.channel.close()
        rig.peer.close()


@pytest.fixture
def rig(rigs):
    return rigs()


def test_a_request_carries_its_verb_and_fields_and_gets_its_own_answer(rig):
    first, second = rig.ask(fields={"entry": "a"}), rig.ask(fields={"entry": "b"})
    one, two = rig.peer.request(), rig.peer.request()
    rig.peer.say({"id": two["id"], "ok": {"of": two["entry"]}})
    rig.peer.say({"id": one["id"], "ok": {"of": one["entry"]}})

    assert one["do"] == "witness"
    assert (first.result(5), second.result(5)) == ({"of": "a"}, {"of": "b"})


def test_an_answer_knows_when_it_was_asked_and_when_it_came(rig):
    before = time.monotonic()
    future = rig.ask(convert=lambda _, round_: round_)
    time.sleep(0.05)
    rig.peer.answer()
    round_ = future.result(5)

    assert before <= round_.sent <= round_.received - 0.05 <= time.monotonic()


def test_an_error_of_the_agent_keeps_its_kind_its_words_and_names_the_node_and_the_fault(rig):
    future = rig.ask(fault="link_flap")
    rig.peer.say({"id": rig.peer.request()["id"], "error": {"kind": "Refusal", "what": "no such rail", "hint": "look"}})
    error = future.exception(5)

    assert isinstance(error, AgentError)
    assert (error.kind, str(error)) == ("Refusal", "n1 link_flap: no such rail (look)")


@pytest.mark.row("R6", "L4", "L24")
def test_silence_is_a_deadline_that_says_unknown_and_the_channel_goes_on(rig):
    future = rig.ask(within=0.05, fault="rank_kill")
    error = future.exception(5)
    late = rig.peer.request()
    after = rig.ask()
    rig.peer.say({"id": late["id"], "ok": {}})
    rig.peer.answer({"fine": True})

    assert isinstance(error, DeadlineError)
    assert "n1 rank_kill: no answer to 'witness' within 0.05 s; whether it took effect is unknown" in str(error)
    assert after.result(5) == {"fine": True}


def test_of_a_verb_that_only_looks_nobody_asks_whether_it_took_effect(rigs):
    rig = rigs()
    late = rig.ask("examine", within=0.05).exception(5)
    pending = rig.ask("audit")
    rig.peer.sock.shutdown(socket.SHUT_RDWR)

    assert str(late).endswith("no answer to 'examine' within 0.05 s")
    assert "took effect" not in str(pending.exception(5))
    assert "pending" not in str(pending.exception(5))


def test_a_far_deadline_does_not_hold_up_a_near_one(rig):
    far, near = rig.ask(within=100), rig.ask(within=0.05)

    assert isinstance(near.exception(2), DeadlineError)
    assert not far.done()


@pytest.mark.row("R6", "L4")
def test_the_end_of_the_stream_fails_all_that_is_pending_as_unknown(rigs):
    rig = rigs(epitaph=lambda: "sudo: a password is required exit status 1")
    futures = [rig.ask("inject", fault="link_flap"), rig.ask("renew")]
    rig.peer.sock.shutdown(socket.SHUT_RDWR)
    errors = [future.exception(5) for future in futures]

    assert all(type(error) is UnreachableError for error in errors)
    assert "while 'inject' was pending; whether it took effect is unknown" in str(errors[0])
    assert "a password is required" in str(errors[0])
    assert not rig.channel.connected


def test_after_the_end_every_request_fails_at_once(rig):
    rig.peer.close()
    rig.await_lost()

    assert isinstance(rig.ask().exception(0), UnreachableError)


@pytest.mark.row("R6")
def test_nothing_is_ever_sent_twice(rig):
    rig.ask(within=0.05).exception(5)
    rig.channel.close()

    assert [json.loads(line)["id"] for line in rig.peer.file.read().splitlines()] == [1]


@pytest.mark.row("S9")
@pytest.mark.parametrize(
    "line",
    [
        b'{"id": 1, "ok": {}\n',
        b'{"id": 1, "ok": {"x": NaN}}\n',
        b'{"id": 1, "ok": {"x": 1, "x": 2}}\n',
        b'{"id": 1, "ok": "\xff\xfe"}\n',
        b'{"id": 7777, "ok": {}}\n',
        b'{"id": [1], "ok": {}}\n',
        b'{"id": "1", "ok": {}}\n',
        b'{"ok": {}}\n',
        b'{"x":' + b"[" * 100_000 + b"\n",
        b'{"x": ' + b"9" * 10_000 + b"}\n",
    ],
)
def test_a_line_that_is_not_our_protocol_closes_the_channel(rig, line):
    future = rig.ask()
    rig.peer.request()
    rig.peer.say(line)
    error = future.exception(5)

    assert isinstance(error, ProtocolError)
    assert error.node == "n1"
    assert "cannot be trusted" in error.hint


def test_garbage_after_the_first_line_closes_the_channel(rig):
    rig.ask().add_done_callback(lambda _: None)
    rig.peer.answer()
    future = rig.ask()
    rig.peer.say(b"Segmentation fault\n")

    assert isinstance(future.exception(5), ProtocolError)


@pytest.mark.parametrize("answer", [{"id": 1}, {"id": 1, "ok": 5}, {"id": 1, "ok": None}, {"id": 1, "ok": []}])
def test_an_answer_of_the_wrong_shape_is_worth_nothing_but_others_may_be(rig, answer):
    first, second = rig.ask(), rig.ask()
    rig.peer.say(answer)
    rig.peer.say({"id": 2, "ok": {}})

    assert isinstance(first.exception(5), ProtocolError)
    assert second.result(5) == {}


@pytest.mark.parametrize("error", [None, "x", 5, [], {}, {"kind": 5, "what": None}])
def test_an_error_of_any_shape_is_an_agent_error(rig, error):
    future = rig.ask()
    rig.peer.say({"id": 1, "error": error})

    assert isinstance(future.exception(5), AgentError)


def test_what_a_login_shell_prints_first_is_passed_over(rig):
    future = rig.ask()
    rig.peer.say(b"Welcome to gpu7!\n\n\x1b[31mlast login\n")
    rig.peer.answer({"fine": True})

    assert future.result(5) == {"fine": True}


def test_what_a_login_shell_prints_without_a_newline_is_passed_over(rig):
    """Seen with a `printf` in ~/.bashrc: the agent's first line then stands behind it, and nobody would have heard it."""
    future = rig.ask()
    rig.peer.request()
    rig.peer.say(b'Welcome!\nlast login {yesterday}: {"id": 1, "ok": {"fine": true}}\n')

    assert future.result(5) == {"fine": True}


def test_what_was_printed_instead_of_an_agent_is_told(rig):
    future = rig.ask("hello")
    rig.peer.request()
    rig.peer.say(b"This account is currently not available.\n")
    rig.peer.close()

    assert "This account is currently not available." in str(future.exception(5))


def test_a_login_shell_that_prints_for_ever_is_cut_off(rig):
    future = rig.ask("hello")

    assert rig.peer.pour(b"y\n" * 1000, 1000)
    assert isinstance(future.exception(5), ProtocolError)


@pytest.mark.row("S9")
def test_an_endless_line_is_cut_off_and_fills_no_memory(rig):
    future = rig.ask()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    assert rig.peer.pour(b"x" * MAX_LINE, 1000)
    assert isinstance(future.exception(5), ProtocolError)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_the_agents_own_end_is_told_in_its_words(rig):
    """A bridge that finds no server says so on a line that answers no request."""
    future = rig.ask("hello")
    rig.peer.say({"id": None, "error": {"kind": "AgentError", "what": "the server did not come up", "hint": ""}})
    error = future.exception(5)

    assert isinstance(error, AgentError)
    assert "the server did not come up" in str(error)


def test_events_come_in_order_with_the_moment_they_came(rig):
    begun = time.monotonic()
    for number in range(100):
        rig.peer.say({"event": "lines", "number": number})
    future = rig.ask()
    rig.peer.answer()
    future.result(5)

    assert [message["number"] for message, _ in rig.events] == list(range(100))
    assert all(begun <= at <= time.monotonic() for _, at in rig.events)


def test_a_subscriber_that_fails_ends_the_channel_and_leaves_nobody_waiting(rigs):
    def fail(message, at):
        raise KeyError("a mistake")

    rig = rigs(on_event=fail)
    future = rig.ask()
    rig.peer.say({"event": "lines"})

    assert "a mistake" in str(future.exception(5))


def test_the_end_is_told_once(rig):
    rig.peer.close()
    rig.await_lost()
    rig.channel.close()

    assert len(rig.lost) == 1


@pytest.mark.row("L32")
def test_a_node_that_answers_no_ping_for_long_counts_as_lost(rigs):
    rig = rigs(silence=0.1)
    future = rig.ask("finish", within=60)
    for _ in range(4):
        rig.channel.ping(lambda data, round_: None)
        time.sleep(0.05)
    error = future.exception(5)

    assert isinstance(error, UnreachableError)
    assert "nothing was heard" in str(error)


def test_a_message_too_long_for_a_line_is_refused_before_it_is_sent(rig):
    with pytest.raises(ProtocolError, match="longer than a line"):
        rig.ask(fields={"x": "y" * MAX_LINE})

    future = rig.ask()
    assert rig.peer.answer()["do"] == "witness"
    future.result(5)


def test_requests_from_many_threads_never_mix_their_lines(rig):
    def agent():
        for _ in range(40):
            request = rig.peer.request()
            rig.peer.say({"id": request["id"], "ok": {"echo": request["text"]}})

    threading.Thread(target=agent, daemon=True).start()
    results = {}

    def caller(name):
        for number in range(5):
            text = f"{name}-{number}-" + "x" * 300_000  # more than a socket takes at once
            results[text] = rig.ask(fields={"text": text}).result(10)["echo"]

    threads = [threading.Thread(target=caller, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(results) == 40
    assert all(sent == echoed for sent, echoed in results.items())


def test_a_future_cannot_be_cancelled_since_what_was_sent_was_sent(rig):
    assert not rig.ask().cancel()


def test_each_waiter_gets_an_exception_of_its_own(rig):
    futures = [rig.ask(), rig.ask()]
    rig.peer.close()

    assert futures[0].exception(5) is not futures[1].exception(5)
    assert all(isinstance(future.exception(5), NodeError) for future in futures)
