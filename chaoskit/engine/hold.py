"""
The hold of a run on its nodes, from its beginning: whoever comes second is refused before anything is touched.

Renewed by the engine's own loop, as the leases are; a controller that dies loses it.
"""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress

from chaoskit.engine.gather import Gathered, gather, sentence
from chaoskit.engine.ports import Clock, NodeAgent
from chaoskit.errors import AbortedError, NodeError, RefusedError
from chaoskit.model.controller import is_dead, is_this
from chaoskit.model.hostlist import fold
from chaoskit.model.wire import Held

LENGTH = 60.0
"""Seconds that a hold lasts unless it is renewed: longer than any stage that renews nothing."""
EVERY = 8.0
"""Seconds between renewals."""
WITHIN = 15.0
"""Seconds that a node has to answer."""

_ended: set[str] = set()
"""Runs of this very process that are over."""


class Hold:
    """
    A run's hold on nodes.

    Args:
        run: The run.
        clock: The controller's.
    """

    def __init__(self, run: str, clock: Clock) -> None:
        self._run = run
        self._clock = clock
        self._agents: Mapping[str, NodeAgent] = {}
        self._asked = 0.0
        self._renewals: dict[str, Future[Held | None]] = {}

    def take(
        self, agents: Mapping[str, NodeAgent], everyone: Mapping[str, NodeAgent], meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        """
        Take nodes, and from now on keep `everyone`; `meanwhile` is called while they are waited for.

        Raises:
            RefusedError: Another run has one of them, or one does not answer.
        """
        self._agents = everyone  # also of what is refused, some may have been taken: `release` gives those back
        got = self._ask(agents, meanwhile)
        dead = {name: held for name, held in got.answers.items() if held is not None and _is_over(held)}
        again = self._ask({name: agents[name] for name in dead}, meanwhile, {name: held.run for name, held in dead.items()})
        answers = {**got.answers, **again.answers}
        if failures := {**got.failures, **again.failures}:
            raise RefusedError(sentence(failures))
        if taken := {name: held for name, held in answers.items() if held is not None}:
            raise RefusedError(_taken(taken))
        self._asked = self._clock.now()

    def _ask(
        self, agents: Mapping[str, NodeAgent], meanwhile: Callable[[], None], instead_of: Mapping[str, str] | None = None
    ) -> Gathered[Held | None]:
        names = instead_of or {}
        return gather({name: agent.hold(self._run, LENGTH, names.get(name, "")) for name, agent in agents.items()}, WITHIN, meanwhile)

    def keep(self) -> None:
        """Renew where it is time; never waits. Raises AbortedError: another run has taken a node since ours had lapsed."""
        for name, future in list(self._renewals.items()):
            if future.done():
                del self._renewals[name]
                with suppress(NodeError):  # it is lost, or slow; what is owed there has its own lease
                    if (held := future.result()) is not None:
                        raise AbortedError(f"nobody renewed our hold on {name} in time, and now it belongs to {held}")
        if self._clock.now() >= self._asked + EVERY:
            self._asked = self._clock.now()
            for name, agent in self._agents.items():
                if agent.connected and name not in self._renewals:
                    self._renewals[name] = agent.hold(self._run, LENGTH, "")

    def release(self) -> None:
        """Give every node back that can be reached; the others' holds end by themselves."""
        _ended.add(self._run)
        connected: Iterable[NodeAgent] = [agent for agent in self._agents.values() if agent.connected]
        gather({agent.name: agent.release(self._run) for agent in connected}, WITHIN)


def _taken(held: Mapping[str, Held]) -> str:
    """Say whose the nodes are, once for each run, and what ends it."""
    nodes: dict[tuple[str, str], list[str]] = {}
    for name, one in held.items():
        nodes.setdefault((one.run, one.controller), []).append(name)
    return "; ".join(
        f"{fold(names)} {'belongs' if len(names) == 1 else 'belong'} to {held[names[0]]}: `chaoskit stop {run}` ends it"
        for (run, _), names in nodes.items()
    )


def _is_over(held: Held) -> bool:
    """Whether a run is over though its hold stands: its controller is dead, or it is an earlier one of our own."""
    return held.run in _ended if is_this(held.controller) else is_dead(held.controller)
