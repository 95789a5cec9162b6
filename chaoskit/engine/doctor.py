"""
`chaoskit doctor`: everything at a site that would spoil an experiment, found before the first one, all in one run.

Every node is reached, examined and asked by itself and all of them at once: one bad node never hides another, and a
check that could not be made is `unknown`, never `ok`. Nothing is changed anywhere; a canary leaves things as they were.

    doctor_orders   what each node is asked for: pure
    doctor_clocks   what the clocks say: pure
    doctor_planes   whether a plane is one network: pure
    doctor_alike    who is the odd one out in a group: pure
    doctor_canary   the way of a fault that harms nothing, over every node that is well
    agent/looks     the looks that run on the node

A further check is one function there, and one line in `doctor_orders`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from chaoskit.agent.canary import POWER
from chaoskit.agent.contract import Rail, Site
from chaoskit.engine import leftovers
from chaoskit.engine.audit import Ground, audit_of, ground_of, journals_of, together
from chaoskit.engine.doctor_alike import ALIKE, alike_findings, facts_in
from chaoskit.engine.doctor_canary import CANARY, LEFTOVERS, Forgetful, kinds_for, send
from chaoskit.engine.doctor_clocks import clock_findings
from chaoskit.engine.doctor_orders import ROOT, Checkup, needs_of, parts_for, site_findings
from chaoskit.engine.doctor_planes import PEERS, addresses_in, echoes, peer_findings
from chaoskit.engine.gather import Gathered, gather
from chaoskit.engine.injector import ANSWER_WITHIN
from chaoskit.engine.plan import Plan, PlannedInjection
from chaoskit.errors import EXIT_INCONCLUSIVE, EXIT_LEAKED, EXIT_PASSED, AgentError, InputError, NodeError
from chaoskit.model.interval import Interval
from chaoskit.model.inventory import Inventory
from chaoskit.model.wire import Finding

CONNECT_WITHIN = 60.0
"""Seconds to come to a node's agent: a host that does not answer takes 10, a handshake 15, an agent's start 30."""
EXAMINE_WITHIN = 40.0
"""Seconds for a node to look at itself: it gives up by itself after 25."""
WAY = ("reach", "host key", "login", "python", "sudo", "agent", "machine")
"""The steps of the way to a node's agent, in order: what comes after the first that fails is unknown."""
PREPARE, CLOCK = "prepare", "clock"
NOT_LOOKED = "not looked at, since what comes before it failed"
STRONGER = "a loaded node may end a fault late: let root there have CAP_SYS_RESOURCE, CAP_SYS_NICE and CAP_IPC_LOCK"
FIRST = "mend that first, then ask again"
AGAIN = "see whether the node is overloaded, or a disk or a GPU of it hangs (`uptime`, `dmesg`), then ask again"

T = TypeVar("T")


class Examiner(Forgetful, Protocol):
    """An agent that can also be asked what is wrong with its node."""

    @property
    def frailties(self) -> tuple[str, ...]:
        """Sentences about what may keep it from staying alive and awake."""

    def examine(self, site: Site, parts: Sequence[Mapping[str, Any]]) -> Future[tuple[Finding, ...]]:
        """Look at the node: `parts` are {user, checks}, see `chaoskit.agent.examine`."""

    def wall_offset(self) -> Future[Interval]:
        """Return the seconds that the node's wall clock is ahead of ours."""


class Ward(Protocol):
    """The nodes that are examined."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was passed over while connecting, one sentence each."""

    def reconnect(self, name: str) -> Future[Examiner]:
        """Try once to reach a node; fails with a NodeError that says at which step."""

    def site(self, name: str) -> Site:
        """Return what the inventory and the connection say of a node."""

    def glimpse(self, name: str, checks: Mapping[str, Mapping[str, Any]]) -> Future[tuple[Finding, ...]]:
        """Look at a node that refuses sudo, for as much as needs no root."""

    def close(self) -> None:
        """Close every connection."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found: on each node of the inventory, in its order, and of the site as a whole."""

    site: str
    nodes: Mapping[str, tuple[Finding, ...]]
    whole: tuple[Finding, ...]

    def found(self, state: str) -> list[Finding]:
        """Return every finding of a state."""
        return [one for findings in (*self.nodes.values(), self.whole) for one in findings if one.state == state]

    @property
    def owed(self) -> list[Finding]:
        """What earlier runs left behind."""
        return [one for one in self.found("defect") if one.check == LEFTOVERS]

    @property
    def exit_code(self) -> int:
        """0 when all is well, 5 when something is left behind, 3 when there is another defect or something is unknown."""
        if self.owed:
            return EXIT_LEAKED
        return EXIT_INCONCLUSIVE if self.found("defect") or self.found("unknown") else EXIT_PASSED


