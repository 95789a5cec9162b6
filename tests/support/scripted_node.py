"""A node whose log the test writes by hand: each read, beat and end when it says so."""

from concurrent.futures import Future

from chaoskit.errors import UnreachableError
from chaoskit.training.ports import Beat, Lines, TailEnd


class ScriptedNode:
    def __init__(self, name, boot_id="boot-1"):
        self.name = name
        self.boot_id = boot_id
        self.connected = True
        self.followed = []
        self._on_event = None

    def tail(self, stream, path, user, whole, on_event):
        future = Future()
        if self.connected:
            self.followed.append((path, whole))
            self._on_event = on_event
            future.set_result(None)
        else:
            future.set_exception(UnreachableError("connection lost", node=self.name))
        return future

    def untail(self, stream):
        future = Future()
        self._on_event = None
        future.set_result(None)
        return future

    def read(self, *lines, at, since=None):
        self._on_event(Lines(self.name, "training", lines, at - 0.02 if since is None else since, at))

    def beat(self, at):
        self._on_event(Beat(self.name, "training", at))

    def end(self, at, why="the log was removed"):
        self._on_event(TailEnd(self.name, "training", at, why))
