"""A power cap on simulated GPUs: what is refused, what proves it, and what becomes of the limit whoever interferes."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chaoskit.agent import gpu_targets
from chaoskit.agent import gpus as nvml
from chaoskit.agent import nvml as children
from chaoskit.agent.contract import Refusal, Site, TrainingFacts
from chaoskit.agent.gpus import GpuError, Sample
from chaoskit.agent.host import Host
from chaoskit.errors import NodeError
from chaoskit.faults.gpu_power_cap import GpuPowerCap
from chaoskit.testing import in_other_process

HOST = Host(Site("n1", training=TrainingFacts(run_id="bench-run")))
CAP = GpuPowerCap(watts=315.0)


def limits(gpus):
    """Return the limits that are set, in W."""
    return [gpus.read(index)["limit"] / 1000 for index in (0, 1)]


@pytest.mark.row("L6", "L35")
def test_a_cap_holds_the_clock_down_and_the_found_limit_comes_back(gpus, rank):
    """On the GPU that the lowest rank uses; the limit that its operator had set is restored, not the board's default."""
    gpus.edit(1, limit=650_000)

    undo = CAP.prepare(HOST)
    exposed = CAP.exposed(HOST, undo)
    CAP.inject(HOST, undo)
    held, witness, gone = limits(gpus), CAP.witness(HOST, undo), CAP.gone(HOST, undo)
    in_other_process(CAP, HOST.site, undo, "revert")

    assert (gpus.read(1)["uuid"], 650.0, 315.0, 1980) == (undo["uuid"], undo["limit"], undo["cap"], undo["clock_before"])
    assert (True, [rank.pid]) == (exposed.holds, exposed.readings["pids"])
    assert ([700.0, 315.0], [700.0, 650.0]) == (held, limits(gpus))
    assert (True, ["sw_power_cap"], False) == (witness.holds, witness.readings["reasons"], gone.holds)
    assert witness.says.endswith("is held down by it to 1320 MHz; it was 1980 MHz without")
    assert CAP.gone(HOST, undo).holds


def test_a_share_is_one_of_the_boards_default(gpus, rank):
    """Whatever limit is set now."""
    gpus.edit(1, limit=650_000)

    assert 350.0 == GpuPowerCap(share_of_default=0.5).prepare(HOST)["cap"]


def test_without_a_training_it_is_the_first_gpu(gpus):
    """A dry run has none."""
    assert gpus.read(0)["uuid"] == CAP.prepare(HOST)["uuid"]


@pytest.mark.parametrize(
    ("fault", "fields", "says", "hint"),
    [
        (GpuPowerCap(watts=150.0, gpu=1), {}, "GPU 1 (GPU-", "it takes 200 to 700 W; its default is 700 W"),
        (GpuPowerCap(watts=700.0, gpu=1), {}, "a power limit of 700 W is no cap: GPU 1", "state less"),
        (GpuPowerCap(watts=500.0, gpu=1), {"limit": 400_000}, "is no cap", "state less"),
        (GpuPowerCap(watts=315.0, gpu=1), {"mig": 1}, "is in MIG mode", "nvidia-smi -i 1 -mig 0"),
        (GpuPowerCap(watts=315.0, gpu=1), {"failure": "lost"}, "GPU 1: GPU is lost", "reset the GPU or reboot"),
        (GpuPowerCap(watts=315.0, gpu=1), {"failure": "unknown"}, "GPU 1: Unknown Error", "dmesg"),
        (GpuPowerCap(watts=315.0, gpu=1), {"failure": "not_supported"}, "does not let its power be limited", "choose another GPU"),
        (GpuPowerCap(watts=315.0, gpu=8), {}, "there is no GPU 8", "NVML shows on this node: 0, 1"),
    ],
)
def test_what_cannot_be_capped_is_refused(gpus, fault, fields, says, hint):
    """Before anything is set, naming the GPU and what to do."""
    gpus.edit(1, **fields)
    before = [gpus.read(index) for index in (0, 1)]

    with pytest.raises(Refusal) as caught:
        fault.prepare(HOST)

    assert "n1 gpu_power_cap" == caught.value.where
    assert says in caught.value.what
    assert hint in caught.value.hint
    assert before == [gpus.read(index) for index in (0, 1)]


def test_a_gpu_behind_mps_is_refused(gpus, rank):
    """Its clients are the server's, and nobody can say whose work is slowed."""
    gpus.add_client(rank.pid, 1, mps=True)

    with pytest.raises(Refusal, match=f"MPS .process {rank.pid}.*"):
        GpuPowerCap(watts=315.0, gpu=1).prepare(HOST)


@pytest.mark.alone
def test_a_node_with_an_mps_daemon_is_refused(gpus, tmp_path):
    """Also before it has any client."""
    daemon = tmp_path / "nvidia-cuda-mps-control"
    daemon.symlink_to("/bin/sleep")
    process = subprocess.Popen([daemon, "600"])
    try:
        with pytest.raises(Refusal, match=f"MPS .process {process.pid}.*echo quit"):
            CAP.prepare(HOST)
    finally:
        process.kill()
        process.wait()


