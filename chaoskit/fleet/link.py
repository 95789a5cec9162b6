"""
One authenticated SSH connection to a host, through its jump hosts, with its host key checked before anything is sent.

The socket is ours: paramiko leaves Nagle's algorithm on, which costs 40 ms a round trip, and sshd keeps it on at its
end until the first command, so acknowledgements are sent at once as well.
"""

import logging
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import paramiko

from chaoskit.errors import HostKeyError, InputError, NodeError, UnreachableError
from chaoskit.fleet.host_keys import TRUST, check_host_key
from chaoskit.fleet.keys import KeyRing, log_in
from chaoskit.fleet.known_hosts import KnownHosts
from chaoskit.fleet.offers import offer
from chaoskit.fleet.proxy import Proxy
from chaoskit.fleet.ssh_options import Resolver, SshOptions

HANDSHAKE_TIMEOUT = 15.0
"""Seconds for the server's banner and the key exchange."""
KEEPALIVE = 5
"""Seconds between keepalives on an idle connection."""
LOST_AFTER = 15.0
"""Seconds that sent data may stay unacknowledged until the kernel gives the connection up."""

MAX_JUMPS = 8

JUMP_AGAIN = 5.0
"""Seconds after a failure until a jump host is tried again."""

CHANNEL_TIMEOUT = 15.0
"""Seconds for the server to open a session; paramiko would wait an hour for a host that is lost."""

# paramiko logs every lost connection with its traceback; what matters of it is in our exceptions.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class QuickSocket(socket.socket):
    """A TCP socket that acknowledges at once; the kernel forgets TCP_QUICKACK, so each receive arms it again."""

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """Receive, then ask for immediate acknowledgements again."""
        data = super().recv(size, flags)
        self.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return data


def dial(options: SshOptions) -> QuickSocket:
    """Connect to the first address of a host that answers, within the connect timeout for all of them. Raises OSError."""
    deadline = time.monotonic() + options.connect_timeout
    failure: OSError = OSError(f"{options.hostname} has no address")
    # As bytes: for a text, Python's codec for host names refuses labels by an error of its own.
    for family, kind, proto, _, address in socket.getaddrinfo(
        options.hostname.encode(), options.port, family=options.family, type=socket.SOCK_STREAM
    ):
        sock = QuickSocket(family, kind, proto)
        try:
            sock.settimeout(max(0.001, deadline - time.monotonic()))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _bind(sock, options)
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(LOST_AFTER * 1000))
        except OSError as error:
            failure = error
            sock.close()
        else:
            return sock
    raise failure


def _bind(sock: socket.socket, options: SshOptions) -> None:
    """Leave by the address and the interface that ssh_config names. Raises OSError that names them."""
    try:
        if options.bind_interface is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, options.bind_interface.encode() + b"\0")
        if options.bind_address is not None:
            found = socket.getaddrinfo(options.bind_address.encode(), 0, family=sock.family, type=socket.SOCK_STREAM)
            sock.bind(found[0][4])
    except OSError as error:
        asked = " ".join(filter(None, (options.bind_address, options.bind_interface)))
        raise OSError(f"cannot leave by {asked}, as ssh_config's BindAddress or BindInterface says: {error.strerror or error}") from error


@dataclass(frozen=True, slots=True)
class Carrier:
    """What a transport runs over; the program that makes it, when a ProxyCommand does."""

    stream: socket.socket | paramiko.Channel
    proxy: Proxy | None = None

    def said(self) -> str:
        """Return what the program said last, for the end of an error text."""
        words = self.proxy.said() if self.proxy is not None else ""
        return f"; the ProxyCommand said: {words}" if words else ""


@dataclass(slots=True)
class Link:
    """An authenticated transport to one host."""

    options: SshOptions
    transport: paramiko.Transport
    carrier: Carrier

    def close(self) -> None:
        """Close the connection."""
        self.transport.close()
        self.carrier.stream.close()  # a transport that never began leaves it open
        if self.carrier.proxy is not None:
            self.carrier.proxy.close()


