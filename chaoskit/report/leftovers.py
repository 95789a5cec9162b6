"""What an audit found and what a healing did: lines in which nodes that are alike share one, and JSON with a schema version."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import chaoskit
from chaoskit.agent.contract import TRAINING
from chaoskit.engine.audit import Audit, Debt, NodeStray, together
from chaoskit.engine.heal import Healed, Healing
from chaoskit.judge.verdict import Outcome
from chaoskit.model.controller import is_dead
from chaoskit.model.hostlist import fold
from chaoskit.model.wire import Held, Stray
from chaoskit.report.sanitise import line as clean
from chaoskit.report.sanitise import text

SCHEMA_VERSION = 1
"""Raised when a key changes its meaning or goes; new keys do not raise it."""

KIND = 11
"""Columns of the word that says what a line is about."""
ALIKE = "{node}"

Told = tuple[str, str, str]
"""Kind, node, sentence."""


def audit_lines(found: Audit) -> list[str]:
    """Return a line for each thing that was found, and what there is to say of it; alike ones of several nodes share one."""
    return _lines(
        [
            *(("owed", debt.node, _debt(debt)) for debt in found.owed),
            *(("leaked", one.node, _leaked(one.stray)) for one in found.leaked),
            *(("held", debt.node, f"{debt.entry}: {debt.fault}: {_whose(debt.held)}") for debt in found.held),
            *(("held", one.node, f"{one.stray.says}: {_whose(one.stray.held)}") for one in found.live),
            *_unknown(found.unknown, found.unread),
            *(("forgotten", debt.node, _debt(debt)) for debt in found.forgotten),
            *(("foreign", one.node, f"{one.stray.says}{f' ({one.stray.do})' if one.stray.do else ''}") for one in together(found.foreign)),
            *(("note", node, note) for node, note in found.notes),
        ]
    )


def heal_lines(done: Healing) -> list[str]:
    """Return a line for each thing that was tried, and for what could not be."""
    states = {True: "gone", False: "NOT GONE"}
    return _lines(
        [
            *(("held" if one.held else states[one.healed], one.node, _healed(one)) for one in done.results),
            *(("owed", debt.node, _debt(debt)) for debt in done.owed),
            *_unknown(done.unknown, done.unread),
            *(("forgotten", debt.node, _debt(debt)) for debt in done.forgotten),
            *(("purged", node, _removed(removed)) for node, removed in done.purged.items()),
            *(("NOT PURGED", node, _without(node, why)) for node, why in done.unpurged.items()),
        ]
    )


def _unknown(unknown: Mapping[str, str], unread: Sequence[tuple[str, str]]) -> list[Told]:
    return [("unknown", node, _without(node, why)) for node, why in [*unknown.items(), *unread]]


def _without(node: str, why: str) -> str:
    """Return a reason without its node's name before it, which may stand there more than once: the node told it, and we did."""
    while why.startswith(f"{node}: "):
        why = why.removeprefix(f"{node}: ")
    return why


def _removed(removed: Sequence[str]) -> str:
    """Return what was removed as few words; the JSON has every name."""
    paths = [one for one in removed if one.startswith("/") and not one.endswith(".pyz")]
    rest = len(removed) - len(paths)
    return ", ".join([*paths, *([f"{rest} processes and files of the agent"] if rest else [])])


def _debt(debt: Debt) -> str:
    return ": ".join(part for part in (debt.entry, debt.fault, debt.says) if part)


def _whose(held: Held | None) -> str:
    dead = held is not None and is_dead(held.controller)
    return f"{held}{'; its controller is dead, so that the node heals itself then: ask again' if dead else ''}"


def _held_by(found: Audit) -> str:
    """Say by whom all that is held is held: of a controller that is dead for certain no run goes on."""
    holders = [held for held in (*(debt.held for debt in found.held), *(one.stray.held for one in found.live)) if held is not None]
    if holders and all(is_dead(held.controller) for held in holders):
        return f"held for {max(held.left for held in holders):.0f} s yet by a run whose controller is dead: ask again then"
    return "held by a run that goes on"


def _leaked(stray: Stray) -> str:
    if stray.fault == TRAINING:
        return f"{stray.says}, and nobody drives it any more; `chaoskit heal` ends it"
    return f"{stray.says}: in no ledger; `chaoskit heal` takes it away"


def _healed(one: Healed) -> str:
    return ": ".join(part for part in (one.entry, one.fault, one.says) if part)


def _lines(told: Iterable[Told]) -> list[str]:
    nodes: dict[tuple[str, str], list[str]] = {}
    first: dict[tuple[str, str], Told] = {}
    for one in told:
        key = (one[0], one[2].replace(one[1], ALIKE))
        nodes.setdefault(key, []).append(one[1])
        first.setdefault(key, one)
    found = []
    for key, names in nodes.items():
        kind, node, says = first[key]
        others = [name for name in dict.fromkeys(names) if name != node]
        found.append(f"  {kind:<{KIND}}" + clean(f"{node}: {says}{f' (the same on {fold(others)})' if others else ''}"))
    return found


