"""Choosing targets: pure, seeded, and the same on every Python."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from chaoskit.engine.refusals import Refusals
from chaoskit.model.experiment import Injection, Target
from chaoskit.model.experiment_checks import RENDEZVOUS
from chaoskit.model.hostlist import expand
from chaoskit.model.inventory import Inventory, Node, TrainingSpec
from chaoskit.model.typed import did_you_mean
from chaoskit.model.units import show_share


@dataclass(frozen=True, slots=True)
class Chosen:
    """The nodes chosen for one injection, those that it could have been chosen from, and why there are none."""

    targets: tuple[Node, ...]
    pool: tuple[Node, ...]
    empty: str = ""


def rendezvous_of(inventory: Inventory, training: TrainingSpec) -> str | None:
    """Return the node that hosts the training's rendezvous: the stated one, or the first that trains."""
    nodes = inventory.training_nodes(training)
    return training.rendezvous or (nodes[0].name if nodes else None)


def how_many(quantity: float | str, of: int) -> int:
    """Return the count that a number, a share or `all` means; a share is rounded down, but is at least one."""
    if quantity == "all":
        return of
    if isinstance(quantity, int):
        return quantity
    # A hair is added since 0.07 * 100 is 7.000000000000001 and 0.29 * 100 is 28.999999999999996.
    return max(math.floor(float(quantity) * of + 1e-9), 1)


def choose(refusals: Refusals, inventory: Inventory, training: TrainingSpec, injection: Injection, number: int, seed: int) -> Chosen:
    """Return the targets of one injection, in the inventory's order; report what must be refused."""
    target, where = injection.target, f"method.{number - 1}.target"
    if target.group is not None and not inventory.group(target.group):
        # Not refused: the experiment is portable, and this site has none of what it asks for, so nothing is proven here.
        return Chosen((), (), f"{refusals.position(f'{where}.group')}: {_no_group(inventory, target.group)}")
    pool = _pool(refusals, inventory, target, where)
    avoided = _avoided(refusals, inventory, training, target, where)
    free = [node for node in pool if node.name not in avoided]
    _refuse_protected(refusals, free, target, where)
    free = [node for node in free if not node.protected]
    count = how_many(target.pick, len(free))
    if pool and not free:
        said = target.group or target.nodes
        return Chosen((), tuple(pool), f"{injection.fault} has no target: every node of {said} is avoided or protected")
    if count > len(free) and pool:
        refusals.add(f"{where}.pick", f"{count} nodes asked for, and only {len(free)} to choose from", "pick fewer, or all")
    ranked = sorted(free, key=lambda node: _rank(seed, number, node.name))[:count]
    return Chosen(tuple(node for node in free if node in ranked), tuple(pool))


def _rank(seed: int, number: int, name: str) -> bytes:
    """Order nodes by a hash: no random generator whose sequence a new Python could change."""
    return hashlib.sha256(f"{seed}/{number}/{name}".encode()).digest()


def _no_group(inventory: Inventory, group: str) -> str:
    groups = sorted({node.group for node in inventory.nodes.values() if node.group})
    hint = did_you_mean(group, groups, "groups")
    return f"no node of {inventory.name} is in the group {group!r}" + (f", {hint}" if hint else "")


def _pool(refusals: Refusals, inventory: Inventory, target: Target, where: str) -> Sequence[Node]:
    if target.group is not None:
        return inventory.group(target.group)
    names = expand(target.nodes or "")
    _refuse_unknown(refusals, inventory, names, f"{where}.nodes")
    return [inventory.nodes[name] for name in inventory.nodes if name in set(names)]


def _refuse_unknown(refusals: Refusals, inventory: Inventory, names: Sequence[str], where: str) -> None:
    missing = [name for name in names if name not in inventory.nodes]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        refusals.add(
            where, f"{missing[0]} is not a node of {inventory.name}{more}", did_you_mean(missing[0], list(inventory.nodes), "nodes")
        )


def _avoided(refusals: Refusals, inventory: Inventory, training: TrainingSpec, target: Target, where: str) -> set[str]:
    avoided: set[str] = set()
    for index, text in enumerate(target.avoid):
        if text == RENDEZVOUS:
            avoided |= {name for name in (rendezvous_of(inventory, training),) if name is not None}
            continue
        names = expand(text)
        _refuse_unknown(refusals, inventory, names, f"{where}.avoid.{index}")
        avoided |= set(names)
    return avoided


def _refuse_protected(refusals: Refusals, free: Sequence[Node], target: Target, where: str) -> None:
    """Refuse protected hosts where they are asked for by name or by `all`; otherwise they are simply never chosen."""
    protected = [node.name for node in free if node.protected]
    if protected and (target.nodes is not None or target.pick == "all"):
        names = ", ".join(protected[:5]) + (", ..." if len(protected) > 5 else "")
        key = "nodes" if target.nodes is not None else "pick"
        refusals.add(
            f"{where}.{key}", f"{names} must never be touched: the inventory protects it", f"leave it out, or `avoid: [{protected[0]}]`"
        )


def share_text(quantity: float | str, of: int) -> str:
    """Return a limit as a sentence shows it."""
    if isinstance(quantity, float):
        return f"{show_share(quantity)} of {of}, which is {how_many(quantity, of)}"
    return str(quantity)
