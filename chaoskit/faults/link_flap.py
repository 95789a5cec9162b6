"""
A rail's or a plane's links go down for a while, once or several times, as when an optic, a cable or a switch dies.

Set down by the node itself, in process, so that all links of a plane on all nodes can go down at one instant. Some
NICs keep their physical link up meanwhile: the switch then sees nothing, while this node's traffic stops all the same.
"""

from dataclasses import dataclass
from typing import ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple

from chaoskit.agent import control_path, netlink, netstate, procs
from chaoskit.agent.contract import Evidence, Fault, Json, Lifetime, Needs, Rail, Refusal, Sign, Stray, Undo, seconds
from chaoskit.agent.host import Host
from chaoskit.agent.netlink import Link, Netlink
from chaoskit.agent.netstate import Item
from chaoskit.errors import NodeError

FLOOR = 10_000.0
"""Bytes a second, sent and received, above which a link is in use."""
LOOK = 0.5
LOOKS = 4
"""How often `exposed` looks, each `LOOK` seconds long, since a step may send nothing for a while."""
RETRY = 0.02
RESTORE_WITHIN = 5.0
"""Seconds that `revert` goes on trying, for what must wait: a source address under duplicate detection takes about two."""
SETTLE_WITHIN = 10.0
"""Seconds that `gone` waits for what comes by itself: the signal, and the routes that the kernel makes."""
FLAPPABLE = ("", "veth")
"""Kinds of devices whose state we can restore: hardware, and the virtual cable of containers and the lab."""


