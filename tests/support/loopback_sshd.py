"""A real sshd on loopback, with its own host keys, port and authorized keys, in namespaces that die with it."""

import contextlib
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from chaoskit.model.inventory import Ssh


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def keygen(path, kind="ed25519", passphrase=""):
    bits = ["-b", "2048"] if kind == "rsa" else []
    subprocess.run(["ssh-keygen", "-q", "-t", kind, *bits, "-N", passphrase, "-C", path.name, "-f", path], check=True)
    return path


@dataclass
class Sshd:
    """A running sshd: how to reach it, and its host keys by type."""

    folder: Path
    port: int
    host_keys: dict
    client_key: Path
    process: subprocess.Popen = field(repr=False)

    @property
    def known_as(self):
        return f"[127.0.0.1]:{self.port}"

    def public(self, kind="ed25519"):
        """Return `type base64` of a host key."""
        return " ".join(Path(f"{self.host_keys[kind]}.pub").read_text().split()[:2])

    def known_hosts(self, text=None):
        """Write a file of known hosts, by default one that knows this server."""
        path = self.folder / f"known_hosts-{time.monotonic_ns()}"
        path.write_text(f"{self.known_as} {self.public()}\n" if text is None else text)
        return path

    def ssh(self, known_hosts=None, **more):
        """Return the inventory's `ssh:` section for this server."""
        values = {"user": "root", "become": "none", "port": self.port, "key": str(self.client_key), "config": "/dev/null"}
        known = known_hosts or self.known_hosts()
        return Ssh(**{**values, "known_hosts": (str(known),), **more})

    @property
    def inner(self):
        """The pid, out here, of sshd inside its namespaces."""
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()[0])

    @property
    def log(self):
        """What sshd has said so far."""
        return (self.folder / "log").read_text(errors="replace")

    def stop(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


# Without the machine's control groups: an agent sweeps those of its kind, and a lab may be running beside us.
ISOLATED = """
    umount --recursive --lazy /sys/fs/cgroup
    for d in /run/chaoskit /var/lib/chaoskit; do mkdir -p $d; mount -t tmpfs -o mode=0700 chaoskit-test $d; done
    mkdir -p /run/sshd
"""


def start_sshd(folder, kinds=("ed25519",), *, keys=None, setup="", more=(), port=None, client=None):
    """
    Start an sshd; the processes of its sessions die with it, and what an agent writes stays in its own mounts.

    `setup` is shell text that runs in those mounts first, `keys` where sshd looks for authorized keys; `more` are further
    lines of its configuration, which come first and so win. With `port` and `client` it takes the place of another.
    """
    folder.mkdir(parents=True, exist_ok=True)
    host_keys = {kind: keygen(folder / f"host_{kind}", kind) for kind in kinds}
    client = client or keygen(folder / "client")
    home = folder / "home"
    home.mkdir()
    port = port or free_port()
    lines = [
        *more,
        f"Port {port}",
        "ListenAddress 127.0.0.1",
        "ListenAddress 127.0.0.2",
        *(f"HostKey {key}" for key in host_keys.values()),
        f"AuthorizedKeysFile {keys or f'{client}.pub'}",
        f"PidFile {folder}/sshd.pid",
        *(() if keys else (f"SetEnv HOME={home}",)),
        "StrictModes no",
        "UsePAM no",
        "PermitRootLogin prohibit-password",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "Subsystem sftp internal-sftp",
        "MaxStartups 200",
    ]
    (folder / "sshd_config").write_text("\n".join(lines) + "\n")
    script = f'set -e\n{ISOLATED}\n{setup}\nexec "$0" "$@"'
    isolate = [
        "setpriv",
        "--pdeathsig",
        "KILL",
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "sh",
        "-c",
        script,
    ]
    with (folder / "log").open("wb") as log:
        argv = [*isolate, shutil.which("sshd"), "-D", "-e", "-f", folder / "sshd_config"]
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    await_port(port, process, folder / "log")
    return Sshd(folder, port, host_keys, client, process)


def await_port(port, process, log):
    for _ in range(200):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert process.poll() is None, log.read_text()
        time.sleep(0.02)
    raise AssertionError("sshd did not listen")
