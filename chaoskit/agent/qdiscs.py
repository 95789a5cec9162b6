"""
A rate cap toward some addresses only: an htb of our own on a device whose queueing is still the kernel's default.

What goes to those addresses passes one class with a ceiling; everything else goes the direct way, unshaped. One message
removes it, and the kernel then attaches its default again. In process, without `tc`. Standard library only, Python 3.8.
"""

import ctypes
import errno
import ipaddress
import os
import socket
import struct
from typing import List, NamedTuple, Optional, Sequence, Tuple

from chaoskit.agent import netlink
from chaoskit.agent.netlink import TYPE_MASK, Netlink, NetlinkError, attributes, packed

OURS = 0xC4A00000
"""Our handle, `c4a0:`: nobody's default, and rarely anybody's choice."""
LAB = 0x1AB00000
"""The handle of the lab's own rate limits, which are no fault's and stand as long as the lab."""
_CLASS = OURS | 1
_ROOT = 0xFFFFFFFF
_INGRESS = 0xFFFFFFF1
_TC = struct.Struct("=BxxxiIII")
_KIND, _OPTIONS, _STATS = 1, 2, 3
_HTB_PARAMETERS, _HTB_INIT, _HTB_RATE64, _HTB_CEIL64 = 1, 2, 6, 7
_U32_CLASS, _U32_SELECTOR = 1, 5
_ETHERNET = 1
_TICK = 64
"""Nanoseconds of the tick in which the kernel counts a class's burst (PSCHED_SHIFT)."""
_BURST = 16 << 10
_BURST_TIME = 0.004
"""
What may leave at once: ten packets, or what the rate gives in four milliseconds, since the kernel's timers are no finer.
Either is little against any probe.
"""
_NEWNET, _NEWUSER = 0x40000000, 0x10000000

MODULES = "sch_htb and cls_u32"


class Qdisc(NamedTuple):
    """A queueing discipline of a device: its kind, handle and parent (0 is the root) as `tc` writes their major numbers."""

    kind: str
    handle: int
    parent: int

    @property
    def default(self) -> bool:
        """Whether the kernel made it by itself: what anybody asks for gets a handle."""
        return self.handle == 0

    def __str__(self) -> str:
        return "{} {:x}:".format(self.kind, self.handle >> 16)


def standing(kernel: Netlink, ifindex: int) -> List[Qdisc]:
    """Return the disciplines for what a device sends, the root first; what it receives is no concern of ours."""
    found = [_qdisc(body) for body in kernel.dump(netlink.GETQDISC, _TC.pack(0, ifindex, 0, 0, 0)) if _TC.unpack_from(body)[1] == ifindex]
    return sorted((one for one in found if one.parent != _INGRESS), key=lambda one: (one.parent != 0, one.parent))


def _qdisc(body: bytes) -> Qdisc:
    _, _, handle, parent, _ = _TC.unpack_from(body)
    kinds = [value for kind, value in attributes(body[_TC.size :]) if kind & TYPE_MASK == _KIND]
    return Qdisc(kinds[0].rstrip(b"\0").decode() if kinds else "", handle, 0 if parent == _ROOT else parent)


def capped(kernel: Netlink, ifindex: int) -> bool:
    """Whether our own discipline is a device's root."""
    return any(one.parent == 0 and one.handle == OURS and one.kind == "htb" for one in standing(kernel, ifindex))


def cap(kernel: Netlink, ifindex: int, addresses: Sequence[str], rate: float) -> None:
    """
    Cap what a device sends to these addresses.

    Args:
        kernel: An rtnetlink socket.
        ifindex: The device.
        addresses: IPv4 and IPv6 addresses.
        rate: Bytes a second, headers included.

    Raises:
        NetlinkError: The kernel refused; ENOENT when it lacks a module. What was made so far stands: `uncap`.
    """
    version, rate_to_quantum, unclassified = 3, 10, 0
    glob = struct.pack("=5I", version, rate_to_quantum, unclassified, 0, 0)
    _make(kernel, netlink.NEWQDISC, (ifindex, OURS, _ROOT, 0), "htb", [(_HTB_INIT, glob)])
    _make(kernel, netlink.NEWTCLASS, (ifindex, _CLASS, OURS, 0), "htb", _ceiling(int(rate)))
    for address in addresses:
        ip = ipaddress.ip_address(address)
        # One priority a protocol: the kernel takes no two protocols at the same one.
        priority, protocol = (1, 0x0800) if ip.version == 4 else (2, 0x86DD)
        options = [(_U32_CLASS, struct.pack("=I", _CLASS)), (_U32_SELECTOR, _destination(ip.packed))]
        _make(kernel, netlink.NEWTFILTER, (ifindex, 0, OURS, priority << 16 | socket.htons(protocol)), "u32", options)


