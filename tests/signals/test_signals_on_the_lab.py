"""
Whatever ends the controller, at whatever stage: the fault is reverted, and the verdict and its JUnit file are there.

A real `chaoskit run` on a terminal of its own is struck by each of nine things at each of nine stages. The gate tries some
of them, `./dev prove` all.
"""

import contextlib
import json
import os
import pty
import random
import re
import select
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from struck import STAGES

pytestmark = [pytest.mark.cluster, pytest.mark.row("R11", "L16", "L36", "L37", "L45")]

STRIKES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "two Ctrl-C", "terminal closed", "SIGSTOP", "SIGKILL", "out of memory")
KILLS = frozenset({"SIGKILL", "out of memory"})
ENDS = frozenset(STRIKES) - KILLS - {"SIGSTOP"}
EARLY = ("connect", "start", "baseline", "arm", "inject", "watch")
"""Stages at which a signal ends the run; at the later ones the verdict is made, or cannot change any more."""
LEASE = 10.0
ENOUGH = 1 << 30
"""Bytes that a run may have before the kernel ends it, which is ten times what it needs."""
STOPPED = 13.0
"""Seconds of a SIGSTOP: longer than the lease."""
NODES = ("node1", "node2", "node3", "node4")
SAMPLE = 4
RUNNER = Path(__file__).parents[1] / "support" / "struck.py"

INVENTORY = """\
lease: {lease:g}s
"""
TRAINING = """\
  scripted: # a loop that says what a training says, without doing it
    launcher: command
    nodes: {node}
    user: chaos
    start: [ssh, -F, {state}/ssh_config, {node}, sh, {loop}]
    stop: [ssh, -F, {state}/ssh_config, {node}, kill, "{{job}}"]
    log: {log}
    format: {{jsonl: {{step: step}}}}
"""
LOOP = """\
(n=0; while [ $n -lt 3000 ]; do n=$((n+1)); echo "{\\"step\\": $n}"; sleep 0.05; done) >$1 2>&1 </dev/null &
echo $!
"""
EXPERIMENT = """\
title: A run that is struck
training: scripted
steady_state: {{throughput: {{within: 90%, for: 1s}}}}
watch: 5s
method:
  - {{fault: link_flap, target: {{nodes: {node}}}, with: {{rail: 1, down: {down}}}}}
"""


@dataclass
class Struck:
    """One run that was struck: what it printed, its exit code, and its directory."""

    stage: str
    strike: str
    node: str
    folder: Path
    said: bytearray = field(default_factory=bytearray)
    code: int | None = None

    @property
    def text(self):
        return self.said.decode(errors="replace")

    @property
    def words(self):
        """What it printed, without colours, and in one line: where a terminal breaks lines is its own affair."""
        return " ".join(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.text).split())

    @property
    def kinds(self):
        return [json.loads(line)["kind"] for line in (self.folder / "journal.jsonl").read_text().splitlines()]

    @property
    def summary(self):
        return json.loads((self.folder / "summary.json").read_text())


