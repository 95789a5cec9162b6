"""
What is looked at on a node, one small function a check: from its arguments to what it saw. Each only reads.

To add a check: write a function, add it to `LOOKS`, and ask for it in `chaoskit.engine.doctor_orders`. It yields whatever a
person should know, and `OK` when all is well. Standard library only, Python 3.8.
"""

import os
from typing import Dict, Iterator, List, Mapping, Set, Tuple

from chaoskit.agent import control_path, facts, netlink, netstate, procs
from chaoskit.agent import gpus as nvml
from chaoskit.agent.allow import allowed
from chaoskit.agent.checks import other_users, strangers, user_ids
from chaoskit.agent.contract import Rail, Refusal
from chaoskit.agent.gpu_targets import KERNEL_MODULE
from chaoskit.agent.host import Host
from chaoskit.agent.kernel import MISSING, THERE, Kernel
from chaoskit.agent.mounts import on_tmpfs
from chaoskit.agent.netlink import Link, Netlink
from chaoskit.agent.ping import why_silent
from chaoskit.agent.residue_looks import remediators, residue
from chaoskit.agent.seen import DEFECT, NOTE, OK, UNKNOWN, Args, Ask, Look, Seen
from chaoskit.agent.training_look import training

LEAST_FREE = 64 << 20
"""Bytes that must be free for the ledger: an entry takes a few kB, and whoever fills the disk meanwhile needs room too."""
LEAST_INODES = 256
GPUS_WITHIN = 20.0
"""Seconds to read all GPUs, less than a node's whole examination has."""
NAMED = 3
"""Of a long list, how many are named."""


Lack = Tuple[str, str, bool]
"""What a fault lacks, what to do, and whether that is certain."""


def consent(ask: Ask, args: Args) -> Iterator[Seen]:
    """
    Look for the file by which a site allows faults on this node.

    `faults` are those that are meant, and `state` how one is told that the file does not name.
    """
    try:
        named = allowed(ask.paths.allow)
    except Refusal as error:
        yield Seen(DEFECT, error.what, error.hint)
        return
    lacking = [] if named is None else sorted(set(args.get("faults") or ()) - set(named))
    if lacking:
        yield Seen(
            args["state"], "{} does not allow {}".format(ask.paths.allow, ", ".join(lacking)), "as root: name them there, one a line"
        )
    yield Seen(OK, "{} allows {}".format(ask.paths.allow, "every fault" if named is None else ", ".join(sorted(named)) or "no fault"))


def jobs(ask: Ask, args: Args) -> Iterator[Seen]:
    """Look for other users' jobs, which no fault may harm. `users` are the accounts that train."""
    ours = ask.accounts.union(*(user_ids(user) for user in args["users"]))
    found = strangers(ours)
    if found:
        named = "; ".join(str(one) for one in found[:NAMED]) + _more(len(found))
        yield Seen(DEFECT, "other users' jobs are on this node: {}".format(named), "drain it, or say `shared: accept` in the inventory")
    others = sorted(other_users(ours) - {one.user for one in found})
    if others:
        yield Seen(NOTE, "processes of other users, in no job: {}".format(", ".join(others[:NAMED]) + _more(len(others))))


def disk(ask: Ask, _: Args) -> Iterator[Seen]:
    """Look whether ledger and leases can be written."""
    for path in (ask.paths.state, ask.paths.run):
        yield from _room(path)
    if on_tmpfs(ask.paths.ledger):
        yield Seen(NOTE, "{} is in memory: only the controller's journal survives a reboot".format(ask.paths.ledger))


def _room(path: str) -> Iterator[Seen]:
    there = path
    while not os.path.exists(there):
        there = os.path.dirname(there)
    found = os.statvfs(there)
    free = found.f_bavail * found.f_frsize
    if found.f_flag & os.ST_RDONLY:
        yield Seen(DEFECT, "{} is read-only".format(path), "mount it writable: no fault begins before its undo is on disk")
    elif free < LEAST_FREE:
        says = "{} has {:.1f} MiB free, and {} MiB are the least".format(path, free / (1 << 20), LEAST_FREE >> 20)
        yield Seen(DEFECT, says, "make room: no fault begins before its undo is on disk")
    elif found.f_files and found.f_favail < LEAST_INODES:
        yield Seen(DEFECT, "{} has {} inodes free".format(path, found.f_favail), "remove files: no fault begins before its undo is on disk")
    else:
        yield Seen(OK, "{} has {:.1f} GiB free".format(path, free / (1 << 30)))


