"""
What the engine needs of the fleet, of the training and of time, as Protocols beside their only user.

The engine is tested with small stateful fakes of these, without SSH and without sleeping. All times here are
seconds on the controller's monotonic clock; the fleet maps the nodes' clocks before anything reaches the engine.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from chaoskit.agent.contract import Evidence, Site
from chaoskit.judge.timeline import Interval, Observed
from chaoskit.model.wire import Ended, Finding, Held, LedgerEntry, Prepared, Strays
from chaoskit.training.ports import TrainingNode


class Clock(Protocol):
    """The controller's monotonic clock."""

    def now(self) -> float:
        """Return the time in seconds."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class NodeAgent(TrainingNode, Protocol):
    """The agent on one node. Every call has a deadline; a Future fails with a NodeError when the channel is lost."""

    @property
    def name(self) -> str:
        """Inventory name of the node."""

    @property
    def boot_id(self) -> str:
        """The node's boot id when it was connected."""

    @property
    def machine_id(self) -> str:
        """The node's machine id, empty when it has none."""

    @property
    def connected(self) -> bool:
        """False once the channel is lost; what happens on the node since then is unknown."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the node wants a person to know, such as other users' processes on it; one sentence each."""

    def prepare(self, run: str, entry: str, fault: str, params: Mapping[str, Any], site: Site) -> Future[Prepared]:
        """Capture the prior state; nothing is changed. Fails with AgentError (kind Refusal) when refused."""

    def exposed(self, entry: str) -> Future[Evidence]:
        """Say whether the training used the resource just before."""

    def arm(self, entry: str, lease: float) -> Future[None]:
        """Make the undo durable and start the lease, before any harm."""

    def inject(self, entry: str, at: float | None) -> Future[Interval]:
        """Inject at T0 (controller time; None is now); the answer comes after the first effect, as its bracket."""

    def finish(self, entry: str) -> Future[Ended]:
        """Wait for the node to end the fault by itself, at the end of its last span."""

    def renew(self, run: str, lease: float) -> Future[tuple[str, ...]]:
        """Renew the lease; the answer names the entries that it had already ended."""

    def witness(self, entry: str) -> Future[Evidence]:
        """Say whether the harm happened."""

    def gone(self, entry: str) -> Future[Evidence]:
        """Say, by a fresh read, whether the captured state is back."""

    def revert(self, entry: str) -> Future[Ended]:
        """Restore the captured state now; safe at any time, any number of times."""

    def entries(self, run: str) -> Future[tuple[LedgerEntry, ...]]:
        """Read the node's ledger of this run."""

    def audit(self) -> Future[tuple[LedgerEntry, ...]]:
        """Read every open debt on the node, of any run, and what nobody there can read."""

    def heal(
        self, entries: Sequence[str] | None, debts: Sequence[Mapping[str, Any]], *, live: bool = False
    ) -> Future[tuple[Mapping[str, Any], ...]]:
        """Pay debts: the named ones of the ledger (None for all), and those that a journal remembers; `live`: also what a run holds."""

    def hold(self, run: str, lease: float, instead_of: str) -> Future[Held | None]:
        """Take the node for a run, or renew its hold (`instead_of` a dead run); says whose it is when it is another's."""

    def release(self, run: str) -> Future[None]:
        """Give the node back, if it is this run's."""

    def strays(self, site: Site) -> Future[Strays]:
        """Look for what stands on the node as a fault leaves it, and no entry explains."""

    def sweep(self, site: Site) -> Future[tuple[tuple[Mapping[str, Any], ...], tuple[str, ...]]]:
        """Take away the strays that are ours; say what became of each, and which looks failed."""

    def purge(self, site: Site) -> Future[tuple[str, ...]]:
        """Remove the agent and its folders from the node, unless something is owed; say what was removed."""

    def examine(self, site: Site, parts: Sequence[Mapping[str, Any]]) -> Future[tuple[Finding, ...]]:
        """Look at the node: `parts` are {user, checks}, see `chaoskit.agent.examine`. Changes nothing."""


class Fleet(Protocol):
    """The nodes of an inventory over SSH."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was passed over while connecting, such as a line of known_hosts that cannot be read; one sentence each."""

    def connect(self, names: Sequence[str]) -> Mapping[str, NodeAgent]:
        """Connect to nodes at once. Raises an ExceptionGroup of NodeError: one for each node that failed."""

    def reconnect(self, name: str) -> Future[NodeAgent]:
        """Try once to reach a lost node again; fails with a NodeError."""

    def site(self, name: str) -> Site:
        """Return what the inventory and the connection say of a node."""

    def unpush(self, name: str) -> Future[tuple[str, ...]]:
        """Remove the pushed agents, of all versions, from the account's folder on a node; say what was removed."""

    def close(self) -> None:
        """Close every connection; nothing on the nodes changes by it."""


class Training(Protocol):
    """The live run under test."""

    @property
    def run_id(self) -> str:
        """TORCHELASTIC_RUN_ID of the training, empty when unknown."""

    @property
    def launches(self) -> bool:
        """Whether chaoskit starts and ends it; an attached training is only watched."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Inventory names of the nodes that train."""

    @property
    def log_nodes(self) -> tuple[str, ...]:
        """Inventory names of the nodes whose logs are followed; they need not train."""

    def start(self, agents: Mapping[str, NodeAgent], meanwhile: Callable[[], None]) -> None:
        """Launch it or attach to it, and follow its logs; what `meanwhile` raises ends the wait for it. Raises TrainingError."""

    def poll(self, now: float) -> Observed:
        """Return what came in since the last call; never waits."""

    def rejoin(self, agent: NodeAgent) -> None:
        """A lost node is connected again: follow its log again and, when we launched it, start its part again if it is gone."""

    def stop(self) -> None:
        """End what we launched, on every reachable node, and stop following; attached trainings go on."""


__all__ = ["Clock", "Ended", "Fleet", "LedgerEntry", "NodeAgent", "Observed", "Prepared", "Training"]
