"""
The lab's networks: one management, one storage and two rail networks, and the spraying of fabric traffic over the rails.

The switches are bridges in the supervisor's own network namespace. A node's links are made anew at each boot, as a
reboot restores a real machine's. Traffic to a fabric address is marked per packet, in turn, by an nftables output hook,
and each mark's routing table prefers one rail and falls back to the other: this is what a fabric of two planes does.
"""

import subprocess
from pathlib import Path

from chaoskit.agent import qdiscs
from chaoskit.errors import ChaosError
from chaoskit.lab.plan import NETWORKS, PLANES, LabPlan, NodePlan
from chaoskit.lab.requirements import program

TABLES = {"rail0": 101, "rail1": 102}
"""Rail -> the routing table that prefers it; packets carry the mark 1 or 2 for them."""

SYSCTLS = {
    "net/ipv4/ip_forward": "0",  # no node carries another's packets from plane to plane
    "net/ipv4/conf/all/rp_filter": "0",  # fabric packets arrive on either rail
    "net/ipv4/conf/default/rp_filter": "0",
    "net/ipv4/conf/all/arp_ignore": "1",  # a rail answers for its own address only
    "net/ipv4/conf/all/arp_announce": "2",
    "net/ipv4/tcp_reordering": "127",  # two planes reorder all the time: that is no loss
    "net/ipv6/conf/all/disable_ipv6": "1",
    "net/ipv6/conf/default/disable_ipv6": "1",
}

NEWER_SYSCTLS = {
    "net/ipv4/tcp_rto_min_us": "50000",  # Linux 6.11: a lost tail costs 50 ms, not 200
}
"""Set where the kernel has them."""

SEGMENT = 16384
"""Largest packet that TCP hands to a rail: of the default 64 KiB a ring's chunk has too few to share them out evenly."""

ACKNOWLEDGEMENT = 200
"""Bytes up to which a packet carries no data to speak of."""


def port(node: NodePlan, link: str) -> str:
    """Return the name of the switch port that a node's link is plugged into."""
    return f"{node.name}-{link}"


def switches_batch(plan: LabPlan, host_netns: str) -> str:
    """Return the `ip -batch` lines that make the switches and the host's link, run in the fabric namespace."""
    lines = ["link set lo up"]
    for link in NETWORKS:
        if link != "fab0":
            lines += [f"link add sw-{link} type bridge mcast_snooping 0", f"link set sw-{link} up"]
    lines += [
        f"link add host type veth peer name {plan.host_link} netns {host_netns}",
        "link set host master sw-mgmt0 up",
    ]
    return "\n".join(lines)


def host_batch(plan: LabPlan) -> str:
    """Return the `ip -batch` lines for the host's own end of its link."""
    return "\n".join(
        (
            f"link set {plan.host_link} addrgenmode none",
            f"address add {plan.host_address}/24 dev {plan.host_link}",
            f"link set {plan.host_link} up",
        )
    )


def node_batch(plan: LabPlan, node: NodePlan, fabric_pid: int) -> str:
    """Return the `ip -batch` lines that give a node its links, addresses and routes, run in its namespace."""
    lines = ["link set lo up"]
    for link in node.links:
        lines += [
            f"link add {link} address {plan.mac(node, link)} type veth peer name {port(node, link)} netns {fabric_pid}",
            f"address add {plan.address(node, link)}/24 dev {link}",
            f"link set {link} {f'gso_max_size {SEGMENT} ' if link in PLANES else ''}up",
        ]
    return "\n".join(lines + (_fabric_lines(plan, node) if "rail0" in node.links else []))


def _fabric_lines(plan: LabPlan, node: NodePlan) -> list[str]:
    own = plan.address(node, "fab0")
    lines = [
        # On a bridge and not on lo, because collective libraries skip loopback devices.
        f"link add fab0 address {plan.mac(node, 'fab0')} type bridge",
        f"address add {own}/32 dev fab0",
        "link set fab0 up",
    ]
    for mark, rail in enumerate(PLANES, start=1):
        lines.append(f"rule add fwmark {mark} lookup {TABLES[rail]} pref {1000 + mark}")
    for peer in plan.nodes:
        if peer != node and "rail0" in peer.links:
            lines += _routes_to(plan, peer, own)
    return lines


