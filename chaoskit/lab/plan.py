"""The plan of a lab: its nodes, addresses and ids. Pure; everything else is derived from it."""

import re
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chaoskit.errors import InputError

STATE_ROOT = Path("/run/chaoskit-lab")
"""Every lab has its own tmpfs at STATE_ROOT/NAME."""

DEFAULT_NAME = "lab"
DEFAULT_WORKERS = 4
DEFAULT_RAIL_MBIT = 60
"""
Slow enough that the trainer's all-reduce (3 MB a node and step) is most of a step on two busy cores too: a lost plane is
then felt as a good half of the pace, whatever the cores are doing besides.
"""
NETWORKS = {"mgmt0": 0, "rail0": 1, "rail1": 2, "fab0": 3, "stor0": 4}
"""Network device in a node -> third byte of its addresses."""

PLANES = {"rail0": "A", "rail1": "B"}
"""Rail -> the independent network that it belongs to."""

HOST_NUMBER = 254
STORE_NUMBER = 200
FIRST_BLOCK = 213
LAST_INDEX = 255 - FIRST_BLOCK
_NAMESPACE = uuid.UUID("6f7d2c1e-1a55-4b0e-9a3f-3c8c2f0c9d11")
_NAME = re.compile(r"[a-z][a-z0-9-]{0,19}")


@dataclass(frozen=True)
class NodePlan:
    """One host of the lab; `number` is the last byte of its addresses."""

    name: str
    group: str
    number: int
    machine_id: str

    @property
    def links(self) -> tuple[str, ...]:
        """Its cabled network devices, in the order they are made."""
        return ("mgmt0", "rail0", "rail1", "stor0") if self.group == "workers" else ("mgmt0", "stor0")


@dataclass(frozen=True)
class LabPlan:
    """
    A whole lab.

    Args:
        name: Name of the lab, and of its state folder.
        index: Which block 10.(213 + index).0.0/16 is its own.
        workers: Number of training nodes, 2 to 16.
        rail_mbit: Rate of each rail in both directions, in Mbit/s.
    """

    name: str
    index: int
    workers: int
    rail_mbit: int

    @property
    def state_dir(self) -> Path:
        """The lab's own folder, a tmpfs while the lab is up."""
        return STATE_ROOT / self.name

    @property
    def nodes(self) -> tuple[NodePlan, ...]:
        """The workers node1..nodeN, then store1."""
        workers = tuple(self._node(f"node{number}", "workers", number) for number in range(1, self.workers + 1))
        return (*workers, self.store)

    @property
    def store(self) -> NodePlan:
        """The node that serves the checkpoint file system."""
        return self._node("store1", "storage", STORE_NUMBER)

    @property
    def host_link(self) -> str:
        """Name of the lab's one network device on the host."""
        return host_link(self.index)

    @property
    def host_address(self) -> str:
        """The host's address on the management network."""
        return self._address("mgmt0", HOST_NUMBER)

    @property
    def block(self) -> str:
        """All addresses of the lab."""
        return f"10.{FIRST_BLOCK + self.index}.0.0/16"

    def node(self, name: str) -> NodePlan:
        """Return a node by its name. Raises InputError."""
        for node in self.nodes:
            if node.name == name:
                return node
        names = ", ".join(node.name for node in self.nodes)
        raise InputError(f"there is no node {name!r}", where=f"lab {self.name}", hint=f"its nodes are {names}")

    def node_dir(self, node: NodePlan) -> Path:
        """Return the folder of a node's root, bundle and status."""
        return self.state_dir / "nodes" / node.name

    def address(self, node: NodePlan, link: str) -> str:
        """Return the IPv4 address of a node's network device."""
        return self._address(link, node.number)

    def subnet(self, link: str) -> str:
        """Return the subnet that a network device's address lies in."""
        return f"{self._address(link, 0)}/24"

    def mac(self, node: NodePlan, link: str) -> str:
        """Return the hardware address: fixed over reboots, as a real card's is, so that neighbours stay valid."""
        return f"02:c4:{self.index:02x}:{NETWORKS[link]:02x}:00:{node.number:02x}"

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "LabPlan":
        """Rebuild the plan from `to_json`'s output."""
        return cls(**data)

    def _address(self, link: str, number: int) -> str:
        return f"10.{FIRST_BLOCK + self.index}.{NETWORKS[link]}.{number}"

    def _node(self, name: str, group: str, number: int) -> NodePlan:
        # Derived from the names alone, so that the shipped inventory can state it before the lab was ever up.
        return NodePlan(name, group, number, uuid.uuid5(_NAMESPACE, f"{self.name}/{name}").hex)


def host_link(index: int) -> str:
    """Return the name of the host's end of a lab's link."""
    return f"cklab{index}"


def check_request(name: str, workers: int, rail_mbit: int) -> None:
    """Check what a user asked for. Raises InputError."""
    where = "lab up"
    if not _NAME.fullmatch(name):
        raise InputError(f"name {name!r} is not usable", where=where, hint="up to 20 of a-z, 0-9 and -, the first a letter")
    if not 2 <= workers <= 16:
        raise InputError(f"{workers} nodes were asked for, and a lab has 2 to 16", where=where, hint=f"--nodes {DEFAULT_WORKERS}")
    if not 1 <= rail_mbit <= 10_000:
        raise InputError(
            f"a rail of {rail_mbit} Mbit/s was asked for, and 1 to 10000 work", where=where, hint=f"--rail-mbit {DEFAULT_RAIL_MBIT}"
        )