class Terminal:
    """A process on a terminal of its own, whose screen somebody reads."""

    def __init__(self, argv, env, cwd, kept, said):
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            for fd in kept:
                os.set_inheritable(fd, True)
            os.execve(argv[0], argv, env)  # noqa: S606 - that is what a terminal does
        self.said = said
        self.over = threading.Event()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        while not self.over.is_set():
            if select.select([self.master], [], [], 0.05)[0]:
                try:
                    self.said += os.read(self.master, 4096)
                except OSError:
                    return

    def type(self, key):
        os.write(self.master, key)

    def shows(self, words, seconds):
        """Wait until it has shown words, or for so long: at some stages nothing is said."""
        until = time.monotonic() + seconds
        while words not in self.said and time.monotonic() < until:
            time.sleep(0.005)

    def close(self):
        """Close it; who still reads it would keep it open."""
        if not self.over.is_set():
            self.over.set()
            self.reader.join()
            os.close(self.master)

    def wait(self, seconds):
        """Return the exit code as a shell would say it."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        raise AssertionError(f"it did not end within {seconds:g} s:\n{self.said.decode(errors='replace')}")


@contextlib.contextmanager
def bounded(pid):
    """Put a process into a control group of so much memory, and give the word by which it takes more; it was the kernel that ended it."""
    old = Path("/sys/fs/cgroup/memory")
    group = (old if old.is_dir() else Path("/sys/fs/cgroup")) / f"chaoskit-test-{pid}"
    limit, killed = ("memory.limit_in_bytes", "memory.oom_control") if old.is_dir() else ("memory.max", "memory.events")
    group.mkdir()
    try:
        (group / limit).write_text(str(ENOUGH))
        (group / "cgroup.procs").write_text(str(pid))
        yield b"m"
        assert "oom_kill 1" in (group / killed).read_text()
    finally:
        group.rmdir()


def name_of(stage, strike):
    return f"{stage}-{strike.replace(' ', '_')}"


class Bench:
    """The lab's nodes, each of which serves one run at a time."""

    def __init__(self, lab, root):
        self.lab = lab
        self.root = root

    def strike(self, stage, strike, node):
        """Run an experiment on a node, strike it at the stage, and return what became of it."""
        root = self.root / name_of(stage, strike)
        root.mkdir()
        goes_on = stage in ("judge", "report") or (strike == "SIGSTOP" and stage in ("connect", "start", "baseline"))
        self._write(root, node, down="1s" if goes_on else "10m")
        told, tell = os.pipe()
        going, go = os.pipe()
        run = Struck(stage, strike, node, root)
        env = {**os.environ, "STRUCK_AT": stage, "STRUCK_TOLD": str(tell), "STRUCK_GO": str(going), "TERM": "xterm"}
        argv = [sys.executable, str(RUNNER), "run", "struck.yaml", "-i", "inventory.yaml"]
        terminal = Terminal(argv, env, root, (tell, going), run.said)
        os.close(tell)
        os.close(going)
        try:
            assert os.read(told, 1) == b"!", f"{stage} was never reached:\n{run.text}"
            with bounded(terminal.pid) if strike == "out of memory" else contextlib.nullcontext(b"!") as word:
                self._do(strike, terminal, lambda: os.write(go, word))
                run.code = terminal.wait(60)
        finally:
            os.close(told)
            os.close(go)
            terminal.close()
        run.folder = (root / "runs" / "latest").resolve()
        return run

    def _write(self, root, node, down):
        loop, log = (f"/var/tmp/struck-{root.name}-{os.getpid()}.{end}" for end in ("sh", "log"))
        assert self.lab.ssh(node, "tee", loop, stdin=LOOP.replace("$1", log)).returncode == 0
        training = TRAINING.format(node=node, state=self.lab.state_dir, loop=loop, log=log)
        (root / "inventory.yaml").write_text(INVENTORY.format(lease=LEASE) + self.lab.inventory_path.read_text() + training)
        (root / "struck.yaml").write_text(EXPERIMENT.format(node=node, down=down))

    def _do(self, strike, terminal, go):
        if strike == "terminal closed":
            terminal.close()
        elif strike == "two Ctrl-C":
            terminal.type(b"\x03")
            terminal.shows(b"ending the run", 5.0)
            terminal.type(b"\x03")  # at once, since reverts may be over soon
        elif strike == "SIGINT":
            terminal.type(b"\x03")
        elif strike != "out of memory":
            os.kill(terminal.pid, getattr(signal, strike))
        if strike == "SIGSTOP":
            time.sleep(STOPPED)
            os.kill(terminal.pid, signal.SIGCONT)
        elif strike not in KILLS:
            time.sleep(0.3)  # the signal is on its way, and a terminal's takes a detour
        with contextlib.suppress(BrokenPipeError):  # it has ended
            go()

    def link(self, node):
        return self.lab.ssh(node, "cat", "/sys/class/net/rail1/operstate").stdout.strip()

    def loops(self, run):
        """Return what is left of a run's training."""
        return self.lab.ssh(run.node, "pgrep", "-f", f"struck-{name_of(run.stage, run.strike)}-{os.getpid()}.sh").stdout.split()


