"""
One way to end a fault, whoever does it: revert, then read back until the captured state is there again.

Used by the server, the fuse and `heal`, under the entry's lock. Standard library only, Python 3.8.
"""

import json
from typing import Any, Dict, NamedTuple, Optional

from chaoskit.agent import boot
from chaoskit.agent.contract import Evidence, Fault, Site, Undo
from chaoskit.agent.host import Host
from chaoskit.agent.ledger import Entry, Ledger
from chaoskit.agent.registry import Registry
from chaoskit.errors import RefusedError

ATTEMPTS = 3
PATIENCE = 5.0
"""Seconds that one attempt's read-back may take: a link needs time to find its carrier."""

SHOWN = 1000
"""Characters that are shown of readings which are no JSON."""

GRACE = 20.0
"""Seconds that whoever says `reverting` is left alone by the fuse."""

PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0)
"""Seconds between rounds of paying, while something could not be proven gone."""

BEGIN_WITHIN = 6.0
"""
Seconds from the first attempt's begin in which another may begin, so that all end, and are told as failed, before `GRACE`.

A hung GPU holds a revert for 10 s (8 s, and 2 s for its child to end): 6 + 10 = 16 s. One that is done at once and is read
back in vain takes `PATIENCE` and one look more: 6 + 5 = 11 s, and that look has 9 s.
"""


class Reverted(NamedTuple):
    """What came of a revert: the stamps around the last reverting call, and whether the captured state is back."""

    before: float
    after: float
    evidence: Evidence
    note: str = ""

    def to_json(self) -> Dict[str, Any]:
        """Return it as the answer of `revert` and `finish`."""
        return {"before": self.before, "after": self.after, "evidence": self.evidence.to_json(), "note": self.note}


def host_of(entry: Entry) -> Host:
    """Return the host that an entry's fault acts on."""
    return Host(Site.from_json(entry.site))


def revert(fault: Fault, host: Host, undo: Undo, one_shot: bool) -> Reverted:
    """Undo a fault and read back; tries a bounded number of times, for a bounded time, and never raises for what the fault raises."""
    began = host.monotonic()
    for attempt in range(ATTEMPTS):
        if attempt:
            host.sleep(0.2 * attempt)
            if host.monotonic() - began > BEGIN_WITHIN:
                break
        result = _attempt(fault, host, undo, 0.0 if one_shot else PATIENCE)
        if result.evidence.holds or one_shot:
            break
    return result


def _attempt(fault: Fault, host: Host, undo: Undo, patience: float) -> Reverted:
    before = host.monotonic()
    try:
        fault.revert(host, undo)
    except BaseException as error:  # noqa: BLE001 - a third party's code: whatever it raises, the others' reverts go on
        return Reverted(before, host.monotonic(), Evidence(False, "revert failed: {!r}".format(error)))
    after = host.monotonic()
    return Reverted(before, after, _wait_gone(fault, host, undo, patience))


def _wait_gone(fault: Fault, host: Host, undo: Undo, patience: float) -> Evidence:
    until = host.monotonic() + patience
    pause = 0.001
    while True:
        evidence = read_gone(fault, host, undo)
        if evidence.holds or host.monotonic() >= until:
            return evidence
        host.sleep(pause)
        pause = min(2 * pause, 0.1)


def read_gone(fault: Fault, host: Host, undo: Undo) -> Evidence:
    """Read whether the captured state is back; a read that fails proves nothing."""
    try:
        return as_json(fault.gone(host, undo))
    except BaseException as error:  # noqa: BLE001 - a third party's code: a failing read is evidence of nothing
        return Evidence(False, "the read-back failed: {!r}".format(error))


def as_json(evidence: Evidence) -> Evidence:
    """
    Return what a fault said, fit for the ledger and the wire: readings that are no JSON as the text that shows them.

    What is no evidence at all, as a third party's code may return it, proves nothing.
    """
    try:
        told = evidence.to_json()
        readings = told["readings"]
        try:
            readings = json.loads(json.dumps(readings, allow_nan=False))
        except (TypeError, ValueError, RecursionError):
            readings = {"not_json": repr(readings)[:SHOWN]}
        return Evidence(bool(told["holds"]), str(told["says"]), readings)
    except Exception as error:  # noqa: BLE001 - as above: even showing it may fail
        return Evidence(False, "what was read back is no evidence, but {}: {}".format(type(evidence).__name__, type(error).__name__))


def settle(ledger: Ledger, registry: Registry, entry: Entry, who: str) -> Reverted:
    """
    Revert an open entry and close it in the ledger once it is proven gone; the caller holds the entry's lock.

    A ledger that cannot be written never stands in the way of the revert: the answer carries a note instead.

    Raises:
        RefusedError: This agent does not have the fault.
    """
    fault = registry.make(entry.fault, entry.params)
    host = host_of(entry)
    note = record(ledger, entry.entry, "reverting", durable=False)
    result = revert(fault, host, entry.undo, entry.one_shot)
    return close(ledger, host, entry, result, who, note)


def close(ledger: Ledger, host: Host, entry: Entry, result: Reverted, who: str, note: Optional[str] = None) -> Reverted:
    """Write what came of a revert to the ledger and the syslog."""
    state = "reverted" if result.evidence.holds or entry.one_shot else "failed"
    # Stamps of another boot than the entry's would be on another clock.
    stamp = (result.before, result.after) if entry.boot_id == host.boot_id() else None
    told = {"evidence": result.evidence.to_json(), "says": result.evidence.says, "by": who, "boot_id": host.boot_id()}
    failed = record(ledger, entry.entry, state, t1=stamp, **told)
    boot.match(ledger)
    outcome = "reverted" if state == "reverted" else "NOT GONE"
    host.syslog("chaoskit {} {} {} by {}: {}".format(entry.entry, entry.fault, outcome, who, result.evidence.says))
    return result._replace(note=failed or note or "")


def record(ledger: Ledger, entry: str, state: str, **more: Any) -> str:
    """Append to the ledger; return a sentence when it could not be written, for a revert goes on without it."""
    try:
        ledger.append(entry, state, **more)
    except RefusedError as error:
        return str(error)
    except (TypeError, ValueError, RecursionError) as error:
        return "the record {} of {} is no JSON: {}".format(state, entry, error)
    return ""


def clear_after_reboot(ledger: Ledger, registry: Registry, entry: Entry) -> Entry:
    """Close a volatile entry of an earlier boot when a fresh read finds its state back; else return it as it is."""
    fault = registry.make(entry.fault, entry.params)
    host = host_of(entry)
    evidence = read_gone(fault, host, entry.undo)
    if not evidence.holds:
        return entry
    told = {"evidence": evidence.to_json(), "says": "cleared by reboot", "by": boot.REBOOT, "boot_id": host.boot_id()}
    note = record(ledger, entry.entry, "reverted", **told)
    return entry if note else ledger.read(entry.entry) or entry