class Dialer:
    """
    Opens links for a fleet. Files of host keys are read once, private keys too, and jump hosts are shared.

    Args:
        resolver: How each host is reached.
        handshake_timeout: Seconds for a server's banner and the key exchange.
        trust: How `chaoskit trust` is called for these hosts, for error texts.
    """

    def __init__(self, resolver: Resolver, handshake_timeout: float = HANDSHAKE_TIMEOUT, trust: str = TRUST) -> None:
        self.resolver = resolver
        self._handshake_timeout = handshake_timeout
        self._trust = trust
        self._ring = KeyRing()
        self._lock = threading.Lock()
        self._known: dict[tuple[Path, ...], KnownHosts] = {}
        self._jumps: dict[tuple[SshOptions, ...], Link] = {}
        self._jump_locks: dict[tuple[SshOptions, ...], threading.Lock] = {}
        self._jump_failures: dict[tuple[SshOptions, ...], tuple[float, NodeError]] = {}

    @property
    def warnings(self) -> tuple[str, ...]:
        """One sentence for each line of known_hosts that could not be used."""
        with self._lock:
            return tuple(text for known in self._known.values() for text in known.warnings)

    def open(self, options: SshOptions, node: str) -> Link:
        """
        Connect, check the host key, log in.

        Raises:
            HostKeyError: The key is unknown, changed or revoked; nothing was sent to the host.
            PrivilegeError: No key of ours was taken.
            UnreachableError: Anything else that stood in the way.
            InputError: The jump hosts make no sense.
        """
        return self._open(options, self.chain(options), node)

    def show(self, options: SshOptions, chain: Sequence[SshOptions], node: str) -> bytes:
        """
        Return the host key that a host shows; it gets nothing from us beyond the key exchange, which proves the key.

        Args:
            options: How the host is reached.
            chain: The jump hosts before it, the first to dial first; to these we log in.
            node: The host's name, for errors.

        Raises:
            HostKeyError, PrivilegeError: Of a jump host.
            UnreachableError, InputError: As `open`.
        """
        link = self._shake_hands(options, chain, node)
        try:
            return link.transport.get_remote_server_key().asbytes()
        finally:
            link.close()

    def known(self, options: SshOptions, node: str) -> KnownHosts:
        """Return what is known of a host's keys, as it was first read. Raises HostKeyError when that cannot be said."""
        if options.revoked_keys is not None:
            raise HostKeyError(
                f"ssh_config names RevokedHostKeys {options.revoked_keys}, which chaoskit cannot read",
                node=node,
                hint="write revoked keys into known_hosts as `@revoked * TYPE KEY`, and use an ssh_config without it",
            )
        with self._lock:
            if options.known_hosts not in self._known:
                try:
                    self._known[options.known_hosts] = KnownHosts.read(options.known_hosts)
                except OSError as error:
                    raise HostKeyError(f"the known host keys cannot be read: {error}", node=node) from error
            return self._known[options.known_hosts]

    def reread(self) -> None:
        """Read the files of host keys again when they are next asked for."""
        with self._lock:
            self._known.clear()

    def _open(self, options: SshOptions, chain: Sequence[SshOptions], node: str) -> Link:
        known = self.known(options, node)
        link = self._shake_hands(options, chain, node)
        try:
            check_host_key(known, options, link.transport.get_remote_server_key().asbytes(), node, self._trust)
            log_in(link.transport, options, self._ring, node)
        except BaseException:
            link.close()
            raise
        link.transport.set_keepalive(KEEPALIVE)
        return link

    def _shake_hands(self, options: SshOptions, chain: Sequence[SshOptions], node: str) -> Link:
        """Return a link whose keys are exchanged, and no more: the host key is still to be checked, and nobody is logged in."""
        types = self.known(options, node).types_for(options.known_names)
        carrier = self._carrier(options, chain, node)
        link = Link(options, paramiko.Transport(carrier.stream), carrier)
        link.transport.channel_timeout = CHANNEL_TIMEOUT
        try:
            offer(link.transport, options, types)
            _shake_hands(link, node, self._handshake_timeout)
        except BaseException:
            link.close()
            raise
        return link

    def close(self) -> None:
        """Close the connections to the jump hosts."""
        with self._lock:
            links, self._jumps = list(self._jumps.values()), {}
        for link in links:
            link.close()

    def _carrier(self, options: SshOptions, chain: Sequence[SshOptions], node: str) -> Carrier:
        """Return what carries the SSH connection: a channel of the last jump host, a proxy's socket, or a TCP socket."""
        where = f"{options.hostname}:{options.port}"
        try:
            if chain:
                transport = self._jump(tuple(chain), node).transport
                target = (options.hostname, options.port)
                return Carrier(transport.open_channel("direct-tcpip", target, ("", 0), timeout=options.connect_timeout))
            if options.proxy:
                proxy = Proxy(options.proxy)
                return Carrier(proxy.socket, proxy)
            return Carrier(dial(options))
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise UnreachableError(f"no connection to {where}: {error}", node=node, hint=_reach_hint(options)) from error

    def _jump(self, chain: tuple[SshOptions, ...], node: str) -> Link:
        """Return the link to the last host of a chain; one is shared by all nodes behind it."""
        with self._lock:
            lock = self._jump_locks.setdefault(chain, threading.Lock())
        with lock:
            link = self._jumps.get(chain)
            if link is None or not link.transport.is_active():
                link = self._open_jump(chain, f"{node.partition(' ')[0]} (jump host {chain[-1].name})")
                with self._lock:
                    self._jumps[chain] = link
            return link

    def _open_jump(self, chain: tuple[SshOptions, ...], node: str) -> Link:
        """Open the link to the last host of a chain; one that has just failed is not waited for again by each node behind it."""
        if (last_failure := self._jump_failures.get(chain)) and time.monotonic() - last_failure[0] < JUMP_AGAIN:
            error = last_failure[1]
            raise type(error)(error.what, node=node, hint=error.hint)
        *before, last = chain
        try:
            return self._open(last, before, node)
        except NodeError as failure:
            self._jump_failures[chain] = (time.monotonic(), failure)
            raise

    def chain(self, options: SshOptions) -> list[SshOptions]:
        """Return the jump hosts before a host, the first to dial first. Raises InputError."""
        chain: list[SshOptions] = []
        jumps = options.jumps
        while jumps:
            hop = self.resolver.jump(jumps[-1])
            if _same_place(hop, chain[0] if chain else options):
                break  # `Host *` with a ProxyJump names the jump host too; it is reached directly
            chain.insert(0, hop)
            jumps = jumps[:-1] or hop.jumps
            if len(chain) > MAX_JUMPS:
                names = " -> ".join(each.name for each in chain)
                raise InputError(
                    f"{options.name} stands behind more than {MAX_JUMPS} jump hosts: {names}", hint="look for a loop in ssh_config"
                )
        return chain


def _same_place(one: SshOptions, other: SshOptions) -> bool:
    return (one.hostname, one.port) == (other.hostname, other.port)


def _reach_hint(options: SshOptions) -> str:
    return f"try: ssh -v -p {options.port} {options.user}@{options.hostname}"


def _shake_hands(link: Link, node: str, timeout: float) -> None:
    transport, where = link.transport, f"{link.options.hostname}:{link.options.port}"
    transport.banner_timeout = transport.handshake_timeout = timeout
    done = threading.Event()
    transport.start_client(event=done)
    if not done.wait(timeout + 1):
        what = f"{where} did not finish the SSH handshake{link.carrier.said()}"
        raise UnreachableError(what, node=node, hint=_reach_hint(link.options))
    if not transport.is_active():
        reason = transport.get_exception() or "the server hung up"
        what = f"SSH handshake with {where}: {reason}{link.carrier.said()}"
        raise UnreachableError(what, node=node, hint=_reach_hint(link.options))
