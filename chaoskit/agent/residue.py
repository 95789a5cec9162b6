"""
What stays behind where nothing is owed: counters that moved, lines of the kernel's log, what others still believe of the node.

`snapshot` reads it, before the first injection and after the last one is gone; the difference is made on the controller
(`chaoskit.engine.residue`). It only reads, and whatever cannot be read is said and costs the others nothing. Standard
library only, Python 3.8.
"""

import errno
import json
import os
import re
import subprocess
import time
from contextlib import suppress
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from chaoskit.agent.contract import Refusal
from chaoskit.agent.gpu_counters import read_counters
from chaoskit.agent.host import Host
from chaoskit.agent.remediators import programs

NIC = (("carrier_changes", "carrier_changes"), ("rx_errors", "statistics/rx_errors"), ("tx_errors", "statistics/tx_errors"))
"""What is read of a network device, and where in its folder; packets dropped are none, since they move on every node."""
PORT = (
    *("link_downed", "link_error_recovery", "symbol_error", "port_rcv_errors"),
    *("local_link_integrity_errors", "excessive_buffer_overrun_errors"),
)
"""What is read of an InfiniBand or RoCE port: what remediators count."""
MOST_DEVICES = 64
"""Network devices, and RDMA ports, of which counters are read."""

MOST_LINES = 200
LONGEST_LINE = 300
"""How many lines of the kernel's log are told, and how many characters of each."""
MOST_RECORDS = 200_000
LOG_WITHIN = 2.0
"""Records, and seconds, of the kernel's log that are read: whoever floods it must not keep us."""
RECORD = 8192
"""Bytes of one record of the kernel's log, at most (Documentation/ABI/testing/dev-kmsg)."""

ASK_WITHIN = 3.0
"""Seconds that Slurm's controller, and gpud, have to answer."""
GPUD = ("127.0.0.1", 15132, "/v1/states")
MOST_ANSWER = 1 << 20
SLURM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")


class Since(NamedTuple):
    """Where in the kernel's log the first look ended: this boot's, and the number of its last record."""

    boot_id: str
    seq: int


def snapshot(host: Host, since: Optional[Since], root: str = "/") -> Dict[str, Any]:
    """
    Return what this node shows now, as JSON.

    Args:
        host: This node.
        since: Where the first look ended; None for the first look itself, which tells no lines.
        root: Where its /sys, /dev and /proc are looked for.
    """
    boot_id = host.boot_id()
    start = since.seq if since is not None and since.boot_id == boot_id else -1
    counters = {**_nics(host, root), **_ports(root), **(read_counters(ASK_WITHIN) if _has_gpus(root) else {})}
    states = {**_slurm(host), **(_gpud() if "gpud" in dict(programs(root)) else {})}
    return {"boot_id": boot_id, "counters": counters, "kernel": kernel(root, start, told=since is not None), "states": states}


# -- counters ------------------------------------------------------------------------------------------------------


def _nics(host: Host, root: str) -> Dict[str, int]:
    folder = os.path.join(root, "sys/class/net")
    rails = [rail.netdev for rail in host.site.rails if rail.netdev]
    devices = [name for name in _listing(folder) if os.path.exists(os.path.join(folder, name, "device"))]
    names = list(dict.fromkeys([*rails, *devices]))[:MOST_DEVICES]
    read = ((("nic/{}/{}".format(name, what), os.path.join(folder, name, path))) for name in names for what, path in NIC)
    return _numbers(read)


def _ports(root: str) -> Dict[str, int]:
    folder = os.path.join(root, "sys/class/infiniband")
    ports = [(device, port) for device in _listing(folder) for port in _listing(os.path.join(folder, device, "ports"))]
    read = (
        ("rdma/{}:{}/{}".format(device, port, what), os.path.join(folder, device, "ports", port, "counters", what))
        for device, port in ports[:MOST_DEVICES]
        for what in PORT
    )
    return _numbers(read)


def _has_gpus(root: str) -> bool:
    return os.path.exists(os.path.join(root, "dev/nvidiactl"))


def _numbers(read: Iterator[Tuple[str, str]]) -> Dict[str, int]:
    """Return the counters that are there and are numbers: drivers offer different ones."""
    found = {}
    for name, path in read:
        with suppress(OSError, ValueError), open(path, encoding="ascii") as file:
            found[name] = int(file.read(64))
    return found