@dataclass(frozen=True)
class LinkFlap(Fault):
    """Set the links of one rail or one plane down for a while, `times` times."""

    rail: Optional[int] = None
    """Index of the rail whose link goes down; give this or `plane`."""
    plane: Optional[str] = None
    """Plane whose links all go down on the node; give this or `rail`."""
    down: float = seconds(10.0)
    """How long the links stay down, each time."""
    up: float = seconds(5.0)
    """How long they stay up between two times."""
    times: int = 1
    """How often they go down."""

    lifetime: ClassVar[Lifetime] = Lifetime.VOLATILE
    needs: ClassVar[Needs] = Needs(capabilities=("NET_ADMIN",))
    signs = (Sign.LINK_DOWN,)

    def __post_init__(self) -> None:
        """Refuse parameters that make no sense together. Raises ValueError."""
        if (self.rail is None) == (self.plane is None):
            raise ValueError("give exactly one of rail and plane")
        if self.down <= 0 or self.up <= 0:
            raise ValueError("down and up must be longer than 0 s")
        if not 1 <= self.times <= 1000:
            raise ValueError("times must be from 1 to 1000, not {}".format(self.times))

    def holds(self) -> Tuple[Tuple[float, float], ...]:
        """Return one span for each time."""
        starts = (number * (self.down + self.up) for number in range(self.times))
        return tuple((start, start + self.down) for start in starts)

    def resource(self, undo: Undo) -> Tuple[str, ...]:
        """Lock each link."""
        return tuple("nic:{}".format(link["name"]) for link in undo["links"])

    def prepare(self, host: Host) -> Undo:
        """Capture the links, and all that the kernel forgets when they go down."""
        procs.require_capability("NET_ADMIN", host.site.node)
        rails = self._rails(host)
        with Netlink() as kernel:
            links = kernel.links()
            chosen = [_chosen(host, rail, links) for rail in rails]
            control_path.refuse(kernel, host.site, chosen, "{} link_flap".format(host.site.node))
            try:
                state = netstate.capture(kernel, [link.ifindex for link in chosen])
            except netstate.UnrestorableError as error:
                raise _refusal(host, "{} cannot be restored".format(_names(chosen)), str(error)) from error
        captured = [_captured(link, rail) for link, rail in zip(chosen, rails)]
        return {"boot_id": host.boot_id(), "links": captured, "state": [item.to_json() for item in state]}

    def inject(self, host: Host, undo: Undo) -> None:
        """Set every link down."""
        for link in undo["links"]:
            netlink.set_up(link["name"], up=False)

    def witness(self, host: Host, undo: Undo) -> Evidence:
        """Every link lost its signal since `prepare`: its counter of changes grew, or it is down right now."""
        with Netlink() as kernel:
            present = {link.name: link for link in kernel.links()}
        readings = {link["name"]: _carrier_readings(link, present.get(link["name"])) for link in undo["links"]}
        untouched = [name for name, reading in readings.items() if not reading["lost"]]
        says = "{} did not go down".format(", ".join(untouched)) if untouched else "{} went down".format(", ".join(readings))
        return Evidence(not untouched, says, readings)

    def gone(self, host: Host, undo: Undo) -> Evidence:
        """Every link is up with its signal, and all that was captured is there again."""
        end = host.monotonic() + SETTLE_WITHIN
        with Netlink() as kernel:
            while True:
                debts = _debts(host, kernel, undo)
                if not debts.waiting or debts.owed or host.monotonic() > end:
                    return debts.evidence(undo, booted=undo["boot_id"] != host.boot_id())
                host.sleep(RETRY)

    def revert(self, host: Host, undo: Undo) -> None:
        """Set the links up, then put back what is missing until the kernel has taken it all."""
        with Netlink() as kernel:
            refused = _set_up_again(kernel, undo)
            if _same_devices(host, kernel, undo):
                refused.update(_put_back_within(host, kernel, undo))
        if refused:
            what = "; ".join("{}: {}".format(item, words) for item, words in sorted(refused.items()))
            hint = "put it back by hand, then run chaoskit heal"
            raise NodeError("not put back: {}".format(what), node=host.site.node, fault="link_flap", hint=hint)

    def exposed(self, host: Host, undo: Undo) -> Evidence:
        """The links carried traffic, above a floor that no keepalive reaches."""
        rates: Dict[str, float] = {}
        for _ in range(LOOKS):
            rates = _rates(host, undo)
            if sum(rates.values()) > FLOOR:
                break
        total = sum(rates.values())
        above = "above" if total > FLOOR else "not above"
        says = "{} carried {:.2f} MB/s, {} {:.2f}".format(", ".join(rates), total / 1e6, above, FLOOR / 1e6)
        return Evidence(total > FLOOR, says, {"bytes_per_second": rates, "floor": FLOOR})

    @classmethod
    def strays(cls, host: Host) -> Sequence[Stray]:
        """Every rail of the inventory whose link is down; a link tells of nobody, so none of them is known as ours."""
        with Netlink() as kernel:
            down = {link.name for link in kernel.links() if not link.up}
        return [
            Stray(
                "nic:{}".format(rail.netdev),
                "{} (rail {}) is down: set down by somebody else, or by a link_flap whose ledger is lost".format(rail.netdev, rail.index),
                do="ip link set {} up, and see that its routes are back".format(rail.netdev),
            )
            for rail in host.site.rails
            if rail.netdev in down
        ]

    def _rails(self, host: Host) -> List[Rail]:
        rails = host.site.rails
        if not rails:
            raise _refusal(host, "the inventory names no rails for this node", "add `rails: [{netdev: eth2, plane: A}]` to it")
        chosen = [rail for rail in rails if (rail.plane == self.plane if self.plane is not None else rail.index == self.rail)]
        if not chosen:
            known = sorted({rail.plane or "" for rail in rails}) if self.plane is not None else [rail.index for rail in rails]
            asked = "plane {}".format(self.plane) if self.plane is not None else "rail {}".format(self.rail)
            raise _refusal(host, "this node has no {}".format(asked), "the inventory gives it {}".format(", ".join(map(str, known))))
        return chosen


def _refusal(host: Host, what: str, hint: str) -> Refusal:
    return Refusal(what, where="{} link_flap".format(host.site.node), hint=hint)


def _names(links: Sequence[Link]) -> str:
    return ", ".join(link.name for link in links)


