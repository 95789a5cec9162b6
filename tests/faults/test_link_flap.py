import json
import socket
import subprocess
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chaoskit.agent import netlink
from chaoskit.agent.contract import CONTROL_PATH, Rail, Refusal, Site
from chaoskit.agent.host import Host
from chaoskit.agent.netlink import Link
from chaoskit.errors import InputError, NodeError
from chaoskit.faults import load
from chaoskit.faults.link_flap import LinkFlap, unfit

RAILS = (Rail(0, "ra", plane="A"), Rail(1, "rb", plane="B"))


class HurriedHost(Host):
    """A node whose clock runs twenty times as fast, so that a patience of seconds is over soon."""

    def monotonic(self):
        return super().monotonic() * 20


class WakefulHost(Host):
    """A node on which nothing may wait."""

    def sleep(self, seconds):
        raise AssertionError("slept {} s".format(seconds))


@pytest.fixture
def host(wires):
    return Host(Site("node7", rails=RAILS, allow=(CONTROL_PATH,)))  # some of what stands on these rails is a way out


def flap(fault, host, bench):
    """Capture, set down, put back; return what stood there before and after."""
    bench.settle()
    before = bench.net_snapshot()
    undo = fault.prepare(host)
    fault.inject(host, undo)
    down = bench.net_snapshot()
    fault.revert(host, undo)
    gone = fault.gone(host, undo)
    assert gone.holds, gone.says
    assert down != before
    return before, bench.net_snapshot()


STATES = {
    "tables and rules": [
        "route add default via 10.1.0.2 table 101 metric 3 mtu 1400",
        "route add default via 10.2.0.2 table 101 metric 4",
        "route add 10.6.0.0/16 dev ra table 70000 scope link src 10.1.0.1",
        "rule add fwmark 1 lookup 101",
        "route add blackhole 10.5.0.0/16",
    ],
    "multipath": [
        "route add 10.7.0.0/16 nexthop via 10.1.0.2 weight 3 nexthop via 10.2.0.2",
    ],
    "equal metrics, ours first": ["route add 10.9.0.0/16 via 10.1.0.2", "route append 10.9.0.0/16 via 10.2.0.2"],
    "equal metrics, ours last": ["route add 10.9.0.0/16 via 10.2.0.2", "route append 10.9.0.0/16 via 10.1.0.2"],
    "equal metrics, several ours": [
        "addr add 10.1.1.1/24 dev ra",
        "route add 10.9.0.0/16 via 10.1.0.2",
        "route append 10.9.0.0/16 via 10.1.1.2",
        "route append 10.9.0.0/16 via 10.2.0.2",
    ],
    "metrics, types of service, onlink": [
        "route add 10.9.0.0/16 via 10.1.0.2 metric 5",
        "route add 10.9.0.0/16 via 10.2.0.2 metric 6",
        "route add 10.9.0.0/16 via 10.1.0.3 metric 5 tos 0x10",
        "route add 10.66.0.0/16 via 10.77.0.1 dev ra onlink",
    ],
    "IPv6": [
        "-6 addr add fd00:1::1/64 dev ra",
        "-6 addr add fd00:1::2/64 dev ra nodad",
        "-6 addr add fd00:2::1/64 dev rb nodad",
        "-6 route add fd00:8::/48 nexthop via fd00:1::9 weight 2 nexthop via fd00:2::2",
        "-6 neigh add fe80::2 lladdr 02:00:00:00:00:02 dev ra nud permanent",
        "-6 addr add fd00:3::1/64 dev ra noprefixroute",
        "-6 route add fd00:3::/64 dev ra proto kernel metric 100",
        "-6 route add fd00:9::/48 via fd00:1::9 metric 77",
        "-6 route add fd00:5::/48 via fd00:1::9 expires 600",
        "-6 addr add fd00:4::1/64 dev ra valid_lft 1000 preferred_lft 500 nodad",
        "-6 route add default via fe80::99 dev ra metric 7 table 200",
    ],
    "neighbours": [
        "neigh add 10.1.0.2 lladdr 02:00:00:00:00:02 dev ra nud permanent",
        "neigh add 10.1.0.3 lladdr 02:00:00:00:00:03 dev ra nud noarp",
        "neigh add proxy 10.1.0.200 dev ra",
    ],
    "addresses with broadcast, peer and label": [
        "addr add 10.1.5.1/24 broadcast 10.1.5.255 dev ra label ra:x",
        "addr add 10.1.6.1 peer 10.1.6.2 dev ra",
        "addr add 10.1.0.77/24 dev ra",
        "route add 10.8.0.0/16 via 10.1.6.2",
    ],
}


