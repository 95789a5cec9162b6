"""
What this node has to say to `audit` and `heal`: debts with who holds them, files that nobody can read, strays, other agents.

A debt is *held* while its run's lease goes on: then it is no leftover but a fault that is being tested, and nobody heals
it unless told to. Standard library only, Python 3.8.
"""

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from chaoskit.agent import debts, hold, kin, lines, spawn, strays
from chaoskit.agent.contract import TRAINING, Site, Stray, training_key
from chaoskit.agent.host import Host
from chaoskit.agent.lease import read_lease
from chaoskit.agent.ledger import SCHEMA, Entry, Ledger
from chaoskit.agent.node import Node
from chaoskit.agent.paths import STATE

GRACE = 5.0
"""Seconds from SIGTERM to SIGKILL for a training that nobody drives any more."""


class Held(NamedTuple):
    """Who holds an entry: the run, its controller, when it was planned (wall clock), and the seconds left of its lease."""

    run: str
    controller: str
    since: float
    left: float

    def __str__(self) -> str:
        return "run {} of {} holds it; {:.0f} s of its lease are left".format(
            self.run, self.controller or "an unknown controller", self.left
        )


def holder(node: Node, entry: Entry) -> Optional[Held]:
    """Return who holds an open entry; None when lease or server is gone, a revert failed, or it ended and the disk would not hear it."""
    ended = entry.entry in {slot.entry.entry for slot in node.unwritten()}
    if ended or entry.failures or not debts.is_live(entry, node.boot_id):
        return None
    lease = read_lease(node.paths, entry.run)
    left = (entry.lease if lease is None else lease.deadline) - node.host.boottime()
    return Held(entry.run, entry.controller, entry.planned_at, left) if left > 0 else None


def audit(node: Node) -> Dict[str, Any]:
    """Return every debt with who holds it, the entries that nobody can read, and sentences for a person."""
    told = debts.audit(node.ledger, node.registry, node.host)
    entries = {entry.entry: entry for entry in _open(node)}
    for debt in told["debts"]:
        del debt["undo"], debt["site"]  # nobody who audits needs them, and hundreds of debts must fit a line
        entry = entries.get(debt["entry"])
        held = None if entry is None else holder(node, entry)
        debt["held"] = None if held is None else held._asdict()
    damaged, torn = unreadable(node.ledger)
    others = sorted({(one.agent, one.state) for one in kin.everyone() if one.process != node.me and one.agent != node.agent})
    notes = [note for note in told["notes"] if not note.startswith("ledger file of ")]  # told by `unreadable` in full
    notes += ["{}: nothing of its plan reached the disk, so nothing was armed by it".format(name) for name in torn]
    whose = hold.holder(node.paths)
    notes += [str(whose)] if whose is not None else []
    return {**told, "unreadable": damaged, "notes": notes + [_other(*one) for one in others]}


def _other(agent: str, state: str) -> str:
    """Say that another version is there, the same words on every node."""
    root = "" if state == STATE else ", state in {}".format(state)
    told = "there is another agent: {}{}; it ends by itself {:.0f} min after its last use, unless it owes something"
    return told.format(agent[:16], root, kin.IDLE_EXIT / 60)


def _open(node: Node) -> List[Entry]:
    """Return the open entries, of the ledger and of this server's memory: a lost file is no end of a fault."""
    entries = debts.open_entries(node.ledger, node.registry, node.boot_id)
    known = {entry.entry for entry in entries}
    remembered = [slot.entry for slot in node.open_slots() if slot.entry.entry not in known]
    return entries + [entry for entry in remembered if debts.may_be_owed(node.ledger, entry)]


def unreadable(ledger: Ledger) -> Tuple[List[Dict[str, str]], List[str]]:
    """
    Return the entries whose plan cannot be read though something may be owed, each with the reason, and the merely torn ones.

    Of a file whose first line was torn before anything was armed nothing is owed: every later line comes after the first.
    """
    damaged, torn = [], []
    for name in ledger.unreadable():
        why = _why(ledger, name)
        if why:
            damaged.append({"entry": name, "says": why, "path": "{}/{}.jsonl".format(ledger.directory, name.replace("/", ","))})
        else:
            torn.append(name)
    return damaged, torn


