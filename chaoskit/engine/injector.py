"""
Beginning an injection: prepare, look whether it is exposed, make the undo durable, arm, inject, witness.

Every step is taken on all targets before the next one begins, so that a refusal on one node comes before any harm
on another. The undo stands in the journal before `arm`, and in the node's ledger before `inject`.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from chaoskit.agent.contract import Evidence, TrainingFacts
from chaoskit.engine.gather import Gathered, gather, sentence
from chaoskit.engine.plan import PlannedInjection
from chaoskit.engine.ports import Clock, Fleet, NodeAgent
from chaoskit.engine.recorder import Recorder
from chaoskit.errors import AgentError, DeadlineError, NodeError, RefusedError, UnreachableError
from chaoskit.model.interval import Interval
from chaoskit.model.wire import Ended

T = TypeVar("T")

ANSWER_WITHIN = 20.0
"""Seconds that a node has for a verb that only reads."""
ARM_WITHIN = 60.0
"""Seconds that a node has to arm, which may have to wait for a fuse to start; the leases of the others are renewed meanwhile."""
LEAD = 0.4
"""Seconds from the last arming to T0: enough for the slowest fan-out, short against any lease."""

SILENCED = (UnreachableError, DeadlineError)
"""How a node fails that went away under a request: its end of the connection was closed, or no packet ever came again."""


@dataclass
class Live:
    """
    One injection on one node while the run goes on. `away`: the fault took the agent, or the way to it, as it should.

    `silent_since` is when a node was given up that a fault cut off, until it answers again.
    """

    planned: PlannedInjection
    node: str
    entry: str
    finish: Future[Ended] | None = None
    away: bool = False
    silent_since: float | None = None
    leased: float = 0.0
    """When the node was last known to be given its lease: the moment it was armed."""


class Injector:
    """Begins injections on the connected agents; `lives` are all that were ever armed, or may have been, oldest first."""

    def __init__(self, run: str, lease: float, fleet: Fleet, agents: dict[str, NodeAgent], recorder: Recorder, clock: Clock) -> None:
        self.run = run
        self.lease = lease
        self.fleet = fleet
        self.agents = agents
        self.recorder = recorder
        self.clock = clock
        self.facts = TrainingFacts()
        self.lives: list[Live] = []
        self.meanwhile: Callable[[], None] = lambda: None
        """Called while nodes are waited for: one that is slow to answer must not cost the others their leases."""

    def begin(self, planned: PlannedInjection, ready: Callable[[], None] = lambda: None) -> list[Live]:
        """
        Inject on all targets, and return what is owed since.

        Args:
            planned: What, and where.
            ready: Called once all targets were looked at, before anything is armed; what it raises ends the injection.

        Raises:
            RefusedError: A node refused or failed before any harm; whatever was armed is for the caller to revert.
        """
        batch = [Live(planned, node, f"{self.run}/{planned.number}/{node}") for node in planned.targets]
        self._prepare(batch)
        self._expose(batch)
        ready()
        self._arm(batch)
        self._inject(batch)
        self._witness(batch)
        return batch

    def _ask(self, batch: list[Live], verb: Callable[[Live, NodeAgent], "Future[T]"], within: float = ANSWER_WITHIN) -> Gathered[T]:
        return gather({live.node: verb(live, self.agents[live.node]) for live in batch}, within, self.meanwhile)

    def _prepare(self, batch: list[Live]) -> None:
        planned = batch[0].planned
        sites = {live.node: replace(self.fleet.site(live.node), training=self.facts, allow=planned.allow) for live in batch}
        got = self._ask(batch, lambda live, agent: agent.prepare(self.run, live.entry, planned.fault, planned.params, sites[live.node]))
        _refuse(got.failures)
        told = [
            {
                "entry": live.entry,
                "number": planned.number,
                "node": live.node,
                "fault": planned.fault,
                "params": dict(planned.params),
                "undo": dict(got.answers[live.node].undo),
                "resources": list(got.answers[live.node].resources),
                "boot_id": self.agents[live.node].boot_id,
                "site": sites[live.node].to_json(),
            }
            for live in batch
        ]
        self.recorder.record_all("planned", told)

    def _expose(self, batch: list[Live]) -> None:
        self._evidence("exposed", batch, self._ask(batch, lambda live, agent: agent.exposed(live.entry)))

    def _evidence(self, kind: str, batch: list[Live], got: Gathered[Evidence]) -> None:
        """Record what each node said; a node that could not say is recorded as unknown, with the reason."""
        found = [(live, got.answers.get(live.node), str(got.failures.get(live.node, ""))) for live in batch]
        told = [{"entry": live.entry, "evidence": seen.to_json() if seen else None, "what": what} for live, seen, what in found]
        self.recorder.record_all(kind, told)
        for live, evidence, _ in found:
            if evidence:
                self.recorder.say(kind, f"{live.node}: {evidence.says}", entry=live.entry, holds=evidence.holds)

    def _arm(self, batch: list[Live]) -> None:
        # Recorded before asking: an answer that gets lost may still have armed the node. Should the disk refuse a record,
        # all of them are reverted and proven gone all the same.
        self.lives += batch
        for live in batch:
            live.leased = self.clock.now()
        self.recorder.record_all("armed", [{"entry": live.entry} for live in batch])
        failures = self._ask(batch, lambda live, agent: agent.arm(live.entry, self.lease), ARM_WITHIN).failures
        self._disown([live for live in batch if _said_no(failures.get(live.node))])
        _refuse(failures)

    def _disown(self, refused: list[Live]) -> None:
        """Owe nothing where a node said no: what stands there may be another run's, and is not for us to revert or to prove gone."""
        self.recorder.record_all("refused", [{"entry": live.entry} for live in refused])
        self.lives = [live for live in self.lives if live not in refused]

    def _inject(self, batch: list[Live]) -> None:
        if batch[0].planned.together:
            at = self.clock.now() + LEAD
            self._injected(batch, at, self._ask(batch, lambda live, agent: agent.inject(live.entry, at), LEAD + ANSWER_WITHIN))
        else:
            for live in batch:
                asked = self.clock.now()
                self._injected([live], asked, self._ask([live], lambda live, agent: agent.inject(live.entry, None)))

    def _injected(self, batch: list[Live], asked: float, got: Gathered[Interval]) -> None:
        here = [live for live in batch if live.node in got.answers]
        self.recorder.record_all("injected", [_began(live, got.answers[live.node]) for live in here])
        for live in batch:
            if live.node in got.answers:
                self.recorder.say("injected", f"{live.planned.detail} on {live.node}", entry=live.entry, node=live.node)
            elif _takes_away(live.planned) and isinstance(got.failures[live.node], SILENCED):
                live.away = True
                live.silent_since = self.clock.now() if live.planned.may_cut_us_off else None
                # Somewhere between our asking and the loss; the stamp in the node's ledger will say it better.
                self.began(live, Interval(asked, self.clock.now()))
                says = f"{live.planned.detail}: {live.node} answers no more, as it should be"
                self.recorder.say("injected", says, entry=live.entry, node=live.node)
        _refuse({live.node: got.failures[live.node] for live in batch if live.node in got.failures and not live.away})

    def began(self, live: Live, t0: Interval) -> None:
        """Record the first effect on one node."""
        self.recorder.record("injected", _began(live, t0))

    def _witness(self, batch: list[Live]) -> None:
        here = [live for live in batch if not live.away]
        self._evidence("witness", here, self._ask(here, lambda live, agent: agent.witness(live.entry)))


def _began(live: Live, t0: Interval) -> dict[str, Any]:
    return {"entry": live.entry, "t0": [t0.lo, t0.hi]}


def _takes_away(planned: PlannedInjection) -> bool:
    """Whether a node that falls silent under the injection has done what was asked of it."""
    return planned.instance.takes_agent_away or planned.may_cut_us_off


def _said_no(error: NodeError | None) -> bool:
    return isinstance(error, AgentError) and error.refused


def _refuse(failures: Mapping[str, NodeError]) -> None:
    if failures:
        raise RefusedError(sentence(failures))
