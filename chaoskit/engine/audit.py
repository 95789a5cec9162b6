"""
Audit: what nodes owe, what stands on them that nobody's ledger explains, and who holds them. It only reads.

Asked are the ledger of every node, for any run and version, the things themselves (`chaoskit.agent.strays`), and the
journals below a directory of runs for what a node has lost or cannot say any more.
"""

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from chaoskit.agent.contract import Rail, Site, TrainingFacts
from chaoskit.engine.gather import gather
from chaoskit.engine.leftovers import AUDIT_WITHIN, STRAYS_WITHIN, reach
from chaoskit.engine.ports import Fleet, NodeAgent
from chaoskit.engine.remembered import Remembered, headless, remembered
from chaoskit.errors import EXIT_INCONCLUSIVE, EXIT_LEAKED, EXIT_PASSED, InputError, NodeError
from chaoskit.model.hostlist import expand
from chaoskit.model.inventory import Inventory
from chaoskit.model.wire import UNREADABLE, Held, LedgerEntry, Stray

Journals = Mapping[str, Sequence[Remembered]]
"""What journals remember by node, newest first."""

HEAL = "heal"
"""What a ledger calls us, who paid an entry."""
STANDS_ON = "{resource}"
NOT_IN_LEDGER = "in our journal, not in the node's ledger"


@dataclass(frozen=True, slots=True)
class Ground:
    """Where leftovers are looked for: a site's name and nodes, who trains on each and saves where, and the runs' directory."""

    nodes: tuple[str, ...]
    inventory: str = ""
    runs: Path | None = None
    rails: Mapping[str, tuple[Rail, ...]] = field(default_factory=dict)
    trainings: Mapping[str, TrainingFacts] = field(default_factory=dict)


def ground_of(inventory: Inventory, runs: Path | None) -> Ground:
    """Return the ground of a site; of several trainings on a node the first that says where it saves counts."""
    trainings: dict[str, TrainingFacts] = {}
    for spec in inventory.file.trainings.values():
        if folder := _folder_of(spec.checkpoints.dir or ""):
            names = expand(spec.nodes) if spec.nodes else [node.name for node in inventory.group(spec.group)]
            for name in names:
                trainings.setdefault(name, TrainingFacts(user=spec.user, checkpoints=folder))
    rails = {
        name: tuple(Rail(index, rail.netdev, rail.rdma, rail.plane) for index, rail in enumerate(node.rails))
        for name, node in inventory.nodes.items()
    }
    return Ground(tuple(inventory.nodes), inventory.name, runs, rails, trainings)


def _folder_of(checkpoints: str) -> str:
    """Return a folder of checkpoints; where it has the run's name in it, the one that holds those of all runs."""
    begin, braces, _ = checkpoints.partition("{")
    return begin.rpartition("/")[0] if braces else begin


@dataclass(frozen=True, slots=True)
class Debt:
    """
    One undo that is owed, or may be.

    `source` is `ledger` (the node says so), `journal` (only we remember), or `unreadable` (an entry of the node's ledger of
    which nobody there can say what it owes). `held` says whose run goes on: then it is no leftover, and nobody should heal it.
    """

    node: str
    entry: str
    fault: str
    says: str
    source: str
    held: Held | None = None


@dataclass(frozen=True, slots=True)
class NodeStray:
    """A stray, and the node that it stands on."""

    node: str
    stray: Stray


