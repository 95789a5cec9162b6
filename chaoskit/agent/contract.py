"""
The fault contract: what every fault states and does, and the plain types that it touches.

A fault is a frozen standard-library dataclass in `chaoskit/faults/<name>.py`. Its fields are its parameters, the
docstring under each field is that parameter's documentation, and its methods are the verbs below. The file that a
person reads is the file that runs on the node, so everything here is standard library and runs on Python 3.8.

Values that cross the wire or lie in a ledger are JSON: str, int, float, bool, None, lists and string-keyed dicts.
"""

import enum
from dataclasses import MISSING, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple

from chaoskit.errors import RefusedError

if TYPE_CHECKING:
    from chaoskit.agent.host import Host

Json = Any  # the JSON edge: what json.loads returns
Undo = Dict[str, Json]
"""The captured prior state, as JSON. `revert` and `gone` work from it alone, in another process, after a crash."""


NODE = "node"
"""The resource that is the whole node: a fault that locks it shares the node with no other."""
REPLACEMENT = "replacement"
"""What an experiment may allow a fault to cost: a machine that a remediator sends back as broken."""
CONTROL_PATH = "control_path"
"""What an experiment may allow a fault to cut: all by which the node is reached, and by which it lives."""


class Refusal(RefusedError):  # noqa: N818 - the word of the contract; it reads as one
    """Raised by `prepare`: this fault cannot be reverted or proven here, so it must not begin."""


class Lifetime(enum.Enum):
    """What becomes of a fault that nobody reverts."""

    VOLATILE = "V"
    """Cleared by a reboot: link state, qdisc, a stopped process."""
    PERSISTENT = "P"
    """Survives a reboot: a fill file, an edited configuration."""
    IRREVERSIBLE = "X"
    """Cannot be undone: a kill, a reboot."""


class Sign(enum.Enum):
    """What a fault looks like to whoever watches the node, and may act on it (`chaoskit.agent.remediators`)."""

    LINK_DOWN = "link_down"
    NODE_LOST = "node_lost"
    """No answer from it, or an unforeseen reboot."""
    PROCESS_KILLED = "process_killed"
    GPU_SLOW = "gpu_slow"
    STORAGE_SLOW = "storage_slow"


@dataclass(frozen=True)
class Evidence:
    """What a witness saw: whether the thing asked holds, one sentence, and the readings behind it."""

    holds: bool
    says: str
    readings: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self) -> Dict[str, Json]:
        """Return the evidence as JSON."""
        return {"holds": self.holds, "says": self.says, "readings": dict(self.readings)}

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> "Evidence":
        """Rebuild the evidence from `to_json`'s output."""
        return cls(bool(data["holds"]), str(data["says"]), dict(data.get("readings") or {}))


@dataclass(frozen=True)
class Stray:
    """
    Something that stands on a node as a fault leaves it, whoever made it: no ledger was asked.

    `resource` is what the entry that explains it has locked. `ours` is true when it bears our own tag, so that nobody else
    can have made it: then `sweep` takes away just this, by `tag`. What is not ours is only told; `do` says what a person
    could do.
    """

    resource: str
    says: str
    ours: bool = False
    do: str = ""
    tag: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self) -> Dict[str, Json]:
        """Return it as JSON."""
        return {**self.__dict__, "tag": dict(self.tag)}


TRAINING = "training"
"""What a training that was left running is called, where other strays have the name of their fault."""


def training_key(run: str) -> str:
    """Return the key under which a run's training is started on its nodes."""
    return "training-{}".format(run)[:100]


def seconds(default: float) -> Any:
    """Declare a parameter in seconds; the experiment file writes it with its unit, such as `20s`."""
    return field(default=default, metadata={"unit": "duration"})


def share(default: Optional[float]) -> Any:
    """Declare a parameter that is a fraction of one; the experiment file writes it as a percentage."""
    return field(default=default, metadata={"unit": "share"})


def size(default: Any = MISSING) -> Any:
    """Declare a parameter in bytes (or bytes a second), written with its unit, such as `4MiB`; required without a default."""
    return field(default=default, metadata={"unit": "size"})


