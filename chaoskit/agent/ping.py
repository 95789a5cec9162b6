"""
An ICMP echo over one network device, from a raw socket of our own: `ping` is not on every node.

Standard library only, Python 3.8.
"""

import os
import select
import socket
import struct
import time

TRIES = 3
EVERY = 0.5
"""Seconds from one try to the next; the first one may have to wait for the neighbour's hardware address."""

_REQUEST, _REPLY = 8, 0
_ECHO = struct.Struct("!BBHHH")
_BINDTODEVICE = 25  # SO_BINDTODEVICE is not in Python's socket module everywhere


def why_silent(netdev: str, address: str) -> str:
    """Ask an IPv4 address for an echo over this device; return why none came, and nothing when one did."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.IPPROTO_ICMP) as handle:
            handle.setsockopt(socket.SOL_SOCKET, _BINDTODEVICE, netdev.encode() + b"\0")
            return _asked(handle, address)
    except OSError as error:
        return str(error.strerror or error)


def _asked(handle: socket.socket, address: str) -> str:
    word = os.urandom(16)
    for number in range(1, TRIES + 1):
        handle.sendto(request(number, word), (address, 0))
        until = time.monotonic() + EVERY
        while select.select([handle], [], [], max(0.0, until - time.monotonic()))[0]:
            data, (source, _) = handle.recvfrom(1 << 12)
            if source == address and is_reply(data, word):
                return ""
    return "no answer to {} echo requests".format(TRIES)


def request(number: int, word: bytes) -> bytes:
    """Return an echo request that carries a word."""
    head = _ECHO.pack(_REQUEST, 0, 0, 0, number)
    return _ECHO.pack(_REQUEST, 0, checksum(head + word), 0, number) + word


def is_reply(packet: bytes, word: bytes) -> bool:
    """Whether an IPv4 packet is the echo reply that carries our word; the socket hears every ICMP packet of the device."""
    start = (packet[0] & 0x0F) * 4 if packet else 0
    return packet[start : start + 1] == bytes([_REPLY]) and packet[start + _ECHO.size :] == word


def checksum(data: bytes) -> int:
    """Return the checksum of RFC 1071: the complement of the sum of all 16-bit words in ones' complement."""
    total: int = sum(struct.unpack("!{}H".format(len(data) // 2), data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
