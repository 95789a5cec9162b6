"""
What stands behind a path: a mount, and the disk or the file servers behind that. From the kernel's tables alone.

A fault that slows some of a file system's servers and not the others would lie, so where they cannot all be found this
says so instead of guessing. Nothing here touches the file system itself. Standard library only, Python 3.8.
"""

import glob
import ipaddress
import os
import re
import socket
import sys
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from chaoskit.agent.mounts import Mount

XPRT_SWITCHES = "/sys/kernel/sunrpc/xprt-switches"
"""The NFS client's connections, those to further addresses of one server too: since Linux 5.14."""
LUSTRE = ("/sys/fs/lustre", "/proc/fs/lustre")
BLOCK = "/sys/dev/block"


class UnknownError(Exception):
    """The servers cannot all be found, or cannot be slowed by a rate cap; the text says why. `hint` says what to do."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.hint = hint


class Disk(NamedTuple):
    """A whole disk by its `major:minor` and its name."""

    device: str
    name: str


def network(mount: Mount) -> bool:
    """Whether a mount's type is one whose data lie on other machines."""
    return mount.type in SERVERS or mount.type in UNREADABLE


def servers(mount: Mount, pid: str = "self") -> List[str]:
    """
    Return every address that a network mount's data may go to.

    Args:
        mount: The mount.
        pid: A process in whose mount namespace it is.

    Raises:
        UnknownError: They cannot all be found, or are reached over RDMA.
    """
    if mount.type in UNREADABLE:
        raise UnknownError("the servers of {} cannot be read from the kernel".format(mount.type), "slow its servers' disks instead")
    found = sorted(set(SERVERS[mount.type](mount, pid)))
    if not found:
        raise UnknownError("its source {!r} and its options name no server".format(mount.source), "mount it by its server's address")
    return found


def _nfs(mount: Mount, pid: str) -> Iterator[str]:
    if "rdma" in (mount.option("proto"), mount.option("mountproto")):
        raise _rdma("NFS over RDMA")
    _refuse_pnfs(mount, pid)
    stated = [mount.option(name) for name in ("addr", "mountaddr")]
    yield from (numeric(address) for address in stated if address and address != "unspecified")
    yield from _trunks({numeric(address) for address in stated[:1] if address})


def _refuse_pnfs(mount: Mount, pid: str) -> None:
    try:
        with open("/proc/{}/mountstats".format(pid), encoding="utf-8", errors="replace") as file:
            found = layout(file.read(), mount.point)
    except OSError:
        return
    if found:
        raise UnknownError("it is parallel NFS ({}), whose data servers stand nowhere".format(found), "mount it with vers=4.0 or 3")


def layout(mountstats: str, point: str) -> str:
    """Return the layout by which a mount spreads its data over further servers (parallel NFS); empty when it does not."""
    for block in mountstats.split("device ")[1:]:
        found = re.search(r"pnfs=([^,\n]+)", block)
        if " mounted on {} with ".format(point) in block and found and found.group(1) != "not configured":
            return found.group(1)
    return ""


def _trunks(known: "set[str]") -> Iterator[str]:
    """Yield the other addresses that the NFS client reaches one of the known ones by."""
    for switch in glob.glob(os.path.join(XPRT_SWITCHES, "switch-*")):
        ways = {path: _line(os.path.join(path, "dstaddr")) for path in glob.glob(os.path.join(switch, "xprt-*"))}
        addresses = {path: numeric(address) for path, address in ways.items() if address}
        if known & set(addresses.values()):
            if any(path.endswith("-rdma") for path in addresses):
                raise _rdma("NFS over RDMA")
            yield from addresses.values()


def _cifs(mount: Mount, pid: str) -> Iterator[str]:
    del pid
    if mount.has("rdma"):
        raise _rdma("SMB Direct")
    if mount.has("multichannel"):
        raise UnknownError("SMB multichannel uses addresses that stand in no mount table", "mount it without `multichannel`")
    if mount.option("addr"):
        yield numeric(mount.option("addr"))
    else:
        yield from resolved(mount.source.lstrip("/").partition("/")[0])


def _sshfs(mount: Mount, pid: str) -> Iterator[str]:
    del pid
    found = re.match(r"(?:[^@/]*@)?(\[[^]]+\]|[^:/\[]+):", mount.source)
    if found:
        yield from resolved(found.group(1).strip("[]"))


