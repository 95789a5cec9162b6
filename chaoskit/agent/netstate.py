"""
What the kernel forgets when a link is set down, captured so that exactly that can be put back.

Setting a link down drops its routes in every table, its permanent neighbours, and most of its IPv6 addresses. Each is
captured as an `Item`: a key that two dumps of the same object share (lifetimes, counters and the dead flags of a lost
signal are left out), and the raw message that creates it again. What the kernel makes by itself once the link is up
(the routes of an address, those of a router's advertisement) is captured too, and waited for instead of made.
Standard library only, Python 3.8.
"""

import ipaddress
import socket
import struct
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from chaoskit.agent import netlink
from chaoskit.agent.netlink import TYPE_MASK, Attribute, Netlink, NetlinkError, attributes, packed

ADDRESS, NEIGHBOUR, QDISC, ROUTE = "address", "neighbour", "qdisc", "route"
_ORDER = {ADDRESS: 0, NEIGHBOUR: 1, QDISC: 2, ROUTE: 3}
_MESSAGE = {ADDRESS: netlink.NEWADDR, NEIGHBOUR: netlink.NEWNEIGH, QDISC: netlink.NEWQDISC, ROUTE: netlink.NEWROUTE}

_IFADDR = struct.Struct("=BBBBI")
_RT = struct.Struct("=BBBBBBBBI")
_ND = struct.Struct("=BxxxiHBB")
_TC = struct.Struct("=BxxxiIII")
_NEXTHOP = struct.Struct("=HBBi")

# Attribute numbers: linux/if_addr.h, rtnetlink.h, neighbour.h.
_IFA_ADDRESS, _IFA_LOCAL, _IFA_CACHEINFO, _IFA_FLAGS = 1, 2, 6, 8
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PRIORITY, _RTA_PREFSRC, _RTA_MULTIPATH = 1, 4, 5, 6, 7, 9
_RTA_CACHEINFO, _RTA_TABLE, _RTA_VIA, _RTA_EXPIRES, _RTA_NH_ID = 12, 15, 18, 23, 30
_NDA_DST, _NDA_CACHEINFO, _NDA_PROBES = 1, 3, 4
_TCA_KIND, _TCA_OPTIONS = 1, 2

_IFA_TEMPORARY, _IFA_TENTATIVE, _IFA_PERMANENT, _IFA_NOPREFIXROUTE = 0x01, 0x40, 0x80, 0x200
_IFA_PASSING = 0x04 | 0x08 | 0x20 | _IFA_TENTATIVE
"""Address flags that come and go by themselves: optimistic, dadfailed, deprecated, tentative."""
_NH_KEPT = 0x02 | 0x04
"""Nexthop flags that somebody chose: pervasive, onlink. The others (dead, linkdown, offload) are the kernel's findings."""
_CLONED = 0x200
_PROTO_REDIRECT, _PROTO_KERNEL, _PROTO_RA = 1, 2, 9
_UNICAST = 1
_NUD_NOARP, _NUD_PERMANENT, _NTF_PROXY = 0x40, 0x80, 0x08
_USER_HZ = 100


class Item(NamedTuple):
    """
    One object of the kernel's tables.

    `owed` says that it is ours to put back; else the kernel or a router does it by itself. `after` is the number of
    other links' routes with the same destination and metric that stand before it: among those, order decides.
    """

    kind: str
    says: str
    key: str
    put: str
    owed: bool
    after: int = 0

    def to_json(self) -> Dict[str, Any]:
        """Return the item as JSON."""
        return self._asdict()

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Item":
        """Rebuild the item from `to_json`'s output."""
        return cls(**data)


class UnrestorableError(Exception):
    """Something on the link could not be put back exactly; the text says what, and what to do."""


def capture(kernel: Netlink, indexes: Sequence[int]) -> List[Item]:
    """
    Read everything that setting these links down would make the kernel forget.

    Raises:
        UnrestorableError: Something stands there that could not be put back exactly.
    """
    wanted = set(indexes)
    _refuse_nexthop_objects(kernel, wanted)
    addresses, qdiscs = _addresses(kernel, wanted), _qdiscs(kernel, wanted)
    refuse_offloaded(qdiscs)
    return addresses + _neighbours(kernel, wanted) + qdiscs + _routes(kernel, wanted, addresses)


