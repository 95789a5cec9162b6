"""
Strays: what stands on this node as a fault leaves it, and no entry of the ledger explains.

The ledger says what is owed; where it was lost, the things themselves still tell: a group, a queueing discipline or a table
of our name, a mark. How a fault's things are known is said by the fault (`Fault.strays`). What bears our own tag was leaked
and can be swept, each by its tag alone; what could be anybody's is told as foreign and never touched. Standard library
only, Python 3.8.
"""

import re
import threading
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Sequence, Tuple

from chaoskit.agent import nftables
from chaoskit.agent.contract import NODE, Refusal, Stray
from chaoskit.agent.host import Host
from chaoskit.agent.kernel import Kernel
from chaoskit.agent.ledger import Entry, Ledger
from chaoskit.agent.registry import Registry
from chaoskit.agent.wakeup import Wakeup, run_within
from chaoskit.errors import ChaosError

WITHIN = 15.0
"""Seconds for all looks together: what hangs (a lost GPU, a dead file server) costs its own answer and nobody else's."""

TURN = 15.0
"""Seconds that sweeping one stray may take."""

TABLE = "nftables"
"""How the look at packet filter tables is called, where the others have the name of their fault."""

LAB = "chaoskit_lab"
"""The lab's own table, which is no fault's and stands as long as the lab."""

OUR_TABLES = re.compile(r"chaoskit_(?!lab$)[A-Za-z0-9_]{1,40}")
"""Names of tables that only faults make."""


class Found(NamedTuple):
    """A stray, and the fault that leaves such things."""

    fault: str
    stray: Stray

    def to_json(self) -> Dict[str, Any]:
        """Return it as JSON."""
        return {"fault": self.fault, **self.stray.to_json()}


class Scan(NamedTuple):
    """What was found, and a sentence for each look that failed or had no end."""

    found: List[Found]
    unread: List[str]


class Swept(NamedTuple):
    """What came of sweeping one stray."""

    found: Found
    gone: bool
    says: str

    def to_json(self) -> Dict[str, Any]:
        """Return it as one of `sweep`'s results."""
        return {"fault": self.found.fault, "resource": self.found.stray.resource, "healed": self.gone, "says": self.says}


Look = Callable[[], Sequence[Stray]]


def scan(registry: Registry, host: Host, entries: Iterable[Entry], within: float = WITHIN) -> Scan:
    """Look for everything at once, and return what none of these open entries explains."""
    looks: Dict[str, Look] = {name: _look(kind, host) for name, kind in registry.kinds().items() if kind.runs_on == "node"}
    looks[TABLE] = _tables
    answers = _all(looks, within)
    found, unread = [], []
    for name in sorted(looks):
        answer = answers.get(name, "no end of it within {:g} s".format(within))
        if isinstance(answer, str):
            unread.append("strays of {} could not be looked for: {}".format(name, answer))
        else:
            found += [Found(name, stray) for stray in answer]
    held = {resource for entry in entries for resource in entry.resources}
    return Scan([one for one in found if one.stray.resource not in held and NODE not in held], unread)


def _look(kind: Any, host: Host) -> Look:
    return lambda: kind.strays(host)


def _all(looks: Mapping[str, Look], within: float) -> Dict[str, Any]:
    """Run every look on a thread of its own; those without an answer in time are left to themselves, and are missing."""
    answers: Dict[str, Any] = {}
    done = Wakeup()

    def run(name: str, look: Look) -> None:
        answer: Any
        try:
            answer = list(look())
        except ChaosError as error:
            answer = str(error)
        except Exception as error:  # noqa: BLE001 - a third party's code: whatever it raises, the other looks are made
            answer = "{}: {}".format(type(error).__name__, error)
        answers[name] = answer
        if len(answers) == len(looks):
            done.set()

    for name, look in looks.items():
        threading.Thread(target=run, args=(name, look), name="strays of " + name, daemon=True).start()
    if done.wait(within):
        done.close()
    return dict(answers)


def _tables() -> List[Stray]:
    """Return the tables of the packet filter: those of our name, and everybody else's. A look loads no module."""
    if Kernel().dormant("nf_tables"):
        return []
    found = []
    for table in (one for one in nftables.tables() if one.name != LAB):
        what = "table {} {}".format(table.family, table.name)
        if OUR_TABLES.fullmatch(table.name):
            found.append(Stray("nft:" + what, "the packet filter has our {}".format(what), ours=True, tag=table._asdict()))
        else:
            found.append(Stray("nft:" + what, "the packet filter has the {}, which is not ours".format(what)))
    return found


def sweep(registry: Registry, host: Host, ledger: Ledger, entries: Callable[[], Iterable[Entry]]) -> Tuple[List[Swept], List[str]]:
    """
    Take away every stray of ours, and look again: what is still found is not gone.

    Args:
        registry: The faults, which say what is looked for.
        host: Where.
        ledger: Its lock on resources is held meanwhile, so that nobody makes what is being swept his own.
        entries: Reads the open entries.

    Returns:
        What became of each, and the sentences of looks that failed.
    """
    before = scan(registry, host, entries())
    ours = [one for one in before.found if one.stray.ours]
    if not ours:
        return [], before.unread
    trouble = {id(one): _swept(registry, host, ledger, entries, one) for one in ours}
    after = scan(registry, host, entries())
    left = {(one.fault, one.stray.resource, str(sorted(one.stray.tag.items()))) for one in after.found}
    results = []
    for one in ours:
        gone = (one.fault, one.stray.resource, str(sorted(one.stray.tag.items()))) not in left and _was_read(one, after)
        says = trouble[id(one)] or ("swept: {}".format(one.stray.says) if gone else "it is still there: {}".format(one.stray.says))
        results.append(Swept(one, gone, says))
        host.syslog("chaoskit: stray of {} {}: {}".format(one.fault, "swept" if gone else "NOT GONE", says))
    return results, after.unread


def _was_read(one: Found, after: Scan) -> bool:
    return not any(says.startswith("strays of {} ".format(one.fault)) for says in after.unread)


def _swept(registry: Registry, host: Host, ledger: Ledger, entries: Callable[[], Iterable[Entry]], one: Found) -> str:
    """Sweep one stray; return why that failed, or nothing."""
    trouble: List[str] = []

    def run() -> None:
        try:
            with ledger.resources_lock():
                _refuse_taken(one, entries())
                _take_away(registry, host, one)
        except Exception as error:  # noqa: BLE001 - as in `_all`; the next one gets its turn
            trouble.append(str(error) if isinstance(error, ChaosError) else "{}: {}".format(type(error).__name__, error))

    if not run_within(run, TURN, "sweep"):
        return "no end of it within {:g} s".format(TURN)
    return "".join(trouble)


def _refuse_taken(one: Found, entries: Iterable[Entry]) -> None:
    if any(one.stray.resource in entry.resources for entry in entries):
        raise Refusal("an entry of the ledger has it by now")


def _take_away(registry: Registry, host: Host, one: Found) -> None:
    if one.fault == TABLE:
        nftables.delete(nftables.Table(**one.stray.tag))
    else:
        registry.kinds()[one.fault].sweep(host, one.stray)
