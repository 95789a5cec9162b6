"""
What this node hangs by, and which of its devices that passes: what no fault may cut unless it is told to.

The node hangs by the SSH connection that we stand on, the way back to the controller or the last jump host, the protected
hosts of the inventory, its default route, its name servers, its scheduler, and the servers of network home directories.
Each passes a device, and everything below that: the members of a bond or a bridge, the device under a VLAN or a macvlan,
the other end of a virtual cable. A member of a bond counts though the others may live: nobody knows that they carry.

Servers that no table of this node lists (those of a home on GPFS, WEKA or BeeGFS) are not known here, and are left out.
Standard library only, Python 3.8.
"""

import pwd
import re
import sys
from typing import AbstractSet, Dict, FrozenSet, Iterable, Iterator, List, NamedTuple, Sequence, Set, Tuple

from chaoskit.agent import mounts, netstate, procs, storage
from chaoskit.agent.checks import FIRST_USER, NOBODY
from chaoskit.agent.contract import CONTROL_PATH, Refusal, Site
from chaoskit.agent.mounts import Mount
from chaoskit.agent.netlink import TYPE_MASK, Link, Netlink, attributes
from chaoskit.agent.wakeup import run_within

CONTROLLER = "where the SSH connection comes from"

RESOLVERS = ("/etc/resolv.conf", "/run/systemd/resolve/resolv.conf")
"""The second says who answers where the first names a resolver on this node."""
SLURM = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/usr/local/etc/slurm.conf", "/run/slurm/conf/slurm.conf")
KUBELET = ("/etc/kubernetes/kubelet.conf", "/var/lib/kubelet/kubeconfig")
RESOLVE_WITHIN = 3.0
"""Seconds for the names of schedulers to be resolved: a name server that is away takes longer to say nothing."""
ALLOW = "or, where the run shall see just that, say `allow: [control_path]` beside the fault"

# linux/rtnetlink.h
_ROUTE_HEAD, _PRIORITY, _MAIN, _UNICAST = 12, 6, 254, 1

_SLURM_LINE = re.compile(
    r"^\s*(SlurmctldHost|ControlAddr|BackupAddr|ControlMachine|BackupController)\s*=\s*([^\s#]+)", re.IGNORECASE | re.MULTILINE
)
_SERVER_LINE = re.compile(r"^\s*server:\s*[\"']?https?://(\[[^]]+\]|[^:/\s\"']+)", re.MULTILINE)


class Lifeline(NamedTuple):
    """An address that must stay reachable, and what it is."""

    address: str
    what: str


def refuse(kernel: Netlink, site: Site, chosen: Sequence[Link], where: str) -> None:
    """
    Refuse to cut devices by which this node hangs.

    Args:
        kernel: Asked for the devices and the routes.
        site: What the inventory and the connection say, and whether the experiment allows it.
        chosen: The devices that would be cut.
        where: The node and the fault, for the refusal.

    Raises:
        Refusal: One of them carries something, and the experiment does not allow that.
    """
    if CONTROL_PATH in site.allow:
        return
    found = carriers(kernel, site)
    for link in chosen:
        if link.ifindex in found:
            why, hint = found[link.ifindex]
            raise Refusal("{} {}".format(link.name, why), where=where, hint="{}; {}".format(hint, ALLOW))


def carriers(kernel: Netlink, site: Site) -> Dict[int, Tuple[str, str]]:
    """Return the devices by which this node hangs: index -> what it carries, and what to do about it."""
    links = kernel.links()
    found = ssh_carriers(kernel, site, links)
    must = "controller, gateways, schedulers and storage must stay reachable; choose another rail"
    roots: Dict[int, Tuple[str, str]] = {}
    for line in lifelines(site):
        for index in ways(kernel, line.address, site.control_addresses):
            roots.setdefault(index, ("leads to {}".format(_named(line)), must))
    for index in default_links(kernel):
        roots.setdefault(index, ("carries the default route", must))
    return _with_all_below(links, roots, found)


def ssh_carriers(kernel: Netlink, site: Site, links: Sequence[Link]) -> Dict[int, Tuple[str, str]]:
    """Return the devices that carry the SSH connection: those with its address here, those back to its other end, and all below."""
    hint = "reach the node over its management network"
    roots: Dict[int, Tuple[str, str]] = {}
    for link in links:
        held = netstate.local_addresses(kernel, [link.ifindex]) & set(site.control_addresses)
        if held:
            roots[link.ifindex] = ("carries the SSH connection ({})".format(", ".join(sorted(held))), hint)
    for address in site.controller_addresses:
        for index in ways(kernel, address, site.control_addresses):
            roots.setdefault(index, ("leads to {}, {}".format(address, CONTROLLER), hint))
    return _with_all_below(links, roots, {})


def _with_all_below(
    links: Sequence[Link], roots: Dict[int, Tuple[str, str]], found: Dict[int, Tuple[str, str]]
) -> Dict[int, Tuple[str, str]]:
    names = {link.ifindex: link.name for link in links}
    found = dict(found)
    for root, (why, hint) in roots.items():
        found.setdefault(root, (why, hint))
        for index in below(links, root):
            found.setdefault(index, ("lies below {}, which {}".format(names.get(root, root), why), hint))
    return found


def below(links: Iterable[Link], root: int) -> FrozenSet[int]:
    """
    Return what a device stands on: whoever is a member of it, what it is stacked on, and all below those.

    The other end of a virtual cable counts as well: with that down, this end has no signal.
    """
    under: Dict[int, Set[int]] = {}
    for link in links:
        if link.lower:
            under.setdefault(link.ifindex, set()).add(link.lower)
        if link.master:
            under.setdefault(link.master, set()).add(link.ifindex)
    found: Set[int] = set()
    ahead = {root}
    while ahead:
        index = ahead.pop()
        found.add(index)
        ahead |= under.get(index, set()) - found
    return frozenset(found - {root})


