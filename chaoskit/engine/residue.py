"""
After a fault that is gone: what it left on its nodes all the same, and the command that clears it.

Counters that moved, the kernel's lines, and what others still believe of a node. It is looked at before the first injection
and after the verdict is written; it never changes that. The difference is a pure function of the two looks, which come from
nodes: whatever they sent, it is text and whole numbers here, and bounded.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from chaoskit.engine.gather import gather
from chaoskit.engine.ports import Fleet, NodeAgent

CHECK = "residue"
LOOK_WITHIN = 12.0
"""Seconds that nodes have to show what they show."""
MOST = 300
"""Remnants of one node that are told."""
LONGEST = 400
"""Characters of one text of a remnant."""
SICK = re.compile(r"DRAIN|DOWN|FAIL|NOT_RESPONDING|MAINT|INVAL")
"""States of Slurm in which a node gets no jobs."""
MOVES = {"link_flap": ("carrier_changes",)}
"""Fault -> the counters that it moves by itself, and that nothing sets back."""
SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}\Z")
"""What of a node's own words may stand in a command that a person copies."""


@dataclass(frozen=True, slots=True)
class Remnant:
    """
    One thing that stayed: where, what kind of thing, a sentence, and what clears it (empty: nothing does, or needs to).

    `kind` is `counter`, `kernel`, `state`, `expected` (what the fault itself does; nothing clears it) or `unknown`.
    """

    node: str
    kind: str
    says: str
    clear: str = ""


def remnants(
    node: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, faults: Iterable[str] = ()
) -> tuple[Remnant, ...]:
    """
    Return what stayed on a node from one look to the other; None is a look that nobody got. Pure, and never raises.

    `faults` were injected there: what one of them does by itself, such as a carrier that changes, is `expected`.
    """
    moves = {what for fault in faults for what in MOVES.get(fault, ())}
    if before is None or after is None:
        return (Remnant(node, "unknown", f"what it showed {'before' if before is None else 'afterwards'} is not known"),)
    parts = (_booted(before, after), _counters(before, after), _kernel(after), _states(before, after))
    said = [one for part in parts for one in part]
    told = [_remnant(node, one, moves) for one in said[:MOST]]
    left_off = [Remnant(node, "unknown", f"{len(said) - MOST} more are left off")] if len(said) > MOST else []
    return (*told, *left_off)


def is_left(one: Remnant) -> bool:
    """Say whether it is something that was left behind: neither unknown nor what the fault itself does."""
    return one.kind not in ("unknown", "expected")


Said = tuple[str, str, str]


def _remnant(node: str, said: Said, moves: set[str]) -> Remnant:
    kind, says, clear = said
    if kind == "counter" and not clear and says.partition(" of ")[0] in moves:
        kind, says = "expected", f"{says}, as the fault does"
    return Remnant(node, kind, says[:LONGEST], clear[:LONGEST])


def _booted(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Said]:
    if _rebooted(before, after):
        yield "state", "it was rebooted, and its counters began anew", ""