@dataclass(frozen=True)
class Needs:
    """
    What a fault needs on the node: programs on the PATH, capabilities (without the CAP_ prefix), features of the kernel.

    `features` are alternatives, such as one for network storage and one for a disk: of one of them all must be there. They
    are names of `chaoskit.agent.kernel.FEATURES`, or of modules. `gpus` says that NVML must let us set something.
    """

    binaries: Tuple[str, ...] = ()
    capabilities: Tuple[str, ...] = ()
    features: Tuple[Tuple[str, ...], ...] = ()
    gpus: bool = False

    def to_json(self) -> Dict[str, Json]:
        """Return the needs as JSON."""
        alternatives = [list(names) for names in self.features]
        return {
            "binaries": list(self.binaries),
            "capabilities": list(self.capabilities),
            "features": alternatives,
            "gpus": self.gpus,
        }


@dataclass(frozen=True)
class Rail:
    """One NIC index of a node: its network device, its RDMA device, and the plane (independent network) it belongs to."""

    index: int
    netdev: Optional[str] = None
    rdma: Optional[str] = None
    plane: Optional[str] = None


@dataclass(frozen=True)
class TrainingFacts:
    """
    What identifies the training under test on a node: its run id (TORCHELASTIC_RUN_ID), its user, its cgroup prefix.

    `interface` carries its traffic, and `checkpoints` is the directory that it saves to.
    """

    run_id: str = ""
    user: Optional[str] = None
    cgroup: Optional[str] = None
    interface: Optional[str] = None
    checkpoints: Optional[str] = None


