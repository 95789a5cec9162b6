"""
The server's side of tails: a child for each stream of each connection, its events checked before they are passed on.

A child of the training's user could write anything, so only events of its own stream go on the wire, made anew.
Standard library only, Python 3.8.
"""

import os
import selectors
import subprocess
from typing import Any, Callable, Dict, List, Optional, Tuple

from chaoskit.agent.connections import FULL, READ, Connection
from chaoskit.agent.detach import ENVIRONMENT, agent_command
from chaoskit.agent.protocol import LineBuffer, Message, decode, encode, need
from chaoskit.errors import ProtocolError, RefusedError

MOST = 64
"""Streams of one connection."""

Key = Tuple[int, str]


class _Stream:
    """A running tail."""

    def __init__(self, connection: Connection, name: str, process: "subprocess.Popen[bytes]") -> None:
        self.connection = connection
        self.name = name
        self.process = process
        self.buffer = LineBuffer()
        self.paused = False

    @property
    def pipe(self) -> int:
        """The child's output."""
        if self.process.stdout is None:
            raise ProtocolError("stream {} has no output".format(self.name))
        return self.process.stdout.fileno()

    def events(self, data: bytes) -> List[Message]:
        """Return the events in what the child wrote. Raises ProtocolError."""
        return [_event(self.name, decode(line)) for line in self.buffer.feed(data)]

    def stop(self) -> None:
        """End the child without waiting for it: on a file system that hangs, even a killed reader stays for a while."""
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class Streams:
    """The tails of all connections; only the loop's thread touches them."""

    def __init__(self, archive: str, selector: selectors.BaseSelector, send: Callable[[Connection, Message], None]) -> None:
        self._archive = archive
        self._selector = selector
        self._send = send
        self._streams: Dict[Key, _Stream] = {}
        self._ended: List["subprocess.Popen[bytes]"] = []

    def ask(self, connection: Connection, verb: str, message: Message) -> None:
        """Start or end a tail. Raises ProtocolError, RefusedError."""
        name = need(message, "stream", str)
        if verb == "untail":
            self._end((id(connection), name))
            return
        if (id(connection), name) in self._streams:
            raise RefusedError("stream {!r} is followed already".format(name))
        if sum(1 for owner, _ in self._streams if owner == id(connection)) >= MOST:
            raise RefusedError("a connection follows at most {} streams".format(MOST))
        path, user = need(message, "path", str), message.get("user")
        if not os.path.isabs(path) or "\0" in path:
            raise ProtocolError("path {!r} is not absolute".format(path))
        if user is not None and not isinstance(user, str):
            raise ProtocolError("field 'user': expected str or null, got {!r}".format(user))
        order = {"stream": name, "path": path, "user": user, "whole": need(message, "whole", bool, False)}
        self._start(connection, name, order)

    def pace(self, connection: Connection) -> None:
        """Stop reading the tails of a connection that does not keep up; the lines wait in their file meanwhile."""
        for stream in self._of(connection):
            full = connection.waiting > FULL
            if full and not stream.paused:
                self._selector.unregister(stream.pipe)
            elif stream.paused and not full:
                self._register(stream)
            stream.paused = full

    def drop(self, connection: Connection) -> None:
        """End all tails of a connection."""
        for stream in self._of(connection):
            self._end((id(connection), stream.name))

    def reap(self) -> bool:
        """Collect ended children without waiting; say whether some have still to end."""
        self._ended = [process for process in self._ended if process.poll() is None]
        return bool(self._ended)

    def _of(self, connection: Connection) -> List[_Stream]:
        return [stream for (owner, _), stream in self._streams.items() if owner == id(connection)]

    def _start(self, connection: Connection, name: str, order: Dict[str, Any]) -> None:
        process = subprocess.Popen(
            agent_command(self._archive, "tail", []), stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/", env=ENVIRONMENT
        )
        stream = _Stream(connection, name, process)
        if process.stdin is not None:
            process.stdin.write(encode(order))
            process.stdin.flush()
        self._streams[(id(connection), name)] = stream
        self._register(stream)

    def _register(self, stream: _Stream) -> None:
        self._selector.register(stream.pipe, selectors.EVENT_READ, lambda _, __: self._heard(stream))

    def _heard(self, stream: _Stream) -> None:
        key = (id(stream.connection), stream.name)
        if self._streams.get(key) is not stream:
            return  # it was ended in this same turn
        data = os.read(stream.pipe, READ)
        try:
            events = stream.events(data)
        except ProtocolError as error:
            events = [{"event": "tail_end", "stream": stream.name, "why": str(error)}]
        if not data:
            events = [{"event": "tail_end", "stream": stream.name, "why": "the tail ended"}]
        for event in events:
            self._send(stream.connection, event)
        if any(event["event"] == "tail_end" for event in events):
            self._end(key)

    def _end(self, key: Key) -> None:
        stream = self._streams.pop(key, None)
        if stream is None:
            return
        if not stream.paused:
            self._selector.unregister(stream.pipe)
        stream.stop()
        self._ended.append(stream.process)


def _event(stream: str, message: Message) -> Message:
    """Return a child's event, rebuilt from the fields that it may have. Raises ProtocolError."""
    kind = message.get("event")
    if kind == "beat":
        return {"event": "beat", "stream": stream, "at": need(message, "at", float)}
    if kind == "tail_end":
        return {"event": "tail_end", "stream": stream, "why": need(message, "why", str)[:500]}
    if kind != "lines":
        raise ProtocolError("a tail sent {!r}".format(kind))
    lines = need(message, "lines", list)
    if not all(isinstance(line, str) for line in lines):
        raise ProtocolError("a tail sent lines that are none")
    event: Message = {"event": "lines", "stream": stream, "lines": lines}
    event.update(since=need(message, "since", float), at=need(message, "at", float))
    dropped: Optional[int] = need(message, "dropped", int, 0)
    return dict(event, dropped=dropped) if dropped else event