def missing(kernel: Netlink, captured: Sequence[Item], indexes: Sequence[int]) -> List[Item]:
    """Return the captured items that the kernel does not have now, in the order in which they can be put back."""
    wanted = set(indexes)
    kinds = {item.kind for item in captured}
    readers = {ADDRESS: _addresses, NEIGHBOUR: _neighbours, QDISC: _qdiscs}
    present = {item.key for kind, reader in readers.items() if kind in kinds for item in reader(kernel, wanted)}
    if ROUTE in kinds:
        present |= {_route_key(body) for body in dump_routes(kernel)}
    return sorted((item for item in captured if item.key not in present), key=lambda item: _ORDER[item.kind])


def tentative(kernel: Netlink, indexes: Sequence[int]) -> List[str]:
    """Return the IPv6 addresses on these links that the kernel still checks for duplicates, and does not use yet."""
    bodies = (body for body in _dump_addresses(kernel) if _IFADDR.unpack_from(body)[4] in set(indexes))
    return [_address_text(body) for body in bodies if _address_flags(body) & _IFA_TENTATIVE]


def put_back(kernel: Netlink, items: Sequence[Item]) -> Dict[str, str]:
    """Put items back, in order; return the kernel's words for each one it refused for now."""
    refused = {}
    for item in _in_order(items):
        try:
            kernel.put(_MESSAGE[item.kind], _put_flags(item), bytes.fromhex(item.put))
        except NetlinkError as error:
            refused[item.says] = str(error.strerror)
    return refused


def local_addresses(kernel: Netlink, indexes: Sequence[int]) -> Set[str]:
    """Return the addresses on these links as text, without prefix lengths."""
    bodies = (body for body in _dump_addresses(kernel) if _IFADDR.unpack_from(body)[4] in set(indexes))
    return {_address_text(body).partition("/")[0] for body in bodies}


def _in_order(items: Sequence[Item]) -> List[Item]:
    """What the kernel puts in front of its equals is put back last to first: IPv6 addresses, and routes that were first."""
    forward = [item for item in items if not _goes_in_front(item)]
    backward = [item for item in reversed(items) if _goes_in_front(item)]
    return sorted(forward + backward, key=lambda item: (_ORDER[item.kind], _depends(item)))


def _goes_in_front(item: Item) -> bool:
    if item.kind == ROUTE:
        return not item.after
    return item.kind == ADDRESS and bytes.fromhex(item.put)[0] == socket.AF_INET6


def _depends(item: Item) -> int:
    """Routes that stand by themselves come before those that are reached through a gateway."""
    if item.kind != ROUTE:
        return 0
    kinds = {kind & TYPE_MASK for kind, _ in attributes(bytes.fromhex(item.put)[_RT.size :])}
    return 1 if kinds & {_RTA_GATEWAY, _RTA_VIA, _RTA_MULTIPATH} else 0


def _put_flags(item: Item) -> int:
    if item.kind != ROUTE:
        return netlink.CREATE | netlink.REPLACE
    body = bytes.fromhex(item.put)
    if body[0] == socket.AF_INET6 and _value(body[_RT.size :], _RTA_MULTIPATH):
        # One nexthop of the group may be left: the whole group replaces it.
        return netlink.CREATE | netlink.REPLACE
    return netlink.CREATE | (netlink.APPEND if item.after else 0)


def _value(data: bytes, wanted: int) -> bytes:
    return next((value for kind, value in attributes(data) if kind & TYPE_MASK == wanted), b"")


def _without(data: bytes, *dropped: int) -> List[Attribute]:
    return [(kind, value) for kind, value in attributes(data) if kind & TYPE_MASK not in dropped]


def _number(data: bytes, wanted: int) -> int:
    value = _value(data, wanted)
    return struct.unpack("=I", value)[0] if len(value) == 4 else 0


