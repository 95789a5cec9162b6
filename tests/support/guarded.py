"""A simulated cluster for what guards a run: faults that cut their own node off, and abort conditions that others answer."""

from dataclasses import dataclass

import simulated_cluster
from simulated import Kill, SimFleet, SimNode, SimTraining, Slow, done
from simulated_plan import info_of, injection_of, plan_of

from chaoskit.agent.contract import CONTROL_PATH
from chaoskit.engine.run import play
from chaoskit.engine.session import Parts, Session
from chaoskit.errors import ChaosError


@dataclass(frozen=True)
class CutOff(Slow):
    """Slow the node, and cut the way to it for as long."""


@dataclass(frozen=True)
class Nothing(Slow):
    """Say that it slows the node, and do nothing."""


class Node(SimNode):
    """As `SimNode`, but a fault may cut the way to it, do nothing, or not be undone though its revert says so."""

    comes_back = True
    lies = False
    """Its reverts and its proofs claim what is not so."""

    def harm(self, entry):
        super().harm(entry)
        if isinstance(entry.fault, CutOff):
            self.cut_until = float("inf")
        if isinstance(entry.fault, Nothing):
            entry.harmed = False

    def undo(self, entry):
        if entry.state == "injected" and self.comes_back:
            self.cut_until = self.clock.time
        was = entry.harmed
        super().undo(entry)
        if self.lies:
            entry.harmed = was

    def ended(self, entry):
        told = super().ended(entry)
        if self.lies and entry.harmed:
            entry.harmed = False
            told = super().ended(entry)
            entry.harmed = True
        return told


class Silent(SimTraining):
    """A training whose log says nothing from a moment on, though it steps on; or that is known to be out of sight since."""

    silent_from = float("inf")
    blind = False

    def poll(self, now):
        observed = super().poll(now)
        if now < self.silent_from:
            return observed
        return type(observed)((), (), ((self.silent_from, now),) if self.blind else ())


class Cluster(simulated_cluster.Cluster):
    """Three simulated nodes and a training on them."""

    def __init__(self, run_dir):
        super().__init__(run_dir)
        faults = {"slow": Slow, "kill": Kill, "cutoff": CutOff, "nothing": Nothing}
        self.nodes = {name: Node(name, self.clock, faults) for name in self.nodes}
        self.training = Silent(self.clock, self.nodes)

    def run(self, *injections, asking=lambda ask: done(ask()), **more):
        """Play a run to its end, abort conditions answered at once, and return its result."""
        parts = Parts(SimFleet(self.nodes), self.training, self.clock, asking)
        session = Session(plan_of(*injections, **more), info_of(self.clock), parts, run_dir=self.run_dir, listener=self.listen)
        try:
            play(session)
        except ChaosError as error:
            session.end_early(error)
        finally:
            session.close()
        return session.result

    def told(self, kind):
        """Return what was told of a kind."""
        return [event.says for event in self.events if event.kind == kind]


def injection(fault, *targets, number=0, after=0.0, expect=None):
    """Return one planned injection; a fault that cuts its node off is allowed to."""
    allow = (CONTROL_PATH,) if isinstance(fault, CutOff) else ()
    return injection_of(fault, targets, number, after, expect=expect, allow=allow)