def _why(ledger: Ledger, name: str) -> str:
    try:
        with open("{}/{}.jsonl".format(ledger.directory, name.replace("/", ",")), "rb") as file:
            records = [record for _, record in lines.records(file.read().split(b"\n"))]
    except OSError as error:
        return "it cannot be read: {}".format(error.strerror)
    told = [record for record in records if isinstance(record, dict)]
    schemas = sorted({str(record.get("v")) for record in told if record.get("v") != SCHEMA})
    if schemas:
        return "it is written in schema {}, and this agent reads {}: heal with the version that wrote it".format(", ".join(schemas), SCHEMA)
    states = sorted({str(record.get("state")) for record in told})
    if states:
        return "its plan is damaged, and after it come: {}".format(", ".join(states))
    return "" if len(records) <= 1 else "none of its {} lines can be read".format(len(records))


def heal(node: Node, names: Optional[Sequence[str]], journal: Sequence[Mapping[str, Any]], *, live: bool) -> List[Dict[str, Any]]:
    """
    Pay debts, of the ledger and of a journal.

    Args:
        node: This node.
        names: Which of the ledger's; None for all.
        journal: Debts that a controller's journal remembers.
        live: Also those that a run holds.

    Returns:
        For each its `entry`, whether it is `healed`, what to say, and whether it was left alone because it is `held`.
    """
    remembered = [slot.entry for slot in node.open_slots()]
    try:
        owed: Optional[List[Entry]] = _open(node)
    except OSError:
        owed = None  # a dead disk: what this server remembers is held or paid all the same, and the rest said to be unknown
    told = remembered if owed is None else owed
    held = {} if live else {entry.entry: one for entry in told for one in [holder(node, entry)] if one is not None}
    wanted = [name for name in ([entry.entry for entry in told] if names is None else names) if name not in held]
    unpaid = [debt for debt in journal if debt.get("entry") not in held]
    paid = debts.heal(node.ledger, node.registry, node.host, wanted, unpaid, known=remembered)
    for slot in node.open_slots():
        if slot.entry.entry in {one.entry for one in paid if one.healed}:
            slot.post(lambda slot=slot: slot.revert("heal"))  # type: ignore[misc]  # it finds the entry closed and answers who waits
    results = [one.to_json() for one in paid]
    asked = set(held if names is None else names) | {str(debt.get("entry")) for debt in journal}
    return results + [
        {"entry": name, "healed": False, "held": True, "says": "left alone: {}".format(one)} for name, one in held.items() if name in asked
    ]


def find_strays(node: Node, site: Site) -> Dict[str, Any]:
    """Return what stands here as a fault leaves it, and no entry explains; and the trainings that runs have started."""
    found = strays.scan(node.registry, Host(site), _open(node))
    ours = [dict(_training(one).to_json(), held=None if whose is None else whose.to_json()) for one, whose in _trainings(node)]
    return {"strays": [one.to_json() for one in found.found] + ours, "unread": found.unread}


def _trainings(node: Node) -> List[Tuple[str, Optional[hold.Holder]]]:
    """Return the key of each training that runs here, with its run where that goes on: then it has this node."""
    whose = hold.holder(node.paths)
    return [(key, whose if whose is not None and key == training_key(whose.run) else None) for key in spawn.recorded(node.paths)]


def _training(key: str) -> strays.Found:
    says = "processes of {} still run, which a run of ours has started".format(key)
    return strays.Found(TRAINING, Stray("training:" + key, says, ours=True, tag={"key": key}))


def sweep(node: Node, site: Site) -> Dict[str, Any]:
    """
    Take away the strays that are ours, and end the trainings whose run is over.

    While an entry cannot be read, which may be what explains them, no fault's strays are swept.
    """
    ended = [_end(node, key, whose) for key, whose in _trainings(node)]
    damaged, _ = unreadable(node.ledger)
    if damaged:
        says = "not swept, since an entry that nobody here can read may explain it: {}".format(", ".join(one["entry"] for one in damaged))
        found = strays.scan(node.registry, Host(site), _open(node))
        swept = [strays.Swept(one, gone=False, says=says) for one in found.found if one.stray.ours]
        return {"results": ended + [one.to_json() for one in swept], "unread": found.unread}
    results, unread = strays.sweep(node.registry, Host(site), node.ledger, lambda: _open(node))
    return {"results": ended + [one.to_json() for one in results], "unread": unread}


def _end(node: Node, key: str, whose: Optional[hold.Holder]) -> Dict[str, Any]:
    """End a training that nobody drives any more; leave one alone whose run goes on."""
    if whose is not None:
        return dict(strays.Swept(_training(key), gone=False, says="left alone: {}".format(whose)).to_json(), held=True)
    gone = spawn.stop(node.paths, key, GRACE)
    says = "ended: {}" if gone else "the kernel does not let go of all {}"
    node.host.syslog("chaoskit: " + says.format(key))
    return strays.Swept(_training(key), gone=gone, says=says.format("processes of " + key)).to_json()
