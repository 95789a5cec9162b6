"""
The agent of one node, seen from the controller: each verb of the protocol as a method with a deadline.

It satisfies `NodeAgent` (engine) and `TrainingNode` (training) by its shape. All times in and out are seconds on the
controller's monotonic clock.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from chaoskit.agent.contract import Evidence, Site
from chaoskit.agent.protocol import Message, need
from chaoskit.errors import NodeError
from chaoskit.fleet import answers
from chaoskit.fleet.channel import Channel, Round, Stream
from chaoskit.fleet.clocks import ClockMap, Trip
from chaoskit.fleet.deadlines import Deadlines
from chaoskit.model.interval import Interval
from chaoskit.model.wire import Ended, Finding, Held, LedgerEntry, Prepared, Spawned, Strays, TailEnd, TailEvent

HELLO_WITHIN = 45.0
"""Seconds for the first answer, which may have to wait for the server to start: that is given up after 30."""
WITHIN = 15.0
"""Seconds for an answer that needs reading or writing on the node only."""
AUDIT_WITHIN = 45.0
"""Seconds for the debts of a node, whose fuse may be starting meanwhile on the one processor that it has left."""
ARM_WITHIN = 50.0
"""Seconds for an arming, which may have to wait for a fuse to start: that is given up after 30."""
REVERT_WITHIN = 30.0
"""Seconds for a revert, which tries again when a reading says that the state is not back."""
HEAL_WITHIN = 60.0
STRAYS_WITHIN = 25.0
"""Seconds for a look at everything that faults could have left, which gives up by itself before that."""
EXAMINE_WITHIN = 35.0
"""Seconds for an examination, which gives up by itself before that."""
INJECT_SLACK = 10.0
"""Seconds after T0 for the first effect."""
FINISH_SLACK = 15.0
"""Seconds after the end of the last span for the revert."""
FINISH_UNKNOWN = 3600.0
"""Seconds for the end of an entry that another controller began."""
BURST = 5
"""Round trips at connect, so that the clock is known well before the first stamp."""

T = TypeVar("T")


@dataclass(slots=True)
class Memory:
    """
    What is remembered of a node over reconnects.

    `clocks` by boot id; the rest by entry: how long its spans last (seconds after T0), when they are over, its fault.
    """

    clocks: dict[str, ClockMap] = field(default_factory=dict)
    lasts: dict[str, float] = field(default_factory=dict)
    over: dict[str, float] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)


class AgentClient:
    """
    A connected agent.

    Args:
        node: Inventory name.
        stream: The held SSH channel; the client owns it from now on.
        deadlines: The fleet's deadlines.
        memory: What is remembered of this node.
        epitaph: What else is known of a stream that ended.

    Until `greet` has returned, nothing else may be asked.
    """

    def __init__(
        self,
        node: str,
        stream: Stream,
        deadlines: Deadlines,
        memory: Memory,
        *,
        epitaph: Callable[[], str] = str,
    ) -> None:
        self._node = node
        self._memory = memory
        self._controller = ""
        self._clock = ClockMap()
        self._hello: answers.Hello | None = None
        self._tails: dict[str, Callable[[TailEvent], None]] = {}
        self._audit_notes: tuple[str, ...] = ()
        self._channel = Channel(node, stream, deadlines, on_event=self._event, on_lost=self._on_lost, epitaph=epitaph)

    # -- who it is -------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Inventory name of the node."""
        return self._node

    @property
    def hello(self) -> answers.Hello:
        """What the agent said of itself and its machine."""
        if self._hello is None:
            raise RuntimeError("greet() comes first")
        return self._hello

    @property
    def boot_id(self) -> str:
        """The node's boot id when it was connected."""
        return self.hello.boot_id

    @property
    def machine_id(self) -> str:
        """The node's machine id, empty when it has none."""
        return self.hello.machine_id

    @property
    def clock(self) -> ClockMap:
        """The map of the node's clock."""
        return self._clock

    @property
    def connected(self) -> bool:
        """False once the channel is lost."""
        return self._channel.connected

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that a person should read: from the greeting and from the last audit."""
        return self.hello.notes + self._audit_notes

    @property
    def frailties(self) -> tuple[str, ...]:
        """Sentences about what may keep the agent there from staying alive and awake."""
        return self.hello.frailties

    def greet(self, controller: str) -> answers.Hello:
        """
        Say hello and learn the node's clock from a burst of round trips.

        Args:
            controller: Who we are, for the node's ledger and syslog.

        Raises:
            NodeError: No agent answered, or not as one.
        """
        self._controller = controller

        def convert(data: Message, round_: Round) -> tuple[answers.Hello, Trip]:
            return answers.hello(data), answers.trip(data, round_)

        self._hello, trip = self._ask("hello", {"controller": controller}, convert, HELLO_WITHIN).result()
        self._clock = self._memory.clocks.setdefault(self._hello.boot_id, self._clock)
        self._clock.add(trip)
        for _ in range(BURST):
            self.tick().result()
        return self._hello

    def tick(self) -> Future[None]:
        """Ask for the node's clock: the cheapest round trip there is."""
        return self._ask("clock", {}, self._tick)

    def ping(self) -> None:
        """Ask for the node's clock, without waiting; notices a node that has fallen silent."""
        self._channel.ping(self._tick)

    def close(self) -> None:
        """Close the channel; nothing on the node changes by it."""
        self._channel.close()

    # -- an injection ----------------------------------------------------------------------------------------------

    def prepare(self, run: str, entry: str, fault: str, params: Mapping[str, Any], site: Site) -> Future[Prepared]:
        """Capture the prior state; nothing is changed. Fails with AgentError (kind Refusal) when refused."""

        def convert(data: Message, _: Round) -> Prepared:
            found, self._memory.lasts[entry] = answers.prepared(data)
            return found

        self._memory.faults[entry] = fault
        fields = {"run": run, "entry": entry, "fault": fault, "params": dict(params), "site": site.to_json()}
        return self._ask("prepare", fields, convert, entry=entry)

    def exposed(self, entry: str) -> Future[Evidence]:
        """Say whether the training used the resource just before."""
        return self._evidence("exposed", entry)

    def arm(self, entry: str, lease: float) -> Future[None]:
        """Make the undo durable and start the lease of `lease` seconds, before any harm."""
        return self._ask("arm", {"entry": entry, "lease": lease, "controller": self._controller}, _nothing, ARM_WITHIN, entry=entry)

    def inject(self, entry: str, at: float | None) -> Future[Interval]:
        """Inject at T0 (controller time; None is now); the answer comes after the first effect, as its bracket."""
        now = time.monotonic()
        t0 = now if at is None else at
        self._memory.over[entry] = t0 + self._memory.lasts.get(entry, 0.0)
        fields = {"entry": entry, "at": None if at is None else self._clock.to_node(at)}
        return self._ask("inject", fields, self._injected, max(0.0, t0 - now) + INJECT_SLACK, entry=entry)

    def finish(self, entry: str) -> Future[Ended]:
        """Wait for the node to end the fault by itself, at the end of its last span."""
        over = self._memory.over.get(entry)
        within = FINISH_UNKNOWN if over is None else max(0.0, over - time.monotonic()) + FINISH_SLACK
        return self._ask("finish", {"entry": entry}, self._ended, within, entry=entry)

    def renew(self, run: str, lease: float) -> Future[tuple[str, ...]]:
        """Renew the lease; the answer names the entries that it had already ended."""
        return self._ask("renew", {"run": run, "lease": lease}, lambda data, _: answers.texts(data, "expired"))

    def witness(self, entry: str) -> Future[Evidence]:
        """Say whether the harm happened."""
        return self._evidence("witness", entry)

    def gone(self, entry: str) -> Future[Evidence]:
        """Say, by a fresh read, whether the captured state is back."""
        return self._evidence("gone", entry)

    def revert(self, entry: str) -> Future[Ended]:
        """Restore the captured state now; safe at any time, any number of times."""
        return self._ask("revert", {"entry": entry}, self._ended, REVERT_WITHIN, entry=entry)

    # -- the ledger ------------------------------------------------------------------------------------------------

    def entries(self, run: str) -> Future[tuple[LedgerEntry, ...]]:
        """Read the node's ledger of this run."""
        return self._ask("entries", {"run": run}, lambda data, round_: self._ledger(data, "entries", round_))

    def audit(self) -> Future[tuple[LedgerEntry, ...]]:
        """Read every open debt on the node, of any run."""

        def convert(data: Message, round_: Round) -> tuple[LedgerEntry, ...]:
            self._audit_notes = answers.texts(data, "notes") + answers.settled(data)
            return answers.debts(self._memory.clocks.get, data, round_)

        return self._ask("audit", {}, convert, AUDIT_WITHIN)

    def hold(self, run: str, lease: float, instead_of: str) -> Future[Held | None]:
        """Take the node for a run, or renew its hold; the answer says whose it is when it is another's."""
        fields = {"run": run, "controller": self._controller, "lease": lease, "instead_of": instead_of}
        return self._ask("hold", fields, lambda data, _: answers.held(data))

    def release(self, run: str) -> Future[None]:
        """Give the node back, if it is this run's."""
        return self._ask("release", {"run": run}, _nothing)

    def strays(self, site: Site) -> Future[Strays]:
        """Look for what stands on the node as a fault leaves it, and no entry explains."""
        return self._ask("strays", {"site": site.to_json()}, lambda data, _: answers.strays(data), STRAYS_WITHIN)

    def sweep(self, site: Site) -> Future[tuple[tuple[Mapping[str, Any], ...], tuple[str, ...]]]:
        """Take away the strays that are ours; say what became of each, and which looks failed."""
        return self._ask("sweep", {"site": site.to_json()}, lambda data, _: answers.swept(data), HEAL_WITHIN)

    def heal(
        self, entries: Sequence[str] | None, debts: Sequence[Mapping[str, Any]], *, live: bool = False
    ) -> Future[tuple[Mapping[str, Any], ...]]:
        """Pay debts: the named ones of the ledger (None for all), and those that a journal remembers; `live`: also what a run holds."""
        fields = {"entries": None if entries is None else list(entries), "debts": [dict(debt) for debt in debts], "live": live}
        return self._ask("heal", fields, lambda data, _: answers.healed(data), HEAL_WITHIN)

    def forget(self, entry: str) -> Future[None]:
        """Remove the closed entry of a canary from the ledger."""
        return self._ask("forget", {"entry": entry}, _nothing)

    def purge(self, site: Site) -> Future[tuple[str, ...]]:
        """Remove the agent and its folders from the node, unless something is owed; say what was removed."""
        return self._ask("purge", {"site": site.to_json()}, lambda data, _: answers.texts(data, "removed"), HEAL_WITHIN)

    # -- looking ---------------------------------------------------------------------------------------------------

    def examine(self, site: Site, parts: Sequence[Mapping[str, Any]]) -> Future[tuple[Finding, ...]]:
        """Look at the node for what a person must mend: `parts` are {user, checks}, see `chaoskit.agent.examine`."""
        fields = {"site": site.to_json(), "parts": [dict(part) for part in parts]}
        return self._ask("examine", fields, lambda data, _: answers.findings(data), EXAMINE_WITHIN)

    def wall_offset(self) -> Future[Interval]:
        """Return the seconds that the node's wall clock is ahead of ours, as an interval that holds the truth."""
        return self._ask("clock", {}, answers.wall_offset)

    # -- processes and logs ----------------------------------------------------------------------------------------

    def spawn(self, key: str, argv: Sequence[str], env: Mapping[str, str], user: str | None, cwd: str, log: str) -> Future[Spawned]:
        """Start a process in its own session and cgroup, its output appended to `log`; it outlives the agent."""
        fields = {"key": key, "argv": list(argv), "env": dict(env), "user": user, "cwd": cwd, "log": log}
        return self._ask("spawn", fields, lambda data, _: answers.started(data))

    def spawned(self, key: str) -> Future[Spawned]:
        """Ask for a process that was started under this key."""
        return self._ask("spawned", {"key": key}, lambda data, _: answers.spawned(data))

    def stop(self, key: str, grace: float) -> Future[bool]:
        """End the processes started under this key: SIGTERM, SIGKILL after `grace` seconds; true when none is left."""
        fields = {"key": key, "grace": grace}
        return self._ask("stop", fields, lambda data, _: bool(need(data, "stopped", bool)), grace + WITHIN)

    def tail(self, stream: str, path: str, user: str | None, whole: bool, on_event: Callable[[TailEvent], None]) -> Future[None]:
        """
        Follow a file (from its start when `whole`).

        Events arrive on the thread that reads the connection, which must not be held up. The last one is a TailEnd, also
        when the channel is lost.
        """
        self._tails[stream] = on_event
        return self._ask("tail", {"stream": stream, "path": path, "user": user, "whole": whole}, _nothing)

    def untail(self, stream: str) -> Future[None]:
        """Stop following; no further event of this stream arrives."""
        self._tails.pop(stream, None)
        return self._ask("untail", {"stream": stream}, _nothing)

    # -- how -------------------------------------------------------------------------------------------------------

    def _ask(
        self, do: str, fields: Mapping[str, Any], convert: Callable[[Message, Round], T], within: float = WITHIN, *, entry: str = ""
    ) -> Future[T]:
        return self._channel.request(do, fields, within=within, convert=convert, fault=self._memory.faults.get(entry, ""))

    def _evidence(self, do: str, entry: str) -> Future[Evidence]:
        return self._ask(do, {"entry": entry}, lambda data, _: answers.evidence(data), entry=entry)

    def _tick(self, data: Message, round_: Round) -> None:
        self._clock.add(answers.trip(data, round_))

    def _injected(self, data: Message, round_: Round) -> Interval:
        return answers.injected(self._clock, data, round_)

    def _ended(self, data: Message, round_: Round) -> Ended:
        return answers.ended(self._clock, data, round_)

    def _ledger(self, data: Message, name: str, round_: Round) -> tuple[LedgerEntry, ...]:
        return answers.ledger_entries(self._memory.clocks.get, answers.objects(data, name), round_)

    def _event(self, message: Message, received: float) -> None:
        handler = self._tails.get(need(message, "stream", str))
        if handler is not None:  # else it was untailed while this was on its way
            handler(answers.tail_event(self._node, self._clock, message, received))

    def _on_lost(self, error: NodeError) -> None:
        tails, self._tails = self._tails, {}
        for stream, handler in tails.items():
            handler(TailEnd(self._node, stream, time.monotonic(), error.what))


def _nothing(_: Message, __: Round) -> None:
    """Take an answer that says nothing but yes."""
