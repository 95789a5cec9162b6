"""
The channel cut at each message, in each direction and in each way: what was lost is unknown and never done, nothing happens twice.

The real agent stands behind a TCP proxy that relays whole messages and cuts at one of them; the controller's side is the
fleet's own client. Afterwards somebody connects anew, or nobody does and the lease mends.
"""

import contextlib
import itertools
import random
import select
import socket
import struct
import subprocess
import threading
from pathlib import Path

import pytest

from chaoskit.agent.contract import Site
from chaoskit.agent.protocol import LineBuffer
from chaoskit.errors import DeadlineError, UnreachableError
from chaoskit.fleet import agent_client
from chaoskit.fleet.agent_client import AgentClient, Memory
from chaoskit.fleet.deadlines import Deadlines

pytestmark = pytest.mark.row("R6", "L4", "L22", "L24")

SCRIPT = ("hello", *("clock",) * agent_client.BURST, "prepare", "arm", "inject", "witness", "renew", "revert")
"""The messages of a run, in order."""
WAYS = ("reset", "end", "silence", "half-open", "drip")
CASES = tuple(itertools.product(range(len(SCRIPT)), ("request", "answer"), ("before", "after"), WAYS, ("reconnect", "lease")))
SAMPLE = random.Random(11).sample([case for case in CASES if case[3] != "drip"], 3)  # noqa: S311 - a sample, and no secret
UNKNOWN = (UnreachableError, DeadlineError)
PATIENCE = 1.5
"""Seconds for an answer in these tests."""


class Proxy:
    """Relays between one TCP connection and one bridge until its message has come, and then cuts."""

    def __init__(self, argv, number, direction, when, way):
        self.at, self.direction, self.when, self.way = number, direction, when, way
        self.bridge = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.near = socket.create_connection(listener.getsockname())
            self.far, _ = listener.accept()
        self.cut = threading.Event()
        self.over = threading.Event()
        for name, lines, put in (("request", self._requests(), self._to_agent), ("answer", self.bridge.stdout, self.far.sendall)):
            threading.Thread(target=self._relay, args=(name, lines, put), daemon=True).start()

    def _requests(self):
        """Yield the controller's lines; never waits in a receive, which would keep a closed socket open."""
        buffer = LineBuffer()
        while not self.over.is_set():
            if select.select([self.far], [], [], 0.02)[0]:
                data = self.far.recv(65536)
                if not data:
                    return
                yield from (line + b"\n" for line in buffer.feed(data))

    def _to_agent(self, data):
        self.bridge.stdin.write(data)
        self.bridge.stdin.flush()

    def _relay(self, direction, lines, put):
        with contextlib.suppress(OSError, ValueError):  # the other side is gone
            for number, line in enumerate(lines):
                mine = direction == self.direction and number == self.at
                if mine and self.when == "before":
                    self._cut(line, put)
                if self._stopped(direction):
                    return
                put(line)
                if mine:
                    self._cut(b"", put)
                if self._stopped(direction):
                    return

    def _stopped(self, direction):
        return self.cut.is_set() and (self.way != "half-open" or direction == self.direction)

    def _cut(self, line, put):
        self.cut.set()
        if self.way == "reset":
            self.far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if self.way in ("reset", "end"):
            self.far.shutdown(socket.SHUT_RDWR) if self.way == "end" else self.far.close()
            self.bridge.kill()
        if self.way == "drip":
            for byte in line:
                put(bytes([byte]))
                if self.over.wait(1.0):
                    return

    def close(self):
        self.over.set()
        self.bridge.kill()
        self.bridge.wait()
        for end in (self.near, self.far):
            end.close()