def _lustre(mount: Mount, pid: str) -> Iterator[str]:
    """Its mount source names the management servers only; the clients for metadata and data know the others."""
    del pid
    nids, _, name = mount.source.rpartition(":/")
    targets = [path for top in LUSTRE for kind in ("osc", "mdc") for path in glob.glob("{}/{}/{}-*".format(top, kind, name))]
    said = [_line(path) for target in targets for path in glob.glob(os.path.join(target, "*_conn_uuid"))]
    if not said or not all(said):
        raise UnknownError("its object and metadata servers cannot be read below {}".format(" or ".join(LUSTRE)), "is the client up?")
    for nid in [*re.split(r"[:,]", nids), *(text or "" for text in said)]:
        address, _, net = nid.partition("@")
        if not net.startswith("tcp"):
            raise _rdma("Lustre over {}".format(net or nid))
        yield from resolved(address)


def _nine(mount: Mount, pid: str) -> Iterator[str]:
    del pid
    if mount.option("trans") != "tcp":
        raise UnknownError("9p over {} has no server's address".format(mount.option("trans") or "fd"), "slow the disk of its host instead")
    yield from resolved(mount.source)


SERVERS: Dict[str, Callable[[Mount, str], Iterator[str]]] = {
    "nfs": _nfs,
    "nfs4": _nfs,
    "cifs": _cifs,
    "smb3": _cifs,
    "fuse.sshfs": _sshfs,
    "lustre": _lustre,
    "9p": _nine,
}
"""Type of a network file system -> what finds its servers."""

UNREADABLE = frozenset(
    ("afs", "beegfs", "ceph", "fuse.ceph", "fuse.ceph-fuse", "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs", "fuse.s3fs", "gpfs",
     "orangefs", "panfs", "pvfs2", "virtiofs", "wekafs")
)  # fmt: skip
"""Network file systems whose servers for data no table of the kernel's lists."""


def _rdma(what: str) -> UnknownError:
    return UnknownError(
        "{} passes by every queue of the kernel, so that a rate cap would do nothing".format(what), "slow it at the switch or the server"
    )


def numeric(address: str) -> str:
    """Return an address in its plain form, without a scope."""
    return str(ipaddress.ip_address(address.partition("%")[0].strip("[]")))


def resolved(name: str) -> List[str]:
    """Return every address of a host. Raises UnknownError: it has none that we can find."""
    try:
        return [numeric(str(info[4][0])) for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    except (OSError, ValueError) as error:
        raise UnknownError(
            "the server's name {!r} cannot be resolved: {}".format(name, error), "mount it by its server's address"
        ) from error


def disk(mount: Mount) -> Disk:
    """
    Return the whole disk below a mount, as throttles want it.

    Raises:
        UnknownError: There is none, or a stack of devices that would count one write several times.
    """
    folder = os.path.realpath(os.path.join(BLOCK, mount.device))
    if not os.path.isdir(folder):
        hint = "name a path on a disk or on a network file system; of an overlay, one in its upper folder"
        raise UnknownError("a {} ({}) has no one disk below it".format(mount.type, mount.source), hint)
    if os.path.exists(os.path.join(folder, "partition")):
        folder = os.path.dirname(folder)
    for kind, what in (("dm", "a device-mapper device"), ("md", "a RAID")):
        if os.path.isdir(os.path.join(folder, kind)):
            hint = "name a path on one of the disks below it, or test it by the dead disk of a RAID"
            raise UnknownError(
                "{} is {}, below which a throttle would count one write several times".format(os.path.basename(folder), what), hint
            )
    return Disk(_line(os.path.join(folder, "dev")) or mount.device, os.path.basename(folder))


def _line(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


def gateways() -> Tuple[str, ...]:
    """Return the addresses of this node's default gateways, by the main tables."""
    found = []
    for line in (_line("/proc/net/route") or "").splitlines()[1:]:
        fields = line.split()
        if fields[1] == "00000000" and int(fields[2], 16):
            found.append(socket.inet_ntoa(int(fields[2], 16).to_bytes(4, sys.byteorder)))
    for line in (_line("/proc/net/ipv6_route") or "").splitlines():
        fields = line.split()
        if int(fields[0], 16) == 0 and fields[1] == "00" and int(fields[4], 16):
            found.append(str(ipaddress.IPv6Address(int(fields[4], 16))))
    return tuple(found)