@pytest.fixture
def bench(lab, tmp_path):
    made = Bench(lab, tmp_path)
    yield made
    for node in NODES:
        lab.ssh(node, "pkill", "-f", f"struck-.*-{os.getpid()}.sh")


def chaoskit(*args):
    argv = [sys.executable, "-c", "from chaoskit.cli.main import entry; entry()", *map(str, args)]
    return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=120)


def check(bench, run):
    """Whatever struck it: reverted, judged, told, and never called better than it was."""
    if run.strike in KILLS:
        assert run.code == -signal.SIGKILL
        give_up = time.monotonic() + LEASE + 15
        while bench.link(run.node) != "up":  # nobody is left to revert it but the node
            assert time.monotonic() < give_up, "the node did not heal itself"
            time.sleep(0.2)
        if run.stage != "report":
            assert not (run.folder / "junit.xml").exists()
        reported = chaoskit("report", run.folder)
        assert reported.returncode == run.summary["exit_code"]
    else:
        assert bench.link(run.node) == "up"
        assert not bench.loops(run)
        assert run.code == run.summary["exit_code"], run.text
        kinds = run.kinds
        assert "verdict" in kinds
        assert "teardown" not in kinds[: kinds.index("verdict")]
    cases = list(ET.parse(run.folder / "junit.xml").getroot().iter("testcase"))
    red = [child.tag for case in cases for child in case if child.tag in ("failure", "error")]
    assert red, "a run that was struck, or whose fault nobody felt, is not green"
    check_outcome(run)


def check_outcome(run):
    reasons = " ".join(run.summary["reasons"])
    if run.strike in ENDS and run.stage in EARLY:
        named = {"two Ctrl-C": "SIGINT", "terminal closed": "SIGHUP"}.get(run.strike, run.strike)
        assert run.code == 4, run.text
        assert f"ended by {named}" in reasons
    elif run.stage == "revert" and run.strike not in KILLS:
        assert run.code == 4, run.text
        assert "stopped by" in reasons
    elif run.strike == "SIGSTOP" and run.stage in ("inject", "watch"):
        assert run.code == 4, run.text
        assert "lease ended before it was renewed" in reasons or "its lease had run out" in reasons
    if run.strike in ENDS and run.strike != "terminal closed":
        last = run.text.strip().splitlines()[-1]
        assert run.summary["outcome"] in last, run.text
    if run.strike == "two Ctrl-C" and run.stage in ("arm", "inject", "watch"):  # before, there is nothing to revert, and it has ended
        assert "nothing cuts its reverts short; nodes that cannot be reached heal themselves" in run.words, run.words
    if run.strike == "SIGQUIT":
        assert "thread MainThread" in run.text, run.text


def strike_all(bench, cases):
    """Strike as many runs at a time as there are nodes; return what went wrong."""
    free, failures = list(NODES), []

    def one(case):
        node = free.pop()
        try:
            check(bench, bench.strike(*case, node))
        except Exception as error:  # noqa: BLE001 - each case is told by its name
            failures.append(f"{case[1]} at {case[0]}: {type(error).__name__}: {error}")
        finally:
            free.append(node)

    with ThreadPoolExecutor(len(NODES)) as pool:
        list(pool.map(one, cases))
    return failures


ALL = [(stage, strike) for stage in STAGES for strike in STRIKES]


def test_some_strikes_leave_nothing_and_are_judged(bench):
    """A sample by a fixed seed, so that the gate is the same each time."""
    cases = random.Random(11).sample(ALL, SAMPLE)  # noqa: S311 - a choice, no secret

    failures = strike_all(bench, cases)

    assert not failures, "\n".join(failures)
    assert chaoskit("audit", "-i", bench.lab.inventory_path).returncode == 0


@pytest.mark.prove
def test_no_strike_at_any_stage_leaves_anything_or_goes_unjudged(bench):
    """All of them: nine strikes at nine stages."""
    failures = strike_all(bench, ALL)

    print(f"{len(ALL)} strikes tried, {len(failures)} failed")
    assert not failures, "\n".join(failures)
    assert chaoskit("audit", "-i", bench.lab.inventory_path).returncode == 0
