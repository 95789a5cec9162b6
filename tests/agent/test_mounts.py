import subprocess
import sys
from pathlib import Path

from chaoskit.agent.mounts import mounted


def test_mounts_are_those_of_the_kernel_s_other_list():
    """As /proc/self/mounts has them, an older format without escapes on this machine."""
    lines = Path("/proc/self/mounts").read_text().splitlines()

    assert mounted() == {line.split()[1]: line.split()[2] for line in lines}


def test_odd_names_are_read_and_the_topmost_mount_counts(tmp_path):
    """In a mount namespace of its own."""
    place = tmp_path / "a b\tc\\d"
    place.mkdir()
    code = (
        "import subprocess, sys\nfrom chaoskit.agent.mounts import mounted\n"
        "for kind in ('ramfs', 'tmpfs'): subprocess.run(['mount', '-t', kind, 'none', sys.argv[1]], check=True)\n"
        "print(mounted()[sys.argv[1]])\n"
    )
    argv = ["unshare", "--mount", sys.executable, "-c", code, str(place)]

    assert subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30).stdout == "tmpfs\n"