@pytest.mark.parametrize(("state", "wires"), [(name, "-6" in str(commands)) for name, commands in STATES.items()], indirect=["wires"])
def test_what_the_kernel_forgets_is_put_back(state, host, bench):
    """`ip` and `tc` show afterwards what they showed before."""
    for command in STATES[state]:
        bench.ip(command)

    before, after = flap(LinkFlap(rail=0), host, bench)

    assert before == after


@pytest.mark.parametrize("wires", [True], indirect=True, ids=["IPv6"])
def test_what_a_router_advertised_is_awaited_and_not_made_up(host, bench):
    """Made by us it would never expire; the router's next advertisement brings it back."""
    bench.settle()
    bench.ip("-6 route add fd00:a::/48 via fe80::99 dev ra proto ra")
    fault = LinkFlap(rail=0)
    undo = fault.prepare(host)
    fault.inject(host, undo)

    fault.revert(host, undo)
    alone = fault.gone(HurriedHost(host.site), undo)
    bench.ip("-6 route add fd00:a::/48 via fe80::99 dev ra proto ra")

    assert not alone.holds
    assert "route fd00:a::/48 via fe80::99 table 254 metric 1024" in alone.readings["missing"]
    assert fault.gone(host, undo).holds


@pytest.mark.parametrize("wires", [True], indirect=True, ids=["IPv6"])
def test_a_source_address_is_put_back_before_its_routes(host, bench):
    """The kernel takes such a route only after duplicate detection of its address."""
    bench.ip("-6 addr add fd00:1::1/64 dev ra")
    bench.settle()
    bench.ip("-6 route add fd00:6::/48 via fd00:1::2 src fd00:1::1")

    before, after = flap(LinkFlap(rail=0), host, bench)

    assert before == after


def test_routes_come_back_in_the_order_of_their_need(host, bench):
    """What a gateway is reached by comes first, so that nothing has to be tried twice: t1 is one moment."""
    bench.ip("route add 10.200.0.0/16 dev ra")
    bench.ip("route add 10.201.0.0/16 via 10.200.0.1")
    bench.ip("route add 10.199.0.0/16 via 10.200.0.1")

    before, after = flap(LinkFlap(rail=0), WakefulHost(host.site), bench)

    assert before == after


def test_all_links_of_a_plane_go_down_and_come_back_together(wires, bench):
    """A multipath route over both is dropped, and put back once both are up."""
    host = Host(Site("node7", rails=(Rail(0, "ra", plane="A"), Rail(1, "rb", plane="A"))))
    bench.ip("route add 10.7.0.0/16 nexthop via 10.1.0.2 weight 3 nexthop via 10.2.0.2")

    before, after = flap(LinkFlap(plane="A"), host, bench)

    assert before == after


def test_a_qdisc_that_vanished_meanwhile_is_put_back(host, bench):
    """The kernel keeps it, a driver may not."""
    bench.tc("qdisc add dev ra root handle 5: tbf rate 100mbit burst 100k latency 50ms")
    bench.settle()
    before = bench.net_snapshot()
    fault = LinkFlap(rail=0)
    undo = fault.prepare(host)
    fault.inject(host, undo)
    bench.tc("qdisc del dev ra root")
    assert "qdisc tbf 5:" in fault.gone(host, undo).says

    fault.revert(host, undo)

    assert fault.gone(host, undo).holds
    assert before == bench.net_snapshot()