def alike(ask: Ask, _: Args) -> Iterator[Seen]:
    """Read what must be alike on all nodes of a group; `gpus` and `training` tell what is theirs of that."""
    with Netlink() as kernel:
        found = {**facts.system(), **facts.of_rails(kernel, kernel.links(), ask.host.site.rails)}
    yield Seen(OK, "", readings={"facts": found})


def gpus(_: Ask, args: Args) -> Iterator[Seen]:
    """Read every GPU. `count` is what the inventory says."""
    found = nvml.read_all(GPUS_WITHIN)
    for one in found.unread:
        yield Seen(DEFECT, one.why, one.hint)
    shown = len(found.gpus) + sum(one.index is not None for one in found.unread)
    if shown != args["count"] and all(one.index is not None for one in found.unread):
        do = "compare `nvidia-smi -L` and `lspci`, or correct `gpus` in the inventory"
        yield Seen(DEFECT, "NVML shows {} GPUs, the inventory says {}".format(shown, args["count"]), do)
    elif not found.unread:
        kinds = sorted({one.name for one in found.gpus})
        told = facts.of_gpus(found.driver, [(one.name, one.pci, one.vbios) for one in found.gpus], found.cuda)
        yield Seen(OK, "{} GPUs ({}), driver {}".format(shown, ", ".join(kinds), found.driver), readings={"facts": told})


def tools(ask: Ask, args: Args) -> Iterator[Seen]:
    """
    Look for what faults need: `faults` name -> their `Needs` as JSON; `state` is how one is told that lacks something.

    What nobody can say of the kernel is unknown when the fault is wanted here, and else worth knowing.
    """
    kernel, able = Kernel(), []
    for name, needs in sorted(args["faults"].items()):
        lacks = [*_programs(ask, needs), *_rights(needs), *_features(kernel, needs)]
        for what, do, sure in lacks:
            yield Seen(args["state"] if sure or args["state"] == NOTE else UNKNOWN, "{} {}".format(name, what), do)
        able += [] if lacks else [name]
    if able:
        yield Seen(OK, "programs, rights and kernel features are there for {}".format(", ".join(able)))


def _programs(ask: Ask, needs: Args) -> Iterator[Lack]:
    programs = [program for program in needs["binaries"] if ask.host.which(program) is None]
    if programs:
        yield "needs {}, which is not installed".format(", ".join(programs)), "install it on the node", True


def _rights(needs: Args) -> Iterator[Lack]:
    wanted = dict.fromkeys(needs["capabilities"])
    if needs.get("gpus") and os.path.exists(KERNEL_MODULE):
        wanted["SYS_ADMIN"] = None  # NVIDIA's driver takes settings from nobody else
    rights = [right for right in wanted if _lacks(right)]
    if rights:
        held = ", ".join("CAP_" + right for right in rights)
        yield "needs {}, which the agent lacks".format(held), "run the agent as root (`become: sudo`), or grant it to the container", True


def _features(kernel: Kernel, needs: Args) -> Iterator[Lack]:
    """Say what is missing in each alternative, unless one of them is there whole."""
    found = [[(name, one) for name in names if (one := kernel.find(name)).state != THERE] for names in needs.get("features") or ()]
    if found and all(found):
        for name, one in (each for alternative in found for each in alternative):
            sure = one.state == MISSING
            says = "needs {} of the kernel: {}" if sure else "needs {} of the kernel, and whether that is there is not known: {}"
            yield says.format(name, one.why), one.do, sure


def _lacks(right: str) -> bool:
    try:
        procs.require_capability(right, "")
    except Refusal:
        return True
    return False


