"""
What a node hangs by is not cut unless the experiment says so: real routes, bridges and cables in a namespace of the test's own.

Bonds, VLANs, teams, macvlans and VRFs are made up, since not every kernel that runs this has them.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaoskit.agent import control_path, mounts, netlink
from chaoskit.agent.contract import CONTROL_PATH, Refusal, Site
from chaoskit.agent.control_path import below, default_links, kubelet_hosts, name_servers, slurm_hosts, ways
from chaoskit.agent.mounts import Mount
from chaoskit.agent.netlink import Link, Netlink

pytestmark = pytest.mark.row("L10", "L20")


@pytest.fixture(autouse=True)
def no_services(monkeypatch):
    """This machine's own name servers are not what is tried here."""
    for name in ("RESOLVERS", "SLURM", "KUBELET"):
        monkeypatch.setattr(control_path, name, ())


def said(site, *names):
    """Return why one of these devices may not be cut; empty when all may."""
    with Netlink() as kernel:
        chosen = [link for link in kernel.links() if link.name in names]
        assert len(chosen) == len(names)
        try:
            control_path.refuse(kernel, site, chosen, "n link_flap")
        except Refusal as refused:
            return str(refused)
    return ""


def names_of(indexes):
    with Netlink() as kernel:
        return sorted(link.name for link in kernel.links() if link.ifindex in indexes)


# -- real devices and routes ---------------------------------------------------------------------------------------


def test_the_connections_own_device_is_refused_and_the_other_is_not(wires):
    site = Site("n", control_addresses=("10.1.0.1",), controller_addresses=("10.1.0.2",))

    assert "ra carries the SSH connection (10.1.0.1)" in said(site, "ra")
    assert "" == said(site, "rb")


def test_the_way_back_is_refused_where_the_address_stands_elsewhere(wires, bench):
    """The address is on a device of its own, as hosts do that speak a routing protocol."""
    bench.ip("link add anywhere type bridge")
    bench.ip("addr add 10.7.0.1/32 dev anywhere")
    bench.ip("link set anywhere up")
    bench.ip("route add 10.9.0.0/16 via 10.2.0.2 src 10.7.0.1")
    site = Site("n", control_addresses=("10.7.0.1",), controller_addresses=("10.9.1.1",))

    assert "rb leads to 10.9.1.1, where the SSH connection comes from" in said(site, "rb")
    assert "anywhere carries the SSH connection" in said(site, "anywhere")
    assert "" == said(site, "ra")


def test_every_member_of_a_bridge_that_carries_it_is_refused(wires, bench):
    """And the other end of a cable that is a member: with that down, the member has no signal."""
    bench.ip("link add br0 type bridge")
    bench.ip("link add va type veth peer name vb")
    for name in ("ra", "va"):
        bench.ip("link set", name, "master br0")
    bench.ip("addr add 10.8.0.1/24 dev br0")
    for name in ("br0", "va", "vb"):
        bench.ip("link set", name, "up")
    site = Site("n", control_addresses=("10.8.0.1",))

    for name in ("ra", "va", "vb"):
        assert f"{name} lies below br0, which carries the SSH connection (10.8.0.1)" in said(site, name)
    assert "" == said(site, "rb")


def test_the_default_route_is_the_main_tables_and_the_preferred_one(wires, bench):
    """A rail has a default route in a table of its own wherever its NICs are addressed one by one."""
    bench.ip("route add default via 10.1.0.2 table 101")
    bench.ip("route add default via 10.1.0.2 metric 200")
    bench.ip("route add default via 10.2.0.2 metric 100")

    assert "rb carries the default route" in said(Site("n"), "rb")
    assert "" == said(Site("n"), "ra")


def test_every_leg_of_a_way_over_several_devices_counts(wires, bench):
    """By which one the kernel would send is a matter of a hash, and of the moment."""
    bench.ip("route add 10.9.0.0/16 nexthop via 10.1.0.2 nexthop via 10.2.0.2")
    bench.ip("route add default nexthop via 10.1.0.2 nexthop via 10.2.0.2")

    with Netlink() as kernel:
        assert ["ra", "rb"] == names_of(ways(kernel, "10.9.1.1", ())) == names_of(default_links(kernel))
    for name in ("ra", "rb"):
        assert f"{name} leads to the protected address 10.9.1.1" in said(Site("n", protected_addresses=("10.9.1.1",)), name)


def test_a_way_that_only_our_own_address_takes_counts(wires, bench):
    bench.ip("route add default via 10.1.0.2 table 102")
    bench.ip("rule add from 10.2.0.1 to 10.98.0.0/16 lookup 102")

    with Netlink() as kernel:
        assert ["ra"] == names_of(ways(kernel, "10.98.0.1", ("10.2.0.1", "fe80::1")))
        assert [] == names_of(ways(kernel, "10.98.0.1", ()))


@pytest.mark.parametrize("wires", [True], indirect=True)
def test_ipv6_has_a_default_route_of_its_own(wires, bench):
    bench.ip("-6 route add default via fe80::99 dev rb metric 5")
    bench.ip("route add default via 10.1.0.2 metric 700")

    assert "carries the default route" in said(Site("n"), "ra")
    assert "carries the default route" in said(Site("n"), "rb")


def test_an_experiment_may_allow_it(wires, bench):
    bench.ip("route add default via 10.1.0.2")
    site = Site("n", control_addresses=("10.1.0.1",), allow=(CONTROL_PATH,))

    assert "" == said(site, "ra", "rb")
    assert "say `allow: [control_path]` beside the fault" in said(Site("n"), "ra")


