"""
The two means by which a file system is slowed: a rate cap on the way to its servers, or a throttle on its disk.

Each is captured as JSON, and applied, read and taken away from that alone. Standard library only, Python 3.8.
"""

import socket
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from chaoskit.agent import blkio, netlink, qdiscs, sockdiag
from chaoskit.agent.blkio import MissingError, Throttle
from chaoskit.agent.contract import Stray
from chaoskit.agent.netlink import Netlink

Means = Dict[str, Any]
"""What was captured: `kind` is `network` (`servers`, `devices`) or `disk` (`disk`, `name`, `throttles`)."""


class InTheWayError(Exception):
    """Something stands there that could not be put back exactly, or would hide the fault. `hint` says what to do."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.hint = hint


def capture_network(servers: Sequence[str]) -> Means:
    """
    Read what stands on every device that leads to these servers.

    Raises:
        InTheWayError: A device's queueing is not the kernel's own default, or there is no way that a cap could stand on.
    """
    with Netlink() as kernel:
        links = {link.ifindex: link for link in kernel.links()}
        devices = [_captured(kernel, links[index]) for index in sorted(_ways(kernel, servers)) if index in links]
    return {"kind": "network", "servers": list(servers), "devices": devices}


def _ways(kernel: Netlink, servers: Sequence[str]) -> "set[int]":
    """Return the devices by which the kernel sends to the servers: from any source, and from those of the connections that are."""
    sources = [(sent.to, sent.source) for sent in _connections(servers)]
    found = set()
    for server in servers:
        index = kernel.link_towards(server)
        if not index:
            raise InTheWayError("this node has no route to the server {}".format(server), "check its routes")
        found.add(index)
    return found | {index for to, source in sources for index in [kernel.link_towards(to, source)] if index}


def _captured(kernel: Netlink, link: netlink.Link) -> Dict[str, Any]:
    standing = qdiscs.standing(kernel, link.ifindex)
    root = standing[0] if standing else None
    if link.name == "lo":
        raise InTheWayError("the server is this node itself", "slow the disk below what it serves")
    if root is not None and root.handle == qdiscs.OURS:
        raise InTheWayError(
            "{} carries a cap of an earlier run".format(link.name), "run chaoskit heal, or tc qdisc del dev {} root".format(link.name)
        )
    if root is None or not root.default:
        hint = "take it away for the experiment: tc qdisc del dev {} root".format(link.name)
        raise InTheWayError(
            "{} has a queueing discipline of its own ({}), which a cap would replace".format(link.name, root or "none"), hint
        )
    wanted = qdiscs.default_kind()
    kinds = {one.kind for one in standing if one.kind not in ("noqueue", "mq")}
    if wanted and kinds - {wanted}:
        what = "{} has {} by default, and would get {} when a cap is taken away".format(link.name, ", ".join(sorted(kinds)), wanted)
        raise InTheWayError(what, "sysctl net.core.default_qdisc={}, or set the device down and up".format(min(kinds)))
    return {"name": link.name, "ifindex": link.ifindex, "qdiscs": [list(one) for one in standing]}


def capture_disk(disk: str, name: str, pids: Sequence[int], rate: float) -> Means:
    """
    Read the throttles of these processes' groups on a disk.

    Raises:
        InTheWayError: A throttle stands there that is as tight already, so that ours would change nothing.
        MissingError: Their groups cannot throttle.
    """
    throttles = [blkio.read(group, disk) for group in blkio.groups_of(pids)]
    for one in throttles:
        if one.limit is not None and one.limit <= rate:
            raise InTheWayError("{} may write {} bytes a second to {} already".format(one.group, one.limit, name), "state a smaller `rate`")
    return {"kind": "disk", "disk": disk, "name": name, "throttles": [one.to_json() for one in throttles]}


def apply(means: Means, rate: float) -> None:
    """Slow it. Raises OSError: what was made so far stands, for `take_away`."""
    if means["kind"] == "network":
        with Netlink() as kernel:
            for device in means["devices"]:
                qdiscs.cap(kernel, device["ifindex"], means["servers"], rate)
    for throttle in _throttles(means):
        blkio.write(throttle._replace(limit=int(rate)))


def take_away(means: Means, rate: float) -> None:
    """Put back what was captured where our limit stands; what somebody else set meanwhile is theirs. Raises OSError."""
    with Netlink() as kernel:
        for device in means.get("devices", ()):
            index = _index(device["name"])
            if index:
                qdiscs.uncap(kernel, index)
    for throttle in _throttles(means):
        if _is_ours(_now(throttle), rate):
            blkio.write(throttle)


def unslowed(means: Means, rate: float) -> List[str]:
    """Name each device or group on which our limit does not stand."""
    if means["kind"] == "network":
        with Netlink() as kernel:
            return [device["name"] for device in means["devices"] if not _has_cap(kernel, device["name"])]
    return [throttle.group for throttle in _throttles(means) if not _is_ours(_now(throttle), rate)]


def lacking(means: Means, rate: float) -> List[str]:
    """
    Say for each device in what it differs from what was captured, and on which group our limit stands.

    One that is gone took our limit with it, and a group's limit that is not ours is somebody else's, which stays.
    """
    found = []
    with Netlink() as kernel:
        for device in means.get("devices", ()):
            index = _index(device["name"])
            standing = [list(one) for one in qdiscs.standing(kernel, index)] if index else []
            if _has_cap(kernel, device["name"]):
                found.append("our cap stands on {}".format(device["name"]))
            elif index == device["ifindex"] and standing != device["qdiscs"]:
                found.append("{} has {}, and had {}".format(device["name"], _kinds(standing), _kinds(device["qdiscs"])))
    for throttle in _throttles(means):
        if _is_ours(_now(throttle), rate):
            had = "no limit" if throttle.limit is None else throttle.limit
            found.append("{} may write {} bytes a second, and had {}".format(throttle.group, int(rate), had))
    return found


def strays() -> List[Stray]:
    """Return each cap of ours, and what of others stands where a cap or a throttle of ours would."""
    with Netlink() as kernel:
        found = [_queueing(link, qdiscs.standing(kernel, link.ifindex)) for link in kernel.links()]
    return [stray for stray in found if stray is not None] + [_throttled(one) for one in _all_throttles()]


def _queueing(link: netlink.Link, standing: Sequence[qdiscs.Qdisc]) -> Optional[Stray]:
    root = standing[0] if standing else None
    if root is None or root.parent or root.default or (root.kind, root.handle) == ("tbf", qdiscs.LAB):
        return None
    resource = "nic:{}".format(link.name)
    if root.handle == qdiscs.OURS and root.kind == "htb":
        return Stray(resource, "our cap stands on {} ({})".format(link.name, root), ours=True, tag={"device": link.name})
    return Stray(resource, "a queueing discipline that is not ours ({}) stands on {}".format(root, link.name))


def _all_throttles() -> List[Throttle]:
    try:
        return blkio.limited()
    except MissingError:
        return []


def _throttled(one: Throttle) -> Stray:
    told = "{} may write {} bytes a second to the disk {}: its operator's, or left by a storage_slow whose ledger is lost"
    return Stray("disk:{}".format(blkio.name_of(one.disk)), told.format(one.group, one.limit, blkio.name_of(one.disk)))


def sent(means: Means) -> int:
    """
    Return the bytes that this node has sent to the servers, or that the groups have written to the disk.

    Without a connection to the servers, 0: what a device has sent in all says nothing of them.
    """
    if means["kind"] == "disk":
        return sum(blkio.written(throttle.group, throttle.disk) for throttle in _throttles(means))
    return sum(one.acknowledged for one in _connections(means["servers"]))


def passed(means: Means) -> Optional[int]:
    """Return the bytes that went through our cap; None where there is no such count."""
    if means["kind"] == "disk":
        return None
    with Netlink() as kernel:
        return sum(qdiscs.passed(kernel, _index(device["name"])) for device in means["devices"] if _index(device["name"]))


def names(means: Means) -> Tuple[str, ...]:
    """Return what must not be shared with another fault meanwhile."""
    if means["kind"] == "disk":
        return ("disk:{}".format(means["name"]),)
    return tuple("nic:{}".format(device["name"]) for device in means["devices"])


def joins(means: Means) -> List[str]:
    """Return the lists of members of the groups in which a probe must stand to be throttled as the training is."""
    return ["{}/cgroup.procs".format(throttle.group) for throttle in _throttles(means) if _now(throttle) is not None][:1]


def says(means: Means, rate: float) -> str:
    """Say what slows it, for a person."""
    if means["kind"] == "disk":
        return "writes to {} by {}".format(means["name"], ", ".join(throttle.group for throttle in _throttles(means)))
    devices = ", ".join(device["name"] for device in means["devices"])
    return "what {} sends to {} ({:.2f} MB/s)".format(devices, ", ".join(means["servers"]), rate / 1e6)


def _connections(servers: Sequence[str]) -> List[sockdiag.Sent]:
    try:
        return sockdiag.established(servers)
    except OSError:
        return []  # this kernel has no such list


def _throttles(means: Mapping[str, Any]) -> List[Throttle]:
    return [Throttle(**one) for one in means.get("throttles", ())]


def _now(throttle: Throttle) -> Optional[Throttle]:
    try:
        return blkio.read(throttle.group, throttle.disk)
    except (FileNotFoundError, blkio.MissingError):
        return None


def _is_ours(now: Optional[Throttle], rate: float) -> bool:
    return now is not None and now.limit == int(rate)


def _has_cap(kernel: Netlink, name: str) -> bool:
    index = _index(name)
    return bool(index) and qdiscs.capped(kernel, index)


def _index(name: str) -> int:
    try:
        return socket.if_nametoindex(name)
    except OSError:
        return 0


def _kinds(standing: Sequence[Sequence[Any]]) -> str:
    return ", ".join(str(one[0]) for one in standing) or "none"