def audit_closing(site: str, found: Audit) -> str:
    """Return the last line, which starts with the word of the exit code."""
    counts = [
        (len(found.owed), "owed"),
        (len(found.leaked), "leaked"),
        (len(found.held) + len(found.live), _held_by(found)),
        (len(found.unknown), f"of {found.nodes} nodes could not be asked"),
        (len({node for node, _ in found.unread}), "nodes not wholly looked at"),
    ]
    do = "; `chaoskit heal` pays it" if found.owed or found.leaked else ""
    return _closing(site, found.exit_code, counts, f"{found.nodes} nodes owe nothing", do)


def heal_closing(site: str, done: Healing) -> str:
    """Return the last line, which starts with the word of the exit code."""
    counts = [
        (len(done.failed), "not proven gone"),
        (len(done.owed), "owed by nodes that could not be asked"),
        (sum(one.held for one in done.results), "left to a run that goes on (`--live` ends it)"),
        (len(done.unknown), f"of {done.nodes} nodes could not be asked"),
        (len({node for node, _ in done.unread}), "nodes not wholly looked at"),
        (len(done.unpurged), "nodes not purged"),
    ]
    gone = f", {len(done.purged)} of them purged" if done.purged else ""
    return _closing(site, done.exit_code, counts, f"{done.nodes} nodes owe nothing{gone}", "")


def _closing(site: str, code: int, counts: Sequence[tuple[int, str]], well: str, do: str) -> str:
    parts = [f"{number} {what}" for number, what in counts if number]
    return clean(f"{_outcome(code)}: {site}: {', '.join(parts) or well}{do}")


def _outcome(code: int) -> Outcome:
    return next(outcome for outcome in Outcome if outcome.exit_code == code)


# -- JSON ----------------------------------------------------------------------------------------------------------


def audit_document(site: str, found: Audit) -> dict[str, Any]:
    """
    Return what an audit found as JSON values.

    `owed`, `held` and `forgotten` are debts: `node`, `entry`, `fault`, `source` (`ledger`, `journal`, `unreadable`), `says`, and
    `held` (null, or `run`, `controller`, `since` (Unix time), `lease_left` in seconds). `leaked`, `foreign` and `live` (trainings of runs
    that go on) are strays: `node`, `fault`, `resource`, `says`, `do`.
    `unknown` maps a node to why it could not be asked; `unread` are looks that failed.
    """
    return {
        **_head(site, found.nodes, found.exit_code),
        "owed": [_debt_json(debt) for debt in found.owed],
        "leaked": [_stray_json(one) for one in found.leaked],
        "live": [_stray_json(one) for one in found.live],
        "held": [_debt_json(debt) for debt in found.held],
        "forgotten": [_debt_json(debt) for debt in found.forgotten],
        "foreign": [_stray_json(one) for one in found.foreign],
        **_unknown_json(found.unknown, found.unread),
        "notes": [{"node": text(node), "says": text(note)} for node, note in found.notes],
    }


def heal_document(site: str, done: Healing) -> dict[str, Any]:
    """
    Return what a healing did as JSON values.

    `results`: `node`, `entry` (of a stray its resource), `fault`, `source` (`ledger`, `journal`, `unreadable`, `stray`), `healed`,
    `held` (left to a run that goes on), `says`. `owed` and `forgotten` are debts as in an audit. `purged` maps a node to
    what was removed there, `unpurged` to why nothing was.
    """
    return {
        **_head(site, done.nodes, done.exit_code),
        "results": [_healed_json(one) for one in done.results],
        "owed": [_debt_json(debt) for debt in done.owed],
        "forgotten": [_debt_json(debt) for debt in done.forgotten],
        **_unknown_json(done.unknown, done.unread),
        "purged": {text(node): [text(one) for one in removed] for node, removed in done.purged.items()},
        "unpurged": {text(node): text(why) for node, why in done.unpurged.items()},
    }


def _head(site: str, nodes: int, code: int) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "chaoskit": chaoskit.__version__,
        "inventory": text(site),
        "nodes": nodes,
        "outcome": str(_outcome(code)),
        "exit_code": code,
    }


def _unknown_json(unknown: Mapping[str, str], unread: Sequence[tuple[str, str]]) -> dict[str, Any]:
    return {
        "unknown": {text(node): text(why) for node, why in unknown.items()},
        "unread": [{"node": text(node), "says": text(why)} for node, why in unread],
    }


def _debt_json(debt: Debt) -> dict[str, Any]:
    held = debt.held
    told = held and {"run": text(held.run), "controller": text(held.controller), "since": held.since, "lease_left": held.left}
    return {**{name: text(getattr(debt, name)) for name in ("node", "entry", "fault", "source", "says")}, "held": told}


def _stray_json(one: NodeStray) -> dict[str, str]:
    return {"node": text(one.node), **{name: text(getattr(one.stray, name)) for name in ("fault", "resource", "says", "do")}}


def _healed_json(one: Healed) -> dict[str, Any]:
    return {
        **{name: text(getattr(one, name)) for name in ("node", "entry", "fault", "source", "says")},
        "healed": one.healed,
        "held": one.held,
    }