@pytest.mark.row("L11", "L18")
def test_what_is_not_ours_is_left_alone(host, bench):
    """A route that somebody adds meanwhile stays, also one through our link."""
    fault = LinkFlap(rail=0)
    bench.settle()
    undo = fault.prepare(host)
    fault.inject(host, undo)
    bench.ip("route add 10.50.0.0/16 via 10.2.0.2")

    fault.revert(host, undo)
    bench.ip("route add 10.51.0.0/16 via 10.1.0.2")
    fault.revert(host, undo)

    shown = "\n".join(bench.net_snapshot()["ip -4 -d route show table all"])
    assert "10.50.0.0/16 via 10.2.0.2" in shown
    assert "10.51.0.0/16 via 10.1.0.2" in shown


@pytest.mark.row("L3")
def test_gone_names_what_is_missing(host, bench):
    """A person reads which route to put back."""
    bench.ip("route add 10.9.0.0/16 via 10.1.0.2 metric 5")
    bench.settle()
    fault = LinkFlap(rail=0)
    undo = fault.prepare(host)
    bench.ip("route del 10.9.0.0/16")

    evidence = fault.gone(host, undo)

    assert not evidence.holds
    assert evidence.readings["missing"] == ["route 10.9.0.0/16 via 10.1.0.2 table 254 metric 5"]


@pytest.mark.row("L38")
def test_gone_waits_for_the_signal(wires, bench):
    """A real cable needs seconds to train; until then the link is not back."""
    host = Host(Site("node7", rails=RAILS))
    fault = LinkFlap(rail=0)
    bench.settle()
    undo = fault.prepare(host)
    fault.inject(host, undo)
    bench.ip("link set rap down", peer=wires)
    fault.revert(host, undo)
    assert not fault.gone(HurriedHost(host.site), undo).holds
    later = threading.Timer(0.3, bench.ip, ["link set rap up"], {"peer": wires})
    later.start()

    evidence = fault.gone(host, undo)
    later.join()

    assert evidence.holds, evidence.says


@pytest.mark.row("L13")
def test_a_short_flap_stays_witnessed(host, bench):
    """The counters of the signal only grow."""
    fault = LinkFlap(rail=0)
    undo = fault.prepare(host)
    assert not fault.witness(host, undo).holds
    fault.inject(host, undo)
    fault.revert(host, undo)

    evidence = fault.witness(host, undo)

    assert evidence.holds
    assert evidence.readings["ra"]["carrier_changes"] >= 1
    assert evidence.readings["ra"]["up"]


@pytest.mark.row("L13")
def test_one_link_that_stayed_up_means_not_present(wires, bench):
    """Half a plane is not a plane."""
    host = Host(Site("node7", rails=(Rail(0, "ra", plane="A"), Rail(1, "rb", plane="A"))))
    fault = LinkFlap(plane="A")
    undo = fault.prepare(host)
    bench.ip("link set ra down")

    evidence = fault.witness(host, undo)

    assert (evidence.holds, evidence.says) == (False, "rb did not go down")


def test_an_idle_rail_is_not_exposed_and_a_busy_one_is(host, bench):
    """Bytes a second above the floor, measured where the training's packets pass."""
    bench.settle()
    fault = LinkFlap(rail=0)
    undo = fault.prepare(host)
    idle = fault.exposed(host, undo)
    over = threading.Event()
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def send():
        while not over.wait(0.005):
            sender.sendto(bytes(1000), ("10.1.0.2", 9))

    thread = threading.Thread(target=send)
    thread.start()
    busy = fault.exposed(host, undo)
    over.set()
    thread.join()
    sender.close()

    assert (idle.holds, busy.holds) == (False, True)
    assert idle.readings["bytes_per_second"]["ra"] < 10_000 < busy.readings["bytes_per_second"]["ra"]


