"""Host ranges to nodes: expansion, `like`, placeholders in addresses, and what must be unique."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from chaoskit.model.experiment_checks import check_hostlist
from chaoskit.model.hostlist import MOST
from chaoskit.model.inventory import InventoryFile, Node, NodeSpec, RailSpec
from chaoskit.model.source import Source, Where
from chaoskit.model.typed import did_you_mean

TAKEN_BY_LIKE = ("gpus", "gpu_clocks", "rails", "mounts", "python", "address")
"""What `like` takes from the other group, when it is not given; an address only with a placeholder."""

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_ADDRESS = re.compile(r"[A-Za-z0-9:][A-Za-z0-9_.:%-]*")
_NETDEV = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9_.-]{1,15}")
_CLOCKS = re.compile(r"default|([1-9][0-9]{1,4})-([1-9][0-9]{1,4})")
_MACHINE_ID = re.compile(r"[0-9a-f]{32}")


def expand_nodes(source: Source, file: InventoryFile) -> dict[str, Node]:
    """Return the nodes in file order, by name; report what is wrong with them."""
    protected = {name for text in file.protected for name in _quietly(text)}
    nodes: dict[str, Node] = {}
    ranges: dict[str, str] = {}
    for text, spec in file.nodes.items():
        where: Where = ("nodes", text)
        names = check_hostlist(source, text, where)
        full = _like(source, file, spec, where)
        _check_spec(source, spec, where, len(names))
        if len(nodes) + len(names) > MOST:
            source.report(where, f"the inventory has more than {MOST:,} nodes")
            break
        for index, name in enumerate(names, 1):
            if name in nodes:
                source.report(where, f"{name} stands here and in {ranges[name]}", "each node once", at=source.key_at(where))
                continue
            ranges[name] = text
            nodes[name] = _node(name, index, full, protected=name in protected)
    _check_unique(source, nodes, ranges)
    return nodes


def _quietly(text: str) -> tuple[str, ...]:
    """Expand a protected range; what is wrong with it is reported by the checks."""
    return check_hostlist(Source(""), text, ())


def _node(name: str, index: int, full: Mapping[str, Any], *, protected: bool) -> Node:
    address = full["address"]
    if address is not None:
        address = address.replace("{node}", name).replace("{index}", str(index))
    return Node(name=name, protected=protected, **{**full, "address": address})


def _like(source: Source, file: InventoryFile, spec: NodeSpec, where: Where) -> dict[str, Any]:
    """Return the spec's values with what `like` gives for those that the file leaves out."""
    values = {name: getattr(spec, name) for name in ("group", "machine_id", *TAKEN_BY_LIKE)}
    text, seen = str(where[1]), {str(where[1])}
    given = set(_given(source, text))
    while spec.like is not None:
        others = [other for other, candidate in file.nodes.items() if candidate.group == spec.like and other not in seen]
        if not others:
            groups = sorted({other.group for other in file.nodes.values() if other.group})
            _report(
                source,
                ("nodes", text, "like"),
                f"there is no other group {spec.like!r} to be like",
                did_you_mean(spec.like, groups, "groups"),
            )
            break
        text = others[0]
        spec = file.nodes[text]
        seen.add(text)
        for name in TAKEN_BY_LIKE:
            if name in _given(source, text) and name not in given and (name != "address" or "{" in str(spec.address)):
                values[name] = getattr(spec, name)
                given.add(name)
    return values


def _given(source: Source, text: str) -> list[str]:
    """Return the keys that the file itself gives for a range."""
    nodes = source.value.get("nodes")
    spec = nodes.get(text) if isinstance(nodes, Mapping) else None
    return list(spec) if isinstance(spec, Mapping) else []


def _report(source: Source, path: Where, what: str, hint: str = "") -> None:
    if not source.is_broken(path):
        source.report(path, what, hint)


def _check_spec(source: Source, spec: NodeSpec, where: Where, count: int) -> None:
    if spec.machine_id is not None:
        if count > 1:
            _report(source, (*where, "machine_id"), f"one machine id for {count} nodes", "give each such node a line of its own")
        if not _MACHINE_ID.fullmatch(spec.machine_id):
            _report(source, (*where, "machine_id"), "expected 32 hexadecimal digits", "as in /etc/machine-id")
    if spec.address is not None:
        _check_address(source, spec.address, (*where, "address"))
    for index, mount in enumerate(spec.mounts):
        if not mount.startswith("/"):
            _report(source, (*where, "mounts", index), f"expected an absolute path; found {mount!r}")
    if spec.python is not None and not spec.python.startswith("/"):
        _report(source, (*where, "python"), f"expected an absolute path; found {spec.python!r}", "such as /usr/bin/python3")
    _check_clocks(source, spec.gpu_clocks, (*where, "gpu_clocks"))
    _check_rails(source, spec.rails, where)


def _check_clocks(source: Source, text: str | None, where: Where) -> None:
    found = _CLOCKS.fullmatch(text or "default")
    if found is None or (found[1] is not None and int(found[1]) > int(found[2])):
        _report(source, where, f"{text!r} is no range of clocks", "`default`, or the locked range in MHz, such as 210-1410")


def _check_address(source: Source, address: str, where: Where) -> None:
    unknown = [name for name in _PLACEHOLDER.findall(address) if name not in ("node", "index")]
    if unknown:
        _report(source, where, f"unknown placeholder {{{unknown[0]}}}", did_you_mean(unknown[0], ["node", "index"], "placeholders"))
    elif not _ADDRESS.fullmatch(_PLACEHOLDER.sub("0", address)):
        _report(source, where, f"{address!r} is not an address", "a host name, an IPv4 or an IPv6 address, {node} or {index} in it")


def _check_rails(source: Source, rails: Sequence[RailSpec], where: Where) -> None:
    seen: dict[str, int] = {}
    for index, rail in enumerate(rails):
        here = (*where, "rails", index)
        if rail.netdev is None and rail.rdma is None:
            _report(source, here, "a rail without a device", "give netdev, rdma or both")
        for kind in ("netdev", "rdma"):
            device = getattr(rail, kind)
            if device is None:
                continue
            if not _NETDEV.fullmatch(device):
                _report(source, (*here, kind), f"{device!r} is not a device name", "such as eth2 or mlx5_0")
            if device in seen:
                _report(source, (*here, kind), f"{device} is rail {seen[device]} already", "each device once a node")
            seen.setdefault(device, index)
        if rail.plane is not None and not rail.plane.strip():
            _report(source, (*here, "plane"), "a plane without a name", "such as A")


def _check_unique(source: Source, nodes: Mapping[str, Node], ranges: Mapping[str, str]) -> None:
    """Two nodes that are one machine would be harmed twice and counted as two."""
    for key in ("address", "machine_id"):
        seen: dict[str, str] = {}
        for node in nodes.values():
            value = getattr(node, key)
            if key == "address":
                value = (value or node.name).lower()  # one without an address is reached by its name
            if value is None:
                continue
            if value in seen:
                hint = "{node} or {index} in an address makes it differ" if key == "address" else ""
                where: Where = ("nodes", ranges[node.name], key)
                _report(source, where, f"{node.name} has the {key} of {seen[value]}: {value}", hint)
            seen.setdefault(value, node.name)
