"""
Debts: open entries of any run, whoever armed them. `audit` lists them and `heal` pays them, newest first.

A debt is `live` while the server that armed it still runs in this boot: its lease ends it by itself. A new server never
adopts or reverts the debts of a dead one unasked. Standard library only, Python 3.8.
"""

from contextlib import suppress
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from chaoskit.agent import boot
from chaoskit.agent.checks import check_machine
from chaoskit.agent.contract import Lifetime, Site
from chaoskit.agent.entry import in_common
from chaoskit.agent.host import Host
from chaoskit.agent.identity import Process
from chaoskit.agent.ledger import Entry, Ledger, oldest_first
from chaoskit.agent.paths import Paths
from chaoskit.agent.registry import Registry
from chaoskit.agent.reverting import clear_after_reboot, host_of, read_gone, revert, settle
from chaoskit.agent.wakeup import run_within
from chaoskit.errors import ChaosError, LeakedError, RefusedError

LEDGER = "ledger"
"""Stands for all entries where the ledger itself cannot be read."""

TURN = 30.0
"""Seconds after which a revert that hangs no longer keeps the next debt waiting."""


class Paid(NamedTuple):
    """What came of paying one debt; `held`: it was left alone, since a run that goes on holds what it would undo."""

    entry: str
    healed: bool
    says: str
    held: bool = False

    def to_json(self) -> Dict[str, Any]:
        """Return it as one of `heal`'s results."""
        return self._asdict()


def is_live(entry: Entry, boot_id: str) -> bool:
    """Say whether the server that armed an entry still runs, so that its lease will end it."""
    return entry.boot_id == boot_id and bool(entry.server) and Process.from_json(entry.server).alive()


def open_entries(ledger: Ledger, registry: Registry, boot_id: str) -> List[Entry]:
    """
    Return what is owed on this node, oldest first.

    Volatile entries of an earlier boot whose state is back are closed on the way, as cleared by the reboot.
    """
    found = []
    for entry in ledger.open_entries():
        rebooted = entry.boot_id != boot_id and entry.lifetime == Lifetime.VOLATILE.value
        found.append(_cleared(ledger, registry, entry) if rebooted else entry)
    return [entry for entry in found if entry.open]


def _cleared(ledger: Ledger, registry: Registry, entry: Entry) -> Entry:
    with ledger.lock(entry.entry, must=False):
        try:
            return clear_after_reboot(ledger, registry, entry)
        except (ChaosError, TypeError, ValueError, KeyError):
            return entry  # its fault cannot be read here: it stays on the list of what is owed


def audit(ledger: Ledger, registry: Registry, host: Host) -> Dict[str, Any]:
    """
    Return what is owed and what reboots settled.

    `debts` are open entries, each with `live` and with `prospects`: what becomes of it if nobody does anything. `settled`
    are entries of earlier boots that were closed in this one: {entry, fault, says}. `notes` are sentences about damage.
    """
    boot_id = host.boot_id()
    debts = [_told(entry, boot_id, ledger) for entry in open_entries(ledger, registry, boot_id)]
    notes = ["ledger file of {} cannot be read: what it owes is unknown".format(name) for name in ledger.unreadable()]
    entries = ledger.entries()
    notes += ["{}: damaged ledger: {}".format(entry.entry, line) for entry in entries for line in entry.damage]
    return {"debts": debts, "settled": boot.settlements(entries, boot_id), "notes": notes}


def _told(entry: Entry, boot_id: str, ledger: Ledger) -> Dict[str, Any]:
    live = is_live(entry, boot_id)
    return dict(entry.to_json(), live=live, prospects=boot.prospects(entry, boot_id, live, ledger.unit))


def pay(ledger: Ledger, registry: Registry, entry: Entry, who: str, turn: float = TURN) -> Paid:
    """Pay one debt of the ledger under its lock, and say what came of it; whatever it raises or hangs on, the next gets its turn."""
    return _in_turn(entry.entry, lambda: _pay(ledger, registry, entry, who), turn)


def _in_turn(name: str, job: Callable[[], Paid], turn: float) -> Paid:
    paid: List[Paid] = []
    if not run_within(lambda: paid.append(job()), turn, name) or not paid:
        return Paid(name, False, "no end of it within {:g} s".format(turn))
    return paid[0]


def _pay(ledger: Ledger, registry: Registry, entry: Entry, who: str) -> Paid:
    try:
        with ledger.lock(entry.entry, must=False):
            now = ledger.read_if_it_can(entry.entry)
            if now is not None and not now.open:
                return Paid(entry.entry, True, "closed already: {}".format(now.says or now.state))
            result = settle(ledger, registry, now or entry, who)
    except Exception as error:  # noqa: BLE001 - one debt that cannot be paid must not keep the others from being paid
        return Paid(entry.entry, False, "{}: {}".format(type(error).__name__, error))
    says = "; ".join(part for part in (result.evidence.says, result.note) if part)
    return Paid(entry.entry, result.evidence.holds or entry.one_shot, says)


def pay_from_journal(ledger: Ledger, registry: Registry, data: Mapping[str, Any], turn: float = TURN, known: Sequence[Entry] = ()) -> Paid:
    """
    Pay a debt that only a controller's journal remembers, because the node's ledger is gone.

    What an open entry holds, of the ledger or of those `known` to a server, is left to that entry.
    """
    name = str(data.get("entry"))
    try:
        entry = Entry.from_json({**data, "state": "injected"})
        written = ledger.read_if_it_can(entry.entry)
        if written is not None:
            return pay(ledger, registry, written, "heal", turn)
        return _in_turn(name, lambda: _pay_unwritten(ledger, registry, entry, known), turn)
    except Exception as error:  # noqa: BLE001 - as in `_pay`: text from a file, and the next debt waits
        return Paid(name, False, "{}: {}".format(type(error).__name__, error))


