"""Three simulated nodes with a training on them, for the engine to run experiments against."""

from pathlib import Path

from simulated import Kill, SimClock, SimFleet, SimNode, SimTraining, Slow
from simulated_plan import info_of, injection_of, plan_of

from chaoskit.engine.run import run_experiment
from chaoskit.engine.session import Parts, Session

FAULTS = {"slow": Slow, "kill": Kill}


class Cluster:
    """Three simulated nodes, a training on them, and the events that the engine told."""

    def __init__(self, tmp_path: Path) -> None:
        self.clock = SimClock()
        self.nodes = {name: SimNode(name, self.clock, FAULTS) for name in ("n1", "n2", "n3")}
        self.fleet = SimFleet(self.nodes)
        self.training = SimTraining(self.clock, self.nodes)
        self.run_dir = tmp_path
        self.events = []
        self.on_event = {}

    def listen(self, event) -> None:
        self.events.append(event)
        if action := self.on_event.get(event.kind):
            action(event)

    def run(self, *injections, **more):
        rest = {"run_dir": self.run_dir, "clock": self.clock, "listener": self.listen}
        return run_experiment(plan_of(*injections, **more), info_of(self.clock), self.fleet, self.training, **rest)

    def session(self, *injections, **more):
        parts = Parts(self.fleet, self.training, self.clock)
        return Session(plan_of(*injections, **more), info_of(self.clock), parts, run_dir=self.run_dir, listener=self.listen)

    @property
    def owed(self):
        return [name for node in self.nodes.values() for name, entry in node.entries.items() if entry.harmed]


def injection(fault=None, targets=("n2",), number=0, after=0.0, *, together=False):
    return injection_of(fault or Slow(hold=8.0), tuple(targets), number, after, together=together)
