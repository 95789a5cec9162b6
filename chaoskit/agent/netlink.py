"""
The kernel's network configuration over one rtnetlink socket, without `ip` or `tc`: links, tables, and one ioctl.

Only what a fault needs: dump a kind of object as raw messages, put a raw message back, ask which way the kernel would
send, set a link up or down. Raw payloads stay bytes, so that what was read can be put back exactly.
Standard library only, Python 3.8. Byte order is the machine's own, as the kernel's is.
"""

import errno
import fcntl
import ipaddress
import os
import socket
import struct
import sys
from types import TracebackType
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple, Type

NEWLINK, GETLINK = 16, 18
NEWADDR, GETADDR = 20, 22
NEWROUTE, GETROUTE = 24, 26
NEWNEIGH, GETNEIGH = 28, 30
NEWQDISC, DELQDISC, GETQDISC = 36, 37, 38
NEWTCLASS, GETTCLASS = 40, 42
NEWTFILTER = 44
NEWNEXTHOP, GETNEXTHOP = 104, 106

REQUEST, ACK, DUMP = 0x001, 0x004, 0x300
REPLACE, EXCLUSIVE, CREATE, APPEND = 0x100, 0x200, 0x400, 0x800

IFF_UP = 0x1
ARPHRD_ETHER = 1
ARPHRD_INFINIBAND = 32

_HEADER = struct.Struct("=IHHII")
_ERROR, _DONE = 2, 3
_DUMP_INTERRUPTED = 0x10
_FIB_MATCH = 0x2000
_ACK_TLVS, _ACK_CAPPED = 0x200, 0x100
_SOL_NETLINK, _EXT_ACK, _CAP_ACK = 270, 11, 10
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_RECEIVE = 1 << 17
_DUMP_TRIES = 5
_TIMEOUT = 5.0

Attribute = Tuple[int, bytes]
"""An attribute's type, flags such as NLA_F_NESTED included, and its value."""

TYPE_MASK = 0x3FFF


class NetlinkError(OSError):
    """The kernel said no; `errno` is its answer and `strerror` its words."""


def attributes(data: bytes) -> List[Attribute]:
    """Split a run of attributes; a torn one at the end is left out."""
    found, at = [], 0
    while at + 4 <= len(data):
        size, kind = struct.unpack_from("=HH", data, at)
        if size < 4 or at + size > len(data):
            break
        found.append((kind, data[at + 4 : at + size]))
        at += (size + 3) & ~3
    return found


def packed(items: Iterable[Attribute]) -> bytes:
    """Join attributes into a payload, each padded to four bytes."""
    return b"".join(struct.pack("=HH", len(value) + 4, kind) + value + b"\0" * (-len(value) % 4) for kind, value in items)


class Link(NamedTuple):
    """A network device. Bytes and carrier counts only grow; `lower` is the device it is stacked on, `carrier` its signal."""

    ifindex: int
    name: str
    kind: str
    arp_type: int
    flags: int
    mtu: int
    master: int
    lower: int
    carrier: bool
    carrier_changes: int
    carrier_down_count: int
    rx_bytes: int
    tx_bytes: int

    @property
    def up(self) -> bool:
        """Whether it is set up by its administrator; whether there is a signal is `carrier`."""
        return bool(self.flags & IFF_UP)


_IFLA_IFNAME, _IFLA_MTU, _IFLA_LINK, _IFLA_MASTER = 3, 4, 5, 10
_IFLA_LINKINFO, _IFLA_STATS64, _IFLA_CARRIER, _IFLA_CARRIER_CHANGES = 18, 23, 33, 35
_IFLA_LINK_NETNSID, _IFLA_CARRIER_DOWN_COUNT = 37, 48
_IFLA_INFO_KIND = 1


def _number(values: Dict[int, bytes], kind: int) -> int:
    return int.from_bytes(values.get(kind, b""), sys.byteorder)


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode("utf-8", "replace")


def link_from(payload: bytes) -> Link:
    """Read a link from the payload of a NEWLINK message."""
    _, arp_type, ifindex, flags, _ = struct.unpack_from("=BxHiII", payload)
    values = {kind & TYPE_MASK: value for kind, value in attributes(payload[16:])}
    info = {kind & TYPE_MASK: value for kind, value in attributes(values.get(_IFLA_LINKINFO, b""))}
    stats = struct.unpack_from("=4Q", values[_IFLA_STATS64]) if _IFLA_STATS64 in values else (0, 0, 0, 0)
    # The lower device of another namespace has an index that means nothing here.
    lower = 0 if _IFLA_LINK_NETNSID in values else _number(values, _IFLA_LINK)
    return Link(
        ifindex=ifindex,
        name=_text(values[_IFLA_IFNAME]),
        kind=_text(info.get(_IFLA_INFO_KIND, b"")),
        arp_type=arp_type,
        flags=flags,
        mtu=_number(values, _IFLA_MTU),
        master=_number(values, _IFLA_MASTER),
        lower=lower,
        carrier=bool(_number(values, _IFLA_CARRIER)),
        carrier_changes=_number(values, _IFLA_CARRIER_CHANGES),
        carrier_down_count=_number(values, _IFLA_CARRIER_DOWN_COUNT),
        rx_bytes=stats[2],
        tx_bytes=stats[3],
    )


