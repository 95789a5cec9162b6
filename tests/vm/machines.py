"""
Virtual machines with Debian's own kernel: what this machine's kernel lacks, and what only a real machine can do, is real in them.

Each is emulated in software (no KVM: guests hang under it here), writes to a layer of its own, and is reached through a
port on loopback. A second, private network joins two of them, on which one serves files to the other.
"""

import json
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from image import Image

PATIENCE = 600.0
"""Seconds for a boot: 17 on an idle machine."""
LINE = (
    "console=ttyS0 net.ifnames=0 mitigations=off random.trust_cpu=on tsc=reliable no_timer_check panic=3 "
    "systemd.default_timeout_start_sec=600"
)
"""The kernel's command line; what is particular to a machine is added."""
PRIORITY = "-15"
"""Niceness of each machine beside what else runs here: the deadlines of the product are those of real processors."""
SSH = ("-F", "none", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=2", "-o", "ServerAliveCountMax=3")


def free_port(kind=socket.SOCK_STREAM):
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass
class Machine:
    """
    One virtual machine.

    `wires` are the UDP ports of its own and of the other's end of the private network.
    """

    number: int
    image: Image
    folder: Path
    wires: tuple[int, int]
    port: int = field(default_factory=free_port)
    process: subprocess.Popen | None = None

    @property
    def name(self):
        return f"vm{self.number}"

    @property
    def machine_id(self):
        return f"{self.number:032x}"

    def start(self):
        """Begin to boot, on the disk as it was left."""
        self.folder.mkdir(parents=True, exist_ok=True)
        disk, spare = self.folder / "disk.qcow2", self.folder / "spare.raw"
        if not disk.exists():
            backing = ["-b", str(self.image.disk), "-F", "raw"]
            subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", *backing, str(disk)], check=True)
            with spare.open("wb") as file:
                file.truncate(256 << 20)
        here, there = self.wires
        dgram = "local.type=inet,local.host=127.0.0.1,local.port={},remote.type=inet,remote.host=127.0.0.1,remote.port={}"
        command = [
            *("setpriv", "--pdeathsig", "KILL"),  # whatever becomes of the tests, no machine outlives them
            *("qemu-system-x86_64", "-M", "q35", "-accel", "tcg,thread=multi,tb-size=64", "-cpu", "max", "-smp", "1", "-m", "448"),
            *("-nodefaults", "-display", "none", "-kernel", self.image.kernel, "-initrd", self.image.initrd),
            *("-append", f"{LINE} vm.id={self.number} systemd.machine_id={self.machine_id}", "-serial", f"file:{self.folder / 'console'}"),
            *("-device", "virtio-rng-pci"),
            # What the guest has flushed survives SIGKILL of the emulator; what it has not is lost, as in a power cut.
            *("-drive", f"if=virtio,format=qcow2,file={disk},cache=writeback"),
            *("-drive", f"if=virtio,format=raw,file={spare},cache=writeback"),
            *("-netdev", f"user,id=mgmt,restrict=on,ipv6=off,hostfwd=tcp:127.0.0.1:{self.port}-:22"),
            *("-device", f"virtio-net-pci,netdev=mgmt,mac=52:54:00:00:01:{self.number:02x},romfile="),
            *("-netdev", f"dgram,id=rail,{dgram.format(here, there)}"),
            *("-device", f"virtio-net-pci,netdev=rail,mac=52:54:00:00:02:{self.number:02x},romfile="),
            *("-netdev", "user,id=spare,restrict=on,ipv6=off,net=10.79.0.0/24"),
            *("-device", f"virtio-net-pci,netdev=spare,mac=52:54:00:00:03:{self.number:02x},romfile="),
        ]
        # A session of its own is a group of its own to the scheduler, where it groups sessions.
        self.process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, start_new_session=True)
        with suppress(FileNotFoundError):
            Path(f"/proc/{self.process.pid}/autogroup").write_text(PRIORITY)

    def cut_power(self):
        """End the machine in the middle of whatever it does."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def remove(self):
        """End it for good, with its disk."""
        if self.process is not None and self.process.poll() is None:
            self.cut_power()
        shutil.rmtree(self.folder, ignore_errors=True)

    def ssh(self, command, user="root", *, check=True, timeout=60.0):
        """Run a shell line of the tests' own in the machine; return what it printed."""
        known = self.folder / "known_hosts"
        # The first sight of a machine that we made ourselves: its key is in the image.
        options = [*SSH, "-o", f"UserKnownHostsFile={known}", "-o", "StrictHostKeyChecking=accept-new", "-o", "LogLevel=ERROR"]
        argv = ["ssh", *options, "-i", str(self.image.key), "-p", str(self.port), f"{user}@127.0.0.1", command]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False)
        if check and done.returncode:
            raise AssertionError(f"{self.name}: {command!r} exited with {done.returncode}: {done.stderr.strip()[-800:]}")
        return done.stdout

    def boot_id(self):
        return self.ssh("cat /proc/sys/kernel/random/boot_id").strip()

    def wait(self, *, not_boot="", seconds=PATIENCE):
        """Wait until it is up (and is another boot than `not_boot`), with all that it starts by itself."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                if self.boot_id() not in ("", not_boot):
                    self.ssh("systemctl is-system-running --wait", check=False, timeout=seconds)
                    return
            except (AssertionError, subprocess.TimeoutExpired):
                if self.process.poll() is not None:
                    break
            time.sleep(1.0)
        raise AssertionError(f"{self.name} did not come up: {(self.folder / 'console').read_text(errors='replace')[-1500:]}")

    def state(self, netdev):
        """Return what a link, its addresses, routes and qdiscs are, told by the machine's own tools and not by chaoskit."""
        shown = f"ip -j addr show dev {netdev}; ip -j route show table all dev {netdev}; tc -j qdisc show dev {netdev}"
        links, routes, qdiscs = (json.loads(line) for line in self.ssh(shown).splitlines())
        addresses = sorted((one["local"], one["prefixlen"]) for one in links[0]["addr_info"])
        return {
            "flags": sorted(links[0]["flags"]),
            "addresses": addresses,
            "routes": sorted(json.dumps(route, sort_keys=True) for route in routes),
            "qdiscs": sorted(one["kind"] for one in qdiscs),
        }
