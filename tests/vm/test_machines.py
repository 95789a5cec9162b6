"""
Safety on real machines: systemd, cgroup v2, sudo, homes on NFS with root squashed; reboots, panics and power cuts.

The lab's nodes are containers of this machine's kernel. Here the kernel is Debian's own, and it really dies.
"""

import json
import signal

import pytest
from tier import LEASE, until  # beside this file, which is no package

pytestmark = [pytest.mark.prove, pytest.mark.alone]

LINK = json.dumps({"rail": 1, "down": 600.0})


def units(machine):
    """Return the cgroup of every server and fuse, from /proc."""
    shown = machine.ssh("for pid in $(pgrep -f 'chaoskit/agent/.*\\.pyz (serve|fuse)'); do cat /proc/$pid/cgroup; done")
    return shown.split()


def test_root_takes_the_agent_over_from_a_home_that_squashes_root(tier):
    """The account's home lies on NFS, where root is nobody; what runs is root's own copy, by its hash."""
    assert tier.chaoskit("audit").splitlines()[-1] == "PASSED: machines: 2 nodes owe nothing"

    pushed = tier.one.ssh("ls /home/chaos/.cache/chaoskit 2>&1 || true")
    assert "Permission denied" in pushed
    copies = tier.one.ssh("sha256sum /var/lib/chaoskit/agent/*.pyz").splitlines()
    assert copies
    assert all(f"/{line.split()[0]}.pyz" in line for line in copies)


@pytest.mark.row("L12")
def test_the_agent_outlives_the_login_and_the_user_slice(tier, controller):
    """Server and fuse are units of the system's own: the end of the session, and of everything of the user, ends neither."""
    tier.one.ssh("systemctl stop 'chaoskit-*'")  # the agent of the audits, which owes nothing
    before = tier.one.state("eth2")
    process = controller("link_flap", LINK)
    assert "UP" not in tier.one.state("eth2")["flags"]
    assert len(units(tier.one)) == 2
    assert all(group.startswith("0::/system.slice/chaoskit-") for group in units(tier.one))

    process.send_signal(signal.SIGSTOP)  # it shall not come back and renew
    tier.one.ssh("loginctl terminate-user chaos; systemctl kill --signal=KILL user-1500.slice || true")
    until(lambda: "sshd: chaos" not in tier.one.ssh("ps -eo args"))
    assert len(units(tier.one)) == 2
    until(lambda: tier.one.state("eth2") == before, LEASE + 30)
    tier.chaoskit("audit")


@pytest.mark.row("L12", "L47")
def test_a_killed_controllers_fault_ends_with_its_lease(tier, controller):
    before = tier.one.state("eth2")
    controller("link_flap", LINK).kill()

    assert "UP" not in tier.one.state("eth2")["flags"]
    until(lambda: tier.one.state("eth2") == before, LEASE + 30)
    tier.chaoskit("audit")


@pytest.mark.row("L12")
def test_a_disk_that_stalls_under_the_ledger_keeps_no_fault_alive(tier, controller):
    """The ledger's own file system hangs in the kernel; the link comes back all the same, and is closed in it later."""
    tier.one.ssh("systemctl stop 'chaoskit-*'; rm -rf /var/lib/chaoskit/*")
    tier.one.ssh(
        'size=$(blockdev --getsz /dev/vdb); dmsetup create --noudevsync stall --table "0 $size linear /dev/vdb 0"; dmsetup mknodes; '
        "mkfs.ext4 -q /dev/mapper/stall && mkdir -p /var/lib/chaoskit && mount /dev/mapper/stall /var/lib/chaoskit && "
        "chmod 700 /var/lib/chaoskit"
    )
    before = tier.one.state("eth2")
    process = controller("link_flap", LINK)
    assert "UP" not in tier.one.state("eth2")["flags"]

    # The journal's next commit, five seconds later, hangs with the entry's inode: whoever touches that hangs as well.
    tier.one.ssh("touch /var/lib/chaoskit/ledger/*.jsonl; dmsetup suspend --nolockfs --noflush stall")
    try:
        process.kill()
        until(lambda: tier.one.state("eth2") == before, LEASE + 60)
    finally:
        tier.one.ssh("dmsetup resume stall")
    until(lambda: not tier.one.ssh('grep -L \'"state":"reverted"\' /var/lib/chaoskit/ledger/*.jsonl', check=False), 90)
    tier.chaoskit("audit")
    tier.one.ssh("systemctl stop 'chaoskit-*'; umount /var/lib/chaoskit && dmsetup remove stall", check=False)


DEATHS = {
    "reboot": lambda machine: machine.ssh("systemctl reboot", check=False),
    "panic": lambda machine: machine.ssh("sync; (sleep 1; echo c >/proc/sysrq-trigger) >/dev/null 2>&1 &", check=False),
    "power cut": lambda machine: (machine.cut_power(), machine.start()),
}


@pytest.mark.row("R9", "R4")
@pytest.mark.parametrize("death", DEATHS)
def test_what_a_dead_machine_owed_is_settled_when_it_is_back(tier, controller, death):
    """What it owed stands on its disk whatever it died of; the reboot cleared the link, and the boot unit paid the file."""
    before, boot = tier.one.state("eth2"), tier.one.boot_id()
    tier.one.ssh("echo whole >/root/stays; sync")
    volatile = controller("link_flap", LINK, lease=120.0)
    persistent = controller("toy_stays", json.dumps({"path": "/root/stays", "down": 600.0}), lease=120.0)
    assert tier.one.ssh("cat /root/stays").strip() == "harmed"
    assert tier.one.ssh("systemctl is-enabled chaoskit-heal.service").strip() == "enabled"

    DEATHS[death](tier.one)
    for process in (volatile, persistent):
        process.kill()  # nobody renews, and nobody of ours has asked the node before it is looked at
    tier.one.wait(not_boot=boot)

    until(lambda: tier.one.ssh("cat /root/stays").strip() == "whole", 60)
    assert tier.one.state("eth2") == before
    assert tier.one.ssh("ls /etc/systemd/system/chaoskit-heal.service 2>&1 || true").startswith("ls: cannot access")
    told = tier.chaoskit("audit")
    assert "healed at boot" in told
    assert "cleared by the reboot" in told or "cleared by reboot" in told