def diagnose(ward: Ward, checkup: Checkup, runs: Path | None = None, tell: Callable[[str], None] = lambda _: None) -> Diagnosis:
    """
    Examine every node of a site.

    Args:
        ward: The nodes; the caller closes it.
        checkup: The site, and the experiments that it shall be fit for.
        runs: Where the journals of earlier runs lie, which remember what a node has lost.
        tell: Told of each stage, as a person waits for it.
    """
    inventory = checkup.inventory
    book = _Book(inventory)
    tell(f"reaching {len(inventory.nodes)} nodes")
    agents = _reach(ward, checkup, book)
    tell(f"examining {len(agents)} nodes")
    _read_clocks(agents, book)
    _examine(ward, agents, checkup, book)
    _ask_peers(ward, agents, checkup, book)
    _compare(checkup, book)
    _look_for_leftovers(ward, agents, book, ground_of(inventory, runs))
    if checkup.canary:
        tell("sending a canary ahead, which harms nothing")
        _send_canary(ward, agents, checkup, book)
    for number, plan in enumerate(checkup.plans, 1):
        tell(f"preparing {plan.name}, nothing is injected")
        for planned in plan.planned:
            _prepare(ward, agents, book, plan, replace(planned, number=1000 * number + planned.number))
    return Diagnosis(inventory.name, book.closed(), (*book.whole, *site_findings(checkup, ward.warnings)))


class _Book:
    """Findings by node, as they come in."""

    def __init__(self, inventory: Inventory) -> None:
        self.nodes: dict[str, list[Finding]] = {name: [] for name in inventory.nodes}
        self.whole: list[Finding] = []
        self.blind: set[str] = set()
        """Nodes of which we do not know what must not be cut off."""

    def add(self, node: str, check: str, state: str, says: str = "", do: str = "") -> None:
        """Note one finding."""
        self.nodes[node].append(Finding(check, state, says, do))

    def failed(self, node: str, check: str, error: NodeError) -> None:
        """Note that nobody knows, since asking failed."""
        self.add(node, check, "unknown", plain(error, node), error.hint)

    def sick(self, node: str) -> bool:
        """Whether something is wrong with a node, beside what a fault said of it, and how it differs from others."""
        return node in self.blind or any(
            one.state in ("defect", "unknown") and one.check not in (PREPARE, ALIKE) for one in self.nodes[node]
        )

    def closed(self) -> dict[str, tuple[Finding, ...]]:
        """Return all of it; what nobody knows comes with a next step, whoever told it."""
        return {name: tuple(map(_with_a_step, found)) for name, found in self.nodes.items()}


def _with_a_step(one: Finding) -> Finding:
    return replace(one, do=AGAIN) if one.state == "unknown" and not one.do else one


def plain(error: NodeError, node: str) -> str:
    """Return what an error says, without the names that stand beside it anyway."""
    return error.what.removeprefix(f"{node}: ").removeprefix(f"{node} {error.fault}: ")


# -- reaching ------------------------------------------------------------------------------------------------------


def _reach(ward: Ward, checkup: Checkup, book: _Book) -> dict[str, Examiner]:
    """Connect to each node by itself; note how far the way to its agent went, and what nobody can look at for that."""
    got = leftovers.reach_each(ward.reconnect, checkup.inventory.nodes, CONNECT_WITHIN)
    rootless = {name: error for name, error in got.failures.items() if error.step == "sudo"}
    seen = gather({name: ward.glimpse(name, _own_checks(checkup, name)) for name in rootless}, EXAMINE_WITHIN).answers
    for name in checkup.inventory.nodes:
        error = got.failures.get(name)
        book.nodes[name] += _way(name, error)
        if error is not None:
            book.nodes[name] += seen.get(name, ())
            known = {one.check for one in seen.get(name, ())}
            checks = [check for part in parts_for(checkup, name) for check in part["checks"]]
            for check in dict.fromkeys((*checks, CLOCK, LEFTOVERS)):
                if check not in known:
                    book.add(name, check, "unknown", NOT_LOOKED, FIRST)
    for name, agent in got.answers.items():
        for says in agent.frailties:
            book.add(name, "agent", "note", says, STRONGER)
    return got.answers


