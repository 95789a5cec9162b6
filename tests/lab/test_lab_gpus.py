"""The GPUs of a running lab's nodes: found by every program, volatile, and as slow for their clients as their clock says."""

import re
from pathlib import Path

import pytest
from fair_watch import until

from chaoskit.lab.gpu_driver import OTHERS, Hierarchy, Order

PYTHON = "/opt/chaoskit-lab/bin/python"
SPIN = """
import os, time
with open("/run/chaoskit-gpu/clients/%d" % os.getpid(), "w") as file:
    file.write("0")
end = time.monotonic() + 120
while time.monotonic() < end:
    pass
"""
PERIOD = 10_000


def run(lab, node, line, **more):
    done = lab.ssh(node, line, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def group_of(lab, node, pid):
    """Return the folder of a process's cgroup that has a quota, as the node sees it; empty when it has none of its own."""
    groups = run(lab, node, f"cat /proc/{pid}/cgroup")
    own = re.search(rf"^\d+:(cpu|cpu,cpuacct|):(\S*/gpu0-{pid})$", groups, re.MULTILINE)
    return f"/sys/fs/cgroup/{own[1]}{own[2]}" if own else ""


def quota(lab, node, group):
    """Return the quota and the period of a cgroup, in microseconds."""
    words = run(lab, node, f"cat {group}/cpu.cfs_quota_us {group}/cpu.cfs_period_us 2>/dev/null || cat {group}/cpu.max").split()
    return tuple(map(int, words))


@pytest.fixture
def full(lab):
    """Return the quota at the highest clock: the share of one of four nodes in what the GPUs may take of the machine."""
    cores = float(run(lab, "node1", "cat /run/chaoskit-gpu/cores"))
    return round(PERIOD * cores)


@pytest.fixture
def spinning(lab):
    """Return a function that lets a process compute on the GPU of node1, and returns its pid; all are gone afterwards."""
    started = []
    run(lab, "node1", "cat > /tmp/spin.py", stdin=SPIN)

    def start():
        started.append(int(run(lab, "node1", f"{PYTHON} /tmp/spin.py < /dev/null > /dev/null 2>&1 & echo $!")))
        return started[-1]

    yield start
    for pid in started:
        lab.ssh("node1", f"kill -9 {pid}")
    run(lab, "node1", "sudo nvidia-smi -pl 700 && sudo nvidia-smi -rgc")


pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("python", ["/usr/bin/python3 -I -S", f"{PYTHON} -I -S", "sudo /usr/bin/python3 -I -S", f"sudo {PYTHON} -I -S"])
def test_every_program_finds_the_library(lab, python):
    """By the linker alone, whatever the environment: as root, too, and as the agent runs."""
    assert (
        run(lab, "node1", f"env -i PATH=/usr/bin {python} -", stdin="import ctypes; print(ctypes.CDLL('libnvidia-ml.so.1').nvmlInit_v2())")
        == "0\n"
    )


def test_each_node_has_a_gpu_of_its_own(lab):
    asked = "nvidia-smi --query-gpu=uuid,power.limit --format=csv,noheader,nounits"
    seen = [run(lab, node.name, asked).strip().split(", ") for node in lab.plan.nodes if node.group == "workers"]

    assert len({uuid for uuid, _ in seen}) == 4
    assert {limit for _, limit in seen} == {"700.00"}
    assert lab.ssh("store1", "nvidia-smi").returncode != 0


def test_only_root_caps_a_gpu(lab):
    assert lab.ssh("node1", "nvidia-smi -pl 400").stderr == "nvidia-smi: Insufficient Permissions\n"


def test_a_client_gets_what_the_clock_says_as_it_changes(lab, spinning, full):
    """In its own cgroup, from the first moment on; its GPU shows it, and the quota does hold it back."""
    pid = spinning()
    until(lambda: group_of(lab, "node1", pid))
    group = group_of(lab, "node1", pid)
    until(lambda: quota(lab, "node1", group) == (full, PERIOD))
    assert run(lab, "node1", f"cat {group}/cgroup.procs").split() == [str(pid)]
    assert f"GPU 0  pid {pid}" in run(lab, "node1", "nvidia-smi")

    run(lab, "node1", "sudo nvidia-smi -pl 315")
    until(lambda: quota(lab, "node1", group)[0] == round(full / 1.5))  # and the kernel took it: it is below the burst that was
    before = int(re.search(r"nr_throttled (\d+)", run(lab, "node1", f"cat {group}/cpu.stat"))[1])
    until(lambda: int(re.search(r"nr_throttled (\d+)", run(lab, "node1", f"cat {group}/cpu.stat"))[1]) > before)
    run(lab, "node1", "sudo nvidia-smi -lgc 210,1200")
    until(lambda: quota(lab, "node1", group)[0] == round(full * 1200 / 1980))
    run(lab, "node1", "sudo nvidia-smi -rgc && sudo nvidia-smi -pl 700")
    until(lambda: quota(lab, "node1", group)[0] == full)


def test_a_cap_that_is_there_before_its_client_counts_from_the_start(lab, spinning, full):
    run(lab, "node1", "sudo nvidia-smi -pl 250")
    pid = spinning()

    until(lambda: group_of(lab, "node1", pid))
    until(lambda: quota(lab, "node1", group_of(lab, "node1", pid)) == (round(full * 1125 / 1980), PERIOD))


def test_a_dead_client_leaves_nothing(lab, spinning):
    pid = spinning()
    until(lambda: group_of(lab, "node1", pid))
    group = group_of(lab, "node1", pid)

    run(lab, "node1", f"kill -9 {pid}")

    until(lambda: lab.ssh("node1", f"ls -d {group} /run/chaoskit-gpu/clients/{pid}").stdout == "")
    assert "no process computes on a GPU" in run(lab, "node1", "nvidia-smi")


def test_nobody_slows_a_process_of_another(lab):
    """An entry counts when it is the process's own or root's."""
    victim = run(lab, "node1", "pgrep -o sshd").strip()

    run(lab, "node1", f"echo 0 > /run/chaoskit-gpu/clients/{victim}; sudo touch /run/chaoskit-gpu/clients/1 && sleep 0.5")

    assert group_of(lab, "node1", victim) == ""
    run(lab, "node1", f"sudo rm /run/chaoskit-gpu/clients/{victim} /run/chaoskit-gpu/clients/1")


def test_a_killed_driver_comes_back_and_goes_on(lab, spinning, full):
    pid = spinning()
    until(lambda: group_of(lab, "node1", pid))
    group = group_of(lab, "node1", pid)
    before = run(lab, "node1", "pgrep -f gpu_driver.py$")

    run(lab, "node1", f"sudo kill -9 {before}")
    until(lambda: lab.ssh("node1", "pgrep -f gpu_driver.py$").stdout not in ("", before))
    run(lab, "node1", "sudo nvidia-smi -pl 315")

    until(lambda: quota(lab, "node1", group)[0] == round(full / 1.5))
    assert group_of(lab, "node1", pid) == group


def test_limits_do_not_outlive_a_boot_and_identities_do(lab):
    asked = "nvidia-smi --query-gpu=uuid,power.limit --format=csv,noheader,nounits"
    uuid = run(lab, "node3", asked).split(",")[0]
    run(lab, "node3", "sudo nvidia-smi -pl 300")
    boot = next(status.boot for status in lab.status().nodes if status.name == "node3")

    lab.ssh("node3", "sudo reboot")

    until(lambda: any(one.name == "node3" and one.boot > boot and one.state == "up" for one in lab.status().nodes), seconds=60)
    assert run(lab, "node3", asked) == f"{uuid}, 700.00\n"


def test_on_cgroup_v2_the_others_step_aside(tmp_path):
    """A group that hands controllers down may hold no process: all move into one beside the client's, once."""
    home = tmp_path / "chaoskit-training-x"
    home.mkdir()
    (home / "cgroup.procs").write_text("41\n")
    (home / "cgroup.subtree_control").write_text("")
    hierarchy = Hierarchy(tmp_path, unified=True)

    assert hierarchy._prepared(home) == home
    assert (home / OTHERS / "cgroup.procs").read_text() == "41"
    assert (home / "cgroup.subtree_control").read_text() == "+cpu"
    assert hierarchy._prepared(home / OTHERS) == home
    assert hierarchy._prepared(tmp_path / "init") == tmp_path


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.4, "4000 10000"), (0.4 / 1.5, "2667 10000"), (0.1, "1000 10000"), (0.05, "1000 20000"), (1.0, "10000 10000")],
)
def test_a_quota_below_what_the_kernel_takes_gets_a_longer_period(tmp_path, share, expected):
    Hierarchy(tmp_path, unified=True).limit(tmp_path, share)

    assert (tmp_path / "cpu.max").read_text() == expected
    assert not (tmp_path / "cpu.max.burst").exists()  # a kernel without it is left alone


