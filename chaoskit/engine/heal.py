"""
Heal: pay what nodes owe, from their own ledgers and, where those are lost, from our journals; then sweep what has no entry.

Newest first on each node, all nodes at once, and whatever one debt or one node does, the others are paid. Paying twice does
no harm. What a run holds that goes on is left alone, unless told otherwise.
"""

import getpass
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from chaoskit.agent.contract import Site
from chaoskit.engine.audit import (
    HEAL,
    Audit,
    Debt,
    Ground,
    Journals,
    debt_of,
    journals_of,
    not_in_ledger,
    of_unreached,
    site_of,
    with_unreached,
)
from chaoskit.engine.gather import gather
from chaoskit.engine.leftovers import reach
from chaoskit.engine.ports import Fleet, NodeAgent
from chaoskit.engine.remembered import Forgotten, Remembered, now
from chaoskit.errors import EXIT_INCONCLUSIVE, EXIT_LEAKED, EXIT_PASSED, ChaosError, InputError, NodeError, RefusedError
from chaoskit.model.wire import UNREADABLE, LedgerEntry

HEAL_WITHIN = 180.0
"""Seconds for one node to pay all that it owes; what has not had its turn by then is not called healed."""

PURGE_WITHIN = 60.0
"""Seconds for a node to remove the agent."""
MOST = 256
"""Nodes healed at a time."""


@dataclass(frozen=True, slots=True)
class Healed:
    """
    One debt or stray after an attempt to pay it.

    `source` is `ledger`, `journal`, `unreadable` or `stray`; `held` means that it was left alone since a run holds it.
    """

    node: str
    entry: str
    fault: str
    source: str
    healed: bool
    says: str
    held: bool = False


