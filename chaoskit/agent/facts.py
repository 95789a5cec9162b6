"""
What must be alike on all nodes of a group, read from files and one ioctl: nothing is run, and no device is woken.

One node with another driver, another firmware or another MTU spoils a run that is one synchronous operation, and nothing
alerts. Each fact is a name and a text; `chaoskit.engine.doctor_alike` compares them. A name begins with what it is of,
such as `sysctl` or `rail`, and what is not there is left out. Standard library only, Python 3.8.
"""

import array
import fcntl
import glob
import os
import platform
import re
import socket
import struct
from typing import Dict, Iterable, Iterator, Optional, Tuple

from chaoskit.agent import qdiscs
from chaoskit.agent.contract import Rail
from chaoskit.agent.netlink import Link, Netlink

Facts = Dict[str, str]
Pair = Tuple[str, str]

SYSCTLS = (
    "kernel.hung_task_panic",
    "kernel.numa_balancing",
    "kernel.panic",
    "kernel.panic_on_oops",
    "kernel.pid_max",
    "kernel.sched_cfs_bandwidth_slice_us",
    "kernel.softlockup_panic",
    "kernel.sysrq",
    "kernel.yama.ptrace_scope",
    "net.core.default_qdisc",
    "net.core.netdev_max_backlog",
    "net.core.rmem_default",
    "net.core.rmem_max",
    "net.core.somaxconn",
    "net.core.wmem_default",
    "net.core.wmem_max",
    "net.ipv4.conf.all.arp_announce",
    "net.ipv4.conf.all.arp_ignore",
    "net.ipv4.conf.all.rp_filter",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.neigh.default.gc_thresh3",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_mtu_probing",
    "net.ipv4.tcp_retries2",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "vm.compaction_proactiveness",
    "vm.dirty_background_ratio",
    "vm.dirty_ratio",
    "vm.max_map_count",
    "vm.nr_hugepages",
    "vm.overcommit_memory",
    "vm.panic_on_oom",
    "vm.swappiness",
    "vm.zone_reclaim_mode",
)
"""
Those on which the speed of training and what becomes of a fault stand: buffers and routes of the network, memory, what
panics. None of them is computed from the size of the memory, which differs a little from node to node.
"""

NCCL = ("/usr/lib/*/libnccl.so.2.*", "/usr/lib64/libnccl.so.2.*", "/usr/local/lib/libnccl.so.2.*", "/usr/local/cuda/lib64/libnccl.so.2.*")
MODULES = ("nvidia_peermem", "gdrdrv", "mlx5_core", "ib_core")
"""Kernel modules of which the version matters, or whether they are there at all."""

UNREAD = "?"
"""What stands for a fact that cannot be told just now, so that it is compared with nobody's."""

_SIOCETHTOOL, _GDRVINFO = 0x8946, 0x3
_DRVINFO = struct.Struct("=I32s32s32s32s32s12s5I")


def system() -> Facts:
    """Return the facts of the machine itself."""
    return dict(_known(_system()))


def _system() -> Iterator[Tuple[str, Optional[str]]]:
    yield "kernel", os.uname().release
    yield "architecture", os.uname().machine
    yield "os", _os_release()
    yield "python", platform.python_version()
    yield "processors", str(os.sysconf("SC_NPROCESSORS_CONF"))
    yield "governor", _line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    yield "huge pages", _chosen(_line("/sys/kernel/mm/transparent_hugepage/enabled"))
    for name in SYSCTLS:
        yield "sysctl " + name, _sysctl(name)
    for module in MODULES:
        if os.path.isdir("/sys/module/" + module):
            yield "module " + module, _line("/sys/module/{}/version".format(module)) or "loaded"
    yield "NCCL of the system", _versions(NCCL)
    yield "CUDA of the system", _cuda()


