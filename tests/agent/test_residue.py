"""What a node shows before and after: fake devices in a folder, a real line in the kernel's log where the machine takes one."""

import json
import os
import uuid
from pathlib import Path

import pytest
from fair_watch import FairWatch

from chaoskit.agent.contract import Rail, Site
from chaoskit.agent.host import Host
from chaoskit.agent.residue import MOST_LINES, Since, gpud_unhealthy, kernel, slurm_state, snapshot

pytestmark = pytest.mark.row("L42")

SLURM = "NodeName=gpu1 Arch=x86_64 State=IDLE+DRAIN ThreadsPerCore=1 Reason=Kill task failed [root@2026-12-01T03:00:00] Comment=x\n"


def record(seq, text, level=6):
    return f"{level},{seq},{seq * 1000},-;{text}\n SUBSYSTEM=pci\n"


@pytest.fixture
def root(tmp_path):
    """A node with a rail, an InfiniBand port, and a kernel's log of three lines."""
    for path, value in {
        "sys/class/net/rail0/carrier_changes": 4,
        "sys/class/net/rail0/statistics/rx_errors": 7,
        "sys/class/net/veth9/carrier_changes": 1,
        "sys/class/infiniband/mlx5_0/ports/1/counters/link_downed": 2,
        "sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error": "N/A",
    }.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{value}\n")
    (tmp_path / "dev").mkdir()
    (tmp_path / "proc").mkdir()
    (tmp_path / "dev" / "kmsg").write_text("".join(record(seq, f"line {seq}") for seq in (5, 6, 7)))
    return tmp_path


def test_counters_of_rails_and_ports_are_read_and_what_is_no_number_is_left_out(root):
    seen = snapshot(Host(Site("n1", rails=(Rail(0, netdev="rail0"),))), None, str(root))

    assert {"nic/rail0/carrier_changes": 4, "nic/rail0/rx_errors": 7, "rdma/mlx5_0:1/link_downed": 2} == seen["counters"]
    assert (7, []) == (seen["kernel"]["seq"], seen["kernel"]["lines"])
    json.dumps(seen)


def test_the_second_look_tells_each_line_since_the_first_once(root):
    """By the records' own numbers, which have no gaps: what was overwritten in between is counted."""
    with (root / "dev" / "kmsg").open("a") as file:
        file.write(record(8, "mlx5_core: link down", 3) + record(11, "mlx5_core: link up"))
    told = kernel(str(root), 7, told=True)

    assert [[8, 3, "mlx5_core: link down"], [11, 6, "mlx5_core: link up"]] == told["lines"]
    assert (11, 2, 0, "") == (told["seq"], told["lost"], told["cut"], told["why"])
    assert [] == kernel(str(root), 11, told=True)["lines"]


def test_after_a_reboot_the_whole_log_is_new(root):
    host = Host(Site("n1"))
    assert 3 == len(snapshot(host, Since("another boot", 7), str(root))["kernel"]["lines"])
    assert 0 == len(snapshot(host, Since(host.boot_id(), 7), str(root))["kernel"]["lines"])


def test_a_flood_is_cut_in_the_middle_and_counted(root):
    (root / "dev" / "kmsg").write_text("".join(record(seq, "x" * 5000) for seq in range(MOST_LINES + 50)))
    told = kernel(str(root), -1, told=True)

    assert (MOST_LINES, 50) == (len(told["lines"]), told["cut"])
    assert (0, MOST_LINES + 49) == (told["lines"][0][0], told["lines"][-1][0])
    assert len(json.dumps(told)) < 1 << 17


def test_a_log_that_cannot_be_read_is_said(tmp_path):
    told = kernel(str(tmp_path), -1, told=True)

    assert "the kernel's log cannot be read: /dev/kmsg: No such file or directory" == told["why"]


def test_a_line_that_was_really_written_is_found():
    """The device itself: one record a read, never waiting for the next."""
    if not os.access("/dev/kmsg", os.R_OK | os.W_OK):
        pytest.skip("this machine does not let us write into the kernel's log")
    before = kernel("/", -1, told=False)
    if before["why"]:
        pytest.skip(before["why"])
    tag = f"chaoskit-test {uuid.uuid4()}"
    try:
        Path("/dev/kmsg").write_text(f"<5>{tag}\n")
    except OSError as error:
        pytest.skip(f"this machine does not let us write into the kernel's log: {error}")
    watch = FairWatch()
    told = kernel("/", before["seq"], told=True)

    assert [tag] == [text for _, _, text in told["lines"] if text == tag]
    assert 0 == told["lost"]
    assert watch.took() < 10


def test_slurms_and_gpuds_words_become_plain_types():
    assert {"name": "gpu1", "state": "IDLE+DRAIN", "reason": "Kill task failed"} == slurm_state(SLURM)
    assert {} == slurm_state("slurm_load_node error: Invalid node name specified")
    assert {} == slurm_state(SLURM.replace("gpu1", "$(reboot)"))
    told = [{"component": "infiniband", "states": [{"health": "Unhealthy", "reason": "port flapped"}]}, {"component": "os", "states": None}]
    assert {"infiniband": "port flapped"} == gpud_unhealthy(json.dumps(told).encode())
    assert {"why": "gpud sent no JSON"} == gpud_unhealthy(b"<html>")
    assert {} == gpud_unhealthy(b'{"a": 1}')
