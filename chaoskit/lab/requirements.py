"""What the lab needs of the machine, and how to get what is missing."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from chaoskit.errors import RefusedError

PROGRAMS = {
    "gcc": "gcc",
    "ip": "iproute2",
    "nft": "nftables",
    "nsenter": "util-linux",
    "runc": "runc",
    "setpriv": "util-linux",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
    "sshfs": "sshfs",
    "sudo": "sudo",
    "tc": "iproute2",
    "unshare": "util-linux",
}
"""Program -> the Debian and Ubuntu package that has it."""

PACKAGES = tuple(sorted({*PROGRAMS.values(), "libc6-dev"}))
"""Packages to install on Debian and Ubuntu; the C library's headers come with no program."""

SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"
"""Where system programs are looked for, whatever PATH the caller has."""

FEATURES = {
    "/dev/fuse": "FUSE, for the checkpoint file system: modprobe fuse",
    "/proc/self/ns/time": "time namespaces (Linux 5.6 or newer, CONFIG_TIME_NS)",
    "/sys/fs/cgroup": "cgroups mounted at /sys/fs/cgroup",
}
"""Path that shows a kernel feature -> what it is."""


def program(name: str) -> str:
    """Return the path of a system program. Raises RefusedError when it is not installed."""
    path = shutil.which(name, path=SYSTEM_PATH)
    if path is None:
        raise RefusedError(f"program {name!r} is not installed", where="lab", hint=f"apt-get install {PROGRAMS.get(name, name)}")
    return path


def missing(programs: Mapping[str, str] = PROGRAMS, features: Mapping[str, str] = FEATURES) -> tuple[str, ...]:
    """Return one sentence for each thing that the lab needs and this machine lacks, with the way to get it."""
    absent = [name for name in programs if shutil.which(name, path=SYSTEM_PATH) is None]
    packages = " ".join(sorted({programs[name] for name in absent}))
    found = [f"programs {', '.join(absent)} are not installed: apt-get install {packages}"] if absent else []
    found += [f"the kernel lacks {what}" for path, what in features.items() if not Path(path).exists()]
    return tuple(found)


def check() -> None:
    """Raise RefusedError when the lab cannot work here, naming everything that is missing at once."""
    if os.geteuid() != 0:
        raise RefusedError("the lab needs root, for namespaces, links and mounts", where="lab", hint="run it with sudo")
    lacks = missing()
    if lacks:
        raise RefusedError("; ".join(lacks), where="lab", hint="./dev installs what it can")
