"""
Who else would wait when a file system is slowed: what the node hangs by, whoever logs in, and other users.

Standard library only, Python 3.8.
"""

from typing import AbstractSet, List, Sequence

from chaoskit.agent import blkio, control_path, holders, mounts, procs, storage
from chaoskit.agent.checks import FIRST_USER, NOBODY, user_name
from chaoskit.agent.contract import CONTROL_PATH, Site
from chaoskit.agent.mounts import Mount
from chaoskit.agent.procs import Process
from chaoskit.agent.slowing import InTheWayError


def refuse_lifelines(site: Site, servers: Sequence[str]) -> None:
    """
    Refuse servers that are also the controller, its jump host, this node itself, its gateway, name server or scheduler.

    The storage may well be protected, and is all the same what this is about; what the node hangs by is not, unless the
    experiment allows that.

    Raises:
        InTheWayError: With the address, and what else it is.
    """
    others = dict.fromkeys(site.control_addresses, "this node itself")
    if CONTROL_PATH not in site.allow:
        for line in control_path.infrastructure():
            others.setdefault(line.address, line.what)
        others.update((address, control_path.CONTROLLER) for address in site.controller_addresses)
    for server in sorted(set(servers) & set(others)):
        hint = "serve the checkpoints from another machine, or by another address; {}".format(control_path.ALLOW)
        raise InTheWayError("the server {} is also {}".format(server, others[server]), hint)


def refuse_homes(site: Site, ours: AbstractSet[int], mount: Mount, servers: Sequence[str]) -> None:
    """
    Refuse servers that hold a home directory of ours, or of anybody who has a process here: nobody could log in.

    By their names alone, without touching them. Raises InTheWayError, unless the experiment allows it.
    """
    if CONTROL_PATH in site.allow:
        return
    table = mounts.table()
    for home in control_path.homes(ours | {process.uid for process in procs.everyone()}):
        below = mounts.holding(home, table)
        if below.device == mount.device or _shares(below, servers):
            hint = "keep home directories on another server than the checkpoints for this; {}".format(control_path.ALLOW)
            raise InTheWayError("the home directory {} lies on the same servers ({})".format(home, below.source), hint)


def _shares(mount: Mount, servers: Sequence[str]) -> bool:
    if not storage.network(mount):
        return False
    try:
        return bool(set(storage.servers(mount)) & set(servers))
    except storage.UnknownError:
        return mount.option("addr") in servers  # one of them is enough, though nobody knows the others


def clients(device: str) -> List[str]:
    """Name every process that holds something open on a file system (major:minor)."""
    return [_client(held) for held in holders.holders(device, procs.everyone())]


def strangers(ours: AbstractSet[int], device: str) -> List[str]:
    """Name the processes of other users that hold something open on a file system (major:minor)."""
    return [_client(held) for held in holders.holders(device, _others(ours))]


def neighbours(ours: AbstractSet[int], groups: Sequence[str]) -> List[str]:
    """Name the processes of other users that stand in these control groups."""
    inside = {pid for group in groups for pid in blkio.members(group)}
    return ["pid {} of {} in {}".format(one.pid, user_name(one.uid), ", ".join(groups)) for one in _others(ours) if one.pid in inside]


def _others(ours: AbstractSet[int]) -> List[Process]:
    return [one for one in procs.everyone() if one.uid >= FIRST_USER and one.uid != NOBODY and one.uid not in ours]


def _client(held: holders.Held) -> str:
    return "pid {} of {} has {} open".format(held.process.pid, user_name(held.process.uid), held.path)
