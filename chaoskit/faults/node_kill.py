"""
The node reboots at once, as from a power cut or a kernel panic: nothing is stopped, synced or unmounted first.

Inside a container with its own process namespace, as in the lab, the same call ends that container and nothing else.
Its own boot id witnesses it; it is gone when the node answers again with its mounts and its links as they were.
"""

import ctypes
import os
from dataclasses import dataclass
from typing import ClassVar, Dict, List, Tuple

from chaoskit.agent import mounts, procs
from chaoskit.agent.contract import NODE, Evidence, Fault, Json, Lifetime, Needs, Refusal, Sign, Undo
from chaoskit.agent.host import Host
from chaoskit.agent.netlink import Netlink

RESTART = 0x01234567
"""LINUX_REBOOT_CMD_RESTART of reboot(2): what `systemctl reboot -ff` ends in."""
INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""The inode of the machine's own process namespace (PROC_PID_INIT_INO)."""
TRIGGER = "/proc/sysrq-trigger"
LOOK = 0.5
"""Seconds over which `exposed` watches the training's processes move."""


@dataclass(frozen=True)
class NodeKill(Fault):
    """Reboot the node hard."""

    how: str = "reboot"
    """`reboot`: the system call; `sysrq`: the kernel's emergency key, for a node whose reboot hooks are slow."""

    lifetime: ClassVar[Lifetime] = Lifetime.IRREVERSIBLE
    needs: ClassVar[Needs] = Needs(capabilities=("SYS_BOOT",))
    signs = (Sign.NODE_LOST,)
    takes_agent_away: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse an unknown way. Raises ValueError."""
        if self.how not in ("reboot", "sysrq"):
            raise ValueError("how must be reboot or sysrq, not {!r}".format(self.how))

    def resource(self, undo: Undo) -> Tuple[str, ...]:
        """Lock the node."""
        return (NODE,)

    def prepare(self, host: Host) -> Undo:
        """Read what must be back afterwards: boot, machine, mounts and links."""
        procs.require_capability("SYS_BOOT", host.site.node)
        if self.how == "sysrq":
            _require_sysrq(host)
        present = mounts.mounted()
        absent = [place for place in host.site.mounts if place not in present]
        if absent:
            hint = "mount it, or take it out of `mounts` in the inventory"
            raise _refusal(host, "{} is not mounted now, so its return would prove nothing".format(", ".join(absent)), hint)
        return {
            "boot_id": host.boot_id(),
            "machine_id": host.machine_id(),
            "mounts": {place: present[place] for place in host.site.mounts},
            "links": [name for name, live in _rails(host).items() if live],
        }

    def inject(self, host: Host, undo: Undo) -> None:
        """Reboot; does not return."""
        if self.how == "sysrq":
            _require_sysrq(host)
            with open(TRIGGER, "w", encoding="ascii") as trigger:
                trigger.write("b")
        libc = ctypes.CDLL(None, use_errno=True)
        libc.reboot(RESTART)
        error = ctypes.get_errno()
        raise OSError(error, "reboot(2): {}".format(os.strerror(error)))

    def witness(self, host: Host, undo: Undo) -> Evidence:
        """The node has another boot id."""
        now = host.boot_id()
        says = "booted anew" if now != undo["boot_id"] else "still the same boot"
        return Evidence(now != undo["boot_id"], says, {"before": undo["boot_id"], "now": now})

    def gone(self, host: Host, undo: Undo) -> Evidence:
        """This very answer shows that the node is reachable; its mounts and links must be back too."""
        present, rails = mounts.mounted(), _rails(host)
        lacking = ["{} ({}) is not mounted".format(place, what) for place, what in undo["mounts"].items() if present.get(place) != what]
        lacking += ["{} is not up".format(name) for name in undo["links"] if not rails.get(name)]
        if host.machine_id() != undo["machine_id"]:
            lacking.append("this is another machine: {}".format(host.machine_id()))
        booted = host.boot_id() != undo["boot_id"]
        back = "back with {} mounts and {} links".format(len(undo["mounts"]), len(undo["links"]))
        says = "; ".join(lacking) if lacking else back if booted else "nothing to undo: the node did not reboot"
        return Evidence(not lacking, says, {"missing": lacking, "rebooted": booted})

    def revert(self, host: Host, undo: Undo) -> None:
        """Do nothing: the boot itself brings the node back."""

    def exposed(self, host: Host, undo: Undo) -> Evidence:
        """Processes of the training ran on this node just before."""
        training = host.site.training
        if not (training.run_id or training.cgroup or training.user):
            return Evidence(False, "nothing says which processes are the training's: no run id, cgroup or user")
        before = _work(host)
        host.sleep(LOOK)
        after = _work(host)
        ran = [pid for pid, work in after.items() if pid in before and work > before[pid]]
        says = "{} of {} processes of the training ran in {} s".format(len(ran), len(after), LOOK)
        return Evidence(bool(ran), says, {"processes": sorted(after), "ran": sorted(ran)})


def _refusal(host: Host, what: str, hint: str) -> Refusal:
    return Refusal(what, where="{} node_kill".format(host.site.node), hint=hint)


def _require_sysrq(host: Host) -> None:
    """Raise Refusal inside a container, where the emergency key would reboot the machine below it, with all its neighbours."""
    if os.stat("/proc/self/ns/pid").st_ino != INITIAL_PID_NAMESPACE:
        raise _refusal(host, "sysrq inside a container would reboot the machine that hosts it", "use `how: reboot`")
    if not os.access(TRIGGER, os.W_OK):
        raise _refusal(host, "{} cannot be written".format(TRIGGER), "use `how: reboot`")


def _rails(host: Host) -> Dict[str, bool]:
    """Return each rail's network device, and whether it is up with a signal."""
    with Netlink() as kernel:
        live = {link.name: link.up and link.carrier for link in kernel.links()}
    names: List[str] = [rail.netdev for rail in host.site.rails if rail.netdev]
    return {name: live.get(name, False) for name in names}


def _work(host: Host) -> Dict[Json, int]:
    """Return how much each living process of the training has run: CPU ticks and context switches together."""
    living = [process for process in procs.of_training(host.site.training) if not process.stopped]
    return {process.pid: process.cpu + procs.switches(process.pid) for process in living}
