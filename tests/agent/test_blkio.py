"""Throttles: a tree as cgroup v2 shows it, whose files only keep what is written; v1 is tried for real by `storage_slow`'s tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaoskit.agent import blkio, mounts

UNIFIED = "50 30 0:30 {} /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
V1 = "51 30 0:31 / /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio"


@pytest.fixture
def group(tmp_path):
    place = tmp_path / "job7"
    place.mkdir()
    (place / "io.max").write_text("8:0 rbps=1000 wbps=max riops=max wiops=max\n7:0 rbps=max wbps=5000000 riops=max wiops=max\n")
    (place / "io.stat").write_text("7:0 rbytes=1 wbytes=123 rios=1 wios=1 dbytes=0 dios=0\n8:0 rbytes=9 wbytes=9\n")
    (place / "cgroup.procs").write_text("")
    return place


def test_a_group_of_v2_is_read_and_written_by_its_limit_on_writes_alone(group):
    """The other limits on that disk, and other disks', are left out of what is written."""
    found = [blkio.read(str(group), disk) for disk in ("7:0", "8:0", "9:0")]

    assert [one.limit for one in found] == [5_000_000, None, None]
    assert [one.version for one in found] == [2, 2, 2]
    assert [blkio.written(str(group), disk) for disk in ("7:0", "9:0")] == [123, 0]
    blkio.write(found[0]._replace(limit=1 << 20))
    assert (group / "io.max").read_text().startswith("7:0 wbps=1048576")
    blkio.write(found[1])
    assert (group / "io.max").read_text().startswith("8:0 wbps=max")


def test_a_group_without_the_io_controller_says_which_line_gives_it_that(group):
    (group / "io.max").unlink()

    with pytest.raises(blkio.MissingError, match="has no io controller") as caught:
        blkio.read(str(group), "7:0")
    assert caught.value.hint == "run: echo +io > {}/cgroup.subtree_control".format(group.parent)


def test_a_group_that_is_gone_is_no_group_without_a_controller(group):
    with pytest.raises(FileNotFoundError):
        blkio.read(str(group) + "-gone", "7:0")


@pytest.mark.parametrize(
    ("lines", "cgroup", "expected"),
    [
        ((UNIFIED.format("/"),), "0::/job7\n", "/sys/fs/cgroup/job7"),
        ((UNIFIED.format("/box"),), "0::/box/job7\n", "/sys/fs/cgroup/job7"),
        ((UNIFIED.format("/"), V1), "7:blkio:/slurm/job7\n0::/other\n", "/sys/fs/cgroup/blkio/slurm/job7"),
        ((UNIFIED.format("/"),), "7:blkio:/slurm/job7\n", None),
    ],
)
def test_the_group_of_a_process_is_that_of_the_hierarchy_that_throttles(lines, cgroup, expected):
    """The v1 hierarchy where there is one, also in a hybrid; also when it is mounted from below its top."""
    top, controller = blkio.hierarchy([mounts.parsed(line) for line in lines])

    assert blkio.place(cgroup, top, controller) == expected


def test_a_machine_without_such_groups_is_refused():
    with pytest.raises(blkio.MissingError, match="no control groups"):
        blkio.hierarchy([mounts.parsed("1 0 8:1 / / rw - ext4 /dev/sda1 rw")])


CGROUP2 = """
import os, subprocess, sys
from chaoskit.agent import blkio
top = sys.argv[1]
subprocess.run(["mount", "-t", "cgroup2", "none", top], check=True)
own = os.path.join(top, open("/proc/self/cgroup").read().rpartition("0::/")[2].strip())
try:
    print(blkio.read(own, "7:0").limit)
except blkio.MissingError as error:
    print(error, error.hint)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_real_tree_of_v2_says_what_it_lacks_or_what_is_set(tmp_path):
    """On machines that give `io` to v1 the controller is missing there; else nothing is set on a loop device."""
    argv = ["unshare", "--mount", sys.executable, "-c", CGROUP2, str(tmp_path)]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30, cwd=Path(__file__).parents[2])

    assert done.stdout == "None\n" or "has no io controller run: echo +io > " in done.stdout
