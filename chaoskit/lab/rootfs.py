"""
What differs in a node's root from the machine's own: accounts, keys, names, and the masks over the host's secrets.

Everything is written into the overlay's upper folder before it is mounted; the machine's files are never touched.
"""

import os
import pwd
import sys
from collections.abc import Iterable
from pathlib import Path

from chaoskit.lab import nvml
from chaoskit.lab.plan import LabPlan, NodePlan
from chaoskit.lab.requirements import SYSTEM_PATH, program

ACCOUNT = "chaos"
"""The account that logs in and trains."""

TOOLS = "/opt/chaoskit-lab"
"""Where the interpreter and the trainer are found in every node, so that inventories need no path of one machine."""

EXPORT = "/srv/chaoskit-lab/ckpt"
"""The folder on store1 that every worker has mounted at `MOUNT`."""

MOUNT = "/ckpt"
TRAINING_LOGS = "/var/log/chaoskit-training"
HOMES = ("/root", "/home")
HIDDEN = (
    *HOMES,
    "/etc/ssh",
    "/etc/ssl/private",
    "/etc/sudoers.d",
    "/etc/chaoskit",
    "/var/lib/chaoskit",
    "/var/spool/cron",
    "/etc/letsencrypt",
)
"""Folders that start empty in a node, whatever the host has there."""

SSHD_CONFIG = """\
Port 22
HostKey /etc/ssh/ssh_host_ed25519_key
AuthorizedKeysFile /etc/ssh/authorized_keys/%u
AllowUsers chaos
PermitRootLogin no
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
PrintMotd no
PrintLastLog no
MaxStartups 200
MaxSessions 200
Subsystem sftp internal-sftp
"""

SUDOERS = f"""\
Defaults env_reset
Defaults secure_path="{SYSTEM_PATH}"
root ALL=(ALL:ALL) ALL
{ACCOUNT} ALL=(ALL:ALL) NOPASSWD: ALL
"""

SUDO_PAM = """\
auth required pam_permit.so
account required pam_permit.so
session required pam_permit.so
"""
"""Not the host's: its modules may want a right or a directory service that a node does not have."""


def account_id() -> int:
    """Return the uid and gid of the account in the nodes: the first from 1000 that the machine has not given away."""
    taken = {entry.pw_uid for entry in pwd.getpwall() if entry.pw_name != ACCOUNT}
    return next(number for number in range(1000, 60000) if number not in taken)


def interpreters() -> dict[str, str]:
    """Return the folders that the project's Python needs: path in the node -> path on the host."""
    package = Path(__file__).resolve().parent.parent
    wanted = [sys.prefix, sys.base_prefix, str(Path(sys.executable).resolve().parent.parent), str(package)]
    return {path: str(Path(path).resolve()) for path in dict.fromkeys(wanted) if not path.startswith("/usr")}


def separate_mounts() -> dict[str, str]:
    """Return system folders that are mounts of their own on this machine, and so no part of the overlay's lower root."""
    return {path: path for path in ("/usr",) if os.path.ismount(path)}


