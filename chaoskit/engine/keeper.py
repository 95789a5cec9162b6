"""
Keeping what was begun: renew leases, follow each fault to its end, reach lost nodes again, revert everything.

`tick` hardly waits, and whoever waits for nodes renews meanwhile, so that the engine's one loop stays the only thing that
renews a lease: an engine that hangs loses it, and the nodes heal themselves.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, NoReturn

from chaoskit.engine.gather import gather
from chaoskit.engine.injector import ANSWER_WITHIN, Injector, Live
from chaoskit.engine.ports import NodeAgent, Training
from chaoskit.errors import AbortedError, NodeError
from chaoskit.model.interval import Interval
from chaoskit.model.wire import Ended, LedgerEntry

RENEWALS = 6
"""Renewals in one lease: five may get lost."""
RECONNECT_EVERY = 1.0
"""Seconds between attempts to reach a lost node."""
PROOF_EVERY = 1.0
"""Seconds between fresh reads of whether what is not proven gone yet is gone now."""
RECONCILE_WITHIN = 5.0
"""Seconds that a returned node has to say what happened; short, since the other faults are looked after by the same loop."""
BACK_WITHIN = 30.0
"""Seconds after its end in which a node that a fault cut off must be reached again: until then its absence is explained."""
EARLY = 0.5
"""Seconds before the end of its hold at which a fault has ended in time: beyond any node's clock or delay at T0, far below any lease."""