class TcpStream:
    """A socket as the client's stream."""

    def __init__(self, sock):
        self.sock = sock

    def start(self, on_data, on_end):
        def read():
            with contextlib.suppress(OSError):
                while data := self.sock.recv(65536):
                    on_data(data)
            on_end()

        threading.Thread(target=read, daemon=True).start()

    def sendall(self, data):
        self.sock.sendall(data)

    def close(self):
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def deadlines():
    found = Deadlines()
    yield found
    found.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Shorten every deadline that a request of the script has."""
    monkeypatch.setattr(AgentClient._ask, "__defaults__", (PATIENCE,))
    for name in ("ARM_WITHIN", "INJECT_SLACK", "REVERT_WITHIN"):
        monkeypatch.setattr(agent_client, name, PATIENCE)
    monkeypatch.setattr(agent_client, "HELLO_WITHIN", 4.0)


class Attempt:
    """One run over a channel that is cut, and what came of each request."""

    def __init__(self, agent, deadlines, file, entry, cut):
        self.file, self.entry, self.run = file, entry, entry.split("/")[0]
        argv = [agent.python, "-I", "-S", str(agent.archive), "bridge", *agent.roots]
        self.proxy = Proxy(argv, *cut)
        self.client = AgentClient("n1", TcpStream(self.proxy.near), deadlines, Memory())
        self.deadlines = deadlines

    def steps(self, lease):
        yield "hello", lambda: self.client.greet("tester")
        yield "prepare", lambda: self.client.prepare(self.run, self.entry, "toy_file", self.params, Site("n1")).result()
        yield "arm", lambda: self.client.arm(self.entry, lease).result()
        yield "inject", lambda: self.client.inject(self.entry, None).result()
        yield "witness", lambda: self.client.witness(self.entry).result()
        yield "renew", lambda: self.client.renew(self.run, lease).result()
        yield "revert", lambda: self.client.revert(self.entry).result()

    @property
    def params(self):
        return {"path": str(self.file), "down": 60.0}

    def go(self, lease):
        """Do every step until one fails; return what was answered, and the failure."""
        answered = []
        for name, step in self.steps(lease):
            try:
                step()
            except Exception as error:  # noqa: BLE001 - which kind it is, is what is tested
                return answered, error
            answered.append(name)
        return answered, None

    def close(self):
        self.client.close()
        self.proxy.close()


def harms(file):
    log = Path(f"{file}.log")
    return log.read_text().count("harm ") if log.exists() else 0


def try_case(agent, deadlines, folder, case, until):
    number, direction, when, way, heals = case
    name = f"{number}-{direction}-{when}-{way}-{heals}"
    file = folder / name
    file.write_text("whole")
    entry = f"{name}/1/n1"
    attempt = Attempt(agent, deadlines, file, entry, case[:4])
    try:
        answered, failure = attempt.go(lease=30.0 if heals == "reconnect" else 2.0)
        assert failure is None or isinstance(failure, UNKNOWN), repr(failure)
        assert failure is not None or all_came(*case[:4]), "nobody noticed the cut"
        assert "inject" not in answered or harms(file) == 1
        assert "revert" not in answered or file.read_text() == "whole"
    finally:
        attempt.close()
    if heals == "reconnect":
        settle_anew(agent, entry, attempt.params)
    until(lambda: file.read_text() == "whole", seconds=20.0)
    assert harms(file) <= 1
    return failure is not None


def all_came(number, direction, when, way):
    """Whether a cut is behind the last message that anybody waits for."""
    return (number, when) == (len(SCRIPT) - 1, "after") and (direction == "answer" or way == "half-open")


def settle_anew(agent, entry, params):
    """Connect again and ask for everything once more, as a controller that knows nothing would: each verb is safe to repeat."""
    channel = agent.connect()
    asks = {
        "prepare": {"run": entry.split("/")[0], "fault": "toy_file", "params": params, "site": {"node": "n1"}},
        "arm": {"lease": 30.0, "controller": "again"},
        "inject": {"at": None},
        "revert": {},
    }
    for verb, fields in asks.items():
        with contextlib.suppress(RuntimeError):  # refused, since it was done: the state below is what counts
            channel.ask(verb, entry=entry, **fields)
    channel.close()


@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: "-".join(map(str, case)))
def test_a_cut_channel_means_unknown_and_heals(shared_agent, deadlines, tmp_path, until, case):
    """A seeded sample of all cuts."""
    try_case(shared_agent, deadlines, tmp_path, case, until)


@pytest.mark.prove
def test_every_cut_means_unknown_and_heals(shared_agent, deadlines, tmp_path, until):
    """Every message x direction x before or after x way x who heals; the count is printed."""
    noticed = sum(try_case(shared_agent, deadlines, tmp_path, case, until) for case in CASES)

    print(f"{len(CASES)} cuts tried, {noticed} noticed by the request under way")
    assert noticed >= len(CASES) * 0.9
