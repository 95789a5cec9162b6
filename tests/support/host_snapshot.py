"""The machine as a lab must leave it: links, mounts, cgroups, processes and /proc/sys, without what belongs to other labs."""

import os
import re
import subprocess
from pathlib import Path

from chaoskit.lab import cgroups, control
from chaoskit.lab.plan import STATE_ROOT

VOLATILE = re.compile(
    r"fs/(dentry-state|file-nr|inode-nr|inode-state|aio-nr|quota/|epoll)|kernel/(ns_last_pid|pty/nr|random/|sched_domain)|count$|vm/stat_refresh"
    r"|net/(ipv4|ipv6)/(conf|neigh)/|net/ipv4/route/flush|net/ipv6/route/flush|vm/(compact_memory|drop_caches)"
)
"""What changes by itself, or is a device's own folder (devices are compared as devices)."""


def read_sysctls():
    found = {}
    for folder, _, files in os.walk("/proc/sys"):
        for name in files:
            path = Path(folder, name)
            if not VOLATILE.search(str(path)):
                try:
                    found[str(path)] = path.read_text()
                except (OSError, UnicodeDecodeError):
                    found[str(path)] = "unreadable"
    return found


def links(own):
    """Links of the host, but for those of other labs, which other tests may make and remove meanwhile."""
    others = {f"cklab{control._plan(name).index}" for name in control.names() if name != own}
    lines = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout.splitlines()
    names = {line.split(": ")[1].split("@")[0] for line in lines}
    return {name for name in names if name not in others and re.match(r"cklab|veth|node|store|sw-|fab|rail|mgmt|lo$|eth", name)}


def mounts(own):
    return {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines() if not _of_another_lab(line.split()[4], own)}


def _of_another_lab(path, own):
    return path.startswith(str(STATE_ROOT)) and not path.startswith(f"{STATE_ROOT}/{own}")


def processes(own):
    """Return every process that sees anything of this lab's state: in its nodes, in its supervisor, or elsewhere."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            text = path.read_text()
        except OSError:
            continue
        if re.search(rf"{STATE_ROOT}/{own}[/ ]", text) and path.parts[2] != str(os.getpid()):
            found.add(path.parts[2])
    return found


def snapshot(own):
    """Return what `lab down` of this name must leave as it was before `lab up`."""
    return {
        "links": links(own),
        "mounts": mounts(own),
        "cgroups": {str(path) for path in cgroups.folders(own)},
        "processes": processes(own),
        "state": (STATE_ROOT / own).exists(),
        "sysctls": read_sysctls(),
    }