def _listing(path: str) -> List[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


# -- the kernel's log ----------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """One record of the kernel's log: its number in this boot, its level (0 the worst) and its first line."""

    seq: int
    level: int
    text: str


def kernel(root: str, start: int, *, told: bool) -> Dict[str, Any]:
    """
    Return where the kernel's log is at, and its lines after `start`.

    Args:
        root: Where its /dev is.
        start: Number of the last record that was seen; -1 to begin at the boot's first.
        told: Whether lines are wanted, and not only where it is at.

    Returns:
        `seq` of the last record (-1: none), `lines` as [seq, level, text], `lost` records that were overwritten unread, `cut`
        that are beyond what is told, and `why` it could not be read, which is empty otherwise.
    """
    at = {"seq": start, "lines": [], "lost": 0, "cut": 0, "why": ""}  # type: Dict[str, Any]
    try:
        fd = os.open(os.path.join(root, "dev/kmsg"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return {**at, "why": "the kernel's log cannot be read: /dev/kmsg: {}".format(error.strerror)}
    try:
        return _since(fd, start, at, told=told)
    finally:
        os.close(fd)


def _since(fd: int, start: int, at: Dict[str, Any], *, told: bool) -> Dict[str, Any]:
    last, lines, unseen = start, [], 0  # type: int, List[Line], int
    for line in _records(fd):
        if line.seq <= start:
            continue
        unseen += line.seq - last - 1 if last >= 0 else 0  # numbers have no gaps: what is missing was overwritten
        last = line.seq
        if told:
            lines.append(line)
    keep = lines if len(lines) <= MOST_LINES else [*lines[: MOST_LINES // 2], *lines[-MOST_LINES // 2 :]]
    return {**at, "seq": last, "lines": [list(line) for line in keep], "lost": unseen if told else 0, "cut": len(lines) - len(keep)}


def _records(fd: int) -> Iterator[Line]:
    """Yield the records that are there, oldest first; a device gives one a read, and a file many."""
    until = time.monotonic() + LOG_WITHIN
    rest = b""
    for _ in range(MOST_RECORDS):
        try:
            data = os.read(fd, RECORD)
        except BlockingIOError:
            break
        except OSError as error:
            if error.errno == errno.EPIPE:  # overwritten while we read: the next read goes on behind it
                continue
            break
        if not data or time.monotonic() > until:
            break
        *whole, rest = (rest + data).split(b"\n")
        yield from (line for line in map(record, whole) if line is not None)
    last = record(rest)
    if last is not None:
        yield last


def record(raw: bytes) -> Optional[Line]:
    """Return a record; None for the key and value lines that follow one, and for what is none."""
    head, semicolon, text = raw.partition(b";")
    fields = head.split(b",")
    if not semicolon or len(fields) < 3 or not fields[0].isdigit() or not fields[1].isdigit():
        return None
    return Line(int(fields[1]), int(fields[0]) & 7, text.decode("utf-8", "replace")[:LONGEST_LINE])


# -- what others believe -------------------------------------------------------------------------------------------


def _slurm(host: Host) -> Dict[str, Any]:
    """Return what Slurm thinks of this node; nothing where there is no Slurm, or it does not answer in time."""
    if host.which("scontrol") is None:
        return {}
    try:
        done = host.run(["scontrol", "-o", "show", "node", os.uname().nodename.split(".")[0]], ASK_WITHIN)
    except (Refusal, OSError, subprocess.TimeoutExpired):
        return {"slurm": {"why": "scontrol did not answer within {:g} s".format(ASK_WITHIN)}}
    found = slurm_state(done.out)
    return {"slurm": found} if found else {}


def slurm_state(text: str) -> Dict[str, str]:
    """Return name, state and reason of a node as `scontrol -o show node` prints it; empty when it prints none."""
    name, state = (re.search(r"\b{}=(\S+)".format(key), text) for key in ("NodeName", "State"))
    reason = re.search(r"\bReason=(.*?)(?: \[[^\]]*\])?(?: [A-Z][A-Za-z]*=|\s*$)", text)
    if name is None or state is None or not SLURM_NAME.match(name.group(1)):
        return {}
    return {"name": name.group(1), "state": state.group(1)[:100], "reason": reason.group(1)[:LONGEST_LINE] if reason else ""}


def _gpud() -> Dict[str, Any]:
    """Return the components that gpud calls unhealthy, and why; it listens on this node, with a certificate of its own making."""
    import http.client  # noqa: PLC0415 - with `ssl` it costs 20 ms, and only nodes with gpud need it
    import ssl  # noqa: PLC0415 - as above

    host, port, path = GPUD
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    connection = http.client.HTTPSConnection(host, port, timeout=ASK_WITHIN, context=context)
    try:
        connection.request("GET", path)
        answer = connection.getresponse().read(MOST_ANSWER)
    except (OSError, http.client.HTTPException) as error:
        return {"gpud": {"why": "gpud did not answer: {}".format(error)}}
    finally:
        connection.close()
    return {"gpud": gpud_unhealthy(answer)}


def gpud_unhealthy(answer: bytes) -> Dict[str, str]:
    """Return component -> reason of those that are not healthy; never raises for what gpud sent."""
    try:
        told = json.loads(answer)
    except ValueError:
        return {"why": "gpud sent no JSON"}
    unhealthy = {}
    for one in told if isinstance(told, list) else []:
        states = one.get("states") if isinstance(one, dict) else None
        for state in states if isinstance(states, list) else []:
            if isinstance(state, Mapping) and str(state.get("health", "Healthy")) not in ("Healthy", "Initializing"):
                unhealthy[str(one.get("component"))[:100]] = str(state.get("reason", ""))[:LONGEST_LINE]
    return dict(sorted(unhealthy.items())[:MOST_DEVICES])
