"""Where `link_flap` is tried."""

import subprocess
import sys

from bench import drop_rights, ip, net_snapshot, settle, tc, wires

from chaoskit.agent.contract import Rail, Site
from chaoskit.agent.host import Host
from chaoskit.faults import load
from chaoskit.testing import Bench

TRAFFIC = """
import socket, time
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(10_000):
    try:
        sender.sendto(bytes(1000), ("10.1.0.2", 9))
    except OSError:
        pass  # the rail is down, which is the point
    time.sleep(0.005)
"""


def bench():
    """Two rails on two planes, with every kind of thing on rail 0 that the kernel forgets."""
    wires("ra", "rb")
    ip("-6 addr add fd00:1::1/64 dev ra")
    ip("route add default via 10.1.0.2 table 101 metric 3 mtu 1400")
    ip("route add default via 10.2.0.2 table 101 metric 4")
    ip("rule add fwmark 1 lookup 101")
    ip("route add 10.7.0.0/16 nexthop via 10.1.0.2 weight 3 nexthop via 10.2.0.2")
    ip("-6 route add fd00:9::/48 via fd00:1::2")
    ip("neigh add 10.1.0.2 lladdr 02:00:00:00:00:02 dev ra nud permanent")
    tc("qdisc add dev ra root handle 5: tbf rate 100mbit burst 100k latency 50ms")
    subprocess.Popen([sys.executable, "-c", TRAFFIC])
    settle()
    site = Site("bench", rails=(Rail(0, "ra", plane="A"), Rail(1, "rb", plane="B")))
    return load("link_flap", {"plane": "A", "down": 1.0}), Bench(Host(site), net_snapshot)


def host(*rails):
    """Return a node with rails."""
    return Host(Site("bench", rails=rails))


def unprivileged():
    """A good rail, and nobody's rights."""
    wires("ra", ipv6=False)
    drop_rights()
    return {"rail": 0}, host(Rail(0, "ra")), ("NET_ADMIN",)


def stacked():
    """A container's macvlan on the rail, which would lose its routes (a foreign qdisc only sleeps while the link is down)."""
    wires("ra", ipv6=False)
    ip("link add link ra name mv0 type macvlan")
    return {"rail": 0}, host(Rail(0, "ra")), ("ra has mv0 stacked on it", "remove it for the experiment")


REFUSALS = {
    "wrong parameters": lambda: ({"rail": 0, "plane": "A"}, host(), ("exactly one of rail and plane",)),
    "missing tools": "it speaks to the kernel itself, without any program",
    "no rights": unprivileged,
    "in the way": stacked,
}
