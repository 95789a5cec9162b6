"""
The checkpoint file system: store1 exports a folder over SFTP, and every worker has it mounted through FUSE.

Mounted from outside, so that a node needs neither /dev/fuse nor the right to mount. The sshfs process stands in the
node's own pid namespace and cgroup, without any capability, and dies with the node.
"""

import os
import socket
import subprocess
import threading
import time
from pathlib import Path

from chaoskit.lab import cgroups, namespaces
from chaoskit.lab.plan import LabPlan, NodePlan
from chaoskit.lab.requirements import program
from chaoskit.lab.rootfs import ACCOUNT, EXPORT, MOUNT

OPTIONS = (
    "reconnect",
    "dir_cache=no",  # a checkpoint that another node has just renamed into place is seen at once
    "attr_timeout=0",
    "entry_timeout=0",
    "negative_timeout=0",
    "ServerAliveInterval=2",
    "ServerAliveCountMax=3",
    "ConnectTimeout=5",
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    "GlobalKnownHostsFile=none",
    "UserKnownHostsFile=/etc/ssh/storage_known_hosts",
    "IdentityFile=/etc/ssh/storage_key",
    "IdentitiesOnly=yes",
)


def source(plan: LabPlan) -> str:
    """Return what is mounted, as sshfs writes it into the mount table: by it anybody can see which server this is."""
    return f"{ACCOUNT}@{plan.address(plan.store, 'stor0')}:{EXPORT}"


def sshfs_argv(plan: LabPlan, fd: int) -> list[str]:
    """Return the command that serves an already made FUSE mount, whose device is open as `fd`."""
    drop = [program("setpriv"), "--bounding-set=-all", "--inh-caps=-all"]
    return [
        *drop,
        program("sshfs"),
        "-f",
        source(plan),
        f"/dev/fd/{fd}",
        "-F",
        "none",
        *(word for option in OPTIONS for word in ("-o", option)),
    ]


def mount(plan: LabPlan, node: NodePlan, pid: int) -> bool:
    """
    Mount the checkpoint file system in a running node; return whether it answers. When it does not, nothing is mounted.

    Args:
        plan: The lab.
        node: A worker.
        pid: The node's process 1.

    Raises:
        OSError: The mount was refused.
    """
    served = _serve(plan, node, pid)
    # Reaped at once when it dies: a pid namespace does not end before everything in it is reaped, and its parent is here.
    threading.Thread(target=served.wait, daemon=True).start()
    if namespaces.inside(pid, "mnt", _answers):
        return True
    served.kill()
    served.wait()
    namespaces.inside(pid, "mnt", lambda: namespaces.unmount(MOUNT, namespaces.MNT_DETACH))
    return False


def _serve(plan: LabPlan, node: NodePlan, pid: int) -> subprocess.Popen[bytes]:
    fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    # runc has given the node's v1 cpuset its processors, so that all of its cgroups take processes.
    groups = [os.open(_leaf(folder) / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for folder in cgroups.folders(plan.name, node.name)]

    def join_node() -> None:
        for group in groups:
            os.write(group, b"0")

    def work() -> subprocess.Popen[bytes]:
        options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
        namespaces.mount(source(plan), MOUNT, "fuse.sshfs", namespaces.MS_NOSUID | namespaces.MS_NODEV, options)
        return subprocess.Popen(
            sshfs_argv(plan, fuse),
            pass_fds=(fuse,),
            preexec_fn=join_node,  # noqa: PLW1509 - only writes to open files; it must be in the node's cgroup before it runs
            stdin=subprocess.DEVNULL,
            cwd="/",
            env={"LC_ALL": "C", "HOME": "/"},
        )

    try:
        return namespaces.inside(pid, "net pid mnt", work)
    finally:
        for fd in (fuse, *groups):
            os.close(fd)


def _leaf(folder: Path) -> Path:
    """Return where processes of a node may stand: on cgroup v2 below what `node_init` has handed its controllers from."""
    init = folder / "init"
    return init if init.is_dir() else folder


def _answers() -> bool:
    """Return whether the file system is mounted here and answers; blocks while it connects."""
    try:
        return os.path.ismount(MOUNT) and bool(os.statvfs(MOUNT))
    except OSError:
        return False


def answers_ssh(address: str, within: float = 1.0) -> bool:
    """Return whether an SSH server greets at an address within the given seconds."""
    end = time.monotonic() + within
    try:
        with socket.create_connection((address, 22), timeout=within) as connection:
            connection.settimeout(max(0.01, end - time.monotonic()))
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False