def _ip(value: bytes) -> str:
    return str(ipaddress.ip_address(value)) if len(value) in (4, 16) else value.hex()


# Addresses


def _dump_addresses(kernel: Netlink) -> List[bytes]:
    return kernel.dump(netlink.GETADDR, _IFADDR.pack(0, 0, 0, 0, 0))


def _address_flags(body: bytes) -> int:
    return _number(body[_IFADDR.size :], _IFA_FLAGS) or body[2]


def _address_text(body: bytes) -> str:
    rest = body[_IFADDR.size :]
    return "{}/{}".format(_ip(_value(rest, _IFA_LOCAL) or _value(rest, _IFA_ADDRESS)), body[1])


def _addresses(kernel: Netlink, wanted: Set[int]) -> List[Item]:
    bodies = (body for body in _dump_addresses(kernel) if _IFADDR.unpack_from(body)[4] in wanted)
    return [_address(body) for body in bodies if not (body[0] == socket.AF_INET6 and _address_flags(body) & _IFA_TEMPORARY)]


def _address(body: bytes) -> Item:
    """Make the item; the kernel makes temporary (privacy) addresses anew by itself, and those never come here."""
    family, prefix, _, scope, index = _IFADDR.unpack_from(body)
    flags = _address_flags(body) & ~_IFA_PASSING
    rest = [(kind, value) for kind, value in _without(body[_IFADDR.size :], _IFA_CACHEINFO, _IFA_FLAGS)]
    head = _IFADDR.pack(family, prefix, flags & 0xFF, scope, index)
    plain = head + packed([*rest, (_IFA_FLAGS, struct.pack("=I", flags))])
    lifetimes = _value(body[_IFADDR.size :], _IFA_CACHEINFO)
    put = plain if flags & _IFA_PERMANENT else plain + packed([(_IFA_CACHEINFO, lifetimes)])
    return Item(ADDRESS, "address {}".format(_address_text(body)), _key(ADDRESS, plain), put.hex(), owed=True)


def _key(kind: str, plain: bytes) -> str:
    return "{} {}".format(kind, plain.hex())


# Neighbours


def _neighbours(kernel: Netlink, wanted: Set[int]) -> List[Item]:
    bodies = [body for flags in (0, _NTF_PROXY) for body in kernel.dump(netlink.GETNEIGH, _ND.pack(0, 0, 0, flags, 0))]
    return [_neighbour(body) for body in bodies if _ND.unpack_from(body)[1] in wanted and _is_static(body)]


def _is_static(body: bytes) -> bool:
    """Somebody made it, unlike what the kernel learns, or derives for broadcast and multicast (an odd first octet)."""
    family, _, state, flags, _ = _ND.unpack_from(body)
    if family not in (socket.AF_INET, socket.AF_INET6):
        return False
    hardware = _value(body[_ND.size :], 2)
    chosen = state & _NUD_PERMANENT or (state & _NUD_NOARP and hardware and not hardware[0] & 1)
    return bool(chosen or flags & _NTF_PROXY)


def _neighbour(body: bytes) -> Item:
    plain = body[: _ND.size] + packed(_without(body[_ND.size :], _NDA_CACHEINFO, _NDA_PROBES))
    text = "neighbour {}".format(_ip(_value(body[_ND.size :], _NDA_DST)))
    return Item(NEIGHBOUR, text, _key(NEIGHBOUR, plain), plain.hex(), owed=True)


# Queueing disciplines

_OFFLOADED = ("mqprio", "taprio", "cbs", "etf")


def _qdiscs(kernel: Netlink, wanted: Set[int]) -> List[Item]:
    """The kernel's defaults have no handle; they come by themselves, and are not captured."""
    bodies = kernel.dump(netlink.GETQDISC, _TC.pack(0, 0, 0, 0, 0))
    return [_qdisc(body) for body in bodies if _TC.unpack_from(body)[1] in wanted and _TC.unpack_from(body)[2]]