def test_after_a_reboot_only_the_link_is_set_up(host, bench):
    """Indexes and routes of an earlier boot mean nothing now; the boot's own configuration counts."""
    bench.ip("route add 10.9.0.0/16 via 10.1.0.2")
    fault = LinkFlap(rail=0)
    undo = {**fault.prepare(host), "boot_id": "an earlier boot"}
    bench.ip("link set ra down")

    fault.revert(host, undo)

    assert "10.9.0.0/16" not in str(bench.net_snapshot())
    gone = fault.gone(host, undo)
    assert gone.holds
    assert gone.says == "ra up with its signal; the node booted since, and its configuration is the boot's"
    assert gone.readings["checked"] == 0


def test_a_revert_that_the_kernel_refuses_says_what_and_why(host, bench):
    """The route's other cable is gone for good, and a person has to look."""
    bench.ip("route add 10.7.0.0/16 nexthop via 10.1.0.2 nexthop via 10.2.0.2")
    bench.settle()
    fault = LinkFlap(rail=0)
    undo = fault.prepare(host)
    fault.inject(host, undo)
    bench.ip("link del rb")

    with pytest.raises(NodeError, match=r"not put back: route 10\.7\.0\.0/16 over 2 nexthops table 254: .+ by hand") as refused:
        fault.revert(HurriedHost(host.site), undo)

    assert refused.value.node == "node7"
    assert not fault.gone(host, undo).holds


def test_a_link_that_its_driver_cannot_open_does_not_keep_the_others_down(host, bench):
    """A macvlan with the hardware address of the link below it refuses to open, as a broken NIC does."""
    (below,) = json.loads(bench.shown("ip -j link show rb"))
    bench.ip("link add broken link rb address", below["address"], "type macvlan")
    bench.ip("route add 10.9.0.0/16 via 10.1.0.2")
    fault = LinkFlap(rail=0)
    undo = fault.prepare(host)
    with netlink.Netlink() as kernel:
        ifindex = next(link.ifindex for link in kernel.links() if link.name == "broken")
    undo["links"].insert(0, {**undo["links"][0], "name": "broken", "ifindex": ifindex})
    bench.ip("link set ra down")

    with pytest.raises(NodeError, match="not put back: broken up: Address already in use"):
        fault.revert(HurriedHost(host.site), undo)

    assert "unicast 10.9.0.0/16 via 10.1.0.2" in str(bench.net_snapshot())


def test_a_device_that_is_gone_is_named(host, bench):
    """Nothing is put back by an index that may now mean another device."""
    fault = LinkFlap(rail=0)
    undo = fault.prepare(host)
    bench.ip("link del ra")

    fault.revert(host, undo)

    assert not fault.witness(host, undo).holds
    assert fault.gone(host, undo).says == "ra not back: ra is not there"


def test_another_device_under_the_same_name_is_not_what_was_captured(host, bench):
    """A NIC that was reset comes back with a new index and without its routes: up is not back."""
    fault = LinkFlap(rail=0)
    undo = fault.prepare(host)
    bench.ip("link del ra")
    bench.ip("link add ra type veth peer name raq")
    bench.ip("link set ra up")
    bench.ip("link set raq up")

    fault.revert(host, undo)

    gone = fault.gone(host, undo)
    assert not gone.holds
    assert gone.says.startswith("ra not back: ra is another device than the one captured")


def refusal(fault, host):
    with pytest.raises(Refusal) as refused:
        fault.prepare(host)
    return str(refused.value)