def of_gpus(driver: str, kinds: Iterable[Tuple[str, str, Optional[str]]], cuda: Optional[int] = None) -> Facts:
    """
    Return the facts of a node's GPUs.

    Args:
        driver: The driver's version.
        kinds: (model, PCI address, VBIOS) of each GPU.
        cuda: The newest CUDA that the driver offers, as NVML writes it, such as 12040.
    """
    seen = list(kinds)
    newest = "{}.{}".format(cuda // 1000, cuda % 1000 // 10) if cuda else None
    links = [_pcie("/sys/bus/pci/devices/" + _sysfs_address(pci)) for _, pci, _ in seen]
    return dict(
        _known(
            (
                ("driver", driver),
                ("CUDA of the driver", newest),
                ("GPUs", _counted(model for model, _, _ in seen)),
                ("VBIOS", _counted(vbios or "" for _, _, vbios in seen)),
                ("PCIe of GPUs", _counted(links)),
            )
        )
    )


def of_rails(kernel: Netlink, links: Iterable[Link], rails: Iterable[Rail]) -> Facts:
    """Return the facts of the rails that are there, and of whatever queueing somebody has set on any device."""
    known = {link.name: link for link in links}
    found: Facts = {}
    for rail in rails:
        link = known.get(rail.netdev or "")
        pairs = [*(_netdev(link) if link else ()), *(_rdma(rail.rdma) if rail.rdma else ())]
        found.update(("rail {} {}".format(rail.index, name), value) for name, value in _known(pairs))
    for link in known.values():
        set_by_hand = [str(one) for one in qdiscs.standing(kernel, link.ifindex) if one.parent == 0 and not one.default]
        if set_by_hand and not _of_a_container(link):
            found["qdisc of " + link.name] = set_by_hand[0]
    return found


def _netdev(link: Link) -> Iterator[Tuple[str, Optional[str]]]:
    folder = "/sys/class/net/" + link.name
    yield "MTU", str(link.mtu)
    speed = _line(folder + "/speed")
    shown = "{} Mb/s".format(speed) if speed and speed.isdigit() else None
    yield "speed", shown if link.carrier else UNREAD  # a link without a signal has none, which is told of the rail
    driver, version, firmware = drvinfo(link.name)
    yield "driver", "{} {}".format(driver, version).strip()
    yield "firmware", firmware
    yield "PCIe", _pcie(folder + "/device")


def _rdma(device: str) -> Iterator[Tuple[str, Optional[str]]]:
    folder = "/sys/class/infiniband/" + device
    yield "RDMA firmware", _line(folder + "/fw_ver")
    yield "RDMA model", _line(folder + "/hca_type") or _line(folder + "/board_id")
    yield "RDMA rate", _line(folder + "/ports/1/rate")
    yield "RDMA link layer", _line(folder + "/ports/1/link_layer")
    yield "RDMA PCIe", _pcie(folder + "/device")


def drvinfo(netdev: str) -> Tuple[str, str, str]:
    """Return a network device's driver, that one's version, and its firmware's; empty where it does not say."""
    asked = array.array("B", _DRVINFO.pack(_GDRVINFO, *[b""] * 6, *[0] * 5))
    request = struct.pack("16sP", netdev.encode()[:15], asked.buffer_info()[0]) + bytes(16)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as handle:
            fcntl.ioctl(handle, _SIOCETHTOOL, request)
    except OSError:
        return "", "", ""
    texts = [one.split(b"\0")[0].decode("ascii", "replace").strip() for one in _DRVINFO.unpack(asked.tobytes())[1:4]]
    driver, version, firmware = ("" if text == "N/A" else text for text in texts)
    return driver, version, firmware


def _of_a_container(link: Link) -> bool:
    """Whether the one end of a container's cable: those come and go, and are called as it happens."""
    return link.kind == "veth" and bool(re.match(r"(veth|cali|lxc|cni|vnet|tap)[0-9a-f]", link.name))


def _pcie(folder: str) -> Optional[str]:
    """Return a device's PCIe link; its present speed is left out, since an idle device goes slower to save power."""
    width, most = _line(folder + "/current_link_width"), _line(folder + "/max_link_width")
    speed = _line(folder + "/max_link_speed")
    return "x{} of x{}, {} at most".format(width, most, speed) if width and most and speed else None


def _sysfs_address(pci: str) -> str:
    """NVML writes the domain with eight digits, sysfs with four."""
    domain, _, rest = pci.lower().partition(":")
    return "{:0>4}:{}".format(domain[-4:], rest)


def _os_release() -> Optional[str]:
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        for line in _text(path).splitlines():
            if line.startswith("PRETTY_NAME="):
                return line.split("=", 1)[1].strip("\"'")
    return None


def _sysctl(name: str) -> Optional[str]:
    text = _line("/proc/sys/" + name.replace(".", "/"))
    return " ".join(text.split()) if text is not None else None


def _chosen(text: Optional[str]) -> Optional[str]:
    """Return the one in brackets, as in `always [madvise] never`."""
    found = re.search(r"\[(\w+)\]", text or "")
    return found.group(1) if found else None


def _versions(patterns: Iterable[str]) -> Optional[str]:
    """Return the versions that files of these names carry, in order, each once."""
    names = {os.path.basename(path).split(".so.", 1)[1] for pattern in patterns for path in glob.glob(pattern)}
    return ", ".join(sorted(names)) or None


def _cuda() -> Optional[str]:
    found = re.search(r'"cuda"\s*:\s*{[^}]*"version"\s*:\s*"([\w.]+)"', _text("/usr/local/cuda/version.json"))
    return found.group(1) if found else None


def _counted(values: Iterable[Optional[str]]) -> Optional[str]:
    """Return texts with how often each is there, such as `8 x NVIDIA H100`; None when one is not known."""
    seen = list(values)
    if not seen or not all(seen):
        return None
    counts = {value: seen.count(value) for value in seen}
    return ", ".join("{} x {}".format(count, value) for value, count in sorted(counts.items(), key=lambda one: str(one[0])))


def _known(pairs: Iterable[Tuple[str, Optional[str]]]) -> Iterator[Pair]:
    return ((name, value) for name, value in pairs if value)


def _line(path: str) -> Optional[str]:
    text = _text(path)
    return text.strip() or None


def _text(path: str) -> str:
    """Return a small file's text; empty when it cannot be read, as sysfs says of a link that is down."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 16)
    except (OSError, ValueError):
        return ""