@dataclass(frozen=True)
class Site:
    """
    What the inventory says of this node, handed to every `prepare`; nothing here is guessed on the node.

    `control_addresses` are the node's own addresses that carry the SSH connection; `protected_addresses` are those of
    the controller, gateways, schedulers and storage that a fault must not cut off; `controller_addresses` are, of these,
    where the SSH connection comes from: the controller or the last jump host. `mounts` must be back after a reboot.
    `allow` is what the experiment lets this fault do that is refused otherwise: `CONTROL_PATH`.
    `gpu_clocks` is what the operator declares of the GPUs' clocks, which cannot be read: `default`, or the range that they
    are locked to in MHz, such as `210-1410`; empty when nothing is said.
    """

    node: str
    machine_id: Optional[str] = None
    rails: Tuple[Rail, ...] = ()
    control_addresses: Tuple[str, ...] = ()
    protected_addresses: Tuple[str, ...] = ()
    controller_addresses: Tuple[str, ...] = ()
    gpu_clocks: str = ""
    mounts: Tuple[str, ...] = ()
    training: TrainingFacts = field(default_factory=TrainingFacts)
    require_allow_file: bool = False
    shared: bool = False
    allow: Tuple[str, ...] = ()

    def to_json(self) -> Dict[str, Json]:
        """Return the site as JSON."""
        data = dict(self.__dict__)
        data["rails"] = [dict(rail.__dict__) for rail in self.rails]
        data["training"] = dict(self.training.__dict__)
        return {key: list(value) if isinstance(value, tuple) else value for key, value in data.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> "Site":
        """Rebuild the site from `to_json`'s output, also a later version's: what this one does not know is left out."""
        values: Dict[str, Json] = {name: value for name, value in data.items() if name in cls.__dataclass_fields__}
        values["rails"] = tuple(Rail(**rail) for rail in values.get("rails") or ())
        values["training"] = TrainingFacts(**(values.get("training") or {}))
        for name in ("control_addresses", "protected_addresses", "controller_addresses", "mounts", "allow"):
            values[name] = tuple(values.get(name) or ())
        return cls(**values)


@dataclass(frozen=True)
class Fault:
    """
    Base of every fault: a frozen dataclass whose fields are its parameters.

    The duties, each checked by `chaoskit.testing.check_fault`:
      * `prepare` only reads; it captures the exact prior state, and raises `Refusal` for what could not be reverted
        or proven.
      * `inject` does the harm and returns quickly. The agent stamps before and after it.
      * `witness` proves, by a monotone reading, that the harm happened (still true after the revert).
      * `gone` proves, by a fresh read, that the captured state is back.
      * `revert` is always safe: from the JSON alone, in another process, after a crash, twice in a row, with inject
        half done or never run. It restores what was captured and removes only what is its own.
      * `exposed` says whether the training used this resource just before.
      * `strays` finds what it leaves where the ledger is lost, by a tag of its own, and `sweep` takes such a thing away. What
        could be anybody's is told as not ours.

    Held faults: witness false, true, true; gone true, false, true (before, during, after). A held fault of which nothing
    is left to read afterwards says `witness_lasts = False`: it is asked before and during only. One-shot faults
    (`holds()` is empty): witness false, true, true; gone says what must be back.
    """

    # pydantic reads these dataclasses on the controller; a plain dict needs no import on the node.
    __pydantic_config__: ClassVar[Dict[str, object]] = {"extra": "forbid", "strict": True}

    lifetime: ClassVar[Lifetime] = Lifetime.VOLATILE
    needs: ClassVar[Needs] = Needs()
    runs_on: ClassVar[str] = "node"
    needs_training: ClassVar[bool] = False
    """True when `prepare` looks for processes of the training, so that it can be prepared only once that is up."""
    witness_lasts: ClassVar[bool] = True
    """False when the proof can only be read while the fault is applied, as that of a power cap."""
    signs: ClassVar[Tuple[Sign, ...]] = ()
    """What remediators may take it for; empty when it looks like nothing that one acts on."""
    takes_agent_away: ClassVar[bool] = False
    """True when the fault ends the agent itself (a reboot): the stamp fsynced just before the call is then t0."""

    def holds(self) -> Tuple[Tuple[float, float], ...]:
        """Return the spans, in seconds after T0, during which the fault is applied; empty for a one-shot fault."""
        return ()

    def resource(self, undo: Undo) -> Tuple[str, ...]:
        """Return the names of what is locked while the fault owes an undo, such as `nic:eth2`; `NODE` locks all of it."""
        raise NotImplementedError

    def prepare(self, host: "Host") -> Undo:
        """Read and capture; change nothing. Raises Refusal."""
        raise NotImplementedError

    def inject(self, host: "Host", undo: Undo) -> None:
        """Do the harm."""
        raise NotImplementedError

    def witness(self, host: "Host", undo: Undo) -> Evidence:
        """Say whether the harm happened, with readings."""
        raise NotImplementedError

    def gone(self, host: "Host", undo: Undo) -> Evidence:
        """Say, by a fresh read, whether the captured state is back."""
        raise NotImplementedError

    def revert(self, host: "Host", undo: Undo) -> None:
        """Restore the captured state."""
        raise NotImplementedError

    def exposed(self, host: "Host", undo: Undo) -> Evidence:
        """Say whether the training used this resource just before."""
        raise NotImplementedError

    @classmethod
    def strays(cls, host: "Host") -> "Sequence[Stray]":
        """Return what stands on this node as this fault leaves it, whoever made it; reads only."""
        del host
        return ()

    @classmethod
    def sweep(cls, host: "Host", stray: Stray) -> None:
        """Take away a stray of ours, and nothing else; harmless when it is gone."""
        raise NotImplementedError


def duration_of(fault: Fault) -> float:
    """Return the seconds from T0 to the end of the last span; 0 for a one-shot fault."""
    return max((end for _, end in fault.holds()), default=0.0)


FaultTypes = Dict[str, type]
"""Discovered faults: name in YAML and on the command line -> class."""

__all__: List[str] = [
    "CONTROL_PATH",
    "NODE",
    "Evidence",
    "Fault",
    "FaultTypes",
    "Json",
    "Lifetime",
    "Needs",
    "Rail",
    "Refusal",
    "Sign",
    "Site",
    "Stray",
    "TrainingFacts",
    "Undo",
    "duration_of",
    "seconds",
    "share",
    "size",
]