def _chosen(host: Host, rail: Rail, links: Sequence[Link]) -> Link:
    """Return the rail's link. Raises Refusal when setting it down would prove nothing, or could not be undone."""
    if rail.netdev is None:
        what = "rail {} has no network device".format(rail.index)
        raise _refusal(host, what, "name its netdev in the inventory; an InfiniBand rail needs its port downed instead")
    link = next((link for link in links if link.name == rail.netdev), None)
    if link is None:
        raise _refusal(host, "network device {} is not on this node".format(rail.netdev), "there are {}".format(_names(links)))
    trouble = unfit(link, links) or _wireless(host, link)
    if trouble:
        raise _refusal(host, "{} {}".format(link.name, trouble[0]), trouble[1])
    return link


def unfit(link: Link, links: Sequence[Link]) -> Optional[Tuple[str, str]]:
    """Say why a link must not be flapped, and what to do instead; None when it may be."""
    if link.arp_type == netlink.ARPHRD_INFINIBAND:
        return "is an InfiniBand (IPoIB) device: RDMA traffic would go on without it", "down the InfiniBand port of this rail instead"
    if link.arp_type != netlink.ARPHRD_ETHER:
        return "is not an Ethernet device (type {})".format(link.arp_type), "name the rail's Ethernet device in the inventory"
    if link.kind not in FLAPPABLE:
        return "is a {} device, which cannot be restored".format(link.kind), "name the physical link below it in the inventory"
    return _stacked(link, links) or _dark(link)


def _stacked(link: Link, links: Sequence[Link]) -> Optional[Tuple[str, str]]:
    master = next((other for other in links if other.ifindex == link.master), None)
    if link.master:
        name, kind = (master.name, master.kind) if master else (str(link.master), "unknown")
        return "is a member of {} ({}), whose state cannot be restored".format(name, kind), "take it out for the experiment"
    above = [other for other in links if other.lower == link.ifindex and other.kind != "veth"]
    if above:
        return "has {} stacked on it, whose state cannot be restored".format(_names(above)), "remove it for the experiment"
    return None


def _dark(link: Link) -> Optional[Tuple[str, str]]:
    if not link.up:
        return "is already down", "set it up before the experiment"
    if not link.carrier:
        return "has no signal, so setting it down would prove nothing", "check the cable and the port at its other end"
    return None


def _wireless(host: Host, link: Link) -> Optional[Tuple[str, str]]:
    try:
        host.read("/sys/class/net/{}/phy80211/name".format(link.name))
    except OSError:
        return None
    return "is a wireless device, whose association cannot be restored", "name the rail's Ethernet device in the inventory"


def _captured(link: Link, rail: Rail) -> Dict[str, Json]:
    data: Dict[str, Json] = dict(link._asdict())
    return {**data, "rail": rail.index, "plane": rail.plane, "rdma": rail.rdma}


def _carrier_readings(captured: Mapping[str, Json], link: Optional[Link]) -> Dict[str, Json]:
    if link is None:
        return {"lost": False, "present": False}
    changes = link.carrier_changes - captured["carrier_changes"]
    downs = link.carrier_down_count - captured["carrier_down_count"]
    return {"lost": changes > 0 or downs > 0 or not link.up, "carrier_changes": changes, "carrier_down_count": downs, "up": link.up}


def _indexes(undo: Undo) -> List[int]:
    return [link["ifindex"] for link in undo["links"]]


def _items(undo: Undo) -> List[Item]:
    return [Item.from_json(item) for item in undo["state"]]


def _set_up_again(kernel: Netlink, undo: Undo) -> Dict[str, str]:
    """Set every link up that is down; one that its driver cannot open does not keep the others down."""
    down = {link.name for link in kernel.links() if not link.up}
    refused = {}
    for name in (link["name"] for link in undo["links"] if link["name"] in down):
        try:
            netlink.set_up(name, up=True)
        except OSError as error:
            refused["{} up".format(name)] = str(error.strerror)
    return refused


