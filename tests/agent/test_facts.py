"""What must be alike: read on the real machine and on real links, without running anything and without waking a device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaoskit.agent import facts
from chaoskit.agent.contract import Site

LINKS = """
ip link add ra mtu 9000 type veth peer name pa
ip link add rb type veth peer name pb
ip link add veth0abc type veth peer name pc
for each in ra pa rb pb; do ip link set $each up; done
tc qdisc add dev rb root handle 7: pfifo limit 9
tc qdisc add dev veth0abc root handle 8: pfifo
"""


def test_the_machine_tells_what_others_are_compared_with():
    found = facts.system()

    assert found["kernel"] == os.uname().release
    assert found["sysctl net.core.rmem_max"] == Path("/proc/sys/net/core/rmem_max").read_text().strip()
    assert found["sysctl net.ipv4.tcp_rmem"].count(" ") == 2
    assert all(value and isinstance(value, str) for value in found.values())


def test_rails_tell_their_mtu_driver_and_who_queues_on_them(archive, tmp_path):
    """Queueing that somebody set shows on any device; the ends of containers' cables come and go, and are left out."""
    site = Site("n1").to_json()
    site["rails"] = [{"index": 0, "netdev": "ra"}, {"index": 1, "netdev": "rb"}, {"index": 2, "netdev": "gone", "rdma": "mlx5_77"}]
    order = {"site": site, "paths": [str(tmp_path)] * 3, "user": None, "accounts": [], "checks": {"alike": {}}}
    inside = [
        "unshare",
        "--net",
        "--mount",
        "sh",
        "-ec",
        f'mount -t sysfs none /sys\n{LINKS}\nexec "$0" "$@"',
        sys.executable,
        "-I",
        "-S",
        str(archive.path),
        "examine",
    ]
    done = subprocess.run(inside, input=json.dumps(order).encode(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    [seen] = json.loads(done.stdout)["seen"]
    told = {name: value for name, value in seen["readings"]["facts"].items() if name.startswith(("rail", "qdisc"))}

    assert {name: told[name] for name in told if name.startswith("rail 0")} == {
        "rail 0 MTU": "9000",
        "rail 0 speed": "10000 Mb/s",
        "rail 0 driver": "veth 1.0",
    }
    assert (told["rail 1 MTU"], told["qdisc of rb"]) == ("1500", "pfifo 7:")
    assert {name for name in told if name.startswith(("rail 2", "qdisc"))} == {"qdisc of rb"}


def test_gpus_tell_their_models_firmware_and_driver(archive, tmp_path, gpus):
    gpus.edit(1, vbios="96.00.00.00.09")
    order = {"site": Site("n1").to_json(), "paths": [str(tmp_path)] * 3, "user": None, "accounts": [], "checks": {"gpus": {"count": 2}}}
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(archive.path), "examine"], input=json.dumps(order).encode(), capture_output=True, check=True
    )
    [seen] = json.loads(done.stdout)["seen"]

    assert seen["readings"]["facts"] == {
        "driver": "580.95.05",
        "CUDA of the driver": "13.0",
        "GPUs": "2 x NVIDIA H100 80GB HBM3 (simulated)",
        "VBIOS": "1 x 96.00.00.00.09, 1 x 96.00.A5.00.01",
    }


@pytest.mark.parametrize(
    ("pci", "address"),
    [("00000000:17:00.0", "0000:17:00.0"), ("00010000:1A:00.0", "0000:1a:00.0"), ("0000:17:00.0", "0000:17:00.0")],
)
def test_where_sysfs_has_what_nvml_calls(pci, address):
    assert facts._sysfs_address(pci) == address


def test_a_training_tells_the_packages_of_its_python_without_importing_them(archive, tmp_path):
    site = tmp_path / "site"
    for name in ("torch-2.5.1+cu124.dist-info", "nvidia_nccl_cu12-2.21.5.dist-info", "requests-2.0.dist-info"):
        (site / name).mkdir(parents=True)
    (site / "torch.py").write_text("raise SystemExit('imported')\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    trainings = [{"name": "default", "python": str(python), "folders": []}]
    order = {
        "site": Site("n1").to_json(),
        "paths": [str(tmp_path)] * 3,
        "user": None,
        "accounts": [],
        "checks": {"training": {"trainings": trainings}},
    }
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(archive.path), "examine"], input=json.dumps(order).encode(), capture_output=True, check=True
    )
    [seen] = json.loads(done.stdout)["seen"]
    told = seen["readings"]["facts"]

    assert (seen["state"], told["package torch"], told["package nvidia_nccl_cu12"]) == ("ok", "2.5.1+cu124", "2.21.5")
    assert "package requests" not in told