SERVICES = {
    "RESOLVERS": ("search example\nnameserver 10.1.0.2\n", "ra leads to 10.1.0.2, a name server of this node"),
    "SLURM": ("ClusterName=x\nSlurmctldHost=ctl1(10.1.0.2)\n", "ra leads to 10.1.0.2, its scheduler 10.1.0.2"),
    "KUBELET": ("clusters:\n- cluster:\n    server: https://10.1.0.2:6443\n", "ra leads to 10.1.0.2, its scheduler 10.1.0.2"),
}


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_node_needs_to_live_is_not_cut_off(name, wires, tmp_path, monkeypatch):
    text, words = SERVICES[name]
    (tmp_path / "conf").write_text(text)
    monkeypatch.setattr(control_path, name, (tmp_path / "none", tmp_path / "conf"))

    assert words in said(Site("n"), "ra")
    assert "" == said(Site("n"), "rb")


@pytest.mark.parametrize("options", ["rw,proto=tcp,addr=10.1.0.2", "rw,proto=rdma,addr=10.1.0.2"])
def test_a_home_on_the_network_is_not_cut_off(options, wires, monkeypatch):
    """Nobody could log in: neither we nor whoever comes to mend it."""
    table = [Mount(1, "0:40", "/", "/", "ext4", "/dev/sda1", "rw"), Mount(2, "0:50", "/", "/root", "nfs4", "files:/root", options)]
    monkeypatch.setattr(mounts, "table", lambda: table)

    assert "ra leads to 10.1.0.2, which serves the home directory /root" in said(Site("n"), "ra")
    assert "" == said(Site("n"), "rb")


# -- what is read --------------------------------------------------------------------------------------------------


def test_the_controllers_of_slurm_are_found_however_they_are_written():
    text = "slurmctldhost = a(10.0.0.1) # first\nSlurmctldHost=b\n#SlurmctldHost=c\nControlMachine=d\nBackupAddr=e\nSlurmctldPort=6817\n"

    assert ["10.0.0.1", "b", "d", "e"] == slurm_hosts([text])


def test_the_servers_of_a_kubeconfig_are_found():
    assert ["10.0.0.1", "api.example", "fd00::1"] == kubelet_hosts(
        ['    server: https://api.example:6443\n    server: "https://[fd00::1]:6443"\n', "server: http://10.0.0.1\nobserver: https://x\n"]
    )


def test_a_resolver_on_the_node_itself_leads_nowhere():
    assert ["10.0.0.1", "fe80::1"] == name_servers(
        [
            "nameserver 127.0.0.53\nnameserver ::1\n",
            "# nameserver 10.0.0.9\nnameserver fe80::1%eth0\nnameserver 10.0.0.1\nnameserver junk\n",
        ]
    )


# -- devices that not every kernel can make ------------------------------------------------------------------------


def link(index, name, kind="", master=0, lower=0):
    return Link(index, name, kind, netlink.ARPHRD_ETHER, 1, 1500, master, lower, carrier=True, carrier_changes=0, carrier_down_count=0,
                rx_bytes=0, tx_bytes=0)  # fmt: skip


STACKS = {
    "a bond": ([link(1, "eth0", master=3), link(2, "eth1", master=3), link(3, "bond0", "bond")], 3, {1, 2}),
    "a VLAN on a bond": (
        [link(1, "eth0", master=3), link(2, "eth1", master=3), link(3, "bond0", "bond"), link(4, "bond0.7", "vlan", lower=3)],
        4,
        {1, 2, 3},
    ),
    "a bridge on a VLAN": ([link(1, "eth0"), link(2, "eth0.7", "vlan", master=3, lower=1), link(3, "br0", "bridge")], 3, {1, 2}),
    "a team": ([link(1, "eth0", master=2), link(2, "team0", "team")], 2, {1}),
    "a macvlan": ([link(1, "eth0"), link(2, "mv0", "macvlan", lower=1), link(3, "mv1", "macvlan", lower=1)], 2, {1}),
    "a member of a VRF": ([link(1, "eth0", master=2), link(2, "blue", "vrf")], 1, set()),
    "a cable with both ends here": ([link(1, "va", "veth", lower=2), link(2, "vb", "veth", lower=1)], 1, {2}),
    "a plain NIC under a VLAN": ([link(1, "eth0"), link(2, "eth0.7", "vlan", lower=1)], 1, set()),
}


@pytest.mark.parametrize("name", STACKS)
def test_all_that_a_device_stands_on_is_known(name):
    links, root, expected = STACKS[name]

    assert expected == below(links, root)


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=8), st.integers(1, 8))
def test_whatever_the_stack_what_lies_below_is_found_once_and_all_of_it(pairs, root):
    """Also where devices stand on each other in a circle: it ends, and holds each one's own below."""
    links = [link(index, f"d{index}", master=master, lower=lower) for index, (master, lower) in enumerate(pairs, 1)]
    found = below(links, root)

    assert root not in found
    for one in links:
        if one.master == root or one.ifindex in found or one.ifindex == root:
            assert not one.lower or one.lower in found | {root} or one.master == root
        if one.master in found | {root} and one.master:
            assert one.ifindex in found | {root}
        if one.ifindex in found | {root} and one.lower:
            assert one.lower in found | {root}