@dataclass(frozen=True, slots=True)
class Healing:
    """
    What became of everything, the nodes that could not be asked (name -> why), looks that failed, and what was forgotten.

    `owed` is what only our journals know of nodes that cannot be asked, and nobody has forgotten. `purged` says what was
    removed from which node, `unpurged` why nothing was.
    """

    nodes: int
    results: tuple[Healed, ...]
    owed: tuple[Debt, ...] = ()
    forgotten: tuple[Debt, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    unread: tuple[tuple[str, str], ...] = ()
    purged: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unpurged: Mapping[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> tuple[Healed, ...]:
        """What is not proven gone, and was to be."""
        return tuple(one for one in self.results if not one.healed and not one.held)

    @property
    def exit_code(self) -> int:
        """5 when something is not proven gone, 3 when something is unknown, was left to a run that goes on or not purged, else 0."""
        if self.failed or self.owed:
            return EXIT_LEAKED
        held = any(one.held for one in self.results)
        return EXIT_INCONCLUSIVE if self.unknown or self.unread or self.unpurged or held else EXIT_PASSED


class _Payer:
    """Pays on one node; what it has done so far stands in `results`, whatever becomes of the rest."""

    def __init__(self, agent: NodeAgent, site: Site, within: float, *, live: bool) -> None:
        self.results: list[Healed] = []
        self.unread: tuple[str, ...] = ()
        self.trouble = ""
        self._agent = agent
        self._site = site
        self._within = within
        self._until = time.monotonic() + within
        self._live = live

    def run(self, lost: Sequence[Remembered], every: Sequence[Remembered]) -> None:
        """
        Pay the ledger's debts, then the journals', then sweep; both newest first.

        Where the ledger does not answer, the rest has its turn all the same.

        Args:
            lost: What the journals remember and the ledger does not know, or may not.
            every: All that they remember of this node: the node itself looks what is closed already.
        """
        try:
            owed = self._audit()
            journal = every if owed is None else lost
            by_journal = {one.entry for one in journal}
            by_ledger = [entry for entry in owed or () if not (entry.state == UNREADABLE and entry.entry in by_journal)]
            for entry in reversed(by_ledger):
                self._pay(debt_of(self._agent.name, entry), [entry.entry], ())
            done = {entry.entry for entry in by_ledger}
            for one in journal:
                if one.entry not in done:
                    self._pay(Debt(self._agent.name, one.entry, one.fault, "", "journal"), [], [one.debt])
            self._sweep()
        except NodeError as error:
            self.trouble = str(error)

    def _audit(self) -> tuple[LedgerEntry, ...] | None:
        """Return what the ledger owes, None when it does not say. Raises NodeError: the node is lost."""
        try:
            return self._agent.audit().result()
        except NodeError as error:
            if not self._agent.connected:
                raise
            self.trouble = str(error)
            return None

    def _pay(self, debt: Debt, entries: Sequence[str], journal: Sequence[Mapping[str, Any]]) -> None:
        """Pay one debt. Raises NodeError: the node is lost, so that nothing more can be asked of it."""
        if debt.source == UNREADABLE:
            self._told(debt, healed=False, says=debt.says)
        elif time.monotonic() > self._until:
            self._told(debt, healed=False, says=f"it had no turn within {self._within:g} s: run `chaoskit heal` again")
        else:
            try:
                for result in self._agent.heal(entries, journal, live=self._live).result():
                    what = replace(debt, entry=result["entry"])  # of a ledger that cannot be read the node tells beside the debt
                    self._told(what, healed=result["healed"], says=result["says"], held=result["held"])
            except NodeError as error:
                self._told(debt, healed=False, says=error.what)
                if not self._agent.connected:
                    raise

    def _told(self, debt: Debt, *, healed: bool, says: str, held: bool = False) -> None:
        one = Healed(debt.node, debt.entry, debt.fault, debt.source, healed, says, held)
        self.results += [one] if one not in self.results else []

    def _sweep(self) -> None:
        seen = self._agent.strays(self._site).result()
        self.unread = seen.unread
        if any(one.ours for one in seen.found):
            results, self.unread = self._agent.sweep(self._site).result()
            self.results += [
                Healed(self._agent.name, one["resource"], one["fault"], "stray", one["healed"], one["says"], one.get("held", False))
                for one in results
            ]


def heal(fleet: Fleet, ground: Ground, *, live: bool = False, within: float = HEAL_WITHIN) -> Healing:
    """
    Pay every debt on every node that can be reached, and write what is paid into the journals that remember it.

    Args:
        fleet: The nodes.
        ground: Where to look.
        live: Also what a run holds that goes on; that run then ends as aborted.
        within: Seconds for each node.
    """
    agents, unknown = reach(fleet, ground.nodes)
    journals = journals_of(ground, agents)
    lost = not_in_ledger(agents, journals)
    payers = {name: _Payer(agent, site_of(fleet.site, ground, name), within, live=live) for name, agent in agents.items()}
    with ThreadPoolExecutor(min(MOST, max(1, len(payers))), thread_name_prefix="chaoskit-heal") as pool:
        # Each ends by itself, since every request has its deadline.
        list(pool.map(lambda name: payers[name].run(lost.owes.get(name, ()), journals.get(name, ())), payers))
    away = with_unreached(Audit(len(ground.nodes), ()), ground, journals, unknown)
    remember = _by_entry(journals, agents)
    closed = tuple(
        _written_down(Healed(node, entry, "", "journal", healed=True, says=f"the node healed itself ({by})"), remember[entry], itself=True)
        for (node, entry), by in lost.closed.items()
        if by not in ("", HEAL)
    )
    return Healing(
        nodes=len(ground.nodes),
        results=(*closed, *(_written_down(one, remember.get(one.entry, [])) for payer in payers.values() for one in payer.results)),
        owed=away.debts,
        forgotten=away.forgotten,
        unknown={**away.unknown, **lost.unknown, **{name: payer.trouble for name, payer in payers.items() if payer.trouble}},
        unread=tuple((name, says) for name, payer in payers.items() for says in payer.unread),
    )


def _by_entry(journals: Journals, nodes: Iterable[str]) -> dict[str, list[Remembered]]:
    """Return which journals remember which entry of these nodes as owed."""
    found: dict[str, list[Remembered]] = {}
    for owed in (owed for name in nodes for owed in journals.get(name, ())):
        found.setdefault(owed.entry, []).append(owed)
    return found


def _written_down(one: Healed, owes: Iterable[Remembered], *, itself: bool = False) -> Healed:
    """Write a debt that was paid into the journals that remember it; one that cannot be written to makes it no less paid."""
    for owed in owes if one.healed else ():
        try:
            owed.paid(one.says, itself=itself)
        except ChaosError as error:
            one = replace(one, says=f"{one.says}; it is remembered still: {error}")
    return one


def purged(fleet: Fleet, ground: Ground, done: Healing) -> Healing:
    """Remove the agent and its folders from every node that can be reached and owes nothing; add what came of it to a healing."""
    agents, _ = reach(fleet, ground.nodes)
    got = gather({name: agent.purge(site_of(fleet.site, ground, name)) for name, agent in agents.items()}, PURGE_WITHIN)
    files = gather({name: fleet.unpush(name) for name in got.answers}, PURGE_WITHIN)
    removed = {name: (*what, *files.answers.get(name, ())) for name, what in got.answers.items()}
    return replace(done, purged=removed, unpurged={name: str(error) for name, error in {**got.failures, **files.failures}.items()})


def forget(fleet: Fleet, ground: Ground, node: str, because: str) -> tuple[Remembered, ...]:
    """
    Write into the journals that a node's debts are given up, since it never returns; they stay listed.

    A machine that answers can be healed, so its debts are not given up; those of another machine of the same name are.

    Returns:
        What was given up now.

    Raises:
        RefusedError: The node answers.
        InputError: No reason, or no journal remembers a debt of it.
        JournalError: A journal cannot be written.
    """
    if not because.strip():
        raise InputError("a debt is not given up without a reason", where="--because", hint="say why the node never returns")
    agents, _ = reach(fleet, [node] if node in ground.nodes else [])
    journals = journals_of(ground, agents)
    owes = (not_in_ledger(agents, journals).owes if agents else of_unreached(ground, journals, [node])).get(node, ())
    if agents and not _of_other_machines(owes, agents[node]):
        raise RefusedError(f"{node} answers, and what answers can be healed", where="--forget", hint="run `chaoskit heal`")
    pending = [owed for owed in owes if owed.forgotten is None]
    if not owes:
        where = ground.runs or "no directory of runs"
        raise InputError(f"no journal in {where} remembers a debt of {node!r}", where="--forget", hint="name their directory by --runs")
    given_up = Forgotten(f"{getpass.getuser()}@{socket.gethostname()}", now(), because.strip())
    for owed in pending:
        owed.forget(given_up)
    return tuple(pending)


def _of_other_machines(owes: Sequence[Remembered], agent: NodeAgent) -> bool:
    return bool(owes) and all(owed.machine_id and agent.machine_id and owed.machine_id != agent.machine_id for owed in owes)
