"""
Abort conditions that somebody else knows the answer to: a program on the controller, a Prometheus.

Each is asked again and again on a thread of its own, and the engine's loop only looks whether an answer has come: no
condition, however slow, makes it late to renew a lease. Whoever does not answer often enough ends the run as well, since a
run that nobody watches is no guarded one.
"""

import json
import math
import os
import select
import shlex
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Protocol

from chaoskit.errors import RefusedError
from chaoskit.model.experiment import Abort, Command, Query

LONGEST = 200
"""Characters of what a program or a server said that become part of the reason."""
KEPT = 1 << 16
"""Bytes of a program's output that are kept; it may write more."""
MOST_ANSWER = 1 << 20
"""Bytes of a server's answer; a result that long is no abort condition."""
GRACE = 1.0
"""Seconds beyond its deadline that an answer may take to reach us: whoever is asked keeps the deadline by himself."""
BREATH = 0.05
"""Seconds between looks at a program whose children may still hold its output."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`why` the run must end, empty when it may go on; `missing` is why nobody can say."""

    why: str = ""
    missing: str = ""


class Condition(Protocol):
    """Somebody who can be asked."""

    says: str
    """What is asked, for a person."""
    every: float
    within: float
    tries: int

    def ask(self) -> Answer:
        """Ask once; takes about `within` seconds at most. May be called on any thread, by one at a time."""

    def stop(self) -> None:
        """End what `ask` began; its answer counts no more."""


Starter = Callable[[Callable[[], Answer]], "Future[Answer]"]


def on_a_thread(ask: Callable[[], Answer]) -> "Future[Answer]":
    """Start to ask on a thread of its own, which keeps no process alive."""
    future: Future[Answer] = Future()

    def run() -> None:
        try:
            future.set_result(ask())
        except Exception as error:  # noqa: BLE001 - whatever breaks in asking, the run must hear that it is not watched
            future.set_result(Answer(missing=f"{type(error).__name__}: {error}"))

    threading.Thread(target=run, name="chaoskit-abort", daemon=True).start()
    return future


class Watch:
    """Asks one condition on time, and counts the answers that did not come."""

    def __init__(self, condition: Condition, start: Starter) -> None:
        """Take who is asked, and how asking begins."""
        self.condition = condition
        self._start = start
        self._asked = -math.inf
        self._future: Future[Answer] | None = None
        self._late = False
        self._missing = 0

    def why(self, now: float) -> str:
        """Take in an answer that has come, ask again when it is time, and return why the run must end; empty when it goes on."""
        if why := self._take(now):
            return why
        if now - self._asked < self.condition.every:
            return ""
        self._asked = now
        if self._future is not None:  # it hangs beyond its own deadline: nobody else is set on it, and this turn is lost too
            return self._miss(self._too_late)
        self._late = False
        self._future = self._start(self.condition.ask)
        return self._take(now)

    @property
    def _too_late(self) -> str:
        return f"no answer within {self.condition.within:g} s"

    def _take(self, now: float) -> str:
        if self._future is not None and self._future.done():
            answer, self._future = self._future.result(), None
            return self._heard(answer)
        if self._future is not None and not self._late and now - self._asked > self.condition.within + GRACE:
            self._late = True
            return self._miss(self._too_late)
        return ""

    def _heard(self, answer: Answer) -> str:
        if answer.why:
            return f"{self.condition.says}: {answer.why}"
        if self._late:  # counted as missing already
            return ""
        if answer.missing:
            return self._miss(answer.missing)
        self._missing = 0
        return ""

    def _miss(self, what: str) -> str:
        self._missing += 1
        if self._missing < self.condition.tries:
            return ""
        times = f"{self._missing} times in a row" if self._missing > 1 else "this time"
        return f"{self.condition.says}: nobody can say whether the run may go on, {times}: {what}"


class Watches:
    """All conditions of a run that somebody else knows the answer to."""

    def __init__(self, abort: Abort, start: Starter = on_a_thread) -> None:
        """
        Take the conditions; none is asked yet.

        Raises:
            RefusedError: A secret that one needs is not there.
        """
        conditions: list[Condition] = [Program(command) for command in abort.commands]
        conditions += [Question(query, _token(query)) for query in abort.queries]
        self._watches = [Watch(condition, start) for condition in conditions]

    def why(self, now: float) -> str:
        """Return why the run must end, by the first condition that says so; empty when it goes on."""
        return next((why for watch in self._watches if (why := watch.why(now))), "")

    def close(self) -> None:
        """End what is being asked."""
        for watch in self._watches:
            watch.condition.stop()


# -- a program -----------------------------------------------------------------------------------------------------