def uncap(kernel: Netlink, ifindex: int) -> None:
    """Remove our discipline with all that hangs on it; harmless when it is not there. Raises NetlinkError."""
    if not capped(kernel, ifindex):
        return
    try:
        kernel.put(netlink.DELQDISC, 0, _TC.pack(0, ifindex, OURS, _ROOT, 0))
    except NetlinkError as error:
        if error.errno not in (errno.ENOENT, errno.ENODEV):
            raise


def passed(kernel: Netlink, ifindex: int) -> int:
    """Return the bytes that went through our class; 0 when it is not there."""
    for body in kernel.dump(netlink.GETTCLASS, _TC.pack(0, ifindex, 0, 0, 0)):
        if _TC.unpack_from(body)[2] == _CLASS:
            stats = [value for kind, value in attributes(body[_TC.size :]) if kind & TYPE_MASK == _STATS]
            return int(struct.unpack_from("=Q", stats[0])[0]) if stats else 0
    return 0


def _make(kernel: Netlink, message: int, place: Tuple[int, int, int, int], kind: str, options: List[Tuple[int, bytes]]) -> None:
    body = _TC.pack(0, *place) + packed([(_KIND, kind.encode() + b"\0"), (_OPTIONS, packed(options))])
    kernel.put(message, netlink.CREATE | netlink.EXCLUSIVE, body)


def _ceiling(rate: int) -> List[Tuple[int, bytes]]:
    spec = struct.pack("=BBHhHI", 0, _ETHERNET, 0, -1, 0, min(rate, 0xFFFFFFFF))
    burst = min(int(max(_BURST / rate, _BURST_TIME) * 1e9 / _TICK), 0xFFFFFFFF)
    quantum, level, priority = 1 << 16, 0, 0
    options = [(_HTB_PARAMETERS, spec + spec + struct.pack("=5I", burst, burst, quantum, level, priority))]
    if rate > 0xFFFFFFFF:
        options += [(kind, struct.pack("=Q", rate)) for kind in (_HTB_RATE64, _HTB_CEIL64)]
    return options


def _destination(address: bytes) -> bytes:
    """Return a u32 selector: terminal, one key for each four bytes of the destination, counted from the network header."""
    start = 16 if len(address) == 4 else 24
    keys = [struct.pack("=I4sii", 0xFFFFFFFF, address[at : at + 4], start + at, 0) for at in range(0, len(address), 4)]
    return struct.pack("=BBBxHHhhI", 1, 0, len(keys), 0, 0, 0, 0, 0) + b"".join(keys)


def trial(addresses: Sequence[str], rate: float) -> Optional[str]:
    """
    Make the very same cap in a network namespace of its own, which ends with the child that tries it.

    Called in a child process. Returns the kernel's words when it refused; None when it worked, or when a namespace is
    not to be had, so that nobody knows.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEWNET) != 0 and libc.unshare(_NEWUSER | _NEWNET) != 0:
        return None
    try:
        with Netlink() as kernel:
            cap(kernel, socket.if_nametoindex("lo"), addresses, rate)
    except NetlinkError as error:
        return words(error)
    return None


def words(error: OSError) -> str:
    """Return what a kernel without the modules says, and which those are."""
    lacks = error.errno in (errno.ENOENT, errno.EOPNOTSUPP)
    return "{}{}".format(error.strerror or os.strerror(error.errno or 0), " ({})".format(MODULES) if lacks else "")


def default_kind() -> str:
    """Return the kind that this kernel attaches by itself to a device with queues; empty where it does not say."""
    try:
        with open("/proc/sys/net/core/default_qdisc", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


__all__: List[str] = [
    "LAB", "MODULES", "OURS", "Qdisc", "cap", "capped", "default_kind", "passed", "standing", "trial", "uncap", "words",
]  # fmt: skip
