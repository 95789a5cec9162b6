"""The nodes of a running lab: real hosts that reboot, with two planes and network storage, that cannot hurt their host."""

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fair_watch import until

from chaoskit.lab import bundle
from chaoskit.lab.rootfs import SUDO_PAM

pytestmark = pytest.mark.cluster

PYTHON = "/opt/chaoskit-lab/bin/python"
SERVER = """
import socket, sys
listener = socket.create_server((sys.argv[1], 7001))
connection = listener.accept()[0]
total = 0
while part := connection.recv(1 << 16):
    total += len(part)
connection.sendall(b"%d" % total)
"""
CLIENT = """
import socket, sys, time
end = time.monotonic() + 5
while True:
    try:
        connection = socket.create_connection((sys.argv[1], 7001), timeout=20)
        break
    except ConnectionRefusedError:
        if time.monotonic() > end:
            raise
        time.sleep(0.02)
start = time.monotonic()
for _ in range(int(sys.argv[2])):
    connection.sendall(bytes(1 << 20))
connection.shutdown(socket.SHUT_WR)
received = connection.recv(64)
print(int(received), time.monotonic() - start)
"""


def python(lab, node, code, *args, timeout=60.0):
    done = lab.ssh(node, PYTHON, "-", *args, stdin=code, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return done.stdout


def transfer(lab, mebibytes, meanwhile=lambda: None):
    """Send data from node1 to node2 over the fabric; return the rate in Mbit/s."""
    target = lab.plan.address(lab.plan.node("node2"), "fab0")
    with ThreadPoolExecutor() as pool:
        server = pool.submit(python, lab, "node2", SERVER, target)
        client = pool.submit(python, lab, "node1", CLIENT, target, str(mebibytes))
        meanwhile()
        received, seconds = client.result().split()
        server.result()
    assert int(received) == mebibytes << 20
    return mebibytes * 8.388608 / float(seconds)


def sent(lab, node, rail):
    return int(lab.ssh(node, "cat", f"/sys/class/net/{rail}/statistics/tx_bytes").stdout)


def pull_plane(lab, rail, state):
    """Set the switch ports of a rail on node1 and node2: a plane that dies as seen from the nodes."""
    for node in ("node1", "node2"):
        argv = ["nsenter", f"--net=/proc/{lab.fabric_pid()}/ns/net", "ip", "link", "set", f"{node}-{rail}", state]
        subprocess.run(argv, check=True)


def reboot(lab, node):
    boot = {status.name: status.boot for status in lab.status().nodes}[node]
    lab.ssh(node, "sudo", "reboot")
    until(lambda: any(status.name == node and status.boot > boot and status.state == "up" for status in lab.status().nodes))


def test_each_node_is_a_host_of_its_own(lab):
    """Own name, machine id, boot id; the account may become root; the shipped interpreter has torch."""
    seen = {
        lab.ssh(node.name, "hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id; sudo -n id -u").stdout for node in lab.plan.nodes
    }

    assert len(seen) == 5
    for node in lab.plan.nodes:
        name, machine, _, uid = lab.ssh(
            node.name, "hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id; sudo -n id -u"
        ).stdout.split()
        assert (name, machine, uid) == (node.name, node.machine_id, "0")


def test_clocks_of_nodes_cannot_be_compared(lab):
    """Every node has its own monotonic clock, seconds to months from the others and from the host's."""
    clocks = [time.monotonic(), *(float(python(lab, node.name, "import time; print(time.monotonic())")) for node in lab.plan.nodes)]

    gaps = [abs(one - other) for index, one in enumerate(clocks) for other in clocks[:index]]
    assert min(gaps) > 60


def test_a_reboot_is_a_reboot(lab):
    """New boot id and clock, fresh links and /run; /var and the storage are there; the other nodes stay."""
    before = lab.ssh("node3", "cat /proc/sys/kernel/random/boot_id").stdout
    clock = float(python(lab, "node3", "import time; print(time.monotonic())"))
    lab.ssh("node3", "sudo touch /var/tmp/kept /run/lost; sudo ip address flush dev rail1; sudo ip link set rail0 down")
    routes = lab.ssh("node4", "ip route show table all").stdout.count("rail")

    reboot(lab, "node3")

    assert lab.ssh("node3", "cat /proc/sys/kernel/random/boot_id").stdout not in ("", before)
    assert abs(float(python(lab, "node3", "import time; print(time.monotonic())")) - clock) > 60
    assert lab.ssh("node3", "ls /var/tmp/kept /run/lost").stdout == "/var/tmp/kept\n"
    links = lab.ssh("node3", "ip -br address").stdout
    assert all(lab.plan.address(lab.plan.node("node3"), link) in links for link in ("mgmt0", "rail0", "rail1", "fab0", "stor0"))
    assert lab.ssh("node3", "ip route show table all").stdout.count("rail") == routes
    assert lab.ssh("node3", "findmnt -no FSTYPE /ckpt").stdout == "fuse.sshfs\n"
    assert [status.boot for status in lab.status().nodes if status.name == "node4"] == [1]


def test_fabric_traffic_is_sprayed_over_both_planes(lab):
    """One connection uses both rails alike, and goes faster than one rail can."""
    before = [sent(lab, "node1", rail) for rail in ("rail0", "rail1")]

    rate = transfer(lab, 12)

    a, b = (sent(lab, "node1", rail) - old for rail, old in zip(("rail0", "rail1"), before, strict=True))
    assert a + b > 12 << 20
    assert 0.4 < a / (a + b) < 0.6
    assert rate > 1.2 * lab.plan.rail_mbit


def test_a_lost_plane_halves_the_rate_and_ends_nothing(lab):
    """The connection goes on over the other rail, mid-stream too, and the rate comes back with the plane."""
    both = transfer(lab, 12)
    pull_plane(lab, "rail1", "down")
    try:
        one = transfer(lab, 8)
    finally:
        pull_plane(lab, "rail1", "up")

    def lose_and_mend():
        time.sleep(0.6)
        pull_plane(lab, "rail0", "down")
        time.sleep(0.6)
        pull_plane(lab, "rail0", "up")

    transfer(lab, 24, meanwhile=lose_and_mend)
    again = transfer(lab, 12)

    assert 0.3 < one / both < 0.75
    assert one < 1.1 * lab.plan.rail_mbit
    assert again > 1.2 * one


def test_storage_is_shared_and_renames_in_one_step(lab):
    """What one node has synced and renamed into place, another sees at once and whole; the account owns it."""
    write = """
import os
for turn in range(20):
    with open("/ckpt/part", "wb") as file:
        file.write(b"%02d" % turn * 50_000)
        file.flush()
        os.fsync(file.fileno())
    os.rename("/ckpt/part", "/ckpt/whole")
    fd = os.open("/ckpt", os.O_RDONLY)
    os.close(fd)
    assert open("/ckpt/whole", "rb").read(2) == b"%02d" % turn
"""
    python(lab, "node1", write)

    assert lab.ssh("node2", "stat -c '%U %s' /ckpt/whole; ls /ckpt/part").stdout == "chaos 100000\n"
    assert lab.ssh("node2", "tail -c 2 /ckpt/whole; rm /ckpt/whole").stdout == "19"
    assert lab.ssh("node1", "ls /ckpt/whole").returncode != 0


def test_storage_comes_back_after_its_server_rebooted(lab):
    lab.ssh("node1", "echo kept > /ckpt/kept")

    reboot(lab, "store1")

    until(lambda: lab.ssh("node1", "cat /ckpt/kept").stdout == "kept\n", seconds=20)


@pytest.mark.parametrize(
    "harm",
    [
        "cat /proc/sys/vm/swappiness | tee /proc/sys/vm/swappiness",
        "cat /proc/sys/kernel/core_pattern | tee /proc/sys/kernel/core_pattern",
        "echo h > /proc/sysrq-trigger",
        "date -s now",
        "mount -t tmpfs none /mnt",
        "mount -o remount,rw /proc/sys",
        "umount /proc/sys",
        "mount -o remount,rw /sys",
        "unshare --mount true",
        "nsenter --target 1 --mount true",
        "modprobe dummy || insmod /dev/null",
        "mknod /tmp/disk b 254 0",
        "echo 0 > /sys/class/net/mgmt0/mtu",
        "chroot /proc/1/root mount -t proc none /mnt",
        "touch /opt/chaoskit-lab/trainer.py",
        "touch /opt/chaoskit-lab/bin/python",
        "cat /root/.ssh/id_rsa /root/.ssh/id_ed25519 /root/.bash_history",
        "ls /dev/vda /dev/sda /dev/mem /dev/kmsg /dev/fuse",
        "ulimit -n 100000000",
        "echo a > /sys/fs/cgroup/devices/devices.allow",
        "unshare --user --map-root-user --mount --pid --fork mount -t proc none /mnt",
        "unshare --user --map-root-user --mount --net mount -t sysfs none /mnt",
        "unshare --user --map-root-user --mount umount /proc/sys",
        "unshare --user --map-root-user --mount mount -o remount,bind,rw /proc/sys",
    ],
)
def test_root_in_a_node_cannot_reach_the_host(lab, harm):
    """Each of these fails; and each is harmless where a guard should be broken: it writes what is there already."""
    done = lab.ssh("node4", "sudo", "sh", "-c", f"'{harm}'")

    assert done.returncode != 0, done.stdout


def test_no_process_in_a_node_has_a_right_that_reaches_the_host(lab):
    """Neither the storage client nor anything else that was started from outside can be taken over to get out."""
    numbers = bundle.CAPABILITY_NUMBERS.values()
    masks = lab.ssh("node4", "sudo grep -h CapEff /proc/[0-9]*/status").stdout.split()[1::2]

    assert len(masks) > 4
    assert all(not int(mask, 16) & ~sum(1 << number for number in numbers) for mask in masks)


def test_root_in_a_node_may_do_what_a_fault_needs(lab):
    """The refusals above are not because nothing works: links, routes, child cgroups with a quota, other users' processes."""
    work = """
set -e
ip link set rail1 down; ip link set rail1 up
sysctl -q -w net.ipv4.conf.rail1.arp_ignore=1
if [ -d /sys/fs/cgroup/cpu ]; then
    cd /sys/fs/cgroup/cpu; mkdir probe; echo 5000 > probe/cpu.cfs_period_us; echo 2500 > probe/cpu.cfs_quota_us; rmdir probe; cd /
else
    mkdir /sys/fs/cgroup/probe; echo "2500 5000" > /sys/fs/cgroup/probe/cpu.max; rmdir /sys/fs/cgroup/probe
fi
setpriv --reuid chaos --clear-groups sleep 20 & sleep 0.3
tr "\\\\0" "\\\\n" < /proc/$(pgrep -n -u chaos sleep)/environ > /dev/null
kill %1
logger -t probe found-in-syslog; sleep 0.1; grep -q found-in-syslog /var/log/syslog
"""
    done = lab.ssh("node4", "sudo", "bash", "-s", stdin=work)

    assert (done.returncode, done.stderr) == (0, "")
    reboot(lab, "node4")  # rail1's routes went with its link


def test_sudo_in_a_node_asks_none_of_the_hosts_modules(lab):
    """A host's limits or directory service would refuse it where the node has neither the right nor the way."""
    assert lab.ssh("node4", "cat /etc/pam.d/sudo").stdout == SUDO_PAM


def test_nothing_of_the_host_is_written(lab):
    """A node's writes go to its own layer, also below folders of the host."""
    done = lab.ssh("node4", "sudo mkdir /usr/local/lab-probe /etc/lab-probe && sudo rm /etc/debian_version && ls -d /usr/local/lab-probe")

    assert done.stdout == "/usr/local/lab-probe\n"
    assert not Path("/usr/local/lab-probe").exists()
    assert not Path("/etc/lab-probe").exists()
    assert Path("/etc/debian_version").exists()
    lab.ssh("node4", "sudo rmdir /usr/local/lab-probe /etc/lab-probe")
