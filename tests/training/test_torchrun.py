"""A real elastic training on two "nodes" of this machine: killed, rebooted, ended; what was observed is what happened."""

import contextlib
import json
import os
import re
import signal
import sys
import time
from concurrent.futures import Future
from pathlib import Path

import pytest
from local_node import LocalNode
from scripted_node import ScriptedNode

from chaoskit import lab
from chaoskit.errors import AgentError, TrainingError
from chaoskit.judge import judge
from chaoskit.judge.timeline import Fact, InjectionFacts, Interval, MarkKind, Spec, Timeline
from chaoskit.model.experiment import Budgets
from chaoskit.model.inventory import Inventory, InventoryFile, Node, Ssh, TrainingSpec
from chaoskit.training.launch import open_training
from chaoskit.training.ports import Spawned

TRAINER = str(Path(lab.__file__).parent / "trainer.py")
NODES = ("127.0.0.1", "127.0.0.2")
"""Loopback addresses serve as the nodes' names."""


def site(spec, names=NODES):
    nodes = {name: Node(name, "workers", 1, (), None, None, (), None, False) for name in names}
    return Inventory("test", "test.yaml", nodes, InventoryFile("test", {}, Ssh(user="trainer"), trainings={"default": spec}))


def spec(folder, **more):
    argv = (TRAINER, "--checkpoints", f"{folder}/{{run}}", "--every", "10", "--truth", f"{folder}/truth-{{node}}", "--timeout", "5")
    values = {"argv": argv, "python": sys.executable, "interface": "lo", "log": f"{folder}/{{run}}.{{node}}.log", "start_within": 90.0}
    return TrainingSpec("torchrun", **(values | more))


@contextlib.contextmanager
def training_of(spec, run):
    nodes = {name: LocalNode(name) for name in NODES}
    training = open_training("default", spec, site(spec), run)
    try:
        yield training, nodes
    finally:
        for node in nodes.values():
            node.kill_all()


class Observer:
    """Polls as the engine does, and keeps what it was told."""

    def __init__(self, training):
        self.training = training
        self.samples, self.marks, self.blind, self.batch, self.gpus = [], [], {}, {}, {}

    def until(self, holds, within=60.0):
        give_up = time.monotonic() + within
        while not holds():
            assert time.monotonic() < give_up, (self.marks, self.samples[-5:])
            time.sleep(0.05)
            seen = self.training.poll(time.monotonic())
            self.samples += seen.samples
            self.marks += seen.marks
            self.blind.update(seen.blind)
            self.batch.update(seen.batch or {})
            self.gpus.update(seen.gpus or {})

    @property
    def top(self):
        return max((sample.step for sample in self.samples), default=0)

    @property
    def sessions(self):
        return list(dict.fromkeys(sample.session for sample in self.samples))

    def marks_of(self, kind):
        return [mark for mark in self.marks if mark.kind is kind]

    def first(self, kind, after):
        return next(mark for mark in sorted(self.marks, key=lambda mark: mark.t.mid) if mark.kind is kind and mark.t.hi > after)


def truth(folder, rank):
    """Return the records of one rank's lives in order of time."""
    records = [json.loads(line) for path in Path(folder).glob(f"truth-*/rank{rank}.*.jsonl") for line in path.read_text().splitlines()]
    return sorted(records, key=lambda record: record["t"])


