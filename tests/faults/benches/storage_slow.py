"""Where `storage_slow` is tried: a real sshfs, whose server is behind a cable in a network namespace of its own."""

import os
import subprocess
import tempfile

from bench import drop_rights, net_snapshot, tc, wait_until, wires

from chaoskit.agent.contract import Site
from chaoskit.agent.host import Host
from chaoskit.faults import load
from chaoskit.testing import Bench

SERVER = "10.1.0.2"
SERVED, MOUNTED = "/srv", "/mnt"
RATE = 512 << 10
SSHD = """\
Port 22
ListenAddress {server}
HostKey {top}/host
AuthorizedKeysFile {top}/user.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
Subsystem sftp internal-sftp
"""
CLIENT = "StrictHostKeyChecking=yes UserKnownHostsFile={top}/known GlobalKnownHostsFile=none IdentityFile={top}/user BatchMode=yes"


def sshfs(*options):
    """Serve /srv (in memory) by SFTP at the other end of the cable `ra`, mount it at /mnt; return the server and that end's holder."""
    holder = wires("ra", ipv6=False)
    top = tempfile.mkdtemp()
    for place in (top, SERVED, "/run"):
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "bench", place], check=True)
    os.makedirs("/run/sshd", mode=0o755)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "{}/{}".format(top, name)], check=True)
    for name, text in (("sshd", SSHD.format(server=SERVER, top=top)), ("known", "{} {}".format(SERVER, _line(top + "/host.pub")))):
        with open("{}/{}".format(top, name), "w") as file:
            file.write(text)
    inside = ["nsenter", "--net", "--target", str(holder.pid)]
    server = subprocess.Popen([*inside, "/usr/sbin/sshd", "-D", "-f", top + "/sshd"])
    argv = ["sshfs", "root@{}:{}".format(SERVER, SERVED), MOUNTED, "-F", "/dev/null"]
    for option in [*CLIENT.format(top=top).split(), "dir_cache=no", "attr_timeout=0", "entry_timeout=0", *options]:
        argv += ["-o", option]
    wait_until(lambda: subprocess.run(argv, stderr=subprocess.DEVNULL, check=False).returncode == 0, "sshfs does not mount")
    return server, holder


def _line(path):
    with open(path) as file:
        return file.read().strip()


def snapshot():
    """Return the network, and every file that is served."""
    return net_snapshot(), sorted(os.listdir(SERVED))


def bench():
    """A mounted file system."""
    sshfs()
    return load("storage_slow", {"path": MOUNTED, "rate": RATE, "ratio": 2.0}), Bench(Host(Site("bench")), snapshot)


def host():
    """Return a node."""
    return Host(Site("bench"))


def unprivileged():
    """Storage that could be slowed, and nobody's rights."""
    sshfs()
    drop_rights()
    return {"path": MOUNTED, "rate": RATE}, host(), ("NET_ADMIN",)


def foreign_qdisc():
    """Somebody else's shaping on the way to the server."""
    sshfs()
    tc("qdisc add dev ra root handle 5: tbf rate 1gbit burst 1m latency 50ms")
    return {"path": MOUNTED, "rate": RATE}, host(), ("ra", "tbf 5:", "tc qdisc del dev ra root")


REFUSALS = {
    "wrong parameters": lambda: ({"rate": 100.0}, host(), ("rate must be at least 1 KiB",)),
    "missing tools": "it speaks to the kernel itself, without any program",
    "no rights": unprivileged,
    "in the way": foreign_qdisc,
}