def _routes_to(plan: LabPlan, peer: NodePlan, own: str) -> list[str]:
    first, second = PLANES
    lines = []
    for table, rails in (("main", (first, second)), (TABLES[first], (first, second)), (TABLES[second], (second, first))):
        lines += [
            f"route add {plan.address(peer, 'fab0')}/32 via {plan.address(peer, rail)} dev {rail} src {own} table {table} metric {metric}"
            for metric, rail in zip((10, 20), rails, strict=True)
        ]
    return lines


def spray_rules(plan: LabPlan) -> str:
    """
    Return the nftables rules that mark a node's fabric packets 1, 2, 1, 2, ...

    Data and acknowledgements are counted apart: when they alternate, one count would send all data over one plane.
    """
    fabric = f"ip daddr {plan.subnet('fab0')}"
    return (
        "table ip chaoskit_lab {\n  chain spray {\n    type route hook output priority mangle; policy accept;\n"
        f"    {fabric} meta length > {ACKNOWLEDGEMENT} meta mark set numgen inc mod 2 offset 1 accept\n"
        f"    {fabric} meta mark set numgen inc mod 2 offset 1\n  }}\n}}\n"
    )


def ports_batch(node: NodePlan) -> str:
    """Return the `ip -batch` lines that plug a node's links into the switches, run in the fabric namespace."""
    return "\n".join(f"link set {port(node, link)} master sw-{link} up" for link in node.links)


def unplug_batch(node: NodePlan) -> str:
    """Return the `ip -batch` lines that remove what an earlier boot left plugged in."""
    return "\n".join(f"link delete {port(node, link)}" for link in node.links)


def rate_batch(plan: LabPlan, devices: list[str]) -> str:
    """
    Return the `tc -batch` lines that limit what each device sends.

    Their handle keeps audits from telling them as somebody else's. The burst holds whole 64 KiB segments; the queue holds more
    than a connection keeps in flight, so that a slow rail delays and does not drop.
    """
    made = f"root handle {qdiscs.LAB >> 16:x}: tbf rate {plan.rail_mbit}mbit burst 128kb limit 4mb"
    return "\n".join(f"qdisc add dev {name} {made}" for name in devices)


def build_switches(plan: LabPlan, host_netns: str) -> None:
    """Make the switches and the host's link; called in the fabric namespace. `host_netns` is a path to the host's own."""
    _feed("ip -batch -", switches_batch(plan, host_netns))
    _feed(f"nsenter --net={host_netns} ip -batch -", host_batch(plan))


def connect_node(plan: LabPlan, node: NodePlan, fabric_pid: int) -> None:
    """Give a node its links; called in the node's fresh namespace. The process `fabric_pid` is in the fabric namespace."""
    fabric = f"nsenter --net=/proc/{fabric_pid}/ns/net"
    rails = [link for link in node.links if link in PLANES]
    _feed(f"{fabric} ip -force -batch -", unplug_batch(node), check=False)  # there are none at the first boot
    for name, value in SYSCTLS.items():
        _sysctl(name, value)
    for name, value in NEWER_SYSCTLS.items():
        if Path("/proc/sys", name).exists():
            _sysctl(name, value)
    _feed("ip -batch -", node_batch(plan, node, fabric_pid))
    _feed(f"{fabric} ip -batch -", ports_batch(node))
    if rails:
        _feed("nft -f -", spray_rules(plan))
        _feed("tc -batch -", rate_batch(plan, rails))
        _feed(f"{fabric} tc -batch -", rate_batch(plan, [port(node, link) for link in rails]))
        for link in rails:  # a rail whose cable is out is no route, though the device is up
            _sysctl(f"net/ipv4/conf/{link}/ignore_routes_with_linkdown", "1")


def _sysctl(name: str, value: str) -> None:
    Path("/proc/sys", name).write_text(value, encoding="ascii")


def _feed(command: str, text: str, *, check: bool = True) -> None:
    name, *rest = command.split()
    done = subprocess.run([program(name), *rest], input=text.encode(), capture_output=True, check=False)
    if check and done.returncode != 0:
        says = done.stderr.decode("utf-8", "replace").strip()
        raise ChaosError(f"{command} failed: {says}", where="lab network")
