"""Generated runs on the simulated cluster: what is injected when, and what goes wrong meanwhile."""

import signal
from dataclasses import dataclass, field

from hypothesis import strategies as st
from simulated import Kill, SimClock, SimFleet, SimNode, SimTraining, Slow
from simulated_plan import info_of, injection_of, plan_of

from chaoskit.engine.plan import PlannedInjection
from chaoskit.engine.run import run_experiment
from chaoskit.model.experiment import Budgets, Expect

NODES = ("n1", "n2", "n3")
SERIAL = 55.0
"""Seconds from one injection to the next that may be on the same node: longer than any fault is held, and than a reboot takes."""


class DefectError(Exception):
    """Stands for a defect of ours."""


@dataclass(frozen=True)
class Trouble:
    """
    Something that goes wrong.

    `refuse`, `unexposed`, `unwitnessed`, `stuck` (its revert fails), `silent` (it dies without a word) are a node's; `cut` cuts
    its channel for some seconds, `hang` stops the engine for some, `signal` and `defect` end it, `death` ends the training.
    These happen when so many events have been told since the baseline was found; when negative, so many since the start.
    """

    kind: str
    node: str = ""
    at_event: int = 0
    seconds: float = 0.0
    verb: str = ""


@dataclass
class Schedule:
    """What is injected, whether one after another, and what goes wrong."""

    planned: tuple[PlannedInjection, ...]
    serial: bool
    troubles: tuple[Trouble, ...] = ()


FAULTS = st.sampled_from([Slow(hold=40.0), Slow(hold=4.0), Kill()])
NODE = st.sampled_from(NODES)
EVENT = st.one_of(st.integers(0, 30), st.integers(0, 200), st.integers(-20, -1))
TROUBLES = st.one_of(
    st.builds(Trouble, st.just("cut"), NODE, EVENT, st.floats(1.0, 90.0)),
    st.builds(Trouble, st.just("refuse"), NODE, verb=st.sampled_from(["prepare", "arm", "inject", "witness", "exposed"])),
    st.builds(Trouble, st.sampled_from(["unexposed", "unwitnessed", "stuck", "silent"]), NODE),
    st.builds(Trouble, st.just("hang"), at_event=EVENT, seconds=st.floats(1.0, 60.0)),
    st.builds(Trouble, st.sampled_from(["signal", "defect", "death"]), at_event=EVENT),
)


@st.composite
def schedules(draw):
    """One to three injections: all on nodes of their own and at any time, or on any nodes and one after another."""
    serial = draw(st.booleans())
    injections, free = [], draw(st.permutations(NODES))
    for number in range(draw(st.integers(1, 3))):
        fault = draw(FAULTS)
        if serial:
            targets = tuple(draw(st.lists(NODE, min_size=1, max_size=2, unique=True)))
            after = number * SERIAL
        else:
            targets, after = (free[number],), draw(st.floats(0, 30))
        expect = draw(st.sampled_from([None, Expect(2.0)])) if serial and fault.holds() else None
        injections.append(injection_of(fault, targets, number, after, together=draw(st.booleans()), expect=expect))
    return Schedule(tuple(injections), serial, tuple(draw(st.lists(TROUBLES, max_size=3))))


@dataclass
class Run:
    """One schedule, run: the cluster as it really is afterwards, and what the engine says."""

    schedule: Schedule
    run_dir: object
    nodes: dict = field(default_factory=dict)
    told: int = 0
    since_steady: int | None = None
    happened: list = field(default_factory=list)
    result: object = None

    def play(self):
        """Run it; `result` stays None when a defect went through."""
        self.clock = SimClock()
        self.nodes = {name: SimNode(name, self.clock, {"slow": Slow, "kill": Kill}) for name in NODES}
        self.training = SimTraining(self.clock, self.nodes)
        for trouble in self.schedule.troubles:
            self._prepare(trouble)
        plan, info = plan_of(*self.schedule.planned, budgets=Budgets(restarts=5), watch=40.0), info_of(self.clock)
        try:
            fleet = SimFleet(self.nodes)
            self.result = run_experiment(plan, info, fleet, self.training, run_dir=self.run_dir, clock=self.clock, listener=self._listen)
        except DefectError:
            self.result = None
        return self

    def _prepare(self, trouble):
        node = self.nodes.get(trouble.node)
        if trouble.kind == "refuse":
            node.refuses, node.refuses_at = "no", trouble.verb
        elif trouble.kind == "unexposed":
            node.exposed = False
        elif trouble.kind == "unwitnessed":
            node.witnessed = False
        elif trouble.kind == "stuck":
            node.never_gone = True
        elif trouble.kind == "silent":
            node.dies_silently = True

    def _listen(self, event):
        self.told += 1
        if self.since_steady is not None or event.kind == "steady":
            self.since_steady = 0 if self.since_steady is None else self.since_steady + 1
        now = -self.told if self.since_steady is None else self.since_steady
        for trouble in self.schedule.troubles:
            if trouble.at_event == now and trouble.kind in ("cut", "hang", "death", "signal", "defect"):
                self.happened.append(trouble.kind)
                self._happen(trouble)

    def _happen(self, trouble):
        if trouble.kind == "cut":
            self.nodes[trouble.node].cut_until = self.clock.now() + trouble.seconds
        elif trouble.kind == "hang":
            self.clock.sleep(trouble.seconds)
        elif trouble.kind == "death":
            self.training.dies_at = self.clock.now()
        elif trouble.kind == "signal":
            signal.raise_signal(signal.SIGTERM)
        elif trouble.kind == "defect":
            raise DefectError

    def troubled(self, *kinds):
        """Return the nodes that have such a trouble, or an empty name for the run's own."""
        return {trouble.node for trouble in self.schedule.troubles if trouble.kind in kinds}

    @property
    def harmed(self):
        return {name for name, node in self.nodes.items() if node.slow}