@pytest.mark.row("L9")
def test_without_the_right_that_the_kernel_module_asks_for_it_is_refused(gpus):
    """Known without trying: root in a container has no CAP_SYS_ADMIN."""
    script = """
import bench
from chaoskit.agent import gpu_targets
from chaoskit.agent.contract import Refusal, Site
from chaoskit.agent.host import Host
from chaoskit.faults.gpu_power_cap import GpuPowerCap
gpu_targets.KERNEL_MODULE = "/proc"
bench.drop_rights()
try:
    GpuPowerCap(watts=315.0).prepare(Host(Site("n1")))
except Refusal as error:
    print(error.what)
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent)

    assert "the agent lacks the capability CAP_SYS_ADMIN\n" == done.stdout


def test_a_cap_above_the_draw_is_not_exposed(gpus, rank):
    """It would change nothing, and so prove nothing."""
    high = GpuPowerCap(watts=640.0)
    undo = high.prepare(HOST)

    exposed = high.exposed(HOST, undo)
    high.inject(HOST, undo)
    witness = high.witness(HOST, undo)
    high.revert(HOST, undo)

    assert not exposed.holds
    assert exposed.says.endswith("drew 620 W at the most, not above the cap of 640 W")
    assert (False, [1980]) == (witness.holds, sorted(set(witness.readings["sm_clock"])))


def test_a_gpu_where_somebody_else_computes_is_not_exposed(gpus, compute):
    """Whatever it draws: this training does not feel it."""
    other = compute(0, run="another-run")
    fault = GpuPowerCap(watts=315.0, gpu=0)

    exposed = fault.exposed(HOST, fault.prepare(HOST))

    assert not exposed.holds
    assert exposed.says.startswith("no process of the training computes on GPU 0")
    assert exposed.says.endswith("process {} does".format(other.pid))


def test_a_cap_on_a_gpu_that_stopped_working_is_not_proven(gpus, rank):
    """The limit reads back as set; but nothing was slowed by it."""
    undo = CAP.prepare(HOST)
    rank.send_signal(signal.SIGSTOP)

    CAP.inject(HOST, undo)
    witness = CAP.witness(HOST, undo)
    CAP.revert(HOST, undo)

    assert (False, 315.0) == (witness.holds, witness.readings["limit"])
    assert witness.says.endswith("was not held down by it in 20 looks: it drew 70 W at the most")


def test_the_reason_alone_proves_nothing_on_a_gpu_that_its_power_held_down_before(gpus, rank):
    """Boards under full load often show it without any cap: the clock must have fallen too."""
    undo = CAP.prepare(HOST)
    CAP.inject(HOST, undo)

    witness = CAP.witness(HOST, {**undo, "clock_before": 1320})

    assert (False, ["sw_power_cap"]) == (witness.holds, witness.readings["reasons"])
    CAP.revert(HOST, undo)


@pytest.mark.row("L35")
def test_a_limit_that_moved_since_it_was_captured_is_not_touched(gpus, rank):
    """Somebody else is at it: what would be restored is not known any more."""
    undo = CAP.prepare(HOST)
    gpus.edit(1, limit=500_000)

    with pytest.raises(Refusal, match="has a power limit of 500 W now, and had 700 W"):
        CAP.inject(HOST, undo)

    CAP.revert(HOST, undo)
    assert [700.0, 500.0] == limits(gpus)


def test_a_driver_that_says_no_leaves_nothing_behind(gpus, rank):
    """As in a container whose root is not enough; and the revert does not need the right either."""
    undo = CAP.prepare(HOST)
    gpus.edit(1, failure="no_permission")

    with pytest.raises(GpuError, match=r"GPU 1 .*Insufficient Permissions .NVML lets only root with CAP_SYS_ADMIN"):
        CAP.inject(HOST, undo)

    CAP.revert(HOST, undo)
    assert CAP.gone(HOST, undo).holds


@pytest.mark.row("L11", "L35")
def test_a_limit_that_somebody_else_sets_meanwhile_is_left_to_them(gpus, rank):
    """DCGM, a BMC or a person: ours is gone with it, theirs may protect a rack; both are said."""
    undo = CAP.prepare(HOST)
    CAP.inject(HOST, undo)
    gpus.edit(1, limit=450_000)

    CAP.revert(HOST, undo)
    gone = CAP.gone(HOST, undo)

    assert (True, [700.0, 450.0]) == (gone.holds, limits(gpus))
    assert "450 W, neither ours (315) nor the one found (700)" in gone.says


def test_a_limit_that_ended_with_the_driver_is_gone_and_no_leak(gpus, rank):
    """Unloaded, there is none; loaded anew, the board has its default."""
    gpus.edit(1, limit=650_000)
    undo = CAP.prepare(HOST)
    CAP.inject(HOST, undo)
    gpus.unload_driver()
    CAP.revert(HOST, undo)
    unloaded = CAP.gone(HOST, undo)
    gpus.edit(1, limit=700_000)
    gpus.load_driver()
    CAP.revert(HOST, undo)
    loaded = CAP.gone(HOST, undo)

    assert (True, True) == (unloaded.holds, loaded.holds)
    assert "the driver is not loaded, and what was set ended with it" == unloaded.says
    assert "700 W, neither ours (315) nor the one found (650)" in loaded.says


def test_a_driver_whose_kernel_module_is_there_is_not_believed_to_be_gone(gpus, rank, monkeypatch):
    """The library may fail for reasons of its own, while the limit stands."""
    undo = CAP.prepare(HOST)
    CAP.inject(HOST, undo)
    gpus.unload_driver()
    monkeypatch.setattr(gpu_targets, "KERNEL_MODULE", "/proc")

    with pytest.raises(GpuError, match="Driver Not Loaded"):
        CAP.gone(HOST, undo)
    with pytest.raises(GpuError, match="Driver Not Loaded"):
        CAP.revert(HOST, undo)


def test_a_gpu_that_is_lost_is_owed_until_the_node_boots_without_it(gpus, rank):
    """Nobody can restore it or read it back; after a reboot that came up without it, nothing of ours is left."""
    undo = CAP.prepare(HOST)
    CAP.inject(HOST, undo)
    gpus.edit(1, failure="lost")

    with pytest.raises(GpuError, match=r"GPU 1 .*GPU is lost .*reset the GPU or reboot"):
        CAP.revert(HOST, undo)
    with pytest.raises(NodeError):
        CAP.gone(HOST, undo)

    (gpus.folder / "gpu1").unlink()
    with pytest.raises(GpuError, match="Not Found"):
        CAP.gone(HOST, undo)
    booted = {**undo, "boot_id": "another"}
    CAP.revert(HOST, booted)
    assert CAP.gone(HOST, booted).holds


@pytest.mark.row("L13", "L27")
def test_a_look_or_two_prove_no_cap(gpus, rank, monkeypatch):
    """A board at work shows the reason now and then without any cap of ours."""
    undo = CAP.prepare(HOST)
    held = Sample(315.0, 1320, nvml.POWER_CAP, 100, [rank.pid], 315.0, 1.0)
    free = held._replace(sm_clock=1980, reasons=0)
    witnesses = []
    for looks in ([held, held, free], [held, held, free, held]):
        with monkeypatch.context() as staged:
            staged.setattr(nvml, "look", lambda *_, looks=looks, **__: looks)
            witnesses.append(CAP.witness(HOST, undo))

    assert [False, True] == [witness.holds for witness in witnesses]
    assert witnesses[0].says.endswith("was held down by it in 2 of 3 looks only: it drew 315 W at the most")


ROUNDS = """
import pynvml
keep = pynvml.nvmlDeviceSetPowerManagementLimit
pynvml.nvmlDeviceSetPowerManagementLimit = lambda handle, milliwatts: keep(handle, milliwatts // 50000 * 50000)
"""


def test_a_limit_that_the_driver_rounds_is_put_back_at_once(gpus, rank, monkeypatch):
    """By the child that set it: what is neither the cap nor the captured limit would look like somebody else's."""
    monkeypatch.setattr(children, "CHILD", children.CHILD.replace("main(order)", ROUNDS + "main(order)"))
    undo = CAP.prepare(HOST)

    with pytest.raises(GpuError, match="took a power limit of 315 W and showed 300 W; it has 700 W again"):
        CAP.inject(HOST, undo)

    assert [700.0, 700.0] == limits(gpus)
    CAP.revert(HOST, undo)
    assert CAP.gone(HOST, undo).holds


def test_a_limit_that_the_driver_rounds_and_does_not_take_back_is_said(gpus, rank, monkeypatch):
    """With the line that a person needs: nothing can tell later whose it is."""
    once = (
        ROUNDS
        + """
first = pynvml.nvmlDeviceSetPowerManagementLimit
def again(*_): raise pynvml.NVMLError(999)
def only(handle, milliwatts):
    first(handle, milliwatts)
    pynvml.nvmlDeviceSetPowerManagementLimit = again
pynvml.nvmlDeviceSetPowerManagementLimit = only
"""
    )
    undo = CAP.prepare(HOST)
    monkeypatch.setattr(children, "CHILD", children.CHILD.replace("main(order)", once + "main(order)"))

    with pytest.raises(GpuError, match="did not take the 700 W that it had, and shows 300 W") as caught:
        CAP.inject(HOST, undo)

    assert caught.value.hint == "set it by hand: nvidia-smi -i {} -pl 700".format(undo["uuid"])
    assert [700.0, 300.0] == limits(gpus)


@pytest.mark.parametrize(
    "params", [{}, {"watts": 300.0, "share_of_default": 0.5}, {"watts": 300.0, "hold": 0.0}, {"watts": 300.0, "gpu": -1}]
)
def test_parameters_that_make_no_sense_are_refused(params):
    """Before any node is asked."""
    with pytest.raises(ValueError, match=r"exactly one of|longer than|index from 0"):
        GpuPowerCap(**params)
