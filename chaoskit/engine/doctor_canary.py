"""
The canary's way over the nodes: prepared, armed, injected, seen, taken back, and its entry of the ledger removed.

It is the way of every fault, over the same verbs. So what it proves is that the node's ledger takes an undo before harm,
that a lease runs and a fuse watches it, that the means of these faults are to be had, and that they are given back.
"""

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol

from chaoskit.agent.canary import GROUP, KINDS, NAME, POWER, SIGNAL, TABLE
from chaoskit.agent.contract import Needs, Site
from chaoskit.engine.gather import gather
from chaoskit.engine.injector import ANSWER_WITHIN, ARM_WITHIN
from chaoskit.engine.ports import NodeAgent
from chaoskit.errors import AgentError, NodeError
from chaoskit.model.wire import Finding

CANARY = NAME
"""The check's name."""
LEFTOVERS = "leftovers"
"""The check under which stands what is left behind, ours too."""
LEASE = 30.0
"""Seconds that it stands at most if we die on the way."""
EVERY = 5.0
"""Seconds between renewals, while a node is waited for."""
DO = "a fault would meet the same: mend that first, or leave this out with `--no-canary`"


class Forgetful(NodeAgent, Protocol):
    """An agent that can also remove a canary's entry."""

    def forget(self, entry: str) -> Future[None]:
        """Remove the closed entry of a canary from the ledger."""


def kinds_for(needs: Iterable[Needs]) -> list[str]:
    """Return what to try for faults with these needs."""
    wanted = []
    for one in needs:
        features = {name for alternative in one.features for name in alternative} if len(one.features) == 1 else set()
        wanted += [TABLE] if "NET_ADMIN" in one.capabilities else []
        wanted += [SIGNAL] if "KILL" in one.capabilities else []
        wanted += [GROUP] if "cpu_quota" in features else []
        wanted += [POWER] if one.gpus else []
    return [kind for kind in KINDS if kind in wanted]


def send(agents: Mapping[str, Forgetful], kinds: Mapping[str, Sequence[str]], site: Callable[[str], Site]) -> dict[str, Finding]:
    """
    Take a canary to every node and back, all at once, and return what came of it.

    Args:
        agents: Node -> its agent.
        kinds: Node -> what to try there.
        site: What is known of a node.
    """
    run = f"doctor-{secrets.token_hex(4)}"
    flight = _Flight(agents, run)
    prepared = flight.each(
        "prepare", lambda name: agents[name].prepare(run, flight.entries[name], NAME, {"kinds": list(kinds[name])}, site(name))
    )
    asked = list(flight.up)
    flight.each("arm", lambda name: agents[name].arm(flight.entries[name], LEASE), ARM_WITHIN)
    armed = [name for name in asked if name in flight.up or flight.fallen[name].state == "unknown"]
    flight.each("inject", lambda name: agents[name].inject(flight.entries[name], None))
    for name, seen in flight.each("witness", lambda name: agents[name].witness(flight.entries[name])).items():
        if not seen.holds:
            flight.fell(name, seen.says)
    _take_back(flight, agents, armed)
    tried = {name: _words(prepared[name].undo) for name in flight.up}
    well = {name: Finding(CANARY, "ok", f"armed under a lease and a fuse, done, seen and taken back: {tried[name]}") for name in flight.up}
    return {**well, **flight.fallen}


def _take_back(flight: "_Flight", agents: Mapping[str, Forgetful], armed: Sequence[str]) -> None:
    """Revert on every node where one was armed, or may have been, whatever became of it there since."""
    got = gather({name: agents[name].revert(flight.entries[name]) for name in armed}, ANSWER_WITHIN)
    for name, ended in got.answers.items():
        if not ended.gone.holds:
            flight.leaked(name, f"{flight.entries[name]}: the canary was not taken back: {ended.gone.says}")
    for name, error in got.failures.items():
        flight.failed(name, "revert", error)
    back = [name for name, ended in got.answers.items() if ended.gone.holds]
    for name, error in gather({name: agents[name].forget(flight.entries[name]) for name in back}, ANSWER_WITHIN).failures.items():
        flight.failed(name, "forget", error)


class _Flight:
    """The nodes on which all has gone well so far (`up`), and what was found on the others."""

    def __init__(self, agents: Mapping[str, Forgetful], run: str) -> None:
        self.up = list(agents)
        self.entries = {name: f"{run}/1/{name}" for name in agents}
        self.fallen: dict[str, Finding] = {}
        self._agents = agents
        self._run = run
        self._renewed = time.monotonic()

    def each(self, step: str, ask: Callable[[str], "Future[Any]"], within: float = ANSWER_WITHIN) -> dict[str, Any]:
        """Take one step on every node that is up, and return the answers."""
        got = gather({name: ask(name) for name in self.up}, within, self._renew)
        for name, error in got.failures.items():
            self.failed(name, step, error)
        return got.answers

    def _renew(self) -> None:
        """Renew the leases, now and then: a node that is slow must not cost the others theirs."""
        now = time.monotonic()
        if now - self._renewed >= EVERY:
            self._renewed = now
            for name in self.up:
                with suppress(NodeError):  # a node that was lost is told by the step's own answer
                    self._agents[name].renew(self._run, LEASE)

    def failed(self, name: str, step: str, error: NodeError) -> None:
        """Note that a step failed: an answer of the agent's is a defect, and no answer is unknown."""
        says = f"{step}: {error.what.removeprefix(f'{name}: ').removeprefix(f'{name} {error.fault}: ')}"
        self._fell(name, Finding(CANARY, "defect" if isinstance(error, AgentError) else "unknown", says, error.hint or DO))

    def fell(self, name: str, says: str, do: str = DO) -> None:
        """Note a defect."""
        self._fell(name, Finding(CANARY, "defect", says, do))

    def leaked(self, name: str, says: str) -> None:
        """Note that something is left, whatever else was found there."""
        self.up = [one for one in self.up if one != name]
        self.fallen[name] = Finding(LEFTOVERS, "defect", says, "`chaoskit audit` shows it, `chaoskit heal` pays it")

    def _fell(self, name: str, finding: Finding) -> None:
        self.up = [one for one in self.up if one != name]
        self.fallen.setdefault(name, finding)


def _words(undo: Mapping[str, Any]) -> str:
    kinds = undo.get("kinds")
    told = [KINDS[kind] for kind in kinds if isinstance(kind, str) and kind in KINDS] if isinstance(kinds, list) else []
    return ", ".join(told) or "nothing but the ledger's entry"