class Netlink:
    """
    One netlink socket, rtnetlink's unless said, closed by `with`.

    Raises NetlinkError for the kernel's refusals, OSError for the socket's own.
    """

    def __init__(self, protocol: int = socket.NETLINK_ROUTE) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        self._socket.settimeout(_TIMEOUT)
        self._sequence = 0
        self._interrupted = False
        for option in (_EXT_ACK, _CAP_ACK):
            try:
                self._socket.setsockopt(_SOL_NETLINK, option, 1)
            except OSError as error:
                # Kernels before 4.12 answer with bare numbers; everything else works there too.
                if error.errno != errno.ENOPROTOOPT:
                    raise

    def __enter__(self) -> "Netlink":  # noqa: PYI034  # Self is not in Python 3.8
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def links(self) -> List[Link]:
        """Return every link of this network namespace."""
        return [link_from(payload) for payload in self.dump(GETLINK, struct.pack("=BxHiII", 0, 0, 0, 0, 0))]

    def dump(self, kind: int, payload: bytes) -> List[bytes]:
        """Return the payloads of every object of a kind; asked again when the kernel changed it meanwhile."""
        for _ in range(_DUMP_TRIES):
            self._interrupted = False
            answers = list(self._exchange(kind, REQUEST | DUMP, payload))
            if not self._interrupted:
                return answers
        raise NetlinkError(errno.EBUSY, "the kernel's table changed during each of {} reads".format(_DUMP_TRIES))

    def put(self, kind: int, flags: int, payload: bytes) -> None:
        """Create or replace one object from its raw payload."""
        list(self._exchange(kind, REQUEST | ACK | flags, payload))

    def link_towards(self, address: str, source: Optional[str] = None) -> int:
        """Return the index of the link by which the kernel sends to an address; 0 when there is no way."""
        values = {kind & TYPE_MASK: value for body in self.route_towards(address, source) for kind, value in attributes(body[12:])}
        return _number(values, 4)

    def route_towards(self, address: str, source: Optional[str] = None, *, whole: bool = False) -> List[bytes]:
        """Return the route to an address as raw payloads: the way of this moment, or the `whole` entry with all of its nexthops."""
        to = ipaddress.ip_address(address)
        family = socket.AF_INET if to.version == 4 else socket.AF_INET6
        flags = _FIB_MATCH if whole else 0
        head = struct.pack("=BBBBBBBBI", family, to.max_prefixlen, to.max_prefixlen if source else 0, 0, 0, 0, 0, 0, flags)
        ask = [(1, to.packed)] + ([(2, ipaddress.ip_address(source).packed)] if source else [])
        try:
            return list(self._exchange(GETROUTE, REQUEST | ACK, head + packed(ask)))
        except NetlinkError as error:
            if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL):
                return []
            raise

    def _exchange(self, kind: int, flags: int, payload: bytes) -> Iterator[bytes]:
        self._sequence += 1
        self._socket.send(_HEADER.pack(_HEADER.size + len(payload), kind, flags, self._sequence, 0) + payload)
        while True:
            for answer, answer_flags, body in self._receive():
                self._interrupted |= bool(answer_flags & _DUMP_INTERRUPTED)
                if answer == _ERROR:
                    _raise_error(answer_flags, body)
                    return
                if answer == _DONE:
                    _raise_error(0, body[:4] + bytes(_HEADER.size))
                    return
                yield body

    def _receive(self) -> Iterator[Tuple[int, int, bytes]]:
        data = self._socket.recv(_RECEIVE)
        at = 0
        while at + _HEADER.size <= len(data):
            size, kind, flags, sequence, _ = _HEADER.unpack_from(data, at)
            if sequence == self._sequence:
                yield kind, flags, data[at + _HEADER.size : at + size]
            at += (size + 3) & ~3


def _raise_error(flags: int, body: bytes) -> None:
    number = -struct.unpack_from("=i", body)[0] if len(body) >= 4 else 0
    if number == 0:
        return
    echoed = _HEADER.size if flags & _ACK_CAPPED else max(_HEADER.size, struct.unpack_from("=I", body, 4)[0])
    words = dict(attributes(body[4 + echoed :])).get(1, b"") if flags & _ACK_TLVS else b""
    raise NetlinkError(number, _text(words) or os.strerror(number))


def set_up(name: str, up: bool) -> None:
    """Set a link up or down by one ioctl; no program is started. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as handle:
        request = struct.pack("16sH14x", name.encode(), 0)
        _, flags = struct.unpack_from("16sH", fcntl.ioctl(handle, _SIOCGIFFLAGS, request))
        flags = flags | IFF_UP if up else flags & ~IFF_UP
        fcntl.ioctl(handle, _SIOCSIFFLAGS, struct.pack("16sH14x", name.encode(), flags))
