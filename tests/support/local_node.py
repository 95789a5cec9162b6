"""
A node that is this machine: really starts processes and really follows files, with the agent's own follower, but without SSH.

It can be disconnected (its processes go on) and rebooted (they are killed, and it comes back with another boot id).
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
import uuid
from concurrent.futures import Future

from chaoskit.agent.tail import Follower
from chaoskit.errors import AgentError, UnreachableError
from chaoskit.training.ports import Beat, Lines, Spawned, TailEnd

OWNER = "CHAOSKIT_TEST_NODE"


class LocalNode:
    def __init__(self, name, owner=None):
        self.name = name
        self.owner = owner or f"{name}-{uuid.uuid4()}"
        self.boot_id = str(uuid.uuid4())
        self.connected = True
        self.spawns = 0
        self.processes = {}
        self.tails = {}

    def _answer(self, do):
        future = Future()
        if not self.connected:
            future.set_exception(UnreachableError("connection lost", node=self.name))
            return future
        try:
            future.set_result(do())
        except Exception as error:  # noqa: BLE001 - whatever went wrong is the answer
            future.set_exception(error)
        return future

    def spawn(self, key, argv, env, user, cwd, log):
        def do():
            self.spawns += 1
            with open(log, "ab") as file:
                environment = {**os.environ, **env, OWNER: self.owner}
                process = subprocess.Popen(
                    argv, stdout=file, stderr=file, stdin=subprocess.DEVNULL, env=environment, cwd=cwd, start_new_session=True
                )
            self.processes[key] = process
            return Spawned(True, process.pid, 0)

        return self._answer(do)

    def spawned(self, key):
        def do():
            if key not in self.processes:
                raise AgentError("nothing was started under this key since this node came up", node=self.name, kind="RefusedError")
            process = self.processes[key]
            return Spawned(process.poll() is None, process.pid, 0)

        return self._answer(do)

    def stop(self, key, grace):
        def do():
            if process := self.processes.get(key):
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):  # what is left is killed next
                    process.wait(grace)
                self.kill_all()
                process.wait(5)
            return not self.pids()

        return self._answer(do)

    def tail(self, stream, path, user, whole, on_event):
        def do():
            stop = self.tails[stream] = threading.Event()
            threading.Thread(target=self._follow, args=(stream, path, whole, on_event, stop), daemon=True).start()

        return self._answer(do)

    def untail(self, stream):
        return self._answer(lambda: self.tails.pop(stream).set())

    def _follow(self, stream, path, whole, on_event, stop):
        follower, beat = Follower(path, whole, time.monotonic()), 0.0
        while not stop.wait(0.02):
            now = time.monotonic()
            while (chunk := follower.poll(now)) is not None:
                on_event(Lines(self.name, stream, tuple(chunk.lines), chunk.since, chunk.at))
                now = time.monotonic()
            if now - beat >= 1:
                beat = now
                on_event(Beat(self.name, stream, now))
        follower.close()
        on_event(TailEnd(self.name, stream, time.monotonic(), "connection lost"))

    def pids(self):
        """Return every process of this node, whatever session it is in."""
        found, mark = [], f"{OWNER}={self.owner}".encode()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    if mark in file.read().split(b"\0"):
                        found.append(int(pid))
            except OSError:
                continue  # it has ended meanwhile
        return found

    def kill_all(self):
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def disconnect(self):
        self.connected = False
        for stop in self.tails.values():
            stop.set()
        self.tails.clear()

    def reconnect(self):
        """Return the node as it is found when the connection is made anew."""
        node = LocalNode(self.name, self.owner)
        node.boot_id, node.processes, node.spawns = self.boot_id, self.processes, self.spawns
        return node

    def reboot(self):
        """Lose everything but the disk; return the node as it is found afterwards."""
        self.disconnect()
        while self.pids():
            self.kill_all()
        for process in self.processes.values():
            process.wait(5)
        return LocalNode(self.name, self.owner)
