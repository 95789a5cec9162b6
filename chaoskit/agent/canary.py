"""
The canary: a fault without harm, that goes the whole way of a real one, through ledger, lease and fuse and back.

It stands in no experiment: `chaoskit doctor` sends it ahead. It does once what the faults that are meant would do, to
things that are its own or that stay as they are: an empty table of the packet filter, an empty control group, a signal to
its own child, the power limit that a GPU has already. It never touches a network device: a counter of lost links alone
makes some who watch over clusters replace a machine. Standard library only, Python 3.8.
"""

import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from chaoskit.agent import gpus, marks, mounts, nftables, procs
from chaoskit.agent.contract import Evidence, Fault, Json, Refusal, Stray, Undo, seconds
from chaoskit.agent.detach import ENVIRONMENT
from chaoskit.agent.gpus import Chosen
from chaoskit.agent.host import Host
from chaoskit.agent.kernel import THERE, Kernel
from chaoskit.agent.nftables import Table

# ruff: noqa: ARG002, ARG003 - the signatures are the contract's

NAME = "canary"
TABLE, SIGNAL, GROUP, POWER = "table", "signal", "group", "power"
KINDS = {
    TABLE: "an empty table of the packet filter",
    SIGNAL: "a signal to a child",
    GROUP: "an empty control group",
    POWER: "the power limit that the GPU has",
}
"""What can be tried, and how sentences call it."""
RIGHTS = {TABLE: "NET_ADMIN", SIGNAL: "KILL"}
NOBODY = 65534
START_WITHIN = 10.0

_CHILD = "import os, sys; os.setgid({0}); os.setuid({0}); print(flush=True); sys.stdin.read()".format(NOBODY)


@dataclass(frozen=True)
class Canary(Fault):
    """Try, without any harm, what faults would do."""

    kinds: Tuple[str, ...] = ()
    """What to try, of `KINDS`; what this node cannot do or shall not is left out, and the undo says what is left."""
    hold: float = seconds(30.0)
    """How long it stands if nobody takes it away."""

    witness_lasts: ClassVar[bool] = False

    def holds(self) -> Tuple[Tuple[float, float], ...]:
        """Return the one span."""
        return ((0.0, self.hold),)

    def resource(self, undo: Undo) -> Tuple[str, ...]:
        """Lock what is its own: two canaries never meet."""
        return ("canary:" + undo["tag"], "nft:table inet " + _table(undo["tag"]).name)

    def prepare(self, host: Host) -> Undo:
        """Choose what can be tried, without loading or waking anything."""
        tag = os.urandom(4).hex()
        undo: Undo = {"tag": tag, "mark": marks.path_of(NAME, tag), "kinds": [], "groups": [], "gpu": None}
        for kind in self.kinds:
            if kind not in KINDS:
                raise Refusal("there is no canary {!r}".format(kind), hint="there are: {}".format(", ".join(KINDS)))
            if self._fits(host, kind, undo):
                undo["kinds"].append(kind)
        return undo

    def _fits(self, host: Host, kind: str, undo: Undo) -> bool:
        if kind in RIGHTS and not _may(RIGHTS[kind], host):
            return False
        if kind == TABLE:
            found = Kernel().find("nf_tables")
            return found.state == THERE and not found.why  # one that is not loaded yet would be loaded by asking
        if kind == GROUP:
            undo["groups"] = ["{}/chaoskit-canary-{}".format(top, undo["tag"]) for top in _cpu_tops()[:1]]
            return bool(undo["groups"])
        if kind == POWER:
            undo["gpu"] = _gpu()
            return undo["gpu"] is not None
        return True

    def inject(self, host: Host, undo: Undo) -> None:
        """Do all of it; what cannot be done ends the canary, and says which."""
        marks.put(undo["mark"], undo)
        for kind in undo["kinds"]:
            try:
                _TRIES[kind](host, undo)
            except (OSError, subprocess.SubprocessError) as error:
                raise Refusal("{} cannot be had: {}".format(KINDS[kind], error), where=host.site.node) from error

    def witness(self, host: Host, undo: Undo) -> Evidence:
        """Say whether all that stays while it is held is there."""
        missing = [what for what, there in _standing(undo) if not there]
        says = "not there: {}".format(", ".join(missing)) if missing else "all of it is there"
        return Evidence(not missing, says)

    def gone(self, host: Host, undo: Undo) -> Evidence:
        """Say whether nothing of it is left."""
        left = [what for what, there in _standing(undo) if there]
        return Evidence(not left, "still there: {}".format(", ".join(left)) if left else "nothing of it is left")

    def revert(self, host: Host, undo: Undo) -> None:
        """Take away what is its own."""
        if TABLE in undo["kinds"]:
            nftables.delete(_table(undo["tag"]))
        for group in undo["groups"]:
            with suppress(FileNotFoundError):
                os.rmdir(group)
        marks.drop(undo["mark"])

    def exposed(self, host: Host, undo: Undo) -> Evidence:
        """No training uses it."""
        return Evidence(False, "a canary harms nobody")

    @classmethod
    def strays(cls, host: Host) -> Sequence[Stray]:
        """Return what canaries left whose ledger is lost; their tables bear our name, and are found by that."""
        found = []
        for mark in marks.standing(NAME):
            tag = os.path.basename(mark.path).partition("-")[2]
            found.append(Stray("canary:" + tag, "{} is the mark of a canary".format(mark.path), ours=True, tag={"mark": mark.path}))
        for top in _cpu_tops():
            for name in sorted(name for name in os.listdir(top) if name.startswith("chaoskit-canary-")):
                path = os.path.join(top, name)
                found.append(
                    Stray("canary:" + name[len("chaoskit-canary-") :], "{} is a canary's".format(path), ours=True, tag={"group": path})
                )
        return found

    @classmethod
    def sweep(cls, host: Host, stray: Stray) -> None:
        """Take away a mark or a group."""
        with suppress(FileNotFoundError):
            if "mark" in stray.tag:
                os.unlink(stray.tag["mark"])
            else:
                os.rmdir(stray.tag["group"])