def _qdisc(body: bytes) -> Item:
    family, index, handle, parent, _ = _TC.unpack_from(body)
    kept = [(kind, value) for kind, value in attributes(body[_TC.size :]) if kind & TYPE_MASK in (_TCA_KIND, _TCA_OPTIONS)]
    plain = _TC.pack(family, index, handle, parent, 0) + packed(kept)
    name = _value(body[_TC.size :], _TCA_KIND).rstrip(b"\0").decode("ascii", "replace")
    return Item(QDISC, "qdisc {} {:x}:".format(name, handle >> 16), _key(QDISC, plain), plain.hex(), owed=True)


def refuse_offloaded(qdiscs: Sequence[Item]) -> None:
    """Raise UnrestorableError for a qdisc that lives in the NIC, whose driver may drop it with the link."""
    for item in qdiscs:
        if item.says.split()[1] in _OFFLOADED:
            raise UnrestorableError(
                "its {} lives in the NIC, which may drop it with the link; remove it for the experiment".format(item.says)
            )


# Routes


def _refuse_nexthop_objects(kernel: Netlink, wanted: Set[int]) -> None:
    try:
        bodies = kernel.dump(netlink.GETNEXTHOP, bytes(8))
    except NetlinkError:
        return  # before Linux 5.3 there are none
    if any(_number(body[8:], 5) in wanted for body in bodies):
        raise UnrestorableError(
            "nexthop objects (ip nexthop) use it, and the kernel deletes them with the link; make its routes without them"
        )


def dump_routes(kernel: Netlink) -> List[bytes]:
    """Return every route of every table but those that the kernel cloned, or learned by a redirect."""
    bodies = [
        body
        for family in (socket.AF_INET, socket.AF_INET6)
        for body in kernel.dump(netlink.GETROUTE, _RT.pack(family, 0, 0, 0, 0, 0, 0, 0, 0))
    ]
    return [body for body in bodies if not _RT.unpack_from(body)[8] & _CLONED and body[5] != _PROTO_REDIRECT]


def _routes(kernel: Netlink, wanted: Set[int], addresses: Sequence[Item]) -> List[Item]:
    prefixes = list(_kernel_prefixes(addresses))
    everything = dump_routes(kernel)
    ours = [bool(links_of(body) & wanted) for body in everything]
    places = _places(everything, ours)
    return [_route(body, prefixes, places.get(at, 0)) for at, body in enumerate(everything) if ours[at]]


def links_of(body: bytes) -> Set[int]:
    """Return the indexes of the links that a route sends by."""
    rest = body[_RT.size :]
    return {_number(rest, _RTA_OIF)} | {index for _, _, index, _ in _nexthops(rest)}


def _nexthops(rest: bytes) -> List[Tuple[int, int, int, bytes]]:
    """Return flags, hops, link index and attributes of each nexthop of a multipath route."""
    data, found, at = _value(rest, _RTA_MULTIPATH), [], 0
    while at + _NEXTHOP.size <= len(data):
        size, flags, hops, index = _NEXTHOP.unpack_from(data, at)
        found.append((flags, hops, index, data[at + _NEXTHOP.size : at + size]))
        at += max((size + 3) & ~3, _NEXTHOP.size)
    return found


def _pack_nexthops(nexthops: Iterable[Tuple[int, int, int, bytes]]) -> bytes:
    return b"".join(_NEXTHOP.pack(_NEXTHOP.size + len(rest), flags & _NH_KEPT, hops, index) + rest for flags, hops, index, rest in nexthops)


def _plain_route(body: bytes, *, sort: bool) -> bytes:
    """Return the route without what changes by itself: dead flags and ages. Sorted, equal groups of nexthops are equal."""
    head = list(_RT.unpack_from(body))
    head[8] &= _NH_KEPT
    rest = _without(body[_RT.size :], _RTA_CACHEINFO, _RTA_EXPIRES)
    nexthops = _nexthops(body[_RT.size :])
    hops = _pack_nexthops(sorted(nexthops, key=lambda hop: (hop[2], hop[3])) if sort else nexthops)
    return _RT.pack(*head) + packed((kind, hops if kind & TYPE_MASK == _RTA_MULTIPATH else value) for kind, value in rest)


