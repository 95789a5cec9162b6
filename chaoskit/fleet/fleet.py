"""The nodes of an inventory over SSH: connect to many at once, keep their clocks mapped, reach a lost one again."""

import shlex
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaoskit.agent.bundle import Bundle, build
from chaoskit.agent.contract import Rail, Site
from chaoskit.errors import ChaosError, HostKeyError, InputError, NodeError, PrivilegeError, ProtocolError, UnreachableError
from chaoskit.fleet.agent_client import AgentClient, Memory
from chaoskit.fleet.connection import Connection, Facts, probe
from chaoskit.fleet.deadlines import Deadlines
from chaoskit.fleet.glimpse import look
from chaoskit.fleet.host_keys import TRUST
from chaoskit.fleet.link import Dialer, Link
from chaoskit.fleet.push import PUSH_AGAIN, command, file_name, hold, push, unpush
from chaoskit.fleet.ssh_options import Resolver
from chaoskit.fleet.sudoers import lines
from chaoskit.model.controller import this_controller
from chaoskit.model.inventory import Inventory, Node
from chaoskit.model.wire import Finding

THREADS = 16
"""Nodes connected at a time; more would not be faster, and sshd drops connections beyond its MaxStartups."""
LINK_STEPS: Mapping[type[NodeError], str] = {HostKeyError: "host key", PrivilegeError: "login"}
"""What a failed connection failed at, by its error; at reaching the node otherwise."""
PING_EVERY = 1.0
"""Seconds between round trips for the clocks."""


@dataclass(frozen=True, slots=True)
class Reached:
    """A node that was reached: its agent, the connection below, and what the probe found."""

    agent: AgentClient
    connection: Connection
    facts: Facts
    link: Link

    def close(self) -> None:
        """Close the channel and the connection."""
        self.agent.close()
        self.link.close()