class Keeper:
    """Tends the lives of an Injector until all are proven gone."""

    def __init__(self, injector: Injector, training: Training | None) -> None:
        self._in = injector
        injector.meanwhile = self.renew
        self._training = training
        self._renewals: dict[str, tuple[float, Future[tuple[str, ...]]]] = {}
        """By node: a renewal that is not answered yet, and when it was sent."""
        self._renewed: dict[str, float] = {}
        """By node: when its last renewal was sent, answered or not."""
        self._told: dict[str, float] = {}
        """By entry: when its node was first told to revert it."""
        self._reconnects: dict[str, Future[NodeAgent]] = {}
        self._tried: dict[str, float] = {}
        self._lost: set[str] = set()
        self._proofs: dict[str, tuple[float, Future[Ended] | None]] = {}

    @property
    def owed(self) -> list[Live]:
        """Lives whose end is not proven yet, newest first."""
        entries = self._in.recorder.state.entries
        return [live for live in reversed(self._in.lives) if entries[live.entry].gone.holds is not True]

    def unexplained(self, now: float) -> frozenset[str]:
        """Return the lost nodes that no fault of ours took away, or cut off and should have let back by now."""
        return frozenset(self._lost - {live.node for live in self._in.lives if self._explains(live, now)})

    def _explains(self, live: Live, now: float) -> bool:
        if live.planned.instance.takes_agent_away:
            return live.away
        entry = self._in.recorder.state.entries[live.entry]
        back_by = (live.leased if entry.t0 is None else entry.t0.hi) + min(live.planned.duration, self._in.lease) + BACK_WITHIN
        return live.planned.may_cut_us_off and entry.armed and not entry.ended and now < back_by

    def tick(self, now: float) -> None:
        """
        Look after everything once.

        Raises:
            AbortedError: A node's lease ran out before it was renewed; it has healed itself.
        """
        self.renew()
        self._reach(now, self._in.meanwhile)
        for live in self.owed:
            if self._in.agents[live.node].connected:
                self._follow(live, now)

    def renew(self) -> None:
        """Renew the leases where it is time. Raises AbortedError like `tick`."""
        expired = self._take_renewals()
        now = self._in.clock.now()
        self._refuse_lapsed(now)
        early = {live.entry for live in self.owed if self._not_to_end(live, now)}
        if lapsed := [entry for entry in expired if entry in early]:
            self._abort_lapsed(lapsed)
        for node in {live.node for live in self.owed}:
            agent, due = self._in.agents[node], self._renewed.get(node, 0.0) + self._in.lease / RENEWALS
            if now >= due and agent.connected and node not in self._renewals:
                self._renewed[node] = now
                self._renewals[node] = now, agent.renew(self._in.run, self._in.lease)

    def _not_to_end(self, live: Live, now: float) -> bool:
        """Whether a fault was to go on beyond this moment: we have not told it to end, nor is its hold over, which `finish` tells of."""
        entry = self._in.recorder.state.entries[live.entry]
        held = entry.t0 is None or now < entry.t0.lo + live.planned.duration - EARLY
        return held and not live.planned.one_shot and not entry.ended and live.entry not in self._told

    def _take_renewals(self) -> list[str]:
        """Take in which nodes have answered, each of which keeps its own lease; return what they say that it has ended."""
        answered = {node: (sent, future.result()) for node, (sent, future) in self._renewals.items() if _answered(future)}
        self._renewals = {node: asked for node, asked in self._renewals.items() if not asked[1].done()}
        if answered:
            self._in.recorder.say("renewed", "leases renewed")
        for live in self._in.lives:
            if live.node in answered and live.entry not in answered[live.node][1]:
                live.leased = max(live.leased, answered[live.node][0])
        return [entry for _, names in answered.values() for entry in names]

    def _refuse_lapsed(self, now: float) -> None:
        """
        Raise AbortedError when a node got no renewal for a whole lease while a fault was to be held there for longer.

        Nobody came to renew, or the node was out of reach. Its own answer would say the same, but the end of the fault may be
        heard of before it, and then a fault that was cut short looks like one that ended in time.
        """
        entries = self._in.recorder.state.entries
        lapsed = []
        for live in self.owed:
            over, t0 = live.leased + self._in.lease, entries[live.entry].t0
            held = t0 is not None and not live.planned.one_shot and t0.lo + live.planned.duration > over
            if held and now > over and not entries[live.entry].ended:
                lapsed.append(live.entry)
        if lapsed:
            self._abort_lapsed(lapsed)

    @staticmethod
    def _abort_lapsed(entries: list[str]) -> NoReturn:
        raise AbortedError(f"the lease ended before it was renewed; healed by the node itself: {', '.join(entries)}")

    def _reach(self, now: float, meanwhile: Callable[[], None]) -> None:
        for node, agent in self._in.agents.items():
            if agent.connected:
                continue
            if node not in self._lost:
                self._lost.add(node)
                self._in.recorder.say("lost", f"{node}: connection lost; its state is unknown until it is back", node=node)
            attempt = self._reconnects.get(node)
            if attempt is None and now - self._tried.get(node, 0.0) >= RECONNECT_EVERY:
                self._tried[node] = now
                self._reconnects[node] = self._in.fleet.reconnect(node)
        for node, attempt in list(self._reconnects.items()):
            if attempt.done():
                del self._reconnects[node]
                if _answered(attempt):
                    self._back(attempt.result(), meanwhile)

    def _back(self, agent: NodeAgent, meanwhile: Callable[[], None]) -> None:
        self._in.agents[agent.name] = agent
        self._lost.discard(agent.name)
        self._in.recorder.say("back", f"{agent.name}: connected again", node=agent.name)
        if self._training is not None:
            self._training.rejoin(agent)
        self._catch_up(agent, meanwhile)

    def _catch_up(self, agent: NodeAgent, meanwhile: Callable[[], None]) -> None:
        """Ask a node that was not heard of for a while what happened on it."""
        mine = [live for live in self._in.lives if live.node == agent.name]
        if mine:
            ledger = gather({agent.name: agent.entries(self._in.run)}, RECONCILE_WITHIN, meanwhile).answers.get(agent.name, ())
            known = {entry.entry: entry for entry in ledger}
            for live in mine:
                self._reconcile(live, agent, known.get(live.entry), meanwhile)

    def _reconcile(self, live: Live, agent: NodeAgent, ledger: LedgerEntry | None, meanwhile: Callable[[], None]) -> None:
        """Read what happened while nobody was looking: a lost channel means unknown, never done."""
        entry = self._in.recorder.state.entries[live.entry]
        live.finish, live.silent_since = None, None
        self._proofs.pop(live.entry, None)
        if ledger is None:
            return
        if ledger.t0 is not None and (entry.t0 is None or live.away):
            self._in.began(live, ledger.t0)
        if entry.present.holds is not True:
            seen = gather({live.node: agent.witness(live.entry)}, RECONCILE_WITHIN, meanwhile).answers.get(live.node)
            self._in.recorder.record("witness", {"entry": live.entry, "evidence": seen.to_json() if seen else None})

    def _follow(self, live: Live, now: float) -> None:
        if live.silent_since is not None:
            # It is followed once it answers again: by the same connection, if that outlived the cut.
            if live.leased > live.silent_since:
                self._catch_up(self._in.agents[live.node], self._in.meanwhile)
            return
        if live.planned.one_shot or self._in.recorder.state.entries[live.entry].ended:
            self._prove(live, now)
            return
        agent = self._in.agents[live.node]
        if live.finish is None:
            live.finish = agent.finish(live.entry)
        elif live.finish.done():
            future, live.finish = live.finish, None
            if _answered(future) and (short := self._ended(live, future.result())):
                raise AbortedError(short)

    def _prove(self, live: Live, now: float) -> None:
        tried, future = self._proofs.get(live.entry, (0.0, None))
        if future is None and now - tried >= PROOF_EVERY:
            self._proofs[live.entry] = (now, self._in.agents[live.node].revert(live.entry))
        elif future is not None and future.done():
            self._proofs[live.entry] = (tried, None)
            if _answered(future) and future.result().gone.holds:
                self._ended(live, future.result())

    def _ended(self, live: Live, ended: Ended) -> str:
        """Record an end. Returns a sentence when it came before its time and nobody here had asked for it, empty otherwise."""
        one_shot, entry = live.planned.one_shot, self._in.recorder.state.entries[live.entry]
        before = entry.ended, entry.gone
        self._in.recorder.record(
            "ended",
            {"entry": live.entry, "t1": None if one_shot else [ended.t1.lo, ended.t1.hi], "evidence": ended.gone.to_json()},
        )
        if (entry.ended, entry.gone) != before:  # what stays as it was after yet another revert is no news
            self._in.recorder.say("ended", f"{live.node}: {ended.gone.says}", entry=live.entry, node=live.node, gone=ended.gone.holds)
        return "" if one_shot or before[0] else self._cut_short(live, ended.t1)

    def _cut_short(self, live: Live, t1: Interval) -> str:
        """Say of a held fault that it ended by itself before its hold was over; empty when it did not."""
        t0, hold = self._in.recorder.state.entries[live.entry].t0, live.planned.duration
        if t0 is None or t1.hi >= min(t0.lo + hold - EARLY, self._told.get(live.entry, t1.hi + 1.0)):
            return ""
        lapsed = t1.hi >= live.leased + self._in.lease - EARLY
        why = "its lease had run out" if lapsed else "its next span failed there, or somebody healed it"
        return f"{live.node} ended {live.planned.fault} after {t1.mid - t0.mid:.0f} s of {hold:g} s: {why}"

    def revert_all(self, within: float, meanwhile: Callable[[], None] = lambda: None) -> None:
        """
        Revert whatever is owed, newest first, on every node that can be reached; never raises for a node.

        Nodes that are away get until `within` seconds from now to come back; what is still not proven then is
        recorded as unknown, which the judge calls leaked. `meanwhile` is called all along, and raises nothing.
        """
        deadline = self._in.clock.now() + within
        while (owed := self.owed) and self._in.clock.now() < deadline:
            # First what can be reached: whatever goes wrong with the others, these were told.
            for short in self._revert(owed, meanwhile):
                self._in.recorder.record("aborted", {"why": short})
                self._in.recorder.say("aborted", short)
            if self.owed:
                meanwhile()
                self._reach(self._in.clock.now(), meanwhile)
                self._in.clock.sleep(0.2)
        for live in self.owed:
            if self._in.recorder.state.entries[live.entry].gone.holds is None:
                what = f"{live.node} could not be asked; it heals itself when its lease ends, `chaoskit audit` tells"
                self._in.recorder.record("ended", {"entry": live.entry, "t1": None, "evidence": None, "what": what})

    def revert(self, lives: Iterable[Live]) -> None:
        """
        Revert some in the middle of a run: the others' leases are renewed meanwhile.

        Raises:
            AbortedError: Like `tick`; also when one of them was over by then, and before its time.
        """
        self.renew()  # whoever comes late to renew must hear of it before the reverts make it look like an end in time
        if short := self._revert(lives, self.renew):
            raise AbortedError("; ".join(short))

    def _revert(self, lives: Iterable[Live], meanwhile: Callable[[], None] = lambda: None) -> list[str]:
        """Revert what can be reached; return a sentence for each that had ended before its time without being told."""
        batch = [live for live in lives if self._in.agents[live.node].connected]
        for live in batch:
            self._told.setdefault(live.entry, self._in.clock.now())
        got = gather({live.entry: self._in.agents[live.node].revert(live.entry) for live in batch}, ANSWER_WITHIN, meanwhile)
        short = []
        for live in batch:
            if live.entry in got.answers:
                short.append(self._ended(live, got.answers[live.entry]))
            else:
                self._in.recorder.say("lost", f"revert: {got.failures[live.entry]}", entry=live.entry, node=live.node)
        return [says for says in short if says]


def _answered(future: "Future[Any]") -> bool:
    """Whether a future has its answer; a node's failure is no answer, anything else is a defect and raised."""
    if not future.done():
        return False
    error = future.exception()
    if error is None:
        return True
    if isinstance(error, NodeError):
        return False
    raise error
