"""A real agent for tests: the zipapp with toy faults, run by every interpreter found, its roots in a temporary folder."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import fair_watch
import pytest

from chaoskit.agent import cgroups
from chaoskit.agent.bundle import build
from chaoskit.agent.identity import Process, all_pids

TOYS = Path(__file__).parent / "toys"
SITE = {"node": "n1"}


def _python38():
    """Return a real Python 3.8, if this machine has one."""
    found = [shutil.which("python3.8")]
    found += sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/3.8*/bin/python3.8"), reverse=True)
    for path in found:
        if path and subprocess.run([path, "-c", "pass"], check=False, capture_output=True).returncode == 0:
            return str(path)
    return None


PYTHONS = [pytest.param(sys.executable, id="py3")]
# The gate has the conformance of every fault on 3.8; what else the agent promises is shown there by `./dev prove`.
LACKS_38 = pytest.mark.skipif(_python38() is None, reason="no Python 3.8 on this machine")
PYTHONS.append(pytest.param(_python38(), id="py38", marks=[LACKS_38, pytest.mark.prove]))


@pytest.fixture(params=PYTHONS)
def python(request):
    """Return each Python that nodes may have: the one that runs the tests, and a real 3.8."""
    return request.param


class AgentAnswerError(RuntimeError):
    """The agent answered with an error."""

    def __init__(self, error):
        super().__init__("{kind}: {what} ({hint})".format(**error))
        self.kind, self.what, self.hint = error["kind"], error["what"], error["hint"]


class Channel:
    """A controller's end: a bridge process, requests down its pipe and answers up."""

    def __init__(self, argv):
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.answers = {}
        self.events = []
        self.count = 0

    def send(self, do, **fields):
        self.count += 1
        self.raw(json.dumps({"id": self.count, "do": do, **fields}).encode() + b"\n")
        return self.count

    def raw(self, data):
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise EOFError(self.process.stderr.read().decode())
        return json.loads(line)

    def wait(self, ident):
        while ident not in self.answers:
            message = self.read()
            if "event" in message:
                self.events.append(message)
            elif message["id"] is None:
                raise AgentAnswerError(message["error"])
            else:
                self.answers[message["id"]] = message
        message = self.answers.pop(ident)
        if "error" in message:
            raise AgentAnswerError(message["error"])
        return message["ok"]

    def ask(self, do, **fields):
        return self.wait(self.send(do, **fields))

    def next_event(self, kind):
        start = time.monotonic()
        while time.monotonic() - start < 20.0:  # a beat a second keeps this loop turning
            event = self.events.pop(0) if self.events else self.read()
            if event.get("event") == kind:
                return event
        raise AssertionError(f"no event {kind!r} came")

    def close(self):
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()
        self.process.stderr.close()

    def kill(self):
        self.process.kill()
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()


class Agent:
    """The agent of a pretended node."""

    def __init__(self, python, archive, root):
        self.python, self.archive, self.root = python, archive, root
        self.roots = ["--state", str(root / "state"), "--run", str(root / "run"), "--etc", str(root / "etc")]
        self.before = []
        """What the agent is started by, such as a program that gives it namespaces of its own."""
        self.channels = []

    def connect(self):
        channel = Channel([*self.before, self.python, "-I", "-S", str(self.archive), "bridge", *self.roots])
        self.channels.append(channel)
        return channel

    def pids(self, verb):
        """Pids of our own processes that run a verb, told by the command line with this test's folder in it."""
        found = []
        for pid in all_pids():
            try:
                argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if verb.encode() in argv and str(self.root / "state").encode() in argv and Process.of(pid).alive():
                found.append(pid)
        return found

    def kill(self, verb, number=signal.SIGKILL):
        (pid,) = self.pids(verb)
        os.kill(pid, number)
        return pid

    def kill_both(self):
        """Kill server and fuse as if at one moment: each is stopped first, so that neither acts on the other's death."""
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for verb in ("serve", "fuse"):
                self.kill(verb, number)

    def file(self, name="a", text="whole"):
        path = self.root / name
        path.write_text(text)
        return path

    def end(self):
        for channel in self.channels:
            if channel.process.poll() is None:
                channel.kill()
        fair_watch.until(lambda: not self._killed())
        cgroups.sweep()

    def _killed(self):
        """Kill what runs, and return it: a server may have replaced its fuse meanwhile."""
        found = self.pids("serve") + self.pids("fuse")
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return found


@pytest.fixture
def until():
    """Return the function that waits for a condition."""
    return partial(fair_watch.until, seconds=10.0)


@pytest.fixture(scope="session")
def archive(tmp_path_factory):
    return build(tmp_path_factory.mktemp("cache"), {path.stem: path for path in TOYS.glob("toy_*.py")})


@pytest.fixture
def agent(archive, tmp_path):
    """The agent under the interpreter that runs the tests."""
    made = Agent(sys.executable, archive.path, tmp_path)
    yield made
    made.end()


@pytest.fixture(scope="module")
def shared_agent(archive, tmp_path_factory):
    """An agent that a module's harmless tests share."""
    made = Agent(sys.executable, archive.path, tmp_path_factory.mktemp("shared"))
    yield made
    made.end()


@pytest.fixture(params=PYTHONS)
def any_agent(request, archive, tmp_path):
    """The agent under each interpreter found."""
    made = Agent(request.param, archive.path, tmp_path)
    yield made
    made.end()


@pytest.fixture
def harm():
    """Return a function that prepares and arms (and by default injects) a toy on a file."""

    def run(channel, path, entry="run1/1/n1", lease=30.0, inject=True, fault="toy_file", site=None, **params):
        params = {"path": str(path), **params} if path is not None else params
        channel.ask("prepare", run=entry.split("/", maxsplit=1)[0], entry=entry, fault=fault, params=params, site=site or SITE)
        channel.ask("arm", entry=entry, lease=lease, controller="tester")
        return channel.ask("inject", entry=entry, at=None) if inject else None

    return run