def _own_checks(checkup: Checkup, name: str) -> dict[str, dict[str, Any]]:
    """Return what the SSH account itself may look at: of the trainings only those that it runs."""
    ours = (ROOT, "", checkup.inventory.file.ssh.user)
    return {check: args for part in parts_for(checkup, name) if part["user"] in ours for check, args in part["checks"].items()}


def _way(node: str, error: NodeError | None) -> list[Finding]:
    if error is None:
        return [Finding(step, "ok", "") for step in WAY]
    step = error.step or WAY[0]
    bad = {step: error, **{one.step: one for one in error.also}}
    found = [Finding(name, "ok", "") for name in WAY[: WAY.index(step)]]
    for name in WAY[WAY.index(step) :]:
        one = bad.get(name)
        found.append(
            Finding(name, "defect", plain(one, node), one.hint) if one is not None else Finding(name, "unknown", NOT_LOOKED, FIRST)
        )
    return found


# -- looking -------------------------------------------------------------------------------------------------------


def _ask(agents: Mapping[str, Examiner], verb: Callable[[str, Examiner], "Future[T]"], within: float) -> Gathered[T]:
    asked: dict[str, Future[T]] = {}
    lost: dict[str, NodeError] = {}
    for name, agent in agents.items():
        try:
            asked[name] = verb(name, agent)
        except NodeError as error:
            lost[name] = error
    got = gather(asked, within)
    got.failures.update(lost)
    return got


def _read_clocks(agents: Mapping[str, Examiner], book: _Book) -> None:
    got = _ask(agents, lambda _, agent: agent.wall_offset(), ANSWER_WITHIN)
    for name, finding in clock_findings(got.answers).items():
        if name:
            book.nodes[name].append(finding)
        else:
            book.whole.append(finding)
    for name, error in got.failures.items():
        book.failed(name, CLOCK, error)


def _examine(ward: Ward, agents: Mapping[str, Examiner], checkup: Checkup, book: _Book) -> None:
    parts = {name: parts_for(checkup, name) for name in agents}
    got = _ask(agents, lambda name, agent: agent.examine(_site(ward, checkup, book, name), parts[name]), EXAMINE_WITHIN)
    for name, findings in got.answers.items():
        book.nodes[name] += findings
    for name, error in got.failures.items():
        for check in (check for part in parts[name] for check in part["checks"]):
            book.failed(name, check, error)


def _ask_peers(ward: Ward, agents: Mapping[str, Examiner], checkup: Checkup, book: _Book) -> None:
    """Let the rails that are well ask each other over their planes."""
    asked = echoes(checkup.inventory, {name: addresses_in(book.nodes[name]) for name in agents})
    parts = {name: [{"user": ROOT, "checks": {PEERS: {"echoes": [one.order() for one in asked if one.node == name]}}}] for name in agents}
    wanted = {name: agents[name] for name in dict.fromkeys(echo.node for echo in asked)}
    got = _ask(wanted, lambda name, agent: agent.examine(_site(ward, checkup, book, name), parts[name]), EXAMINE_WITHIN)
    told = {(name, one.readings.get("netdev")): one for name, findings in got.answers.items() for one in findings}
    tried = [echo for echo in asked if (echo.node, echo.netdev) in told]
    nodes, whole = peer_findings(tried, {(name, str(netdev)): one.says for (name, netdev), one in told.items() if one.state != "ok"})
    for name in wanted:
        book.nodes[name] += nodes.get(name, [])
    book.whole += whole
    for name in dict.fromkeys(echo.node for echo in asked if echo not in tried):
        book.add(name, PEERS, "unknown", "could not be asked to try its rails")


def _compare(checkup: Checkup, book: _Book) -> None:
    """Name the odd one out of each group, by the facts that its nodes told."""
    groups: dict[str, list[str]] = {}
    for node in checkup.inventory.nodes.values():
        if node.group and not node.protected:
            groups.setdefault(node.group, []).append(node.name)
    for group, names in groups.items():
        nodes, whole = alike_findings(group, {name: facts_in(book.nodes[name]) for name in names})
        book.whole += whole
        for name, findings in nodes.items():
            if findings:  # what they say stands in for "it told its facts"
                book.nodes[name] = [one for one in book.nodes[name] if (one.check, one.state) != (ALIKE, "ok")] + findings


