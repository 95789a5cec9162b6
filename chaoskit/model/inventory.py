"""
What an inventory file says, as frozen types: hosts, groups, rails and planes, trainings, site budgets.

Everything that belongs to one site stands here, so that experiments are portable between the lab and any cluster.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from chaoskit.model.experiment import CONFIG, Budgets, Position, nearest
from chaoskit.model.hostlist import expand
from chaoskit.model.units import Amount, Count, Duration, Pick, Port, Positive


@dataclass(frozen=True)
class Ssh:
    """How nodes are reached; whatever is not given comes from ssh_config."""

    __pydantic_config__: ClassVar[Any] = CONFIG
    user: str | None = None
    """Account on the nodes."""
    become: Literal["sudo", "none"] = "sudo"
    """How that account becomes root; `none` when it is root."""
    port: Port | None = None
    """Port of sshd."""
    jump: str | None = None
    """A jump host."""
    config: str | None = None
    """An ssh_config file to use instead of the user's own."""
    key: str | None = None
    """A private key file."""
    known_hosts: tuple[str, ...] = ()
    """Files of known host keys to use instead of those of ssh_config."""


@dataclass(frozen=True)
class RailSpec:
    """One NIC index of a node; its place in the list is the rail's index."""

    __pydantic_config__: ClassVar[Any] = CONFIG
    netdev: str | None = None
    """Network device, such as `eth2`."""
    rdma: str | None = None
    """RDMA device, such as `mlx5_0`."""
    plane: str | None = None
    """The independent network that this rail belongs to."""


@dataclass(frozen=True)
class NodeSpec:
    """What one line of `nodes:` says of the hosts in its range."""

    __pydantic_config__: ClassVar[Any] = CONFIG
    group: str | None = None
    """The group of these nodes."""
    like: str | None = None
    """Take what is not given here from the nodes of this group."""
    gpus: Count = 0
    """GPUs a node."""
    gpu_clocks: str | None = None
    """What holds of the GPUs' clocks, since a lock cannot be read: `default`, or the operator's own lock in MHz, such as `210-1410`."""
    rails: tuple[RailSpec, ...] = ()
    """The rails, by index."""
    address: str | None = None
    """Address for SSH; `{node}` and `{index}` (1, 2, ... in the range) are replaced."""
    machine_id: str | None = None
    """/etc/machine-id of the node, for a single host: the node refuses to be another machine."""
    mounts: tuple[str, ...] = ()
    """Mount points that must be there again after a reboot."""
    python: str | None = None
    """Python 3.8 or newer for the agent."""


@dataclass(frozen=True)
class Format:
    """How the training's log is read: exactly one of `regex` and `jsonl`, or the name of a known format."""

    __pydantic_config__: ClassVar[Any] = CONFIG
    regex: Mapping[str, str] = field(default_factory=dict)
    """Event name -> regular expression; see `chaoskit.training.formats` for the events and their groups."""
    jsonl: Mapping[str, str] = field(default_factory=dict)
    """Field of ours -> key in each JSON line: step, time, incarnation, batch, event."""


@dataclass(frozen=True)
class Checkpoints:
    """Where checkpoints lie and how often they are written."""

    __pydantic_config__: ClassVar[Any] = CONFIG
    dir: str | None = None
    """Directory of the checkpoints."""
    every: Positive | None = None
    """Steps from one checkpoint to the next."""


@dataclass(frozen=True)
class TrainingSpec:
    """One way to launch or attach to a training; a site fact."""

    __pydantic_config__: ClassVar[Any] = CONFIG
    launcher: Literal["torchrun", "command", "attach"]
    """torchrun: chaoskit starts an elastic agent a node. command: a command starts it. attach: it already runs."""
    group: str = "workers"
    """The nodes that train."""
    nodes: str | None = None
    """A host list instead of a group; with `command` it may come from `nodes_command`."""
    log: str = ""
    """Log file to follow on `log_nodes`; `{run}`, `{job}` and `{node}` are replaced."""
    log_nodes: str | None = None
    """Host list of the nodes whose log is followed; every training node when not given."""
    format: str | Format = "auto"
    """A named format, `regex:` or `jsonl:`."""
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    """Where checkpoints lie and how often they are written."""
    batch: Positive | None = None
    """Global batch, when the log does not say it."""
    user: str | None = None
    """Account that trains; the SSH account when not given."""
    run_id: str | None = None
    """TORCHELASTIC_RUN_ID of an attached training; chaoskit chooses one when it launches."""
    rendezvous: str | None = None
    """The node that hosts the rendezvous; the first training node when not given."""
    argv: tuple[str, ...] = ()
    """torchrun: the program and its arguments; `{run}` and `{node}` are replaced."""
    python: str = "python3"
    """torchrun: the interpreter that has torch."""
    interface: str | None = None
    """torchrun: network device for the training's traffic (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME)."""
    env: Mapping[str, str] = field(default_factory=dict)
    """torchrun: further environment."""
    max_restarts: Count = 5
    """torchrun: restarts that each elastic agent allows."""
    rdzv_conf: Mapping[str, str] = field(default_factory=dict)
    """torchrun: further `--rdzv-conf` values."""
    min_nodes: Positive | None = None
    """torchrun: fewest nodes to go on with; all of them when not given."""
    start: tuple[str, ...] = ()
    """command: argument list that starts the training and prints its job id."""
    stop: tuple[str, ...] = ()
    """command: argument list that ends it; `{job}` is replaced."""
    nodes_command: tuple[str, ...] = ()
    """command: argument list that prints the host list of the job; `{job}` is replaced."""
    state_command: tuple[str, ...] = ()
    """command: argument list that prints the job's state, and nothing once it has ended; `{job}` is replaced."""
    start_within: Duration = 300.0
    """Longest wait for the first step."""


