"""Two virtual machines as a site of chaoskit's: one has its homes on the other, over NFS with root squashed."""

import socket
import subprocess
import sys
import time
from pathlib import Path

from machines import Machine, free_port  # beside this file, which is no package

LEASE = 20.0
"""Seconds: an emulated machine arms in several."""
NODE = """\
name: machines
allow: file
ssh: {user: chaos, become: sudo, config: CONFIG}
nodes:
  vm1: {group: workers, machine_id: "1", rails: [{netdev: eth1, plane: A}, {netdev: eth2, plane: B}], mounts: [/home]}
  vm2: {group: storage, machine_id: "2"}
trainings: {default: {launcher: attach, group: workers, log: /var/log/none.log}}
limits: {lifetimes: [volatile, persistent, irreversible]}
"""


class Tier:
    """Both machines, and how chaoskit reaches them."""

    def __init__(self, folder, built):
        wires = free_port(socket.SOCK_DGRAM), free_port(socket.SOCK_DGRAM)
        self.one = Machine(1, built, folder / "vm1", wires)
        self.two = Machine(2, built, folder / "vm2", wires[::-1])
        self.folder = folder
        self.inventory = folder / "site.yaml"

    def start(self):
        for machine in (self.one, self.two):
            machine.start()
        for machine in (self.two, self.one):
            machine.wait()
        self.two.ssh(
            "mkdir -p /srv/homes/chaos /home/chaos && chown 1500:1500 /srv/homes/chaos /home/chaos && "
            "echo '/srv/homes 10.78.0.0/24(rw,sync,root_squash,no_subtree_check)' >/etc/exports && "
            "systemctl start nfs-server && exportfs -ra"
        )
        self.one.ssh(
            "echo '10.78.0.2:/srv/homes /home nfs4 _netdev,nofail,x-systemd.mount-timeout=60 0 0' >>/etc/fstab && systemctl daemon-reload"
        )
        self.one.ssh("mount /home", timeout=120.0)
        self._describe()

    def _describe(self):
        config, known = self.folder / "ssh_config", self.folder / "known_hosts"
        [key] = [line for line in (self.one.folder / "known_hosts").read_text().splitlines() if "ssh-ed25519" in line]
        known.write_text("".join(f"{machine.name} {key.split(' ', 1)[1]}\n" for machine in (self.one, self.two)))
        lines = []
        for machine in (self.one, self.two):
            lines += [f"Host {machine.name}", "HostName 127.0.0.1", f"Port {machine.port}", f"HostKeyAlias {machine.name}"]
            lines += [f"IdentityFile {machine.image.key}", "IdentitiesOnly yes", f"UserKnownHostsFile {known}"]
        config.write_text("\n".join(lines) + "\n")
        text = NODE.replace("CONFIG", str(config))
        for machine in (self.one, self.two):
            text = text.replace(f'machine_id: "{machine.number}"', f'machine_id: "{machine.machine_id}"')
        self.inventory.write_text(text)

    def chaoskit(self, *arguments, code=0):
        """Run the command line as from a third machine, which has no journal of any run."""
        command = [
            str(Path(sys.executable).with_name("chaoskit")),
            *arguments,
            "-i",
            str(self.inventory),
            "--runs",
            str(self.folder / "none"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=self.folder)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def hold(self, fault, params, lease=LEASE):
        """Begin a fault on vm1 and return its controller, once it holds."""
        command = [sys.executable, Path(__file__).with_name("hold.py"), self.inventory, "vm1", str(lease), fault, params]
        controller = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)
        for line in controller.stdout:
            if line == "holding\n":
                return controller
        raise AssertionError(f"the controller ended with {controller.wait()}")


def until(asked, seconds=60.0):
    begun = time.monotonic()
    while not asked():
        assert time.monotonic() - begun < seconds, "not within its time"
        time.sleep(0.5)
    return time.monotonic() - begun
