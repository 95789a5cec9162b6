"""
Whether what the inventory calls a plane is one network: each rail asks the same rail of the next node for an echo. Pure.

An echo that comes proves the way; one that does not come proves little by itself, since a fabric may drop ICMP. So a
silent rail is a defect only where others of its plane are answered; where none is, nobody knows.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from chaoskit.model.inventory import Inventory
from chaoskit.model.wire import Finding

PEERS = "peers"


@dataclass(frozen=True, slots=True)
class Echo:
    """One rail of `node` that asks the same rail of `peer`, at an IPv4 address."""

    node: str
    netdev: str
    rail: int
    plane: str
    peer: str
    to: str

    def order(self) -> dict[str, str]:
        """Return what the node is asked for."""
        return {"netdev": self.netdev, "to": self.to}

    @property
    def says(self) -> str:
        """Return who asks whom."""
        return f"{self.netdev} (rail {self.rail}, plane {self.plane}) is not answered by {self.peer} ({self.to})"


def echoes(inventory: Inventory, addresses: Mapping[str, Mapping[str, Sequence[str]]]) -> list[Echo]:
    """
    Return who asks whom: the nodes of a rail stand in a ring, so that each is asked by another.

    Args:
        inventory: The site.
        addresses: Node -> network device of a rail that is well -> its IPv4 addresses.
    """
    standing = [
        (rail.plane, index, node.name, rail.netdev, addresses[node.name][rail.netdev][0])
        for node in inventory.nodes.values()
        for index, rail in enumerate(node.rails)
        if rail.plane is not None and rail.netdev is not None and addresses.get(node.name, {}).get(rail.netdev)
    ]
    found = []
    for _, members in groupby(sorted(standing, key=lambda one: one[:2]), key=lambda one: one[:2]):
        ring = list(members)
        for (plane, index, node, netdev, _), (_, _, peer, _, to) in zip(ring, [*ring[1:], ring[0]], strict=True):
            if peer != node:
                found.append(Echo(node, netdev, index, plane, peer, to))
    return found


def peer_findings(asked: Sequence[Echo], silent: Mapping[tuple[str, str], str]) -> tuple[dict[str, list[Finding]], list[Finding]]:
    """
    Return what the echoes say: findings by node, and those of a whole plane.

    Args:
        asked: Every echo that was really tried.
        silent: (node, network device) -> why no answer came.
    """
    nodes: dict[str, list[Finding]] = {}
    whole = []
    for plane in dict.fromkeys(echo.plane for echo in asked):
        members = [echo for echo in asked if echo.plane == plane]
        quiet = [echo for echo in members if (echo.node, echo.netdev) in silent]
        if len(quiet) == len(members):
            says = f"no node answers another over plane {plane}: either it is broken, or it drops ICMP echoes"
            whole.append(Finding(PEERS, "unknown", says, f"on {quiet[0].node}: ping -I {quiet[0].netdev} {quiet[0].to}"))
            continue
        for echo in members:
            nodes.setdefault(echo.node, []).append(_finding(echo, silent.get((echo.node, echo.netdev))))
    return nodes, whole


def _finding(echo: Echo, why: str | None) -> Finding:
    if why is None:
        return Finding(PEERS, "ok", f"{echo.netdev} is answered by {echo.peer} over plane {echo.plane}")
    do = f"are both cabled to one network? on {echo.node}: ping -I {echo.netdev} {echo.to}"
    return Finding(PEERS, "defect", f"{echo.says}, while others of the plane are: {why}", do)


def addresses_in(findings: Sequence[Finding]) -> dict[str, list[str]]:
    """Return the IPv4 addresses of a node's rails that are well, as the look at its rails read them; anything else is left out."""
    told = [one.readings.get("addresses") for one in findings]
    pairs = [(str(netdev), found) for each in told if isinstance(each, dict) for netdev, found in each.items() if isinstance(found, list)]
    return {netdev: [text for text in found if _is_ipv4(text)] for netdev, found in pairs}


def _is_ipv4(text: Any) -> bool:
    """Whether another node may be asked to send something there: it is a node that says so."""
    try:
        address = ipaddress.IPv4Address(text) if isinstance(text, str) else None
    except ValueError:
        return False
    return address is not None and not (address.is_multicast or address.is_loopback or address.is_unspecified or address.is_reserved)