def _route_key(body: bytes) -> str:
    return _key(ROUTE, _plain_route(body, sort=True))


def _route(body: bytes, prefixes: Sequence[Tuple[bytes, int]], after: int) -> Item:
    rest = body[_RT.size :]
    if _number(rest, _RTA_NH_ID):
        raise UnrestorableError("{} uses a nexthop object (ip nexthop); make the route without it".format(_route_text(body)))
    put = _plain_route(body, sort=False)
    expires = struct.unpack_from("=3I", _value(rest, _RTA_CACHEINFO) or bytes(12))[2]
    if expires and body[0] == socket.AF_INET6:
        put += packed([(_RTA_EXPIRES, struct.pack("=I", expires // _USER_HZ))])
    owed = not _comes_by_itself(body, prefixes)
    return Item(ROUTE, _route_text(body), _route_key(body), put.hex(), owed=owed, after=after)


def _kernel_prefixes(addresses: Sequence[Item]) -> Iterable[Tuple[bytes, int]]:
    """The IPv6 networks whose route the kernel makes together with the address."""
    for item in addresses:
        body = bytes.fromhex(item.put)
        if body[0] == socket.AF_INET6 and not _address_flags(body) & _IFA_NOPREFIXROUTE:
            yield _network(_value(body[_IFADDR.size :], _IFA_ADDRESS), body[1]), body[1]


def _network(address: bytes, prefix: int) -> bytes:
    return ipaddress.IPv6Network((address, prefix), strict=False).network_address.packed


def _comes_by_itself(body: bytes, prefixes: Sequence[Tuple[bytes, int]]) -> bool:
    """
    Whether the kernel (or a router's next advertisement) makes an IPv6 route again.

    IPv4's come back inside the call that sets the link up, so one that is missing after it is ours to put back.
    """
    family, length, _, _, _, protocol, _, kind, _ = _RT.unpack_from(body)
    if family != socket.AF_INET6:
        return False
    if protocol != _PROTO_KERNEL:
        return bool(protocol == _PROTO_RA)
    return bool(kind != _UNICAST or (_value(body[_RT.size :], _RTA_DST), length) in prefixes)


def _places(everything: Sequence[bytes], ours: Sequence[bool]) -> Dict[int, int]:
    """
    Return, for the position of each of our routes, how many of other links' with its destination and metric precede it.

    Raises:
        UnrestorableError: It stands between two of those, where no message of the kernel's could put it back.
    """
    groups: Dict[Tuple[int, bytes, int, int, int], List[int]] = {}
    for at, body in enumerate(everything):
        if body[0] == socket.AF_INET:
            groups.setdefault(_rank(body), []).append(at)
    places = {}
    for group in groups.values():
        others = [at for at in group if not ours[at]]
        for at in (at for at in group if ours[at]):
            places[at] = sum(other < at for other in others)
            if 0 < places[at] < len(others):
                text = "{} stands between other links' routes with the same metric; give it a metric of its own"
                raise UnrestorableError(text.format(_route_text(everything[at])))
    return places


def _rank(body: bytes) -> Tuple[int, bytes, int, int, int]:
    rest = body[_RT.size :]
    return (_number(rest, _RTA_TABLE) or body[4], _value(rest, _RTA_DST), body[1], body[3], _number(rest, _RTA_PRIORITY))


def _route_text(body: bytes) -> str:
    rest = body[_RT.size :]
    to = "{}/{}".format(_ip(_value(rest, _RTA_DST)), body[1]) if body[1] else "default"
    gateway: Optional[bytes] = _value(rest, _RTA_GATEWAY)
    via = " via {}".format(_ip(gateway)) if gateway else " over {} nexthops".format(len(_nexthops(rest))) if _nexthops(rest) else ""
    metric = _number(rest, _RTA_PRIORITY)
    table = _number(rest, _RTA_TABLE) or body[4]
    return "route {}{} table {}{}".format(to, via, table, " metric {}".format(metric) if metric else "")