def _same_devices(host: Host, kernel: Netlink, undo: Undo) -> bool:
    """Whether the captured indexes still mean these devices: after a reboot, the boot's configuration is what counts."""
    present = {(link.name, link.ifindex) for link in kernel.links()}
    return undo["boot_id"] == host.boot_id() and all((link["name"], link["ifindex"]) in present for link in undo["links"])


def _put_back_within(host: Host, kernel: Netlink, undo: Undo) -> Dict[str, str]:
    end = host.monotonic() + RESTORE_WITHIN
    refused = _put_back(kernel, undo)
    while refused and host.monotonic() < end:
        host.sleep(RETRY)
        refused = _put_back(kernel, undo)
    return refused


def _put_back(kernel: Netlink, undo: Undo) -> Dict[str, str]:
    """Put back what is ours to put back; return what the kernel refused for now, with its words."""
    owed = [item for item in netstate.missing(kernel, _items(undo), _indexes(undo)) if item.owed]
    return netstate.put_back(kernel, owed)


@dataclass(frozen=True)
class _Debts:
    """What is not back: owed by us, and awaited from the kernel, the cable or a router; `checked` items were looked for."""

    owed: Tuple[str, ...]
    waiting: Tuple[str, ...]
    checked: int

    def evidence(self, undo: Undo, booted: bool) -> Evidence:
        lacking = [*self.owed, *self.waiting]
        names = ", ".join(link["name"] for link in undo["links"])
        back = "up with its signal; the node booted since, and its configuration is the boot's" if booted else "back as captured"
        says = "{} not back: {}".format(names, "; ".join(lacking)) if lacking else "{} {}".format(names, back)
        return Evidence(not lacking, says, {"missing": lacking, "checked": self.checked})


def _debts(host: Host, kernel: Netlink, undo: Undo) -> _Debts:
    present = {link.name: link for link in kernel.links()}
    names = [link["name"] for link in undo["links"]]
    owed = ["{} is not there".format(name) for name in names if name not in present]
    owed += ["{} is down".format(name) for name in names if name in present and not present[name].up]
    waiting = ["{} has no signal".format(name) for name in names if name in present and not present[name].carrier]
    checked = 0
    if _same_devices(host, kernel, undo):
        checked = len(undo["state"])
        lacking = netstate.missing(kernel, _items(undo), _indexes(undo))
        owed += [item.says for item in lacking if item.owed]
        waiting += [item.says for item in lacking if not item.owed]
        waiting += ["{} is checked for duplicates".format(address) for address in netstate.tentative(kernel, _indexes(undo))]
    elif undo["boot_id"] == host.boot_id():
        changed = [link["name"] for link in undo["links"] if link["name"] in present and present[link["name"]].ifindex != link["ifindex"]]
        owed += ["{} is another device than the one captured".format(name) for name in changed]
    return _Debts(tuple(owed), tuple(waiting), checked)


def _rates(host: Host, undo: Undo) -> Dict[str, float]:
    """Return bytes a second of each link over one look, RDMA's included, which the network device does not count."""
    before, start = _counters(host, undo), host.monotonic()
    host.sleep(LOOK)
    after, passed = _counters(host, undo), host.monotonic() - start
    return {name: (after[name] - before[name]) / passed for name in before if name in after}


def _counters(host: Host, undo: Undo) -> Dict[str, int]:
    with Netlink() as kernel:
        present = {link.name: link for link in kernel.links()}
    wanted = [(link["name"], link["rdma"]) for link in undo["links"] if link["name"] in present]
    return {name: present[name].rx_bytes + present[name].tx_bytes + _rdma_bytes(host, rdma) for name, rdma in wanted}


def _rdma_bytes(host: Host, device: Optional[str]) -> int:
    """Return the bytes that an RDMA device moved, which it counts in words of four."""
    if device is None:
        return 0
    try:
        counters = ("port_xmit_data", "port_rcv_data")
        return 4 * sum(int(host.read("/sys/class/infiniband/{}/ports/1/counters/{}".format(device, name))) for name in counters)
    except OSError:
        return 0