def _standing(undo: Undo) -> Iterator[Tuple[str, bool]]:
    """Yield each thing that stays while a canary is held, and whether it is there."""
    yield "the mark {}".format(undo["mark"]), os.path.exists(undo["mark"])
    for group in undo["groups"]:
        yield "the group {}".format(group), os.path.isdir(group)
    if TABLE in undo["kinds"]:
        table = _table(undo["tag"])
        yield "the table {} {}".format(*table), table in nftables.tables()


def _table(tag: str) -> Table:
    return Table("inet", "chaoskit_canary_" + tag)


def _may(right: str, host: Host) -> bool:
    try:
        procs.require_capability(right, host.site.node)
    except Refusal:
        return False
    return True


def _cpu_tops() -> List[str]:
    """Return the top folders of the control groups that share out CPU time."""
    found = []
    for mount in mounts.table():
        if mount.type == "cgroup" and mount.has("cpu"):
            found.append(mount.point)
        elif mount.type == "cgroup2":
            with suppress(OSError), open(mount.point + "/cgroup.controllers", encoding="ascii") as file:
                found += [mount.point] if "cpu" in file.read().split() else []
    return found


def _gpu() -> Optional[Dict[str, Json]]:
    """Return the first GPU whose power limit can be read: the right to set one is the same for all."""
    for gpu in gpus.read_all(gpus.READ_WITHIN).gpus:
        if gpu.limit is not None:
            return {"index": gpu.index, "uuid": gpu.uuid, "pci": gpu.pci, "limit": gpu.limit}
    return None


def _make_table(_: Host, undo: Undo) -> None:
    nftables.make(_table(undo["tag"]))


def _make_groups(_: Host, undo: Undo) -> None:
    for group in undo["groups"]:
        os.mkdir(group, 0o755)


def _signal_child(_: Host, __: Undo) -> None:
    """Send no signal (number 0) to a child of another user: whoever may do that may send any."""
    argv = [sys.executable or "/usr/bin/python3", "-I", "-S", "-c", _CHILD]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/", env=ENVIRONMENT
    ) as child:
        try:
            if child.stdout is None or not child.stdout.readline():
                raise OSError("the child did not start")
            process = procs.read(child.pid)
            if process is None or not procs.send(child.pid, process.start_time, NOBODY, 0):
                raise OSError("the child is not there")
        finally:
            child.kill()


def _set_same_limit(host: Host, undo: Undo) -> None:
    gpu: Mapping[str, Json] = undo["gpu"]
    chosen = Chosen(host.site.node, gpu["index"], gpu["uuid"], gpu["pci"])
    done = gpus.set_power_limit(chosen, gpu["limit"], gpu["limit"], exactly=True)
    if abs(done.left - done.before) > gpus.SAME:
        raise OSError("{} has a limit of {:g} W now, and had {:g}".format(chosen.label, done.left, done.before))


_TRIES = {TABLE: _make_table, SIGNAL: _signal_child, GROUP: _make_groups, POWER: _set_same_limit}
