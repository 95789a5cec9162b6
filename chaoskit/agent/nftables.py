"""
The packet filter's tables over one netlink socket, without `nft`: which there are, one more, and away with one. Nothing is ever flushed.

Standard library only, Python 3.8.
"""

import errno
import os
import socket
import struct
from typing import List, NamedTuple

from chaoskit.agent.netlink import ACK, CREATE, EXCLUSIVE, REQUEST, TYPE_MASK, Netlink, attributes, packed

_NETFILTER = 12
_TIMEOUT = 5.0
_HEADER = struct.Struct("=IHHII")
_SUBSYSTEM = 10 << 8
_NEWTABLE, _GETTABLE, _DELTABLE = _SUBSYSTEM, _SUBSYSTEM | 1, _SUBSYSTEM | 2
_BATCH_BEGIN, _BATCH_END = 16, 17
_NAME = 1
_NFGENMSG = struct.Struct("=BBH")
FAMILIES = {1: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}
NONE = (errno.EPROTONOSUPPORT, errno.EINVAL, errno.EOPNOTSUPP)
"""What a kernel without nftables says."""


class Table(NamedTuple):
    """A table: its family as `nft` calls it, and its name."""

    family: str
    name: str


def tables() -> List[Table]:
    """Return every table of this network namespace; none where the kernel has no nftables. Raises OSError."""
    try:
        with Netlink(_NETFILTER) as kernel:
            return [_table(body) for body in kernel.dump(_GETTABLE, _NFGENMSG.pack(0, 0, 0))]
    except OSError as error:
        if error.errno in NONE:
            return []
        raise


def _table(body: bytes) -> Table:
    family = _NFGENMSG.unpack_from(body)[0]
    names = [value for kind, value in attributes(body[_NFGENMSG.size :]) if kind & TYPE_MASK == _NAME]
    return Table(FAMILIES.get(family, str(family)), names[0].rstrip(b"\0").decode("utf-8", "replace") if names else "")


def make(table: Table) -> None:
    """Make an empty table. Raises OSError: it is there already, or the kernel refuses."""
    error = _change(_NEWTABLE, CREATE | EXCLUSIVE, table)
    if error:
        raise OSError(error, os.strerror(error))


def delete(table: Table) -> None:
    """Delete one table with all that is in it; harmless when it is gone. Raises OSError."""
    error = _change(_DELTABLE, 0, table)
    if error not in (0, errno.ENOENT):
        raise OSError(error, os.strerror(error))


def _change(kind: int, flags: int, table: Table) -> int:
    """Send one change of one table, and return the kernel's answer, 0 when it is done."""
    family = next(number for number, name in FAMILIES.items() if name == table.family)
    name = packed([(_NAME, table.name.encode() + b"\0")])
    # The kernel takes a change only between these two, which name the subsystem in network order.
    frame = struct.pack("=BB", 0, 0) + struct.pack(">H", _SUBSYSTEM >> 8)
    batch = _message(_BATCH_BEGIN, REQUEST, 1, frame)
    batch += _message(kind, REQUEST | ACK | flags, 2, _NFGENMSG.pack(family, 0, 0) + name)
    batch += _message(_BATCH_END, REQUEST, 3, frame)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETFILTER) as kernel:
        kernel.settimeout(_TIMEOUT)
        kernel.send(batch)
        answer = kernel.recv(1 << 16)
    return -int(struct.unpack_from("=i", answer, _HEADER.size)[0])


def _message(kind: int, flags: int, sequence: int, body: bytes) -> bytes:
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, sequence, 0) + body
