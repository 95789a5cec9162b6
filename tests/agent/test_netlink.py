"""The kernel's own answers, compared with what `ip` says of the same namespace."""

import errno
import json
import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaoskit.agent import netlink
from chaoskit.agent.netlink import Netlink, NetlinkError, attributes, packed

ASK = """
import json
from chaoskit.agent.netlink import Netlink, set_up
set_up("lo", True)
with Netlink() as kernel:
    links = [link._asdict() for link in kernel.links()]
    ways = [kernel.link_towards(to) for to in ("127.0.0.1", "192.0.2.1", "::1")]
set_up("lo", False)
with Netlink() as kernel:
    print(json.dumps([links, ways, [link.up for link in kernel.links()]]))
"""


@pytest.fixture
def asked():
    """Return what the kernel says in a fresh network namespace: links, ways, and whether they are up afterwards."""
    argv = ["unshare", "--net", sys.executable, "-c", ASK]
    return json.loads(subprocess.run(argv, check=True, capture_output=True, timeout=30).stdout)


def test_a_fresh_namespace_has_the_loopback_link(asked):
    (link, *others), _, _ = asked

    assert not [other for other in others if other["flags"] & netlink.IFF_UP]
    assert (link["name"], link["ifindex"], link["arp_type"], link["mtu"]) == ("lo", 1, 772, 65536)
    assert link["flags"] & netlink.IFF_UP


def test_the_way_to_an_address_is_its_link_or_none(asked):
    _, (loopback, nowhere, loopback6), _ = asked

    assert (loopback, nowhere, loopback6) == (1, 0, 1)


def test_a_link_goes_down_by_one_call(asked):
    assert asked[2][0] is False


def test_links_are_those_that_ip_shows():
    shown = {link["ifname"]: link for link in json.loads(subprocess.run(["ip", "-j", "link"], check=True, capture_output=True).stdout)}
    with Netlink() as kernel:
        links = {link.name: link for link in kernel.links()}

    assert {name: (link["ifindex"], link["mtu"], "UP" in link["flags"]) for name, link in shown.items()} == {
        name: (link.ifindex, link.mtu, link.up) for name, link in links.items()
    }


def test_a_refusal_carries_the_kernel_s_number_and_words():
    """A gateway that nothing leads to, in a namespace without routes."""
    code = (
        "import socket, struct\nfrom chaoskit.agent.netlink import *\n"
        "head = struct.pack('=BBBBBBBBI', socket.AF_INET, 24, 0, 0, 254, 4, 0, 1, 0)\n"
        "body = head + packed([(1, bytes([192, 0, 2, 0])), (5, bytes([198, 51, 100, 1]))])\n"
        "try: Netlink().put(NEWROUTE, CREATE, body)\nexcept NetlinkError as error: print(error.errno, error.strerror)\n"
    )
    done = subprocess.run(["unshare", "--net", sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=30)

    assert done.stdout == "{} Nexthop has invalid gateway\n".format(errno.ENETUNREACH)


def test_a_device_that_is_not_there_is_an_error():
    with pytest.raises(OSError, match="No such device"):
        netlink.set_up("no-such-device"[:15], up=True)


def test_the_kernel_s_error_is_an_os_error():
    with Netlink() as kernel, pytest.raises(NetlinkError) as refused:
        kernel.dump(9999, struct.pack("=BxHiII", 0, 0, 0, 0, 0))

    assert refused.value.errno == errno.EOPNOTSUPP


@given(st.lists(st.tuples(st.integers(0, 0xFFFF), st.binary(max_size=40)), max_size=8))
def test_attributes_survive_packing(items):
    assert attributes(packed(items)) == items


@given(st.binary(max_size=60))
def test_torn_attributes_are_left_out_and_never_loop(data):
    """What comes from the kernel is trusted to be whole; what comes from a ledger may not be."""
    assert sum(len(value) + 4 for _, value in attributes(data)) <= len(data)
