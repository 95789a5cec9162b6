"""What runc is told of a node: its mounts, its rights, its process 1. Pure, but for the machine's own capabilities."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chaoskit.lab.cgroups import path_of
from chaoskit.lab.plan import LabPlan, NodePlan

RIGHTS = (
    "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "NET_BIND_SERVICE", "NET_ADMIN", "NET_RAW",
    "IPC_LOCK", "IPC_OWNER", "SYS_CHROOT", "SYS_PTRACE", "SYS_BOOT", "SYS_NICE", "LEASE", "AUDIT_WRITE", "SETFCAP",
)  # fmt: skip
"""
Capabilities of root in a node, without the CAP_ prefix. Left out is what reaches beyond the node: SYS_ADMIN, SYS_MODULE,
SYS_TIME, SYS_RAWIO, SYS_RESOURCE, MAC_*, MKNOD, BPF, PERFMON, SYSLOG, and DAC_READ_SEARCH, which opens host files by handle.
"""

CAPABILITY_NUMBERS = {
    "CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6, "SETUID": 7, "SETPCAP": 8, "NET_BIND_SERVICE": 10,
    "NET_ADMIN": 12, "NET_RAW": 13, "IPC_LOCK": 14, "IPC_OWNER": 15, "SYS_CHROOT": 18, "SYS_PTRACE": 19, "SYS_BOOT": 22, "SYS_NICE": 23,
    "LEASE": 28, "AUDIT_WRITE": 29, "SETFCAP": 31,
}  # fmt: skip

MASKED = (
    "/proc/acpi", "/proc/asound", "/proc/config.gz", "/proc/kcore", "/proc/keys", "/proc/kmsg", "/proc/latency_stats",
    "/proc/sched_debug", "/proc/scsi", "/proc/sysrq-trigger", "/proc/timer_list", "/proc/timer_stats",
    "/sys/firmware", "/sys/kernel/debug", "/sys/kernel/tracing",
)  # fmt: skip
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq")
NAMESPACES = ("pid", "ipc", "uts", "mount", "cgroup")
"""The network namespace is the one that runc is started in."""


def allowed(bounding: int) -> tuple[str, ...]:
    """Return a node's capabilities, cut to the machine's own bounding set (a bit mask)."""
    return tuple(f"CAP_{name}" for name in RIGHTS if bounding >> CAPABILITY_NUMBERS[name] & 1)


def own_bounding_set() -> int:
    """Return this process's capability bounding set as a bit mask."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapBnd:"))


def config(plan: LabPlan, node: NodePlan, *, root: Path, python: str, binds: Mapping[str, str], rights: tuple[str, ...]) -> dict[str, Any]:
    """
    Return a node's OCI runtime configuration.

    Args:
        plan: The lab.
        node: The node.
        root: Where the node's overlay is mounted.
        python: The interpreter that runs process 1.
        binds: Path in the node -> path on the host, read only.
        rights: Capabilities, with the CAP_ prefix.
    """
    return {
        "ociVersion": "1.0.2",
        "hostname": node.name,
        "root": {"path": str(root), "readonly": False},
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "cwd": "/",
            "args": [python, "-I", "-S", "/opt/chaoskit-lab/node_init.py"],
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"],
            "capabilities": {kind: list(rights) for kind in ("bounding", "effective", "permitted")},
            "noNewPrivileges": False,  # sudo
        },
        "mounts": [*_system_mounts(), *(_bind(target, source) for target, source in binds.items())],
        "linux": {
            "cgroupsPath": path_of(plan.name, node.name),
            "namespaces": [{"type": kind} for kind in NAMESPACES],
            "resources": {"devices": [{"allow": False, "access": "rwm"}]},
            "maskedPaths": list(MASKED),
            "readonlyPaths": list(READ_ONLY),
            "rootfsPropagation": "private",
        },
    }


def _system_mounts() -> list[dict[str, Any]]:
    plain = ["nosuid", "nodev"]
    closed = [*plain, "noexec"]
    return [
        _mount("/proc", "proc", closed),
        _mount("/dev", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
        _mount("/dev/pts", "devpts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]),
        _mount("/dev/shm", "tmpfs", [*plain, "mode=1777", "size=1g"]),  # noqa: S108 - inside the node
        _mount("/dev/mqueue", "mqueue", closed),
        _mount("/sys", "sysfs", [*closed, "ro"]),
        _mount("/sys/fs/cgroup", "cgroup", [*closed, "relatime"]),  # writable: its own subtree, nothing above
        _mount("/run", "tmpfs", [*plain, "mode=755", "size=1g"]),
        _mount("/tmp", "tmpfs", [*plain, "mode=1777", "size=1g"]),  # noqa: S108 - inside the node
    ]


def _mount(target: str, kind: str, options: list[str]) -> dict[str, Any]:
    return {"destination": target, "type": kind, "source": kind, "options": options}


def _bind(target: str, source: str) -> dict[str, Any]:
    return {"destination": target, "type": "none", "source": source, "options": ["rbind", "ro", "nosuid", "nodev", "rprivate"]}