@pytest.mark.parametrize(("unified", "name"), [(True, "cpu.max.burst"), (False, "cpu.cfs_burst_us")])
def test_what_a_busy_machine_kept_from_a_client_it_may_take_later(tmp_path, unified, name):
    (tmp_path / name).write_text("0")

    Hierarchy(tmp_path, unified=unified).limit(tmp_path, 0.3)

    assert (tmp_path / name).read_text() == "3000"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", (0, 1)),
        ("3\n", (3, 1)),
        ("0 mps", (0, 1)),
        ("1 compute 0.5\n", (1, 0.5)),
        ("0 compute 1", (0, 1)),
        ("", None),
        ("x", None),
        ("0 compute x", None),
        ("0 compute -0.5", None),
        ("0 compute 7", None),
    ],
)
def test_what_a_client_says_is_read_and_nonsense_is_no_client(text, expected):
    assert expected == Order.of(text)


def test_this_machine_has_a_hierarchy_for_quotas():
    """Whichever version it is, it is the one that has the files."""
    hierarchy = Hierarchy.find()

    assert hierarchy is not None
    own = hierarchy.home_of(1)
    assert (own / "cgroup.procs").exists()
    assert "cpu" in (hierarchy.root / "cgroup.controllers").read_text() if hierarchy.unified else Path(own / "cpu.shares").exists()