class SshFleet:
    """
    The nodes of an inventory.

    Args:
        inventory: The site.
        faults: Third parties' faults that the agent needs: name -> module file.

    Raises:
        InputError: A third party's fault cannot be bundled.
    """

    def __init__(self, inventory: Inventory, faults: Mapping[str, Path] | None = None) -> None:
        self._inventory = inventory
        self._bundle: Bundle = build(extra=faults)
        trust = f"{TRUST} -i {shlex.quote(inventory.path)}"
        self._dialer = Dialer(Resolver(inventory.file.ssh, Path(inventory.path).resolve().parent), trust=trust)
        self._deadlines = Deadlines()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="chaoskit-connect")
        self._lock = threading.Lock()  # guards what follows
        self._reached: dict[str, Reached] = {}
        self._greeting: set[AgentClient] = set()
        self._memory: dict[str, Memory] = {}
        self._gates: dict[str, threading.Lock] = {}
        self._protected: tuple[str, ...] | InputError | None = None
        self._closed = threading.Event()
        self._pinger = threading.Thread(target=self._ping, name="chaoskit-pings", daemon=True)
        self._pinger.start()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences that a person should read, such as lines of known_hosts that could not be used."""
        return self._dialer.warnings

    def connect(self, names: Sequence[str]) -> dict[str, AgentClient]:
        """
        Connect to nodes at once; those that are connected already stay as they are.

        Raises:
            ExceptionGroup: One NodeError for each node that failed, the others stay connected.
        """
        pending = {name: self.reconnect(name) for name in dict.fromkeys(names)}
        agents: dict[str, AgentClient] = {}
        failures: list[NodeError] = []
        for name, future in pending.items():
            try:
                agents[name] = future.result()
            except NodeError as error:
                failures.append(error)
        if failures:
            raise ExceptionGroup(f"{len(failures)} of {len(pending)} nodes could not be connected", failures)
        return agents

    def reconnect(self, name: str) -> Future[AgentClient]:
        """Try once to reach a node, lost or never connected; fails with a NodeError."""
        return self._pool.submit(self._connect, name)

    def reached(self, name: str) -> Reached:
        """Return what is known of a node that was reached, connected or not. Raises UnreachableError."""
        with self._lock:
            reached = self._reached.get(name)
        if reached is None:
            raise UnreachableError("the node was never reached", node=name)
        return reached

    def site(self, name: str) -> Site:
        """
        Return what the inventory and the connection say of a node.

        Raises:
            UnreachableError: The node was never reached, so nobody knows which of its addresses we stand on.
            InputError: The address of a protected node cannot be found.
        """
        reached = self.reached(name)
        return self._site(self._node(name), reached.facts, reached.agent.hello.machine_id)

    def _site(self, node: Node, facts: Facts, machine_id: str) -> Site:
        file = self._inventory.file
        return Site(
            node=node.name,
            machine_id=node.machine_id or machine_id or None,
            rails=tuple(Rail(index, rail.netdev, rail.rdma, rail.plane) for index, rail in enumerate(node.rails)),
            control_addresses=_addresses(facts.server_address),
            protected_addresses=tuple(dict.fromkeys((*_addresses(facts.client_address), *self._protected_addresses()))),
            controller_addresses=_addresses(facts.client_address),
            gpu_clocks=node.gpu_clocks or "",
            mounts=node.mounts,
            require_allow_file=file.allow == "file",
            shared=file.shared == "accept",
        )

    def glimpse(self, name: str, checks: Mapping[str, Mapping[str, Any]]) -> Future[tuple[Finding, ...]]:
        """Look at a node as the SSH account, without root and its agent: for one that refuses sudo. Fails with a NodeError."""
        return self._pool.submit(self._glimpse, name, checks)

    def _glimpse(self, name: str, checks: Mapping[str, Mapping[str, Any]]) -> tuple[Finding, ...]:
        with self._without_root(name) as (connection, facts):
            path = push(connection, facts, self._bundle)
            return look(connection, facts, path, self._site(self._node(name), facts, ""), checks)

    def sudoers(self, name: str) -> Future[tuple[str, ...]]:
        """Return the lines of sudoers that the SSH account needs on a node. Fails with a NodeError."""
        return self._pool.submit(self._sudoers, name)

    def _sudoers(self, name: str) -> tuple[str, ...]:
        with self._without_root(name) as (connection, facts):
            return lines(str(connection.user), facts, self._bundle)

    @contextmanager
    def _without_root(self, name: str) -> Iterator[tuple[Connection, Facts]]:
        """Yield a connection of its own, and what a probe without sudo finds. Raises NodeError."""
        node = self._node(name)
        try:
            link = self._dialer.open(self._dialer.resolver.node(node.address or name), name)
            try:
                connection = Connection(link, name)
                yield connection, probe(connection, python=node.python, agent_file=file_name(self._bundle), become="")
            finally:
                link.close()
        except InputError as error:
            raise NodeError(error.what, node=name, hint=error.hint) from error

    def unpush(self, name: str) -> Future[tuple[str, ...]]:
        """Remove the pushed agents, of all versions, from the account's folder on a node; say what was removed."""
        reached = self.reached(name)
        return self._pool.submit(unpush, reached.connection, reached.facts)

    def close(self) -> None:
        """Close every connection; nothing on the nodes changes by it."""
        self._closed.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._pinger.join()
        with self._lock:
            reached, greeting = list(self._reached.values()), list(self._greeting)
        for each in reached:
            each.close()
        for agent in greeting:
            agent.close()
        self._dialer.close()
        self._deadlines.close()

    # -- one node --------------------------------------------------------------------------------------------------

    def _connect(self, name: str) -> AgentClient:
        node = self._node(name)
        with self._lock:
            gate = self._gates.setdefault(name, threading.Lock())
            memory = self._memory.setdefault(name, Memory())
        with gate:  # two attempts at one node would start two agents
            reached = self._reached.get(name)
            if reached is not None and reached.agent.connected:
                return reached.agent
            if reached is not None:
                reached.close()
            try:
                reached = self._reach(node, memory)
            except NodeError:
                raise
            except ChaosError as error:
                failure = NodeError(error.what, node=name, hint=error.hint)
                failure.step = "reach"  # it was not even tried: ssh_config or the address cannot be used
                raise failure from error
            with _step("machine"):
                self._admit(node, reached)
            return reached.agent

    def _reach(self, node: Node, memory: Memory) -> Reached:
        with _step("reach"):
            link = self._dialer.open(self._dialer.resolver.node(node.address or node.name), node.name)
        try:
            with _step("agent"):
                return self._start_agent(node, link, memory)
        except BaseException:
            link.close()
            raise

    def _start_agent(self, node: Node, link: Link, memory: Memory) -> Reached:
        become = self._inventory.file.ssh.become
        connection = Connection(link, node.name)
        facts = probe(connection, python=node.python, agent_file=file_name(self._bundle), become=become)
        for again in (False, True):
            path = push(connection, facts, self._bundle, again=again)
            stream = hold(connection)
            agent = AgentClient(node.name, stream, self._deadlines, memory, epitaph=stream.epitaph)
            try:
                self._welcome(agent)
                stream.run(command(path, facts, self._bundle, become))
                agent.greet(this_controller())
            except UnreachableError as error:
                if again or PUSH_AGAIN not in error.what:
                    raise
            else:
                break
            finally:
                self._greeting.discard(agent)
        return Reached(agent, connection, facts, link)

    def _welcome(self, agent: AgentClient) -> None:
        """Note an agent that has not answered yet, so that closing the fleet ends the wait for it."""
        with self._lock:
            if self._closed.is_set():
                agent.close()
            self._greeting.add(agent)

    def _admit(self, node: Node, reached: Reached) -> None:
        """Take a node in, unless it is not the machine that the inventory means or stands there under two names."""
        try:
            with self._lock:
                self._check_machine(node, reached)
                if self._closed.is_set():
                    raise UnreachableError("the fleet was closed meanwhile", node=node.name)
                self._reached[node.name] = reached
        except NodeError:
            reached.close()
            raise

    def _check_machine(self, node: Node, reached: Reached) -> None:
        hello = reached.agent.hello
        if hello.agent != self._bundle.sha256:
            raise ProtocolError(f"another agent answered: {hello.agent[:16]}, not {self._bundle.sha256[:16]}", node=node.name)
        if node.machine_id and hello.machine_id != node.machine_id:
            what = f"this is the machine {hello.machine_id or 'without an id'}, the inventory means {node.machine_id}"
            raise NodeError(what, node=node.name, hint="mend `machine_id` or the address in the inventory")
        for other, known in self._reached.items():
            # Cloned images share a machine id, containers a kernel: only both together are one machine.
            if other != node.name and (known.agent.hello.machine_id, known.agent.boot_id) == (hello.machine_id, hello.boot_id):
                raise NodeError(f"this is the same machine as {other}", node=node.name, hint="name each machine once in the inventory")

    def _node(self, name: str) -> Node:
        node = self._inventory.nodes.get(name)
        if node is None:
            raise NodeError("the inventory has no such node", node=name)
        return node

    def _protected_addresses(self) -> tuple[str, ...]:
        """Return the addresses of the protected nodes. Raises InputError for one that has none."""
        if self._protected is None:
            try:
                self._protected = self._look_up_protected()
            except InputError as error:
                self._protected = error  # a lookup that fails takes seconds, and every node asks for it
        if isinstance(self._protected, InputError):
            raise self._protected
        return self._protected

    def _look_up_protected(self) -> tuple[str, ...]:
        found: list[str] = []
        for node in self._inventory.nodes.values():
            if node.protected:
                found += self._addresses_of(node)
        return tuple(dict.fromkeys(found))

    def _addresses_of(self, node: Node) -> list[str]:
        options = self._dialer.resolver.node(node.address or node.name)
        try:
            return [str(address[0]) for *_, address in socket.getaddrinfo(options.hostname.encode(), None, type=socket.SOCK_STREAM)]
        except OSError as error:
            hint = "write its address into the inventory: `address: 10.0.0.1`"
            raise InputError(f"the address of the protected node {node.name} cannot be found: {error}", hint=hint) from error

    def _ping(self) -> None:
        while not self._closed.wait(PING_EVERY):
            with self._lock:
                agents = [reached.agent for reached in self._reached.values()]
            for agent in agents:
                if agent.connected:
                    agent.ping()


@contextmanager
def _step(name: str) -> Iterator[None]:
    """Say of a failure at which step of the way to the agent it came, unless it is known better."""
    try:
        yield
    except NodeError as error:
        by_type = LINK_STEPS.get(type(error), name) if name == "reach" else name
        error.step = error.step or by_type
        raise


def _addresses(address: str) -> tuple[str, ...]:
    """Return an address without its zone, or nothing."""
    return (address.partition("%")[0],) if address else ()
