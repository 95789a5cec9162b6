"""NVML is asked in children: what they read and set, and what becomes of each way in which a GPU or a driver fails."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chaoskit.agent import gpus as nvml
from chaoskit.agent import nvml as children
from chaoskit.agent import procs
from chaoskit.agent.gpus import Chosen, GpuError
from chaoskit.agent.identity import all_pids
from chaoskit.agent.nvml import CHILD, path
from chaoskit.errors import DeadlineError

LOST = "drain the node, then reset the GPU or reboot"


def chosen(gpus, index):
    """Return a GPU as a fault has captured it."""
    return Chosen("n1", index, gpus.read(index)["uuid"], "00000000:{:02X}:00.0".format(gpus.read(index)["bus"]))


def cmdline(pid):
    """Return a process's command line; empty when it has ended."""
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


@pytest.fixture
def worker(gpus):
    """Let a process compute on GPU 1."""
    process = subprocess.Popen(["sleep", "600"])
    gpus.add_client(process.pid, 1)
    yield process
    process.kill()
    process.wait()


def test_all_that_a_person_asks_of_gpus_is_read(gpus, worker):
    """In watts, megahertz and bytes, from the board's own words."""
    seen = nvml.read_all()

    assert ("580.95.05", [0, 1], []) == (seen.driver, [gpu.index for gpu in seen.gpus], seen.unread)
    idle, busy = seen.gpus
    assert (idle.draw, idle.sm_clock, idle.utilisation, idle.pids) == (70.0, 345, 0, [])
    assert (busy.draw, busy.sm_clock, busy.pids, busy.reasons) == (620.0, 1980, [worker.pid], 0)
    assert (busy.limit, busy.default_limit, busy.min_limit, busy.max_limit) == (700.0, 700.0, 200.0, 700.0)
    assert (busy.uuid, busy.pci, busy.max_sm_clock, busy.min_sm_clock) == (gpus.read(1)["uuid"], "00000000:27:00.0", 1980, 210)
    assert (busy.memory_total, busy.memory_used, busy.temperature) == (80 << 30, 34 << 30, 58)
    assert (busy.mig, busy.persistence, busy.mps_pids) == (False, True, [])
    assert json.loads(json.dumps(seen.to_json()))["gpus"][1]["name"] == "NVIDIA H100 80GB HBM3 (simulated)"


def test_the_zipapp_reads_them_too_without_site_packages(gpus, python, archive):
    """What a node has: one file, and any Python from 3.8 on."""
    script = "import sys; sys.path.insert(0, sys.argv[1]); from chaoskit.agent import gpus; print(gpus.read_all().gpus[1].uuid)"
    done = subprocess.run([python, "-I", "-S", "-c", script, archive.path], check=False, capture_output=True, text=True, cwd="/")

    assert done.stdout == "{}\n".format(gpus.read(1)["uuid"]), done.stderr


@pytest.mark.parametrize(
    ("failure", "why", "hint"),
    [("lost", "GPU 0: GPU is lost", LOST), ("unknown", "GPU 0: Unknown Error", "dmesg")],
)
def test_a_gpu_that_fails_leaves_the_others_readable(gpus, failure, why, hint):
    """And the one that failed says why, and what to do."""
    gpus.edit(0, failure=failure)

    seen = nvml.read_all()

    assert ([1], [(0, why)]) == ([gpu.index for gpu in seen.gpus], [(one.index, one.why) for one in seen.unread])
    assert hint in seen.unread[0].hint


@pytest.mark.row("L41")
def test_a_gpu_that_hangs_costs_its_child_and_no_more(gpus):
    """The one behind it is read by the next child."""
    gpus.edit(0, failure="hang")

    seen = nvml.read_all(30.0)

    assert [1] == [gpu.index for gpu in seen.gpus]
    assert [(0, "GPU 0 did not answer in time, and the child that asked was killed")] == [(one.index, one.why) for one in seen.unread]
    assert "drain the node" in seen.unread[0].hint


def test_what_a_board_does_not_offer_is_none(gpus):
    """A board without power management still has a name."""
    gpus.edit(0, failure="not_supported")

    gpu = nvml.read_all().gpus[0]

    assert (gpu.limit, gpu.min_limit, gpu.draw, gpu.sm_clock) == (None, None, None, 345)


def test_a_driver_that_is_not_loaded_and_one_that_is_not_installed_are_told_apart(gpus, monkeypatch):
    """Both concern all GPUs."""
    gpus.unload_driver()
    unloaded = nvml.read_all()
    monkeypatch.delenv("LD_LIBRARY_PATH")
    absent = nvml.read_all()

    assert [(None, "NVML: Driver Not Loaded", nvml.DRIVER_NOT_LOADED)] == [(one.index, one.why, one.code) for one in unloaded.unread]
    assert "modprobe nvidia" in unloaded.unread[0].hint
    assert [(None, "NVML: NVML Shared Library Not Found", nvml.LIBRARY_NOT_FOUND)] == [
        (one.index, one.why, one.code) for one in absent.unread
    ]


def test_a_limit_is_set_only_when_it_is_the_expected_one(gpus):
    """What somebody else has set since is not ours to change."""
    gpu = chosen(gpus, 1)

    assert (700.0, 315.0, 315.0) == nvml.set_power_limit(gpu, 315.0, only_if=700.0)
    assert (315.0, 315.0, 315.0) == nvml.set_power_limit(gpu, 600.0, only_if=700.0)
    assert [700_000, 315_000] == [gpus.read(index)["limit"] for index in (0, 1)]