@dataclass(frozen=True)
class Limits:
    """Site limits that no experiment may exceed."""

    __pydantic_config__: ClassVar[Any] = CONFIG
    blast_radius: Pick | None = None
    """The most nodes that any experiment may touch: a number, a share of the inventory's nodes, or `all`."""
    per_group: Mapping[str, Pick] = field(default_factory=dict)
    """Group -> the most of its nodes that any experiment may touch: a number, a share of the group, or `all`."""
    nodes_lost: Positive = 1
    """How many nodes the experiments of one command may lose (not back, or not proven mended) before no further one begins."""
    budgets: Budgets = field(default_factory=Budgets)
    """Budgets for every run that does not state its own."""
    lifetimes: tuple[Literal["volatile", "persistent", "irreversible"], ...] | None = None
    """Which faults may run here: those that a reboot clears, that survive one, that cannot be undone; the first when not given."""


@dataclass(frozen=True)
class Prometheus:
    """Where the site's Prometheus is."""

    __pydantic_config__: ClassVar[Any] = CONFIG
    url: str
    """Such as `http://prometheus:9090`."""
    token_env: str | None = None
    """The environment variable that holds a bearer token for it."""


@dataclass(frozen=True)
class InventoryFile:
    """The inventory as written; `chaoskit.model.load` expands it to an `Inventory`."""

    __pydantic_config__: ClassVar[Any] = CONFIG
    name: str
    """Name of the site."""
    nodes: Mapping[str, NodeSpec]
    """Host range -> what is true of those hosts."""
    ssh: Ssh = field(default_factory=Ssh)
    """How nodes are reached."""
    protected: tuple[str, ...] = ()
    """Host ranges that no fault may ever touch."""
    price_per_gpu_hour: Amount | None = None
    """For the cost of lost time."""
    trainings: Mapping[str, TrainingSpec] = field(default_factory=dict)
    """Name -> how it is launched or attached."""
    limits: Limits = field(default_factory=Limits)
    """Site limits."""
    prometheus: Prometheus | None = None
    """For abort conditions that ask it."""
    lease: Duration = 30.0
    """How long a node waits for word from the controller before it heals itself."""
    allow: Literal["lab", "file"] = "file"
    """`file`: a node must have /etc/chaoskit/allow. `lab`: the nodes are ours and need none."""
    shared: Literal["refuse", "accept"] = "refuse"
    """Whether other users' processes on a target are accepted."""

    @property
    def lifetimes(self) -> tuple[str, ...]:
        """The lifetimes of faults that may run here; on a lab, whose nodes are ours, all of them."""
        if self.limits.lifetimes is not None:
            return self.limits.lifetimes
        return ("volatile", "persistent", "irreversible") if self.allow == "lab" else ("volatile",)


@dataclass(frozen=True)
class Node:
    """One host, expanded."""

    name: str
    group: str | None
    gpus: int
    rails: tuple[RailSpec, ...]
    address: str | None
    machine_id: str | None
    mounts: tuple[str, ...]
    python: str | None
    protected: bool
    gpu_clocks: str | None = None


@dataclass(frozen=True)
class Inventory:
    """A validated site: `nodes` in file order, by name."""

    name: str
    path: str
    nodes: Mapping[str, Node]
    file: InventoryFile
    positions: Mapping[str, Position] = field(default_factory=dict)
    """Position of each value by its path, such as `trainings.default.group`."""

    def group(self, name: str) -> tuple[Node, ...]:
        """Return the nodes of a group, in file order."""
        return tuple(node for node in self.nodes.values() if node.group == name)

    def at(self, path: str) -> Position:
        """Return the position of a value, or of the nearest thing around it that the file has."""
        return nearest(path, self.positions, self.path)

    def training_nodes(self, training: TrainingSpec) -> tuple[Node, ...]:
        """Return the nodes that train: the host list, or the group."""
        if training.nodes is None:
            return self.group(training.group)
        return tuple(self.nodes[name] for name in expand(training.nodes) if name in self.nodes)