class Upper:
    """The upper folder of one node's overlay."""

    def __init__(self, plan: LabPlan, node: NodePlan) -> None:
        self.plan = plan
        self.node = node
        self.root = plan.node_dir(node) / "upper"
        self.uid = account_id()

    def build(self, *, client_key: str, storage_key: str, host_keys: dict[str, str]) -> None:
        """
        Write everything.

        Args:
            client_key: Public key that may log in.
            storage_key: Public key with which workers reach the checkpoint file system.
            host_keys: Node name -> public host key, of all nodes.
        """
        self.root.mkdir(parents=True)
        self.root.chmod(0o755)
        for path in HIDDEN:
            self.hide(path)
        self._names()
        self._accounts()
        self._sshd(client_key, storage_key)
        self._storage(host_keys)
        self._power()
        if self.node.group == "workers":
            self._gpus()
        for path in interpreters():
            self.reachable(path)

    def hide(self, path: str) -> None:
        """Cover a folder of the host by an empty one; one that the host has not needs no cover, but for the homes."""
        if Path(path).is_dir() or path in HOMES:
            folder = self.folder(path)
            os.setxattr(folder, "trusted.overlay.opaque", b"y")

    def reachable(self, path: str) -> None:
        """Let everybody pass through the folders above a path, in the node only."""
        for parent in reversed(Path(path).parents):
            covered = (self.root / parent.relative_to("/")).exists()
            mode = parent.stat().st_mode if parent.is_dir() else 0o755
            if not covered and not mode & 0o001:
                self.folder(str(parent), mode=(mode & 0o7777) | 0o011)

    def folder(self, path: str, *, mode: int = 0o755, owner: int = 0) -> Path:
        """Make a folder, and those above it as the host has them."""
        target = self.root / path[1:]
        for original in reversed(Path(path).parents):
            self._like_host(original)
        target.mkdir(exist_ok=True)
        target.chmod(mode)
        os.chown(target, owner, owner)
        return target

    def _like_host(self, original: Path) -> None:
        copy = self.root / original.relative_to("/")
        if copy.exists():
            return
        copy.mkdir()
        copy.chmod(0o755)
        if original.is_dir() and not any(original.is_relative_to(hidden) for hidden in HIDDEN):
            stat = original.stat()
            copy.chmod(stat.st_mode & 0o7777)
            os.chown(copy, stat.st_uid, stat.st_gid)

    def file(self, path: str, text: str, *, mode: int = 0o644) -> None:
        """Write a file of root's."""
        target = self.root / path[1:]
        if not target.parent.exists():
            original = Path(path).parent
            self.folder(str(original), mode=original.stat().st_mode & 0o7777 if original.is_dir() else 0o755)
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), mode)

    def _names(self) -> None:
        self.file("/etc/hostname", f"{self.node.name}\n")
        self.file("/etc/machine-id", f"{self.node.machine_id}\n", mode=0o444)
        self.file("/etc/hosts", hosts(self.plan))
        self.file("/etc/resolv.conf", "# no name server: a lab has no way out\n")

    def _accounts(self) -> None:
        others = [line for line in _lines("/etc/passwd") if line.split(":")[0] != ACCOUNT]
        groups = [line for line in _lines("/etc/group") if line.split(":")[0] != ACCOUNT]
        self.file("/etc/passwd", "\n".join([*others, f"{ACCOUNT}:x:{self.uid}:{self.uid}::/home/{ACCOUNT}:/bin/bash", ""]))
        self.file("/etc/group", "\n".join([*groups, f"{ACCOUNT}:x:{self.uid}:", ""]))
        names = [line.split(":")[0] for line in others] + [ACCOUNT]
        self.file("/etc/shadow", "".join(f"{name}:*:20000:0:99999:7:::\n" for name in names), mode=0o600)
        self.file("/etc/gshadow", "".join(f"{line.split(':')[0]}:*::\n" for line in groups), mode=0o600)
        self.file("/etc/sudoers", SUDOERS, mode=0o440)
        self.file("/etc/pam.d/sudo", SUDO_PAM)
        for path in (f"/home/{ACCOUNT}", TRAINING_LOGS):
            self.folder(path, owner=self.uid)
        self.folder("/var/tmp", mode=0o1777)  # noqa: S108 - the node's own

    def _sshd(self, client_key: str, storage_key: str) -> None:
        links = ("mgmt0", "stor0") if self.node.group == "storage" else ("mgmt0",)
        listen = "".join(f"ListenAddress {self.plan.address(self.node, link)}\n" for link in links)
        self.file("/etc/ssh/sshd_config", SSHD_CONFIG + listen)
        key = self.plan.node_dir(self.node) / "host_key"
        self.file("/etc/ssh/ssh_host_ed25519_key", key.read_text(encoding="ascii"), mode=0o600)
        keys = [client_key]
        if self.node.group == "storage":
            keys.append(f'restrict,command="internal-sftp" {storage_key}')
        self.folder("/etc/ssh/authorized_keys")
        self.file(f"/etc/ssh/authorized_keys/{ACCOUNT}", "".join(f"{line.strip()}\n" for line in keys))

    def _storage(self, host_keys: dict[str, str]) -> None:
        if self.node.group == "storage":
            self.folder(EXPORT, owner=self.uid)
            return
        # Nobody may write below the mount point while it is not mounted: a checkpoint there would be lost in silence.
        self.folder(MOUNT, mode=0o555)
        key = self.plan.state_dir / "storage_key"
        self.file("/etc/ssh/storage_key", key.read_text(encoding="ascii"), mode=0o600)
        store = self.plan.store
        self.file("/etc/ssh/storage_known_hosts", f"{self.plan.address(store, 'stor0')} {host_keys[store.name].strip()}\n")

    def _power(self) -> None:
        self.folder("/usr/local/sbin")
        for word in ("reboot", "poweroff", "halt"):
            link = self.root / "usr/local/sbin" / word
            link.symlink_to(f"{TOOLS}/bin/{word}")

    def _gpus(self) -> None:
        """Let every program find our NVML, before a real one that the machine may have."""
        conf = Path("/etc/ld.so.conf")
        own = conf.read_text(encoding="utf-8") if conf.exists() else ""
        self.file(str(conf), f"{TOOLS}/lib\n{own}")
        self.folder("/usr/local/bin")
        (self.root / "usr/local/bin/nvidia-smi").symlink_to(f"{TOOLS}/bin/nvidia-smi")


def hosts(plan: LabPlan) -> str:
    """Return /etc/hosts: each node by its name on the management network, and by NAME-DEVICE on the others."""
    lines = ["127.0.0.1 localhost", f"{plan.host_address} controller"]
    for node in plan.nodes:
        lines.append(f"{plan.address(node, 'mgmt0')} {node.name}")
        others: Iterable[str] = (*node.links[1:], "fab0") if "rail0" in node.links else node.links[1:]
        lines += [f"{plan.address(node, link)} {node.name}-{link}" for link in others]
    return "\n".join([*lines, ""])


def write_tools(plan: LabPlan) -> None:
    """Write, or refresh, the folder that every node sees at `TOOLS`."""
    folder = plan.state_dir / "opt"
    for path in (folder, folder / "bin"):
        path.mkdir(exist_ok=True)
        path.chmod(0o755)
    base = str(Path(sys.executable).resolve())
    scripts = {"python": f'exec "{sys.executable}" "$@"'}
    scripts["nvidia-smi"] = f'exec "{sys.executable}" -I {TOOLS}/nvidia_smi.py "$@"'
    scripts |= {word: f'exec "{base}" -I -S {TOOLS}/node_init.py {word}' for word in ("reboot", "poweroff", "halt")}
    for name, line in scripts.items():
        _replace(folder / "bin" / name, f"#!{program('sh')}\n{line}\n", 0o755)
    own = Path(__file__).parent
    for name in ("node_init.py", "gpu_driver.py", "nvidia_smi.py", "trainer.py"):
        _replace(folder / name, (own / name).read_text(encoding="utf-8"), 0o644)
    nvml.build(folder / "lib").parent.chmod(0o755)


def _replace(path: Path, text: str, mode: int) -> None:
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text, encoding="utf-8")
    fresh.chmod(mode)
    fresh.replace(path)


def _lines(path: str) -> list[str]:
    return [line for line in Path(path).read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