@dataclass(frozen=True, slots=True)
class Audit:
    """
    What was found.

    `debts` are owed or held, `forgotten` were given up and are owed still, `strays` stand there without an entry, `notes`
    are (node, sentence), `unknown` nodes could not be asked (name -> why), and `unread` are (node, look that failed).
    """

    nodes: int
    debts: tuple[Debt, ...]
    forgotten: tuple[Debt, ...] = ()
    strays: tuple[NodeStray, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    unread: tuple[tuple[str, str], ...] = ()

    @property
    def owed(self) -> tuple[Debt, ...]:
        """What nobody is at any more."""
        return tuple(debt for debt in self.debts if debt.held is None)

    @property
    def held(self) -> tuple[Debt, ...]:
        """What belongs to a run that goes on."""
        return tuple(debt for debt in self.debts if debt.held is not None)

    @property
    def leaked(self) -> tuple[NodeStray, ...]:
        """Strays of ours: no ledger knows of them any more."""
        return tuple(one for one in self.strays if one.stray.ours and one.stray.held is None)

    @property
    def live(self) -> tuple[NodeStray, ...]:
        """The trainings of runs that go on."""
        return tuple(one for one in self.strays if one.stray.held is not None)

    @property
    def foreign(self) -> tuple[NodeStray, ...]:
        """Strays that are somebody else's, as far as anybody knows."""
        return tuple(one for one in self.strays if not one.stray.ours)

    @property
    def clean(self) -> bool:
        """Every node answered, and there is nothing to pay, to wait for or to look into; what was forgotten is known."""
        return self.exit_code == EXIT_PASSED

    @property
    def exit_code(self) -> int:
        """5 when something is owed or leaked, 3 when something is unknown or held by a run that goes on, else 0."""
        if self.owed or self.leaked:
            return EXIT_LEAKED
        return EXIT_INCONCLUSIVE if self.unknown or self.unread or self.held or self.live else EXIT_PASSED


def together(strays: Iterable[NodeStray]) -> tuple[NodeStray, ...]:
    """Return strays as a person is told of them: those of one node that differ in nothing but what they stand on are one."""
    alike: dict[tuple[str, Stray], list[str]] = {}
    for one in strays:
        name = one.stray.resource.partition(":")[2]
        words = re.split(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", one.stray.says) if name else []
        places, says = ([name], STANDS_ON.join(words)) if len(words) == 2 else ([], one.stray.says)
        alike.setdefault((one.node, replace(one.stray, resource="" if places else one.stray.resource, says=says)), []).extend(places)
    return tuple(
        NodeStray(node, replace(stray, says=stray.says.replace(STANDS_ON, ", ".join(places)) if places else stray.says))
        for (node, stray), places in alike.items()
    )


def audit(fleet: Fleet, ground: Ground) -> Audit:
    """
    Ask every node what it owes, and look at what stands on it; change nothing.

    A journal's debt counts when the node's ledger does not know the entry at all (what the ledger closed is closed), and
    when the node cannot be asked.
    """
    agents, unknown = reach(fleet, ground.nodes)
    journals = journals_of(ground, agents)
    found = audit_of(fleet.site, agents, ground, journals)
    return with_unreached(found, ground, journals, unknown)


def journals_of(ground: Ground, agents: Mapping[str, NodeAgent]) -> Journals:
    """Return what the journals of a ground remember, of every node; of those that are connected without other sites' debts."""
    machines = {name: agent.machine_id for name, agent in agents.items()}
    return {} if ground.runs is None else remembered(ground.runs, None, ground.inventory, machines)


def with_unreached(found: Audit, ground: Ground, journals: Journals, unknown: Mapping[str, str]) -> Audit:
    """Add the nodes that were not reached (name -> why), and what our journals remember of them and of nodes that left the inventory."""
    owes = of_unreached(ground, journals, unknown)
    lost = {node for node in owes if all(owed.forgotten for owed in owes[node])}
    every = [(node, owed) for node, debts in owes.items() for owed in debts]
    told = {True: "in our journal; the node cannot be asked", False: "in our journal; the inventory has no such node any more"}
    debts = [(owed.forgotten is not None, _of_journal(node, owed, told[node in ground.nodes])) for node, owed in every]
    return replace(
        found,
        nodes=len(ground.nodes),
        debts=found.debts + tuple(debt for forgotten, debt in debts if not forgotten),
        forgotten=found.forgotten + tuple(debt for forgotten, debt in debts if forgotten),
        notes=(*found.notes, *(headless(ground.runs) if ground.runs is not None else ())),
        unknown={**{node: why for node, why in unknown.items() if node not in lost}, **found.unknown},
    )


def of_unreached(ground: Ground, journals: Journals, unreached: Collection[str]) -> dict[str, list[Remembered]]:
    """Return what our journals remember of nodes that cannot be asked: those, and those of this site that left its inventory."""
    found = {}
    for node, owes in journals.items():
        left = node not in ground.nodes
        if ours := [owed for owed in owes if node in unreached or (left and owed.inventory == ground.inventory != "")]:
            found[node] = ours
    return found


def audit_of(sites: Callable[[str], Site], agents: Mapping[str, NodeAgent], ground: Ground, journals: Journals) -> Audit:
    """Do the same on nodes that are connected already."""
    asked = {name: agent.audit() for name, agent in agents.items()}
    looks = {name: agent.strays(site_of(sites, ground, name)) for name, agent in agents.items()}
    got, seen = gather(asked, AUDIT_WITHIN), gather(looks, STRAYS_WITHIN)
    answered = {name: agents[name] for name in got.answers}
    debts = [debt_of(node, entry) for node, entries in got.answers.items() for entry in entries]
    lost = not_in_ledger(answered, journals).with_unasked({name: journals.get(name, ()) for name in got.failures})
    owed, forgotten = _only_remembered(agents, lost, {(debt.node, debt.entry) for debt in debts if debt.source == "ledger"})
    return Audit(
        nodes=len(agents),
        debts=(*debts, *owed),
        forgotten=forgotten,
        strays=tuple(NodeStray(node, stray) for node, strays in seen.answers.items() for stray in strays.found),
        notes=(
            *((node, f"{entry}: {healed_itself(by)}") for (node, entry), by in lost.closed.items() if by not in ("", HEAL)),
            *((name, note) for name, agent in answered.items() for note in agent.notes),
        ),
        unknown={**lost.unknown, **{name: str(error) for name, error in got.failures.items()}},
        unread=(
            *((node, says) for node, strays in seen.answers.items() for says in strays.unread),
            *((node, str(error)) for node, error in seen.failures.items() if node in got.answers),
        ),
    )


def site_of(sites: Callable[[str], Site], ground: Ground, name: str) -> Site:
    """Return what is known of a node, with the training on it; what the inventory cannot say is left out."""
    try:
        site = sites(name)
    except (InputError, NodeError):
        site = Site(name, rails=tuple(ground.rails.get(name, ())))
    return replace(site, training=ground.trainings.get(name, TrainingFacts()))


def debt_of(node: str, entry: LedgerEntry) -> Debt:
    """Return what a node's ledger says as a debt."""
    if entry.state == UNREADABLE:
        path = shlex.quote(str(entry.raw.get("path") or ""))
        do = f"; its file is {path}: see that nothing of it stands, then `mv {path} {path}.damaged`" if entry.raw.get("path") else ""
        return Debt(node, entry.entry, "", entry.says + do, UNREADABLE)
    says = "; ".join(filter(None, (f"{entry.state}, never proven gone", str(entry.raw.get("prospects") or ""))))
    if failures := entry.raw.get("failures"):
        says += f"; {failures} reverts failed{', the last one: ' + str(entry.raw['says']) if entry.raw.get('says') else ''}"
    return Debt(node, entry.entry, str(entry.raw.get("fault", "")), says, "ledger", entry.held)


def healed_itself(by: str) -> str:
    """Say that a debt of our journal was paid on the node without us, by whom the ledger names: the lease's end, the fuse, a reboot."""
    return f"the node healed itself ({by}); our journal has not heard of it"


def _of_journal(node: str, owed: Remembered, says: str) -> Debt:
    return Debt(node, owed.entry, owed.fault, f"{says}; {owed.forgotten}" if owed.forgotten else says, "journal")


def _only_remembered(agents: Mapping[str, NodeAgent], lost: "Lost", told: Collection[tuple[str, str]]) -> tuple[tuple[Debt, ...], ...]:
    """Return what only our journals remember, but for `told` (node, entry): as owed, and as forgotten where its machine is no more."""
    owed: list[Debt] = []
    forgotten: list[Debt] = []
    for node, owes in lost.owes.items():
        for one in owes:
            if (node, one.entry) not in told:
                says = "in our journal; the node's ledger could not be asked" if (node, one.entry) in lost.unasked else NOT_IN_LEDGER
                gone = one.forgotten is not None and one.machine_id != agents[node].machine_id
                (forgotten if gone else owed).append(_of_journal(node, one, says))
    return tuple(owed), tuple(forgotten)


@dataclass(frozen=True, slots=True)
class Lost:
    """
    The debts of our journals that the nodes' ledgers do not know, or of which nobody can say whether they do.

    `owes` are both, by node, newest first; `unasked` are the latter, as (node, entry), and `unknown` says why (node -> sentence).
    `closed` are those that a ledger has as reverted, as (node, entry), with who did it.
    """

    owes: Mapping[str, Sequence[Remembered]]
    unasked: frozenset[tuple[str, str]] = frozenset()
    unknown: Mapping[str, str] = field(default_factory=dict)
    closed: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def with_unasked(self, owes: Journals) -> "Lost":
        """Add debts of nodes that could not be asked for their ledger at all."""
        unasked = {(node, one.entry) for node, ones in owes.items() for one in ones}
        return Lost({**self.owes, **{node: ones for node, ones in owes.items() if ones}}, self.unasked | unasked, self.unknown, self.closed)


def not_in_ledger(agents: Mapping[str, NodeAgent], journals: Journals) -> Lost:
    """Ask each node for its ledger of the runs of which our journals remember debts there."""
    runs = {name: sorted({one.run for one in journals.get(name, ())}) for name in agents}
    got = gather({f"{name} {run}": agents[name].entries(run) for name in agents for run in runs[name]}, AUDIT_WITHIN)
    known = {key: {entry.entry for entry in entries} for key, entries in got.answers.items()}
    owes = {name: [one for one in journals.get(name, ()) if one.entry not in known.get(f"{name} {one.run}", ())] for name in agents}
    unasked = {(name, one.entry) for name, ones in owes.items() for one in ones if f"{name} {one.run}" in got.failures}
    unknown = {
        name: f"what its ledger knows of run {run} could not be asked: {got.failures[f'{name} {run}'].what}"
        for name in agents
        for run in runs[name]
        if f"{name} {run}" in got.failures
    }
    by = {entry.entry: str(entry.raw.get("by") or "") for entries in got.answers.values() for entry in entries if entry.state == "reverted"}
    closed = {(name, one.entry): by[one.entry] for name in agents for one in journals.get(name, ()) if one.entry in by}
    return Lost({name: ones for name, ones in owes.items() if ones}, frozenset(unasked), unknown, closed)