SITES = {
    "no rails": (
        Site("n"),
        LinkFlap(rail=0),
        "n link_flap: the inventory names no rails for this node (add `rails: [{netdev: eth2, plane: A}]` to it)",
    ),
    "no such rail": (Site("n", rails=RAILS), LinkFlap(rail=9), "this node has no rail 9 (the inventory gives it 0, 1)"),
    "no such plane": (Site("n", rails=RAILS), LinkFlap(plane="C"), "this node has no plane C (the inventory gives it A, B)"),
    "RDMA only": (Site("n", rails=(Rail(0, rdma="mlx5_0"),)), LinkFlap(rail=0), "an InfiniBand rail needs its port downed instead"),
    "no such device": (Site("n", rails=(Rail(0, "eth9"),)), LinkFlap(rail=0), "network device eth9 is not on this node (there are lo, "),
    "control path": (
        Site("n", rails=RAILS, control_addresses=("10.1.0.1",)),
        LinkFlap(rail=0),
        "ra carries the SSH connection (10.1.0.1) (reach the node over its management network; or, ",
    ),
    "protected": (
        Site("n", rails=RAILS, protected_addresses=("192.0.2.9", "10.1.0.2")),
        LinkFlap(rail=0),
        "10.1.0.2 (controller, gateways, schedulers and storage must stay reachable; choose another rail; or, ",
    ),
    "protected behind a gateway": (
        Site("n", rails=RAILS, protected_addresses=("10.99.0.1",)),
        LinkFlap(rail=0),
        "ra leads to the protected address 10.99.0.1",
    ),
    "protected from the control address": (
        Site("n", rails=RAILS, control_addresses=("10.2.0.1",), protected_addresses=("10.98.0.1",)),
        LinkFlap(rail=0),
        "ra leads to the protected address 10.98.0.1",
    ),
}


@pytest.mark.parametrize("case", SITES, ids=lambda name: name.replace(" ", "_"))
def test_a_wrong_target_is_refused_with_what_to_do(case, wires, bench):
    bench.ip("route add 10.99.0.0/16 via 10.1.0.2")
    bench.ip("route add default via 10.1.0.2 table 102")
    bench.ip("rule add from 10.2.0.1 to 10.98.0.0/16 lookup 102")
    site, fault, says = SITES[case]

    assert says in refusal(fault, Host(site))


SITUATIONS = {
    "down": (["link set ra down"], "ra is already down (set it up before the experiment)"),
    "bridge member": (
        ["link add br0 type bridge", "link set ra master br0"],
        "ra is a member of br0 (bridge), whose state cannot be restored",
    ),
    "stacked": (
        ["link add mv0 link ra type macvlan"],
        "ra has mv0 stacked on it, whose state cannot be restored (remove it for the experiment)",
    ),
    "nexthop objects": (["nexthop add id 7 via 10.1.0.2 dev ra"], "ra cannot be restored (nexthop objects (ip nexthop) use it"),
    "between equals": (
        [
            "route add 10.9.0.0/16 via 10.2.0.2",
            "route append 10.9.0.0/16 via 10.1.0.2",
            "route append 10.9.0.0/16 via 10.2.0.3",
        ],
        "route 10.9.0.0/16 via 10.1.0.2 table 254 stands between other links' routes with the same metric; give it a metric of its own",
    ),
}


@pytest.mark.parametrize("case", SITUATIONS, ids=lambda name: name.replace(" ", "_"))
def test_what_cannot_be_restored_or_proven_is_refused(case, host, bench):
    commands, says = SITUATIONS[case]
    for command in commands:
        bench.ip(command)

    assert says in refusal(LinkFlap(rail=0), host)


def test_a_link_without_a_signal_is_refused(host, bench, wires):
    bench.ip("link set rap down", peer=wires)

    assert "ra has no signal, so setting it down would prove nothing" in refusal(LinkFlap(rail=0), host)


def link(**changes):
    plain = {"ifindex": 2, "name": "ib0", "kind": "", "arp_type": 1, "flags": 1, "mtu": 1500, "master": 0, "lower": 0, "carrier": True}
    return Link(**{**plain, "carrier_changes": 2, "carrier_down_count": 1, "rx_bytes": 0, "tx_bytes": 0, **changes})


