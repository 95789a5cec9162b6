"""
The controller of one case: the engine's own session, injector, keeper and journal over SSH against one node of the lab.

It runs in a child process, so that it can be killed and stopped as one, and reports its transitions as the agent does.
There is no training: what is tried is who mends the node, not what the training makes of it.
"""

import os
import signal
import socket
import struct
import sys
import time
import traceback
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import points as matrix

from chaoskit.agent.contract import TrainingFacts
from chaoskit.engine.clock import SystemClock
from chaoskit.engine.journal import Journal
from chaoskit.engine.plan import plan
from chaoskit.engine.ports import Observed
from chaoskit.engine.result import RunInfo
from chaoskit.engine.session import Session, parts_of
from chaoskit.errors import AbortedError, ChaosError, TrainingError
from chaoskit.faults import storage_slow
from chaoskit.fleet import fleet as fleet_module
from chaoskit.fleet.channel import Channel
from chaoskit.judge.timeline import Interval, Sample
from chaoskit.model.load import load_experiment, load_inventory

LEASE = 1.5
"""Seconds; an inventory may not say so little, and a node takes it."""
HELD = 30.0
"""Seconds for which a fault is held where its end is not what is tried: far beyond every deadline of a case."""

PARAMS = {
    "link_flap": {"rail": 0, "down": HELD},
    "node_kill": {},
    "rank_kill": {},
    "rank_hang": {"hold": HELD},
    "rank_slow": {"cpu": 0.3, "hold": HELD},
    "gpu_power_cap": {"watts": 315.0, "hold": HELD},
    "gpu_clock_lock": {"mhz": 990, "hold": HELD},
    "storage_slow": {"rate": 262144, "ratio": 2.0, "path": "/ckpt/{node}", "hold": HELD},
}
"""What each fault is tried with; one that has no entry is tried with what it needs least, see `params_of`."""
SHORT = {"link_flap": {"down": 0.4, "up": 0.4, "times": 2}}
"""How a fault ends by itself soon; where nothing is said, it is held for `SHORTLY`."""
SHORTLY = 0.6


class NoTraining:
    """Nothing trains; or, where the whole of a journal is to be seen, something that is steady at once and cannot be ended."""

    run_id, launches, nodes, log_nodes = "matrix", True, (), ()

    def __init__(self, steady):
        self.steady, self.step, self.told = steady, 0, 0.0

    def start(self, agents, meanwhile):
        self.told = time.monotonic()

    def poll(self, now):
        samples = []
        while self.steady and self.told + 0.01 < now:
            self.told += 0.01
            self.step += 1
            samples.append(Sample(Interval.at(self.told, 0.001), self.step, "life-0"))
        return Observed(tuple(samples), ())

    def rejoin(self, agent):
        pass

    def stop(self):
        if self.steady:
            raise TrainingError("it does not end")


def params_of(fault, course, node):
    """Return the parameters of a fault in a course. A new fault is tried with its own defaults until somebody says better."""
    params = {key: value.format(node=node) if isinstance(value, str) else value for key, value in PARAMS.get(fault, {}).items()}
    if course == "natural":
        params = {**params, **SHORT.get(fault, {"hold": SHORTLY} if "hold" in params else {})}
    return params


EXPERIMENT = """\
title: a case of the crash matrix
seed: 1
steady_state: {{throughput: {{within: 50%, for: 200ms}}}}
method:
{method}
blast_radius: {{nodes: all}}
budgets: {{restarts: 0}}
"""
INJECTION = """\
  - fault: {fault}
    target: {{nodes: {node}}}
    with: {{{params}}}
    after: 0s
"""


def planned(inventory, run_dir, fault, params, node):
    """Return the plan, from an experiment file as a user writes it."""
    seconds = {"down", "up", "hold"}
    said = ", ".join(f"{key}: {_written(key, value, seconds)}" for key, value in params.items())
    path = run_dir / "experiment.yaml"
    path.write_text(EXPERIMENT.format(method=INJECTION.format(fault=fault, node=node, params=said)))
    return replace(plan(load_experiment(path), inventory), lease=LEASE)


def _written(key, value, seconds):
    if key in seconds:
        return f"{round(value * 1000)}ms"
    return {"cpu": "30%", "rate": "256KiB"}.get(key, value)