def _site(ward: Ward, checkup: Checkup, book: _Book, name: str) -> Site:
    """Return what is known of a node; where the inventory has a gap, that is told once, and the rest is looked at all the same."""
    try:
        return ward.site(name)
    except InputError as error:
        gap = Finding("inventory", "defect", error.what, error.hint)
        book.whole += [] if gap in book.whole else [gap]
        rails = checkup.inventory.nodes[name].rails
        if rails and name not in book.blind:
            book.add(name, "rails", "unknown", "whether a rail carries the SSH connection is not known", FIRST)
        book.blind.add(name)
        return Site(name, rails=tuple(Rail(index, rail.netdev, rail.rdma, rail.plane) for index, rail in enumerate(rails)))


def _look_for_leftovers(ward: Ward, agents: Mapping[str, Examiner], book: _Book, ground: Ground) -> None:
    found = audit_of(ward.site, agents, ground, journals_of(ground, agents))
    for debt in found.owed:
        book.add(debt.node, LEFTOVERS, "defect", f"{debt.entry}: {debt.fault}: {debt.says}", "`chaoskit heal` pays it")
    for debt in found.held:
        book.add(debt.node, LEFTOVERS, "defect", f"{debt.entry}: {debt.held}", "wait for that run, or `chaoskit stop` it")
    for one in together(found.strays):
        do = "`chaoskit heal` takes it away" if one.stray.ours else one.stray.do
        book.add(one.node, LEFTOVERS, "defect" if one.stray.ours else "note", one.stray.says, do)
    for name, why in [*found.unknown.items(), *found.unread]:
        book.add(name, LEFTOVERS, "unknown", why.removeprefix(f"{name}: "))
    spoiled = {debt.node for debt in found.debts} | {one.node for one in found.leaked} | {name for name, _ in found.unread}
    for name in set(agents) - spoiled - set(found.unknown):
        book.add(name, LEFTOVERS, "ok", "owes nothing")


def _send_canary(ward: Ward, agents: Mapping[str, Examiner], checkup: Checkup, book: _Book) -> None:
    """Prove on every node that is well that what is done there is taken back, by something that harms nothing."""
    may = {name for name, found in book.nodes.items() if not any((one.check, one.state) == ("consent", "note") for one in found)}
    meant = [
        node.name for node in checkup.inventory.nodes.values() if node.name in may and not node.protected and needs_of(checkup, node.name)
    ]
    for name in meant:
        if book.sick(name) or name not in agents:
            book.add(name, CANARY, "unknown", "not sent before the rest is mended" if name in agents else NOT_LOOKED, FIRST)
    well = {name: agents[name] for name in meant if name in agents and not book.sick(name)}
    gpus = {name: checkup.inventory.nodes[name].gpus for name in well}
    kinds = {name: [kind for kind in kinds_for(needs_of(checkup, name).values()) if gpus[name] or kind != POWER] for name in well}
    # A site's file may name the faults that it allows: that those are among them was looked at, and a canary has no name there.
    for name, finding in send(well, kinds, lambda name: replace(ward.site(name), require_allow_file=False)).items():
        book.nodes[name].append(finding)


# -- preparing -----------------------------------------------------------------------------------------------------


def _prepare(ward: Ward, agents: Mapping[str, Examiner], book: _Book, plan: Plan, planned: PlannedInjection) -> None:
    """Try a fault as far as nothing is changed, on those of its targets that nothing else is wrong with."""
    run_id = (plan.training.run_id or "") if plan.training.launcher == "attach" else ""
    if planned.instance.needs_training and not run_id:
        book.whole.append(Finding(PREPARE, "note", f"{plan.name}: {planned.detail} can be tried only once the training is up"))
        return
    for name in planned.targets:
        if book.sick(name):
            book.add(name, PREPARE, "unknown", f"{planned.detail}: not tried before the rest is mended", FIRST)
    well = {name: agents[name] for name in planned.targets if name in agents and not book.sick(name)}
    facts = plan.facts(run_id)

    def verb(name: str, agent: Examiner) -> Future[Any]:
        site = replace(ward.site(name), training=facts)
        return agent.prepare("doctor", f"doctor/{planned.number}/{name}", planned.fault, planned.params, site)

    got = _ask(well, verb, ANSWER_WITHIN)
    for name in got.answers:
        book.add(name, PREPARE, "ok", f"{planned.detail} can be prepared")
    for name, error in got.failures.items():
        refused = isinstance(error, AgentError) and error.refused
        book.add(name, PREPARE, "defect" if refused else "unknown", f"{planned.detail}: {plain(error, name)}", error.hint)


def names_of(findings: Iterable[Finding]) -> list[str]:
    """Return the checks that these findings are of, each once, in order."""
    return list(dict.fromkeys(one.check for one in findings))
