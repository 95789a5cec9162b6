"""
What this node has sent over each of its TCP connections, by the kernel's own count (what `ss -tin` shows).

A kernel's own connections, as NFS makes them, are among them. Standard library only, Python 3.8.
"""

import ipaddress
import socket
import struct
from typing import List, NamedTuple, Sequence

from chaoskit.agent.netlink import TYPE_MASK, Netlink, attributes

# linux/inet_diag.h, linux/sock_diag.h, linux/tcp.h
_SOCK_DIAG, _BY_FAMILY, _INFO = 4, 20, 2
_ESTABLISHED = 1 << 1
_BYTES_ACKED = 120
"""Where tcp_info has what the other side has acknowledged: since Linux 4.2."""


class Sent(NamedTuple):
    """A connection: its own address, the other side's, and the bytes that the other side has acknowledged."""

    source: str
    to: str
    port: int
    acknowledged: int


def established(addresses: Sequence[str]) -> List[Sent]:
    """Return the connections that are established to any of these addresses. Raises OSError: this kernel cannot say."""
    wanted = {ipaddress.ip_address(address) for address in addresses}
    with Netlink(_SOCK_DIAG) as kernel:
        found = [sent for family in (socket.AF_INET, socket.AF_INET6) for sent in _family(kernel, family)]
    return [sent for sent in found if ipaddress.ip_address(sent.to) in wanted]


def _family(kernel: Netlink, family: int) -> List[Sent]:
    ask = struct.pack("=BBBBI48x", family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, _ESTABLISHED)
    return [_sent(body) for body in kernel.dump(_BY_FAMILY, ask)]


def _sent(body: bytes) -> Sent:
    width = 4 if body[0] == socket.AF_INET else 16
    port = struct.unpack_from("!H", body, 6)[0]
    info = next((value for kind, value in attributes(body[72:]) if kind & TYPE_MASK == _INFO), b"")
    acknowledged = struct.unpack_from("=Q", info, _BYTES_ACKED)[0] if len(info) >= _BYTES_ACKED + 8 else 0
    return Sent(_plain(body[8 : 8 + width]), _plain(body[24 : 24 + width]), port, acknowledged)


def _plain(packed: bytes) -> str:
    """Return an address as text; an IPv4 one that a socket of both families holds as IPv4."""
    address = ipaddress.ip_address(packed)
    return str(getattr(address, "ipv4_mapped", None) or address)