UNFIT = {
    "InfiniBand": (link(arp_type=32), "is an InfiniBand (IPoIB) device: RDMA traffic would go on without it", "down the InfiniBand port"),
    "loopback": (link(arp_type=772), "is not an Ethernet device (type 772)", "Ethernet device"),
    "bond": (link(kind="bond"), "is a bond device, which cannot be restored", "physical link below it"),
    "VLAN": (link(kind="vlan", lower=9), "is a vlan device, which cannot be restored", "physical link below it"),
    "member of a bond that another namespace hides": (link(master=44), "is a member of 44 (unknown)", "take it out"),
}


@pytest.mark.parametrize("case", UNFIT, ids=lambda name: name.replace(" ", "_"))
def test_devices_that_this_machine_cannot_make_are_refused(case):
    """The decision is a pure function of what the kernel says of the links."""
    device, what, hint = UNFIT[case]

    trouble = unfit(device, [device])

    assert trouble is not None
    assert what in trouble[0]
    assert hint in trouble[1]


def test_a_physical_link_and_a_cable_of_the_lab_are_fit():
    for device in (link(), link(kind="veth", lower=7)):
        assert unfit(device, [device]) is None


PARAMETERS = {
    "neither": ({}, "exactly one of rail and plane"),
    "both": ({"rail": 0, "plane": "A"}, "exactly one of rail and plane"),
    "no time": ({"rail": 0, "down": 0}, "longer than 0 s"),
    "never": ({"rail": 0, "times": 0}, "from 1 to 1000, not 0"),
}


@pytest.mark.parametrize("case", PARAMETERS)
def test_parameters_that_make_no_sense_are_refused(case):
    params, says = PARAMETERS[case]

    with pytest.raises(InputError, match=says):
        load("link_flap", params)


def test_a_flap_has_one_span_for_each_time():
    assert LinkFlap(rail=0, down=2.0, up=3.0, times=3).holds() == ((0.0, 2.0), (5.0, 7.0), (10.0, 12.0))


ROUTES = st.lists(
    st.tuples(
        st.integers(0, 3),  # destination
        st.sampled_from(["via 10.1.0.{}", "via 10.2.0.{}"]),
        st.integers(2, 4),  # gateway
        st.sampled_from(["", " metric 5", " metric 6"]),
        st.sampled_from(["", " table 101", " table 4242"]),
        st.sampled_from(["add", "append", "prepend"]),
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.row("L6")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(routes=ROUTES, extra=st.sets(st.integers(10, 13), max_size=2))
def test_any_set_of_routes_and_addresses_is_put_back_or_refused(routes, extra, host, bench):
    """Refused only where our route stands between equals; never put back otherwise than it was."""
    for command in ("-4 route flush table main proto boot", "route flush table 101", "route flush table 4242"):
        subprocess.run(["ip", *command.split()], check=False, stderr=subprocess.DEVNULL)
    bench.ip("addr flush dev ra scope global")
    for command in ("10.1.0.1/24", *("10.{0}.0.1/24".format(number) for number in sorted(extra))):
        bench.ip("addr add", command, "dev ra")
    for to, via, gateway, metric, table, verb in routes:
        # The same route twice is the kernel's to refuse.
        argv = "ip route {} 10.10{}.0.0/16 {}{}{}".format(verb, to, via.format(gateway), metric, table)
        subprocess.run(argv.split(), check=False, stderr=subprocess.DEVNULL)
    try:
        LinkFlap(rail=0).prepare(host)
    except Refusal as refused:
        assert "stands between other links' routes" in str(refused)  # noqa: PT017 - most examples are not refused
        return

    before, after = flap(LinkFlap(rail=0), host, bench)

    assert before == after


def test_the_whole_plane_goes_down_within_a_few_milliseconds(host, bench):
    """Nothing is started and nothing is waited for between T0 and the effect."""
    fault = LinkFlap(rail=0)
    undo = fault.prepare(host)
    start = time.monotonic()
    fault.inject(host, undo)
    passed = time.monotonic() - start
    fault.revert(host, undo)

    assert passed < 0.25