def _rebooted(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    return before.get("boot_id") != after.get("boot_id")


def _counters(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Said]:
    """Yield the counters that moved; after a reboot those that are not zero, of which the reboot is no reason."""
    was, now = _numbers(before.get("counters")), _numbers(after.get("counters"))
    if _rebooted(before, after):
        was = {name: 0 for name in now if name.startswith("rdma/")}
    for name in sorted(was.keys() & now.keys()):
        if now[name] != was[name]:
            step = f"+{now[name] - was[name]}" if now[name] > was[name] else f"{now[name] - was[name]}, it was reset"
            yield "counter", f"{_named(name)} {step}", _clearing(name)
    if not _rebooted(before, after):
        for name in sorted(was.keys() - now.keys()):
            yield "counter", f"{_named(name)} can be read no more", ""


def _numbers(counters: Any) -> dict[str, int]:
    """Return what of a node's answer is a counter."""
    if not isinstance(counters, Mapping):
        return {}
    return {str(name): value for name, value in counters.items() if isinstance(value, int) and not isinstance(value, bool)}


def _named(name: str) -> str:
    kind, _, rest = name.partition("/")
    device, _, what = rest.rpartition("/")
    return f"{what} of {'GPU ' if kind == 'gpu' else ''}{device}" if device else name


def _clearing(name: str) -> str:
    """Return what sets a counter back; a network device's own stay until its driver is loaded anew."""
    kind, _, rest = name.partition("/")
    device, _, what = rest.rpartition("/")
    if not SAFE.match(device):
        return ""
    if kind == "rdma":
        hca, _, port = device.partition(":")
        return f"perfquery -C {hca} -P {port} -R"
    return f"nvidia-smi -i {device} -p 0" if kind == "gpu" and what.startswith("ecc_") else ""


def _kernel(after: Mapping[str, Any]) -> Iterator[Said]:
    told = after.get("kernel")
    if not isinstance(told, Mapping):
        return
    if why := told.get("why"):
        yield "unknown", str(why), ""
    if lost := _number(told.get("lost")):
        yield "unknown", f"{lost} lines of the kernel's log were overwritten before they could be read", ""
    lines = told.get("lines")
    for line in lines if isinstance(lines, list | tuple) else ():
        if isinstance(line, list | tuple) and len(line) == 3:
            text = str(line[2])
            yield "kernel", text, "gpud set-healthy, where gpud runs" if "NVRM: Xid" in text else ""
    if cut := _number(told.get("cut")):
        yield "unknown", f"{cut} more lines of the kernel's log: see `dmesg` there", ""


def _number(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _states(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Said]:
    """Yield what others believe of the node that is not as it should be, also where it was so before."""
    was, now = _mapping(before.get("states")), _mapping(after.get("states"))
    slurm = _mapping(now.get("slurm"))
    if SICK.search(str(slurm.get("state", ""))):
        reason = f" ({slurm['reason']})" if slurm.get("reason") else ""
        already = ", as it was before" if _mapping(was.get("slurm")).get("state") == slurm.get("state") else ""
        name = str(slurm.get("name", ""))
        clear = f"scontrol update nodename={name} state=resume" if SAFE.match(name) else ""
        yield "state", f"Slurm has it as {slurm['state']}{reason}{already}", clear
    gpud = _mapping(now.get("gpud"))
    for component, reason in gpud.items():
        if component != "why":
            already = ", as it was before" if component in _mapping(was.get("gpud")) else ""
            clear = f"gpud set-healthy --components {component}" if SAFE.match(str(component)) else "gpud set-healthy"
            yield "state", f"gpud has {component} as unhealthy: {reason}{already}", clear
    for who in (slurm, gpud):
        if why := who.get("why"):
            yield "unknown", str(why), ""


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def look(
    fleet: Fleet, agents: Mapping[str, NodeAgent], before: Mapping[str, Any] | None = None, meanwhile: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """
    Return what each connected node shows now: {node: snapshot}; a node that does not say is not in it. Never raises for a node.

    Args:
        fleet: Knows the sites.
        agents: Who is asked.
        before: The first look, when this is the second: the kernel's lines since then are wanted.
        meanwhile: Called while they are waited for.
    """
    asked = {}
    for node, agent in agents.items():
        if agent.connected:
            parts = [{"user": None, "checks": {CHECK: {"since": _since(before, node)}}}]
            asked[node] = agent.examine(fleet.site(node), parts)
    got = gather(asked, LOOK_WITHIN, meanwhile).answers
    return {node: dict(one.readings) for node, findings in got.items() for one in findings if one.check == CHECK and one.readings}


def _since(before: Mapping[str, Any] | None, node: str) -> dict[str, Any] | None:
    if before is None:
        return None
    first = _mapping(before.get(node))
    seq = _mapping(first.get("kernel")).get("seq")
    return {"boot_id": str(first.get("boot_id", "")), "seq": seq if isinstance(seq, int) else -1}


def as_record(left: tuple[Remnant, ...]) -> list[dict[str, str]]:
    """Return remnants as the journal holds them."""
    return [asdict(one) for one in left]


def of_record(record: Mapping[str, Any]) -> tuple[Remnant, ...]:
    """Return remnants from their record. Raises KeyError, TypeError."""
    return tuple(Remnant(**one) for one in record["remnants"])


__all__ = ["Remnant", "as_record", "is_left", "look", "of_record", "remnants"]
