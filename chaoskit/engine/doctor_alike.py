"""
The odd one out: what differs within a group whose nodes should be alike. Pure.

What more than half of a group's nodes have counts as right, and whoever has another value is named. Where no value has a
majority nobody knows which is right, and that is told of the group.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chaoskit.agent.facts import UNREAD
from chaoskit.model.hostlist import fold
from chaoskit.model.wire import Finding

ALIKE = "alike"
"""The check's name."""
HARMLESS = ("python", "os", "processors")
"""Facts that may differ without spoiling a run: worth knowing, and nothing to mend."""
NONE = "none"
"""What stands for a fact that a node does not have."""
MOST_FACTS, LONGEST = 500, 300
"""Facts of one node, and characters of one: a node tells them."""
DO = "make it like the others"

Facts = Mapping[str, Mapping[str, str]]
"""Look -> name -> value. A look that could not be made is not there; a value that is not there is none."""


@dataclass(frozen=True, slots=True)
class Odd:
    """A fact in which one node is not like the most of its group; `majority` of `among` nodes have `usual`."""

    node: str
    name: str
    value: str
    usual: str
    majority: int
    among: int


@dataclass(frozen=True, slots=True)
class Split:
    """A fact of which no value has a majority in a group: value -> the nodes that have it."""

    name: str
    values: Mapping[str, tuple[str, ...]]


def facts_in(findings: Sequence[Finding]) -> dict[str, dict[str, str]]:
    """Return the facts that a node's looks told, by look; what is no text is left out, since it is a node that says so."""
    told: dict[str, dict[str, str]] = {}
    for one in findings:
        values: Any = one.readings.get("facts")
        if isinstance(values, dict):
            texts = [(name, value) for name, value in values.items() if isinstance(value, str)]
            told.setdefault(one.check, {}).update((name[:LONGEST], value[:LONGEST]) for name, value in texts[:MOST_FACTS])
    return told


def compare(facts: Mapping[str, Facts]) -> tuple[list[Odd], list[Split]]:
    """
    Return who is odd among the nodes of one group, and what nobody can call odd since there is no majority.

    Args:
        facts: Node -> its facts.
    """
    odd, split = [], []
    for look in dict.fromkeys(look for told in facts.values() for look in told):
        members = {node: told[look] for node, told in facts.items() if look in told}
        for name in sorted({name for told in members.values() for name in told}):
            values = {node: value for node, told in members.items() if (value := told.get(name, NONE)) != UNREAD}
            if not values:
                continue
            usual, count = Counter(values.values()).most_common(1)[0]
            if count * 2 > len(values):
                odd += [Odd(node, name, value, usual, count, len(values)) for node, value in values.items() if value != usual]
            else:
                kinds = dict.fromkeys(values.values())
                split.append(Split(name, {kind: tuple(node for node, value in values.items() if value == kind) for kind in kinds}))
    return odd, split


def alike_findings(group: str, facts: Mapping[str, Facts]) -> tuple[dict[str, list[Finding]], list[Finding]]:
    """
    Return what is to be said of a group: findings by node, and those of the group as a whole.

    Args:
        group: Its name.
        facts: Node -> its facts; nodes that told none are left out.
    """
    told = {node: each for node, each in facts.items() if each}
    odd, split = compare(told)
    nodes: dict[str, list[Finding]] = {}
    for node in told:
        found = list(_of_node(group, [one for one in odd if one.node == node]))
        nodes[node] = found or ([Finding(ALIKE, "ok", f"like the other nodes of {group}")] if len(told) > 1 else [])
    return nodes, [_of_group(group, one) for one in split]


def _of_node(group: str, odd: Sequence[Odd]) -> Iterator[Finding]:
    """Yield a finding for each kind of thing in which a node is odd: of many settings of one kind one sentence."""
    kinds = dict.fromkeys(_kind(one.name) for one in odd)
    for kind in kinds:
        mine = [one for one in odd if _kind(one.name) == kind]
        says = "; ".join(f"{one.name} is {one.value}, and {one.usual} on {one.majority} of {one.among} in {group}" for one in mine)
        yield Finding(ALIKE, _state(kind), says, "" if kind in HARMLESS else DO)


def _of_group(group: str, one: Split) -> Finding:
    shares = "; ".join(f"{value} on {fold(nodes)}" for value, nodes in one.values.items())
    says = f"{one.name} differs within {group}, and no value has a majority: {shares}"
    return Finding(ALIKE, _state(_kind(one.name)), says, "" if one.name in HARMLESS else "decide which is right, and make them alike")


def _kind(name: str) -> str:
    """Return what a fact is of: each rail's and each setting's first word, else all of its name."""
    first = name.split(" ", 1)[0]
    return first if first in ("sysctl", "module") else name


def _state(kind: str) -> str:
    return "note" if kind in HARMLESS else "defect"