class Program:
    """A program of this machine, asked by its exit code."""

    def __init__(self, command: Command) -> None:
        """Take what the experiment says of it."""
        self.says = f"the abort condition `{_short(shlex.join(command.argv))}`"
        self.every, self.within, self.tries = command.every, command.within, command.tries
        self._argv = list(command.argv)
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def ask(self) -> Answer:
        """Run it, without a shell and without input, and in the end kill whatever it left in its group."""
        try:
            with self._lock:
                if self._stopped:
                    return Answer()
                child = self._child = subprocess.Popen(
                    self._argv,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            return Answer(why=f"it cannot be started: {getattr(error, 'strerror', None) or error}")
        try:
            said = "" if self._stopped else _output(child, time.monotonic() + self.within)
            status = child.poll()
        finally:
            self._kill()
        if self._stopped:
            return Answer()
        if status is None:
            return Answer(missing=f"it took longer than {self.within:g} s and was killed{said}")
        if status == 0:
            return Answer()
        ended = f"exit code {status}" if status > 0 else f"ended by {_signal(-status)}"
        return Answer(why=f"{ended}{said}")

    def stop(self) -> None:
        """Kill it, and start it no more. Only the thread that asks waits for its end, or its start: a dead file server may hold up both."""
        self._stopped = True
        if self._lock.acquire(timeout=GRACE):
            try:
                if self._child is not None:
                    _end(self._child)
            finally:
                self._lock.release()

    def _kill(self) -> None:
        with self._lock:
            child, self._child = self._child, None
            if child is not None:
                _end(child)
        if child is not None:
            child.wait()


def _end(child: "subprocess.Popen[bytes]") -> None:
    """Kill a program with all of its group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def _output(child: "subprocess.Popen[bytes]", until: float) -> str:
    """Return what a program says until it ends or its time is over, as the end of a sentence."""
    data = b""
    pipe = child.stdout
    if pipe is None:
        return ""
    with pipe:
        for chunk in _chunks(pipe, child, until):
            data = (data + chunk)[:KEPT]
    said = _short(data.decode("utf-8", "replace"))
    return f": {said}" if said else ""


def _chunks(pipe: IO[bytes], child: "subprocess.Popen[bytes]", until: float) -> Iterator[bytes]:
    poll = select.poll()
    poll.register(pipe, select.POLLIN | select.POLLHUP)
    chunk = b"-"
    while chunk and time.monotonic() < until:
        ended = child.poll() is not None
        if poll.poll(0 if ended else BREATH * 1000):
            chunk = os.read(pipe.fileno(), 1 << 16)
            yield chunk
        elif ended:  # whoever else holds its output is none of ours
            return
    while child.poll() is None and time.monotonic() < until:  # it has closed its output, and goes on
        time.sleep(BREATH)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# -- a Prometheus --------------------------------------------------------------------------------------------------


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would take the token to whoever the server names."""

    def redirect_request(self, *_args: Any, **_more: Any) -> None:
        """Follow none: it becomes an HTTPError."""
        return


class Question:
    """A question to a Prometheus, by its HTTP API."""

    def __init__(self, query: Query, token: str = "") -> None:
        """Take what the experiment says of it, and a bearer token."""
        self.says = f"the abort condition `{_short(query.says)}`"
        self.every, self.within, self.tries = query.every, query.within, query.tries
        self._query = query
        self._opener = urllib.request.build_opener(_NoRedirect)
        asked = urllib.parse.urlencode({"query": query.query, "timeout": f"{math.ceil(query.within * 1000)}ms"})
        self._request = urllib.request.Request(f"{str(query.url).rstrip('/')}/api/v1/query?{asked}")  # noqa: S310 - checked to be http
        if token:
            self._request.add_unredirected_header("Authorization", f"Bearer {token}")

    def ask(self) -> Answer:
        """Ask once."""
        try:
            values = values_of(json.loads(self._fetch()))
        except (OSError, ValueError, urllib.error.URLError) as error:
            return Answer(missing=_short(str(error) or type(error).__name__))
        return decide(self._query, values)

    def stop(self) -> None:
        """Nothing is to be ended: a late answer counts no more, and its thread keeps nobody alive."""

    def _fetch(self) -> bytes:
        until = time.monotonic() + self.within
        data = b""
        with self._opener.open(self._request, timeout=self.within) as answer:
            while chunk := answer.read1(1 << 16):
                data += chunk
                if len(data) > MOST_ANSWER:
                    raise ValueError(f"the answer is longer than {MOST_ANSWER} bytes")
                if time.monotonic() > until:
                    raise TimeoutError(f"no whole answer within {self.within:g} s")
        return data


def values_of(answer: Any) -> list[float]:
    """Return the values of an instant query's answer. Raises ValueError when it is none, or says that the query failed."""
    if not isinstance(answer, dict) or answer.get("status") != "success":
        why = answer.get("error") if isinstance(answer, dict) else None
        raise ValueError(f"the query failed: {_short(str(why))}" if why else "this is no answer of a Prometheus")
    data = answer.get("data")
    kind, result = (data.get("resultType"), data.get("result")) if isinstance(data, dict) else (None, None)
    if kind == "scalar":
        return [_value(result)]
    if kind == "vector" and isinstance(result, list):
        return [_value(item.get("value") if isinstance(item, dict) else None) for item in result]
    raise ValueError(f"expected a vector or a scalar; found {_short(str(kind))}")


def _value(pair: Any) -> float:
    """Return the value of a pair of a time and a text."""
    if not isinstance(pair, list) or len(pair) != len(("time", "value")) or not isinstance(pair[1], str):
        raise ValueError("a value of its result is no pair of a time and a text")
    return float(pair[1])


def decide(query: Query, values: list[float]) -> Answer:
    """Return what values mean for the run. One that is no number says nothing."""
    numbers = [value for value in values if not math.isnan(value)]
    limited = query.above is not None or query.below is not None
    for value in numbers:
        if query.above is not None and value > query.above:
            return Answer(why=f"it is {value:g}")
        if query.below is not None and value < query.below:
            return Answer(why=f"it is {value:g}")
        if not limited and value != 0:
            return Answer(why=f"it is {value:g}")
    if len(numbers) < len(values) or (limited and not numbers):
        return Answer(missing="its result has no value" if not values else "a value of its result is no number")
    return Answer()


def _token(query: Query) -> str:
    if query.token_env is None:
        return ""
    token = os.environ.get(query.token_env, "")
    if not token:
        raise RefusedError(
            f"the environment variable {query.token_env} is not set, and the abort condition `{_short(query.says)}` needs it"
        )
    if not token.isascii() or not token.isprintable():
        raise RefusedError(f"what the environment variable {query.token_env} holds is no token")
    return token


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= LONGEST else f"{words[: LONGEST - 3]}..."