def test_a_gpu_is_found_by_its_uuid_when_its_index_moved(gpus):
    """A GPU that is lost, or a new order of the bus, renumbers those behind it."""
    gpu = chosen(gpus, 1)
    (gpus.folder / "gpu1").rename(gpus.folder / "moved")
    (gpus.folder / "gpu0").rename(gpus.folder / "gpu1")
    (gpus.folder / "moved").rename(gpus.folder / "gpu0")
    gpus.edit(0, bus=0x99)  # in another slot, too

    nvml.set_power_limit(gpu, 315.0, only_if=700.0)

    assert [315_000, 700_000] == [gpus.read(index)["limit"] for index in (0, 1)]


@pytest.mark.parametrize(
    ("failure", "code", "hint"),
    [
        ("lost", nvml.IS_LOST, LOST),
        ("no_permission", nvml.NO_PERMISSION, "root with CAP_SYS_ADMIN"),
        ("not_supported", nvml.NOT_SUPPORTED, "choose another GPU"),
        ("unknown", 999, "dmesg"),
    ],
)
def test_what_cannot_be_set_names_the_gpu_and_says_what_to_do(gpus, failure, code, hint):
    """One sentence for each way to fail, and nothing is changed."""
    gpu = chosen(gpus, 1)
    gpus.edit(1, failure=failure)

    with pytest.raises(GpuError) as caught:
        nvml.lock_clocks(gpu, (990, 990))

    assert (code, "n1") == (caught.value.code, caught.value.node)
    assert str(caught.value).startswith("n1: GPU 1 ({}): ".format(gpu.uuid))
    assert hint in caught.value.hint
    assert gpus.read(1)["lock_high"] == 0


def test_a_gpu_that_is_not_there_is_said_so(gpus):
    """As after a board was replaced."""
    with pytest.raises(GpuError, match=r"GPU 7 .GPU-none.: Not Found") as caught:
        nvml.look(Chosen("n1", 7, "GPU-none", "00000000:99:00.0"), 1, 0.0)

    assert caught.value.code == nvml.NOT_FOUND


@pytest.mark.row("L41")
def test_a_hang_ends_at_the_deadline_and_leaves_no_child(gpus, monkeypatch):
    """The caller goes on, and knows nothing of what took effect."""
    gpu = chosen(gpus, 1)
    gpus.edit(1, failure="hang", failing="nvmlDeviceSet")
    monkeypatch.setattr(nvml, "SET_WITHIN", 2.0)

    with pytest.raises(DeadlineError, match=r"GPU 1 .*NVML did not answer in time"):
        nvml.set_power_limit(gpu, 315.0, only_if=700.0)

    ours = [pid for pid in all_pids() if (process := procs.read(pid)) and process.ppid == os.getpid()]
    assert [] == [pid for pid in ours if gpu.uuid.encode() in cmdline(pid)]


@pytest.mark.row("L41")
def test_an_orphan_ends_by_itself_even_inside_the_library(gpus):
    """Its parent may be killed while it waits for a lost GPU: no Python code runs there, and a signal ends it."""
    gpus.edit(0, failure="hang")
    order = {"do": "read", "first": 0, "within": 0.5, "path": path(), "compiled": 0}
    done = subprocess.run([sys.executable, "-I", "-S", "-c", CHILD, json.dumps(order)], check=False, capture_output=True, timeout=60)

    assert -signal.SIGALRM == done.returncode
    assert b'{"at": 0}' in done.stdout


def test_looking_ends_once_enough_was_seen(gpus, worker):
    """A witness under load need not wait for its whole time; nor one whose limit is not set at all."""
    gpu = chosen(gpus, 1)
    nvml.set_power_limit(gpu, 315.0, only_if=700.0)

    capped = nvml.look(gpu, 50, 0.01, reasons=nvml.POWER_CAP, limit=315.0)
    other = nvml.look(gpu, 50, 0.01, reasons=nvml.POWER_CAP, limit=400.0)

    assert [(1320, ["sw_power_cap"])] * 3 == [(one.sm_clock, nvml.reason_names(one.reasons)) for one in capped]
    assert capped[-1].capped > 0
    assert [315.0] == [one.limit for one in other]


def test_looking_does_not_end_at_clocks_that_the_next_look_contradicts(gpus, worker, monkeypatch):
    """Low for a moment is not held: the last looks must all be low."""
    wavers = """
import pynvml
clocks = iter([990, 990, 1980, 990, 990, 990, 1980])
pynvml.nvmlDeviceGetClockInfo = lambda *_: next(clocks)
main(order)"""
    monkeypatch.setattr(children, "CHILD", CHILD.replace("main(order)", wavers))

    looks = nvml.look(chosen(gpus, 1), 7, 0.01, at_most=1000)

    assert [990, 990, 1980, 990, 990, 990] == [one.sm_clock for one in looks]


def test_looks_at_which_it_idles_are_not_enough(gpus):
    """Whatever clock and reason it shows meanwhile."""
    looks = nvml.look(chosen(gpus, 0), 5, 0.01, reasons=nvml.IDLE, at_most=1000)

    assert [(345, False)] * 5 == [(one.sm_clock, one.works) for one in looks]