def ways(kernel: Netlink, address: str, sources: Sequence[str]) -> FrozenSet[int]:
    """Return the devices by which the kernel may send to an address, from no stated source and from each control address."""
    same = [source for source in sources if (":" in source) == (":" in address)]
    found: Set[int] = set()
    for source in (None, *same):
        for whole in (False, True):
            for body in kernel.route_towards(address, source, whole=whole):
                found |= netstate.links_of(body)
    return frozenset(found - {0})


def default_links(kernel: Netlink) -> FrozenSet[int]:
    """Return the devices of the default routes that the main table prefers: an address family's, with the lowest metric."""
    best: Dict[int, int] = {}
    found: Dict[int, Set[int]] = {}
    for body in netstate.dump_routes(kernel):
        family, length, table, kind = body[0], body[1], body[4], body[7]
        if length or table != _MAIN or kind != _UNICAST:
            continue
        values = {number & TYPE_MASK: value for number, value in attributes(body[_ROUTE_HEAD:])}
        metric = int.from_bytes(values.get(_PRIORITY, b""), sys.byteorder)
        if metric < best.setdefault(family, metric):
            best[family], found[family] = metric, set()
        if metric == best[family]:
            found.setdefault(family, set()).update(netstate.links_of(body))
    return frozenset(index for links in found.values() for index in links)


# -- who must stay reachable ---------------------------------------------------------------------------------------


def lifelines(site: Site) -> List[Lifeline]:
    """Return every address that this node hangs by, but for that of the SSH connection's own end here, and the gateways."""
    table = mounts.table()
    return [
        *(Lifeline(address, CONTROLLER) for address in site.controller_addresses),
        *(Lifeline(address, "") for address in site.protected_addresses),
        *_services(),
        *(Lifeline(address, what) for what, address in _home_servers(table)),
    ]


def infrastructure() -> List[Lifeline]:
    """Return the default gateways, the name servers and the schedulers of this node."""
    return [*(Lifeline(address, "this node's default gateway") for address in storage.gateways()), *_services()]


def _services() -> Iterator[Lifeline]:
    for address in name_servers(_texts(RESOLVERS)):
        yield Lifeline(address, "a name server of this node")
    for name, address in _resolved(scheduler_hosts()):
        yield Lifeline(address, "its scheduler {}".format(name))


def _named(line: Lifeline) -> str:
    return "{}, {}".format(line.address, line.what) if line.what else "the protected address {}".format(line.address)


def name_servers(texts: Iterable[str]) -> List[str]:
    """Return the addresses that texts like `/etc/resolv.conf` name; one on this node itself leads nowhere, and is left out."""
    found = []
    for text in texts:
        for line in text.splitlines():
            words = line.split()
            if len(words) > 1 and words[0] == "nameserver":
                found += [address for address in _numeric(words[1]) if not address.startswith("127.") and address != "::1"]
    return sorted(set(found))


def scheduler_hosts() -> List[str]:
    """Return the hosts of this node's scheduler: Slurm's controllers, and the API server that its kubelet talks to."""
    return [*slurm_hosts(_texts(SLURM)), *kubelet_hosts(_texts(KUBELET))]


def slurm_hosts(texts: Iterable[str]) -> List[str]:
    """Return the hosts that `slurm.conf` names as controllers; of `name(address)` the address."""
    found = [value for text in texts for _, value in _SLURM_LINE.findall(text)]
    return sorted({re.sub(r"^.*\(([^)]*)\)$", r"\1", value) for value in found})


def kubelet_hosts(texts: Iterable[str]) -> List[str]:
    """Return the hosts of the API servers that a kubeconfig names."""
    return sorted({host.strip("[]") for text in texts for host in _SERVER_LINE.findall(text)})


def _texts(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                yield file.read(1 << 20)
        except OSError:
            continue


def _numeric(text: str) -> List[str]:
    try:
        return [storage.numeric(text)]
    except ValueError:
        return []


def _resolved(hosts: Sequence[str]) -> List[Tuple[str, str]]:
    """Return each host with each of its addresses; one that has none, or not in time, could not be reached anyway."""
    found: List[Tuple[str, str]] = []

    def look_up() -> None:
        for host in hosts:
            try:
                found.extend((host, address) for address in storage.resolved(host))
            except storage.UnknownError:
                continue

    if hosts:
        run_within(look_up, RESOLVE_WITHIN, "resolve")
    return list(found)


def _home_servers(table: List[Mount]) -> Iterator[Tuple[str, str]]:
    for home in homes({process.uid for process in procs.everyone()}):
        mount = mounts.holding(home, table)
        for address in _servers(mount):
            yield "which serves the home directory {}".format(home), address


def _servers(mount: Mount) -> Sequence[str]:
    if not storage.network(mount):
        return ()
    try:
        return storage.servers(mount)
    except storage.UnknownError:
        return _numeric(mount.option("addr"))  # one of them, where nobody knows the others


def homes(uids: AbstractSet[int]) -> List[str]:
    """Return the home directories of root and of people, by their names alone, without touching them."""
    found = set()
    for uid in uids:
        try:
            home = pwd.getpwuid(uid).pw_dir
        except KeyError:
            continue
        # A system account's home is a state folder, and nobody logs in there.
        if home.startswith("/") and (uid == 0 or uid >= FIRST_USER) and uid != NOBODY:
            found.add(home)
    return sorted(found)