def rails(ask: Ask, _: Args) -> Iterator[Seen]:
    """Look at each rail of the inventory: is it there, of the right kind, up, with a signal, and not the way that we came?"""
    with Netlink() as kernel:
        links = {link.name: link for link in kernel.links()}
        ways = _control_path(ask.host, kernel)
        held = {name: netstate.local_addresses(kernel, [link.ifindex]) for name, link in links.items()}
    well = []
    for rail in ask.host.site.rails:
        seen = [*_netdev(rail, links, ways), *_rdma(ask.host, rail)]
        yield from seen
        well += [] if seen else [rail]
    if well:
        named = ", ".join(map(_named, well))
        there = {rail.netdev: sorted(one for one in held[rail.netdev] if ":" not in one) for rail in well if rail.netdev}
        yield Seen(OK, "{} up".format(named), readings={"addresses": there})


def peers(_: Ask, args: Args) -> Iterator[Seen]:
    """Ask other nodes for an echo over a rail: `echoes` as {netdev, to}. Whether silence is a defect, `chaoskit.engine` decides."""
    for one in args["echoes"]:
        why = why_silent(one["netdev"], one["to"])
        yield Seen(NOTE if why else OK, why, readings={"netdev": one["netdev"], "answered": not why})


def _named(rail: Rail) -> str:
    device = rail.netdev or rail.rdma
    return "{} (rail {}{})".format(device, rail.index, ", plane {}".format(rail.plane) if rail.plane else "")


def _netdev(rail: Rail, links: Mapping[str, Link], ways: Set[str]) -> Iterator[Seen]:
    if rail.netdev is None:
        return
    link = links.get(rail.netdev)
    if link is None:
        there = ", ".join(sorted(name for name in links if name != "lo"))
        yield Seen(DEFECT, "{} is not on this node".format(_named(rail)), "correct `rails` in the inventory; there are {}".format(there))
        return
    if link.arp_type not in (netlink.ARPHRD_ETHER, netlink.ARPHRD_INFINIBAND):
        says = "{} is neither an Ethernet nor an InfiniBand device (type {})".format(_named(rail), link.arp_type)
        yield Seen(DEFECT, says, "name the rail's own device in the inventory")
    if not link.up:
        yield Seen(DEFECT, "{} is down".format(_named(rail)), "ip link set {} up".format(link.name))
    elif not link.carrier:
        yield Seen(DEFECT, "{} has no signal".format(_named(rail)), "check its cable, its optics and the port at the other end")
    if link.name in ways:
        says = "{} carries the SSH connection, so no fault may touch it".format(_named(rail))
        yield Seen(DEFECT, says, "reach the node over its management network, or correct `rails`")


def _control_path(host: Host, kernel: Netlink) -> Set[str]:
    """Return the names of the links that hold the SSH connection's address, lead back to where it comes from, or lie below such."""
    links = kernel.links()
    found = control_path.ssh_carriers(kernel, host.site, links)
    return {link.name for link in links if link.ifindex in found}


def _rdma(host: Host, rail: Rail) -> Iterator[Seen]:
    if rail.rdma is None:
        return
    folder = "/sys/class/infiniband/{}".format(rail.rdma)
    if not os.path.isdir(folder):
        there = ", ".join(_listing("/sys/class/infiniband")) or "none"
        yield Seen(DEFECT, "RDMA device {} of rail {} is not on this node".format(rail.rdma, rail.index), "there are: {}".format(there))
        return
    state = host.read("{}/ports/1/state".format(folder))
    if "ACTIVE" not in state:
        do = "check its cable and the port at the other end, or its subnet manager"
        yield Seen(DEFECT, "RDMA device {} of rail {} is {}".format(rail.rdma, rail.index, state), do)
    netdevs = _listing("{}/device/net".format(folder))
    if rail.netdev is not None and netdevs and rail.netdev not in netdevs:
        says = "RDMA device {} of rail {} belongs to {}, not to {}".format(rail.rdma, rail.index, ", ".join(netdevs), rail.netdev)
        yield Seen(DEFECT, says, "correct `rails` in the inventory")


def _listing(path: str) -> List[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _more(count: int) -> str:
    return " and {} more".format(count - NAMED) if count > NAMED else ""


ROOTLESS = ("disk", "gpus", "training", "rails", "alike")
"""What any account can look at; the others would not see enough, and take that for well."""

LOOKS: Dict[str, Look] = {
    look.__name__: look for look in (consent, jobs, disk, gpus, tools, training, rails, peers, alike, remediators, residue)
}