def _pay_unwritten(ledger: Ledger, registry: Registry, entry: Entry, known: Sequence[Entry]) -> Paid:
    try:
        paid = _undo_unwritten(ledger, registry, entry, known)
        if paid.healed:
            with suppress(OSError):  # it is paid, be its damaged record in the way or not
                ledger.set_aside(entry.entry)
    except Exception as error:  # noqa: BLE001 - as in `_pay`
        return Paid(entry.entry, False, "{}: {}".format(type(error).__name__, error))
    return paid


def _left_to_another(ledger: Ledger, entry: Entry, resources: Sequence[str], known: Sequence[Entry]) -> Optional[Paid]:
    """Return what to answer when an open entry holds what this debt's revert would touch; None when none does."""
    others = [one for one in known if may_be_owed(ledger, one)]
    # Whoever is arming is awaited; of a dead disk nothing is known but what the server remembers.
    with suppress(OSError, RefusedError), ledger.resources_lock():
        others += ledger.open_entries()
    boot_id = Host(Site("")).boot_id()
    for other in others:
        shared = in_common(resources, other.resources)
        if shared and other.entry != entry.entry:
            if is_live(other, boot_id) and not other.failures:
                says = "left alone: run {} of {} holds {}".format(other.run, other.controller or "an unknown controller", ", ".join(shared))
                return Paid(entry.entry, False, says, held=True)
            return Paid(entry.entry, False, "{} is owed by {}: pay that first".format(", ".join(shared), other.entry))
    return None


def may_be_owed(ledger: Ledger, remembered: Entry) -> bool:
    """
    Return whether an entry that a server remembers as open may be: what the ledger calls over is over.

    The thread that holds it hears of that a moment later. What the ledger cannot tell counts as remembered.
    """
    written = ledger.read_if_it_can(remembered.entry)
    return written is None or written.open


def _undo_unwritten(ledger: Ledger, registry: Registry, entry: Entry, known: Sequence[Entry]) -> Paid:
    fault = registry.make(entry.fault, entry.params)
    host = host_of(entry)
    check_machine(host.site, host)
    if not fault.holds():
        return Paid(entry.entry, True, "nothing to undo after a one-shot fault")
    if entry.boot_id and entry.boot_id != host.boot_id() and fault.lifetime is Lifetime.VOLATILE:
        evidence = read_gone(fault, host, entry.undo)
        if evidence.holds:
            return Paid(entry.entry, True, "cleared by reboot: {}".format(evidence.says))
    left = _left_to_another(ledger, entry, fault.resource(entry.undo), known)
    if left is not None:
        return left
    result = revert(fault, host, entry.undo, one_shot=False)
    host.syslog("chaoskit {} {} healed from a journal: {}".format(entry.entry, entry.fault, result.evidence.says))
    return Paid(entry.entry, result.evidence.holds, result.evidence.says)


def heal(
    ledger: Ledger,
    registry: Registry,
    host: Host,
    names: Optional[Sequence[str]],
    journal: Sequence[Mapping[str, Any]],
    turn: float = TURN,
    known: Sequence[Entry] = (),
) -> List[Paid]:
    """
    Pay debts, newest first: those of the ledger by name (None for all), then those of a journal, in its reverse order.

    Every debt gets its turn of at most `turn` seconds, whatever the others raise or hang on. `known` is what a server
    remembers as owed: it counts where the ledger does not tell of it.
    """
    lost: List[Paid] = []
    try:
        owed = open_entries(ledger, registry, host.boot_id())
    except OSError as error:  # a dead disk: what server and journals remember is paid all the same
        owed, lost = [], [Paid(LEDGER, False, "the ledger cannot be read, what it owes is unknown: {}".format(error))]
    there = {entry.entry for entry in owed}
    owed = oldest_first(owed + [one for one in known if one.entry not in there and ledger.read_if_it_can(one.entry) is None])
    wanted = [entry for entry in reversed(owed) if names is None or entry.entry in names]
    paid = [pay(ledger, registry, entry, "heal", turn) for entry in wanted]
    done = {one.entry for one in paid}
    unpaid = [one for one in known if one.entry not in {each.entry for each in paid if each.healed}]
    paid += [pay_from_journal(ledger, registry, data, turn, unpaid) for data in reversed(journal) if data.get("entry") not in done]
    done = {one.entry for one in paid}
    boot.match(ledger)
    rest = "whether it is owed is unknown, as the ledger cannot be read" if lost else "nothing is owed"
    return lost + paid + [Paid(name, not lost, rest) for name in names or () if name not in done]


def pay_at_boot(paths: Paths) -> None:
    """
    Pay what persists, newest first, and let the boot unit go when nothing is left that it could mend.

    Raises:
        LeakedError: Something could not be proven gone; it is tried again at the next boot.
    """
    ledger, registry = Ledger(paths.ledger, boot.unit_of(paths)), Registry()
    boot_id = Host(Site("")).boot_id()
    owed = [entry for entry in reversed(ledger.open_entries()) if boot.persists(entry) and not is_live(entry, boot_id)]
    paid = [pay(ledger, registry, entry, boot.BY) for entry in owed]
    boot.match(ledger)
    left = ["{}: {}".format(one.entry, one.says) for one in paid if not one.healed]
    if left:
        raise LeakedError("not healed at boot: {}".format("; ".join(left)), hint="run `chaoskit heal`")