class Controller:
    """
    One run.

    Args:
        site: The inventory of the case, with the short lease.
        bundle: The matrix's own build of the agent.
        namespace: The node's process namespace.
        case: What is tried.
        run_dir: Gets the journal, and what was found out.
    """

    def __init__(self, site, bundle, namespace, case, run_dir):
        fleet_module.build = lambda **_: bundle
        self.site, self.namespace, self.case, self.run_dir = load_inventory(site), namespace, case, Path(run_dir)
        self.node = case["node"]
        self.fleet = None
        order = {**case, "role": case.get("role")}
        storage_slow.SHORTEST = 0.1
        report(order, self._fire, self.run_dir)

    def _fire(self, order):
        matrix.put(str(self.run_dir / "hit"), {"id": order["id"], "boottime": time.clock_gettime(time.CLOCK_BOOTTIME)})
        if order["victim"] == "controller":
            os.kill(os.getpid(), {"KILL": 9, "STOP": 19}[order["how"]])
        elif order["victim"] == "channel" and order["how"] == "RST" and self.fleet is not None:
            self._reset()
        else:
            _stop(order, self.namespace)

    def _reset(self):
        """End our own end of the connections by a reset."""
        with self.fleet._lock:
            links = [reached.link for reached in self.fleet._reached.values()]
        for link in links:
            link.transport.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            link.transport.sock.close()
        matrix.stop("channel", "RST", self.namespace)

    def run(self):
        """Play the case's course; returns the words of the verdict."""
        self.fleet = fleet_module.SshFleet(self.site)
        course, fault = self.case["course"], self.case["fault"]
        plan_ = planned(self.site, self.run_dir, fault, params_of(fault, course, self.node), self.node)
        info = RunInfo(
            run=self.run_dir.name,
            name="matrix",
            title="a case",
            why="",
            file="case.yaml",
            inventory=self.site.name,
            inventory_file=str(self.site.path),
            seed=1,
            nodes=1,
            gpus=1,
            started=datetime.now(UTC),
            began=time.monotonic(),
        )
        session = Session(
            plan_, info, parts_of(self.fleet, NoTraining(steady=course.startswith("whole")), SystemClock()), run_dir=self.run_dir
        )
        try:
            session.connect()
            session.start()
            session.injector.facts = TrainingFacts(run_id="matrix", checkpoints=f"/ckpt/{self.node}")
            if course.startswith("whole"):
                session.await_steady()
            lives = session.inject(plan_.planned[0])
            getattr(self, "_" + course.partition("-")[0])(session, lives)
        except ChaosError as error:
            session.end_early(error)
        finally:
            session.close()
        return session.result.verdict.outcome.value

    # -- courses: what comes after the harm -----------------------------------------------------------------------------

    def _told(self, session, lives):
        """Hold it over a renewal, then be told to end."""
        session.wait(0.45)
        session.revert(lives)

    def _lied(self, session, lives):
        """The same; the node's first revert is denied by its own reading."""
        session.wait(0.1)

    def _natural(self, session, lives):
        """Wait until the node has ended it."""
        until = time.monotonic() + 8.0
        while time.monotonic() < until and not all(entry.ended for entry in session.recorder.state.entries.values()):
            session.tick()

    def _away(self, session, lives):
        """Be gone, as a closed laptop is: the lease runs out."""
        session.wait(0.1)
        os._exit(0)

    def _orphan(self, session, lives):
        """Be gone, and so is the server: the fuse is alone."""
        session.wait(0.1)
        matrix.stop("server", "KILL", self.namespace)
        os._exit(0)

    def _debt(self, session, lives):
        """Everybody is gone: a debt, for `heal` to pay."""
        session.wait(0.1)
        matrix.stop("both", "KILL", self.namespace)
        os._exit(0)

    def _whole(self, session, lives):
        """See every kind of record: the method grows, and the run ends in one of the ways in which it can."""
        session.extend(session.plan)
        session.wait(0.2)
        ending = self.case["course"].partition("-")[2]
        if ending == "denied":
            session.does_not_hold("it was not so")
        elif ending == "aborted":
            raise AbortedError("it was enough")
        else:
            raise TrainingError("it is lost")


def report(order, fire, run_dir):
    """Report the transitions of this process: the records of its journal, and the requests that it sends."""
    points = matrix.Points("controller", lambda: order, fire, str(run_dir / "points"))
    points.wrap(Journal, "append", lambda _self, kind, *_args, **_more: kind)
    points.wrap_steps()
    request = Channel.request

    def reported(channel, do, *args, **kwargs):
        points.reach(f"verb-{do}:before")
        answer = request(channel, do, *args, **kwargs)
        points.reach(f"verb-{do}:sent")
        return answer

    Channel.request = reported


def report_heal(case, run_dir, namespace):
    """Report the transitions of `heal`, which runs in this process next."""

    def fire(order):
        matrix.put(str(run_dir / "hit"), {"id": order["id"], "boottime": time.clock_gettime(time.CLOCK_BOOTTIME)})
        if order["victim"] == "controller":
            os.kill(os.getpid(), {"KILL": 9, "STOP": 19}[order["how"]])
        else:
            _stop(order, namespace)

    report(case, fire, run_dir)


def _stop(order, namespace):
    """Stop whom the order names on the node; where nobody is to be left, that is us as well, before we can send anybody new."""
    matrix.stop(order["victim"], order["how"], namespace)
    if order["victim"] == "both":
        os.kill(os.getpid(), signal.SIGKILL)


def main(site, bundle, namespace, case, run_dir):
    """Run in a forked child; leaves the outcome in the run's folder."""
    log = os.open(str(Path(run_dir) / "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for fd in (1, 2):
        os.dup2(log, fd)
    code = 0
    try:
        outcome = Controller(site, bundle, namespace, case, run_dir).run()
        (Path(run_dir) / "outcome").write_text(outcome)
    except BaseException:  # noqa: BLE001 - the border of a process: whatever it was is for the report
        traceback.print_exc()
        code = 70
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
