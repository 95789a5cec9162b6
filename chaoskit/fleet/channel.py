"""
The held channel to one agent: requests as JSON lines, answers as Futures, events to one subscriber.

A request goes out from the caller's own thread, and the thread that reads the connection completes its Future: no
further thread stands between, since each would cost as much as the network. Nothing is ever sent twice. What is pending
when the channel is lost fails with UnreachableError, which means "unknown", never "not done".
"""

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from chaoskit.agent.protocol import LineBuffer, Message, decode, encode, error_from_json, need
from chaoskit.errors import AgentError, ChaosError, DeadlineError, NodeError, ProtocolError, UnreachableError
from chaoskit.fleet.deadlines import Deadlines

SILENCE = 10.0
"""Seconds of silence after which a node counts as lost; far below a lease, far above a busy node's hiccup."""
LAST_WORDS = 0.05
"""Seconds from the end of a stream until its epitaph is read: the exit status comes after it."""
NOISE = 64 * 1024
"""Bytes that a login shell may print before the agent's first line."""

LOOKS = frozenset({"hello", "clock", "entries", "audit", "examine"})
"""Verbs that only look: nothing on the node can have changed by one that was not answered."""

T = TypeVar("T")


class Stream(Protocol):
    """What a channel runs over: bytes out by a call, bytes in by being called."""

    def start(self, on_data: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        """Call `on_data` with what comes in, in order, and `on_end` once when nothing more will; neither raises."""

    def sendall(self, data: bytes, /) -> None:
        """Send all of it. Raises OSError, also when it is held up for too long."""

    def close(self) -> None:
        """End it. Never raises."""


@dataclass(frozen=True, slots=True)
class Round:
    """When a request was sent and when its answer came, controller time in seconds."""

    sent: float
    received: float


@dataclass(slots=True)
class _Pending:
    do: str
    future: Future[Any]
    convert: Callable[[Message, Round], Any]
    fault: str
    sent: float = 0.0


class Channel:
    """
    A held channel to the agent of one node.

    Args:
        node: Inventory name, for error texts.
        stream: What it runs over; the channel owns it from now on.
        deadlines: The fleet's deadlines.
        on_event: Called with each event and the moment it came, on the thread that reads: it must not wait for anything.
        on_lost: Called once, when the channel is lost or closed.
        epitaph: Returns what else is known of a stream that ended, such as what it wrote to standard error.
        silence: Seconds without a byte, while a ping is unanswered, after which the node counts as lost.
    """

    def __init__(
        self,
        node: str,
        stream: Stream,
        deadlines: Deadlines,
        *,
        on_event: Callable[[Message, float], None],
        on_lost: Callable[[NodeError], None],
        epitaph: Callable[[], str] = str,
        silence: float = SILENCE,
    ) -> None:
        self.node = node
        self._stream = stream
        self._deadlines = deadlines
        self._on_event = on_event
        self._on_lost = on_lost
        self._epitaph = epitaph
        self._silence = silence
        self._ids = itertools.count(1)
        self._lock = threading.Lock()  # guards what follows
        self._pending: dict[int, _Pending] = {}
        self._expired: set[int] = set()
        self._lost: NodeError | None = None
        self._sending = threading.Lock()  # one line at a time
        self._greeted = False  # true after the first line of the agent
        self._noise = bytearray()  # what came before it
        self._unheard_since: float | None = None
        self._buffer = LineBuffer()
        # The end may be told under a lock of the stream's; there is time to look at it elsewhere.
        stream.start(self._take_data, lambda: deadlines.add(time.monotonic() + LAST_WORDS, self._end))

    @property
    def connected(self) -> bool:
        """False once the channel is lost or closed."""
        return self._lost is None

    def request(
        self, do: str, fields: Mapping[str, Any], *, within: float, convert: Callable[[Message, Round], T], fault: str = ""
    ) -> Future[T]:
        """
        Send a request.

        Args:
            do: The verb.
            fields: Its fields, as in `chaoskit.agent.protocol`.
            within: Seconds until the Future fails with DeadlineError.
            convert: Turns the answer into the Future's result, on the thread that reads.
            fault: The fault's name, for error texts.

        Returns:
            A Future that cannot be cancelled: what was sent was sent.

        Raises:
            ProtocolError: The fields do not fit a line; nothing was sent.
        """
        ident = next(self._ids)
        line = encode({"id": ident, "do": do, **fields})
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        pending = _Pending(do, future, convert, fault)
        with self._lock:
            if self._lost is not None:
                future.set_exception(self._again(self._lost))
                return future
            self._pending[ident] = pending
        self._deadlines.add(time.monotonic() + within, lambda: self._expire(ident, within))
        self._send(line, pending)
        return future

    def ping(self, convert: Callable[[Message, Round], None]) -> None:
        """Ask for the node's clock; give the channel up when nothing at all was heard since earlier pings."""
        now = time.monotonic()
        since = self._unheard_since
        if since is not None and now - since > self._silence:
            self._lose(UnreachableError(f"nothing was heard from the node for {self._silence:g} s", node=self.node))
            return
        if since is None:
            self._unheard_since = now
        self.request("clock", {}, within=3 * self._silence, convert=convert)

    def close(self) -> None:
        """Close the channel; pending requests fail. Nothing on the node changes by it."""
        self._lose(UnreachableError("the channel was closed on this side", node=self.node))

    def _send(self, line: bytes, pending: _Pending) -> None:
        with self._sending:
            pending.sent = time.monotonic()
            try:
                self._stream.sendall(line)
            except OSError as error:  # TimeoutError too: half a line may be out, so nothing can follow it
                self._lose(UnreachableError(f"sending to the node failed: {error or type(error).__name__}", node=self.node))

    def _expire(self, ident: int, within: float) -> None:
        with self._lock:
            pending = self._pending.pop(ident, None)
            if pending is None:
                return
            self._expired.add(ident)
        what = f"no answer to {pending.do!r} within {within:.3g} s{_unknown(pending.do)}"
        pending.future.set_exception(DeadlineError(what, node=self.node, fault=pending.fault))

    def _take_data(self, data: bytes) -> None:
        now = time.monotonic()
        self._unheard_since = None
        if self._lost is not None:
            return  # what a node says after the end counts for nothing
        try:
            for line in self._buffer.feed(data):
                self._take(line, now)
        except AgentError as error:
            self._lose(error)
        except ProtocolError as error:
            self._lose(ProtocolError(error.what, node=self.node, hint="the channel was closed; what the node says cannot be trusted"))
        except Exception as error:  # noqa: BLE001 - a subscriber's mistake must not leave Futures pending for ever
            self._lose(UnreachableError(f"the reader stopped: {type(error).__name__}: {error}", node=self.node))

    def _take(self, line: bytes, now: float) -> None:
        if not self._greeted:
            line = self._without_noise(line)
            if not line:
                return
        message = decode(line)
        self._greeted = True
        if "event" in message:
            self._on_event(message, now)
        else:
            self._answer(message, now)

    def _without_noise(self, line: bytes) -> bytes:
        """Return the agent's first line without what a login shell printed on it; empty while there is none. Raises ProtocolError."""
        if line.startswith(b'{"'):
            return line
        noise, mark, rest = line.partition(b'{"id":')
        self._noise += noise + b"\n"
        if len(self._noise) > NOISE:
            raise ProtocolError(f"more than {NOISE} bytes came before the agent's first line: {bytes(self._noise[:80])!r}")
        return mark + rest

    def _answer(self, message: Message, now: float) -> None:
        ident = message.get("id")
        if ident is None and "error" in message:
            raise error_from_json(message["error"], node=self.node)  # of no request: the agent itself cannot go on
        with self._lock:
            pending = self._pending.pop(ident, None) if isinstance(ident, int) else None
            if isinstance(ident, int) and ident in self._expired:
                self._expired.discard(ident)  # its Future failed already; the answer comes too late
                return
        if pending is None:
            raise ProtocolError(f"an answer to a request that was never made: id {repr(ident)[:80]}")
        self._complete(pending, message, Round(pending.sent, now))

    def _complete(self, pending: _Pending, message: Message, round_: Round) -> None:
        if "error" in message:
            pending.future.set_exception(error_from_json(message["error"], node=self.node, fault=pending.fault))
            return
        try:
            result = pending.convert(need(message, "ok", dict), round_)
        except ProtocolError as error:
            # The line was sound but its content is not: this answer is worth nothing, the others may be.
            pending.future.set_exception(ProtocolError(f"answer to {pending.do!r}: {error.what}", node=self.node, fault=pending.fault))
        except ChaosError as error:
            pending.future.set_exception(error)
        except Exception as error:  # noqa: BLE001 - whatever a node's figures made of our arithmetic, nobody may wait for ever
            what = f"answer to {pending.do!r}: {type(error).__name__}: {error}"
            pending.future.set_exception(ProtocolError(what, node=self.node, fault=pending.fault))
        else:
            pending.future.set_result(result)

    def _lose(self, error: NodeError) -> None:
        with self._lock:
            if self._lost is not None:
                return
            self._lost = error
            pending, self._pending = list(self._pending.values()), {}
        self._stream.close()
        for each in pending:
            pending_too = "" if each.do in LOOKS else f" while {each.do!r} was pending{_unknown(each.do)}"
            each.future.set_exception(self._again(error, pending_too, each.fault))
        self._on_lost(error)

    def _again(self, error: NodeError, more: str = "", fault: str = "") -> NodeError:
        """Return the error anew, since one exception object must not be raised in several threads."""
        if isinstance(error, AgentError):
            return AgentError(error.what + more, node=self.node, fault=fault, hint=error.hint, kind=error.kind)
        return type(error)(error.what + more, node=self.node, fault=fault, hint=error.hint)

    def _end(self) -> None:
        said = "" if self._greeted else self._noise[-1000:].decode("utf-8", "replace")
        rest = " ".join(part for part in (said.strip(), self._epitaph().strip()) if part)
        self._lose(UnreachableError(f"the agent's channel ended: {rest}" if rest else "the agent's channel ended", node=self.node))


def _unknown(do: str) -> str:
    """Return what must be added of a request that was not answered: nothing for one that only looks."""
    return "" if do in LOOKS else "; whether it took effect is unknown"
