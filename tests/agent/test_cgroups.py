"""Where a process stands, and whether it would die there."""

import os
import subprocess
import sys

import pytest

from chaoskit.agent import cgroups

FREE = [
    "0::/\n",
    "0::/system.slice/chaoskit-agent-ab-1.service\n",
    "0::/chaoskit-agent-ab-1\n",
    "9:name=systemd:/chaoskit-agent-ab-1\n1:cpu:/\n0::/\n",
    "0::/system.slice/ssh.service\n",
    "0::/kubepods/besteffort/pod1/c1\n",
]
CONFINED = [
    "0::/user.slice/user-1000.slice/session-3.scope\n",
    "0::/user.slice\n",
    "9:name=systemd:/user.slice/user-0.slice/session-c1.scope\n1:cpu:/chaoskit-agent-ab-1\n0::/chaoskit-agent-ab-1\n",
    "5:memory:/slurm/uid_1000/job_42/step_0\n",
    "0::/system.slice/slurmstepd.scope/job_42/step_0/user\n",
    "0::/job42\n",
    "3:cpuset:/pbs_jobs/1.server\n",
]


@pytest.mark.parametrize("text", FREE)
def test_a_place_of_our_own_is_free(text):
    """Nothing there ends with a login or a job."""
    assert cgroups.confined(text) is None


@pytest.mark.parametrize("text", CONFINED)
def test_a_login_or_a_job_anywhere_is_confined(text):
    """One hierarchy of many is enough, and the path is named."""
    assert cgroups.confined(text) in text


MOUNTINFO = """\
25 30 0:23 / /sys/fs/cgroup ro,nosuid shared:7 - tmpfs tmpfs ro
26 25 0:24 / /sys/fs/cgroup/unified rw,nosuid shared:8 master:1 - cgroup2 cgroup2 rw
27 25 0:25 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct
28 30 8:1 / /data\\040cgroup rw - ext4 /dev/sda1 rw
"""


def test_hierarchies_are_found_by_type():
    """By what is mounted and not by a path's name."""
    assert cgroups.roots(MOUNTINFO) == ["/sys/fs/cgroup/unified", "/sys/fs/cgroup/cpu,cpuacct"]


ENTER = """
import sys
sys.path.insert(0, sys.argv[1])
from chaoskit.agent import cgroups
notes = cgroups.enter(sys.argv[2])
print(cgroups.own_cgroup(), flush=True)
sys.stdin.read()
cgroups.leave(sys.argv[2])
"""


@pytest.mark.skipif(not os.access("/sys/fs/cgroup", os.W_OK) or os.geteuid() != 0, reason="needs root and a cgroup file system")
def test_entering_and_leaving_a_group_of_our_own():
    """While inside we are its only member; afterwards nothing is left; a group that is used is not swept away."""
    name = f"chaoskit-agent-test-{os.getpid()}"
    root = os.path.dirname(os.path.dirname(os.path.dirname(cgroups.__file__)))
    argv = [sys.executable, "-c", ENTER, root, name]
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert f"/{name}\n" in child.stdout.readline() + child.stdout.readline()

    assert [process.pid for process in cgroups.members(name)] == [child.pid]
    cgroups.sweep()
    assert [process.pid for process in cgroups.members(name)] == [child.pid]
    child.communicate()
    assert cgroups.members(name) == []
    assert not any(os.path.exists(os.path.join(root, name)) for root in cgroups.roots())