@pytest.mark.row("L29")
@pytest.mark.prove
def test_a_killed_rank_a_rebooted_node_and_the_end_are_observed_as_they_happened(tmp_path):
    with training_of(spec(tmp_path), "kill-and-reboot") as (training, nodes):
        training.start(nodes)
        observer = Observer(training)
        observer.until(lambda: observer.top >= 35)

        victim = [record for record in truth(tmp_path, 1) if record["event"] == "start"][-1]["pid"]
        killed = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        top = observer.top
        observer.until(lambda: len(observer.sessions) == 2 and observer.samples[-1].step > top + 5)
        check_kill(observer, killed, truth(tmp_path, 0))

        check_judgement(observer, killed, truth(tmp_path, 0))
        rebooted, top = time.monotonic(), observer.top
        again = nodes[NODES[1]] = nodes[NODES[1]].reboot()
        observer.until(lambda: observer.marks_of(MarkKind.DETECT)[-1].t.hi > rebooted)
        training.rejoin(again)
        observer.until(lambda: len(observer.sessions) == 3 and observer.samples[-1].step > top + 5)
        assert again.spawns == 1
        assert not observer.marks_of(MarkKind.EXIT)
        check_samples(observer, truth(tmp_path, 0))
        assert set(observer.batch.values()) == {32}
        assert set(observer.gpus.values()) == {2}
        assert not [span for span in observer.blind.items() if span[1] > span[0]]

        nodes[NODES[0]].kill_all()  # the host of the rendezvous: nothing goes on without it
        observer.until(lambda: observer.marks_of(MarkKind.EXIT))
        [end] = observer.marks_of(MarkKind.EXIT)
        assert end.session == observer.sessions[-1]
        assert re.match(r"torchrun has ended on 127\.0\.0\.[12]", end.says)
        training.stop()
        assert not [pid for node in nodes.values() for pid in node.pids()]


def check_kill(observer, killed, of_rank_0):
    """The phases come in order, each inside its interval, and the checkpoint resumed from is the one that was loaded."""
    loaded = [record for record in of_rank_0 if record["event"] == "loaded"][-1]
    born = [record for record in of_rank_0 if record["event"] == "start"][-1]
    up = [record for record in of_rank_0 if record["event"] == "group up"][-1]
    phases = [
        observer.first(kind, killed) for kind in (MarkKind.DETECT, MarkKind.OLD_GONE, MarkKind.BORN, MarkKind.GROUP_UP, MarkKind.LOADED)
    ]
    assert [mark.t.mid for mark in phases] == sorted(mark.t.mid for mark in phases)
    assert phases[0].t.mid - killed < 1.5
    assert phases[2].t.mid == pytest.approx(born["t"], abs=0.5)
    for mark, record in zip(phases[3:], (up, loaded), strict=True):
        assert mark.t.lo <= record["t"] <= mark.t.hi
    assert phases[4].step == loaded["step"]
    assert phases[0].session == phases[1].session == observer.sessions[0]
    assert phases[2].session == phases[4].session == observer.sessions[1]
    assert len(observer.marks_of(MarkKind.BORN)) == 2


def check_judgement(observer, killed, of_rank_0):
    """The judge, given what was observed, counts the steps that were lost as the trainer itself does."""
    t0 = Interval.at(killed, 0.001)
    fault = InjectionFacts("rank_kill", "", NODES[1:], True, t0=t0, present=Fact(True), exposed=Fact(True), gone=Fact(True))
    seen = Timeline(
        samples=tuple(observer.samples),
        marks=tuple(observer.marks),
        baseline=(observer.samples[0].t.mid, killed),
        injections=(fault,),
        watched_until=time.monotonic(),
    )
    verdict = judge(seen, Spec(Budgets(), band=0.9, for_=0.1, min_window_steps=5))
    old = max(record["step"] for record in of_rank_0 if record["event"] == "step" and record["t"] < killed + 1)
    resumed = [record["step"] for record in of_rank_0 if record["event"] == "loaded"][-1]
    lost = verdict.quantities["lost_steps"].value
    assert (lost.lo, lost.hi) == (old - resumed, old - resumed)
    assert verdict.quantities["restarts"].value.mid == verdict.quantities["boots"].value.mid == 1


def check_samples(observer, of_rank_0):
    """Every step's true moment lies in its interval, and the intervals are narrow."""
    steps = [record for record in of_rank_0 if record["event"] == "step"]
    assert [sample.step for sample in observer.samples] == [record["step"] for record in steps][: len(observer.samples)]
    outside = [
        (sample, record) for sample, record in zip(observer.samples, steps, strict=False) if not sample.t.lo <= record["t"] <= sample.t.hi
    ]
    assert not outside
    widths = sorted(sample.t.hi - sample.t.lo for sample in observer.samples)
    assert widths[len(widths) * 9 // 10] < 0.2


class ScriptedAgent(ScriptedNode):
    """A node whose log and torchrun the test drives by hand; its log tells a step as soon as it is started."""

    alive = None

    def spawn(self, key, argv, env, user, cwd, log):
        self.alive = True
        self.read("step 5 loss 1.0 batch 32", at=time.monotonic())
        return self.spawned(key)

    def spawned(self, key):
        future = Future()
        if self.alive is None:
            future.set_exception(AgentError("nothing was started", node=self.name))
        else:
            future.set_result(Spawned(self.alive, 7, 1))
        return future

    def stop(self, key, grace):
        self.alive = None
        future = Future()
        future.set_result(True)
        return future


def test_a_run_whose_other_agents_have_ended_is_over_though_one_node_came_back_and_waits(tmp_path):
    """The rendezvous host reboots: every other torchrun gives up, and the one that we start again waits for ever."""
    nodes = {name: ScriptedAgent(name) for name in NODES}
    made = spec(tmp_path)
    training = open_training("default", made, site(made), "r1")
    training.start(nodes)
    lost, other = nodes.values()
    lost.connected = False
    other.read("[default] Worker group FAILED. 5/5 attempts left; will restart worker group", at=time.monotonic())
    again = ScriptedAgent(lost.name, "boot-2")
    now = time.monotonic()
    seen = [training.poll(now)]
    training.rejoin(again)
    seen += [training.poll(now + 1.1), training.poll(now + 2.2)]
    assert again.alive
    assert not [mark for part in seen for mark in part.marks if mark.kind is MarkKind.EXIT]
    other.alive = False
    other.read("raise RendezvousConnectionError(", at=time.monotonic())
    seen = [training.poll(now + after) for after in (3.3, 4.4)]
    [end] = [mark for part in seen for mark in part.marks if mark.kind is MarkKind.EXIT]
    assert end.says == "torchrun has ended on 127.0.0.2"
    training.stop()


def test_a_training_that_cannot_start_says_so_with_the_end_of_its_log(tmp_path):
    script = tmp_path / "broken.py"
    script.write_text("raise SystemExit('no such dataset')\n")
    with training_of(spec(tmp_path, argv=(str(script),), max_restarts=0), "broken") as (training, nodes):
        with pytest.raises(TrainingError, match="ended before its first step") as caught:
            training.start(nodes)
        assert "no such dataset" in str(caught.value)
        training.stop()


def test_the_argument_list_and_environment_of_an_agent(tmp_path):
    """The defaults that decide between recovery and death are set, and the inventory has the last word."""
    made = spec(tmp_path, min_nodes=1, rdzv_conf={"read_timeout": "9"}, env={"LOGLEVEL": "DEBUG", "X": "{node}"}, rendezvous="127.0.0.2")
    training = open_training("default", made, site(made), "r1")
    argv, env = " ".join(training.argv("127.0.0.1")), training.environment("127.0.0.1")
    assert "--nnodes 1:2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-id r1 --rdzv-endpoint 127.0.0.2:2" in argv
    assert (
        "--rdzv-conf read_timeout=9,keep_alive_interval=2,keep_alive_max_attempt=3,last_call_timeout=5,is_host=0 --max-restarts 5" in argv
    )
    assert f"{TRAINER} --checkpoints {tmp_path}/r1 --every 10 --truth {tmp_path}/truth-127.0.0.1" in argv
    assert (env["LOGLEVEL"], env["X"], env["GLOO_SOCKET_IFNAME"], env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"]) == (
        "DEBUG",
        "127.0.0.1",
        "lo",
        "1",
    )
    assert training.run_id == "r1"
