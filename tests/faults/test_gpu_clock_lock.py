"""A clock lock on simulated GPUs: what must be declared, what proves it, and how far its end can be read."""

import signal
from pathlib import Path

import pytest

from chaoskit.agent import gpus as nvml
from chaoskit.agent import nvml as children
from chaoskit.agent.contract import Refusal, Site, TrainingFacts
from chaoskit.agent.gpus import GpuError, Sample
from chaoskit.agent.host import Host
from chaoskit.errors import NodeError
from chaoskit.faults.gpu_clock_lock import GpuClockLock
from chaoskit.testing import in_other_process

LOCK = GpuClockLock(mhz=990)


def host(clocks="default"):
    """Return a node whose inventory declares its clocks."""
    return Host(Site("n1", gpu_clocks=clocks, training=TrainingFacts(run_id="bench-run")))


HOST = host()


def locks(gpus):
    """Return the locked ranges that are set, in MHz."""
    return [(gpus.read(index)["lock_low"], gpus.read(index)["lock_high"]) for index in (0, 1)]


@pytest.mark.row("L35")
@pytest.mark.parametrize(("declared", "found"), [("default", (0, 0)), ("210-1800", (210, 1800))])
def test_a_lock_slows_the_clock_and_what_was_declared_comes_back(gpus, rank, declared, found):
    """No lock, or the operator's own; in another process, from the JSON alone."""
    node = host(declared)
    gpus.edit(1, lock_low=found[0], lock_high=found[1])

    undo = LOCK.prepare(node)
    exposed, before = LOCK.exposed(node, undo), LOCK.witness(node, undo)
    LOCK.inject(node, undo)
    held, witness, gone = locks(gpus), LOCK.witness(node, undo), LOCK.gone(node, undo)
    in_other_process(LOCK, node.site, undo, "revert")

    assert (True, [rank.pid], False) == (exposed.holds, exposed.readings["pids"], before.holds)
    assert ([(0, 0), (990, 990)], [(0, 0), found]) == (held, locks(gpus))
    assert (True, [990] * 3, False) == (witness.holds, witness.readings["sm_clock"], gone.holds)
    assert "990 MHz; it was {} MHz before".format(found[1] or 1980) in witness.says
    assert LOCK.gone(node, undo).holds
    assert not Path(undo["mark"]).exists()


@pytest.mark.row("L35")
@pytest.mark.parametrize(("declared", "says"), [("", "the inventory does not say"), ("free", "the inventory's gpu_clocks is 'free'")])
def test_clocks_that_are_not_declared_are_refused_with_the_line_to_add(gpus, declared, says):
    """What to put back is not known, and a reset would wipe an operator's own lock."""
    with pytest.raises(Refusal) as caught:
        LOCK.prepare(host(declared))

    assert says in caught.value.what
    assert "add `gpu_clocks: default` to this node in the inventory" in caught.value.hint


def test_a_declared_lock_that_the_gpu_does_not_keep_is_refused(gpus, rank):
    """The inventory is wrong, and putting that back would be a harm of its own."""
    with pytest.raises(Refusal, match=r"works at 1980 MHz, and the inventory says that it is locked to 210-1410"):
        LOCK.prepare(host("210-1410"))


@pytest.mark.parametrize(
    ("fault", "declared", "hint"),
    [
        (GpuClockLock(mhz=1980, gpu=1), "default", "state one from 210 to below 1980 MHz"),
        (GpuClockLock(mhz=1500, gpu=1), "210-1410", "state one from 210 to below 1410 MHz"),
        (GpuClockLock(mhz=100, gpu=1), "default", "state one from 210 to below 1980 MHz"),
    ],
)
def test_a_clock_that_would_slow_nothing_is_refused(gpus, fault, declared, hint):
    """It says which would."""
    with pytest.raises(Refusal) as caught:
        fault.prepare(host(declared))

    assert ("n1 gpu_clock_lock", hint) == (caught.value.where, caught.value.hint)


def test_a_share_is_one_of_the_boards_highest_clock(gpus):
    """Half of 1980 MHz."""
    assert 990 == GpuClockLock(share_of_max=0.5).prepare(HOST)["mhz"]


def test_a_gpu_that_does_not_work_is_neither_exposed_nor_proven_slow(gpus, rank):
    """The lock is there all the same, and nothing that anybody feels."""
    undo = LOCK.prepare(HOST)
    rank.send_signal(signal.SIGSTOP)

    exposed = LOCK.exposed(HOST, undo)
    LOCK.inject(HOST, undo)
    witness = LOCK.witness(HOST, undo)
    LOCK.revert(HOST, undo)

    assert (False, False) == (exposed.holds, witness.holds)
    assert exposed.says.endswith("did not work")


def test_the_end_of_a_lock_on_an_idle_gpu_rests_on_the_drivers_word_and_says_so(gpus, rank):
    """Until the reset was taken it counts as locked."""
    undo = LOCK.prepare(HOST)
    LOCK.inject(HOST, undo)
    rank.send_signal(signal.SIGSTOP)
    held = LOCK.gone(HOST, undo)

    LOCK.revert(HOST, undo)
    gone = LOCK.gone(HOST, undo)

    assert (False, True) == (held.holds, gone.holds)
    assert gone.says.endswith("has no lock of ours, by the driver's word: it idles, so that its clock says nothing")


def test_a_gpu_that_stays_slow_after_the_reset_is_not_gone(gpus, rank):
    """The driver's word alone is not believed where the clock speaks against it."""
    undo = LOCK.prepare(HOST)
    LOCK.inject(HOST, undo)
    LOCK.revert(HOST, undo)
    gpus.edit(1, lock_low=990, lock_high=990)

    gone = LOCK.gone(HOST, undo)

    assert not gone.holds
    assert gone.says.endswith("still works at 990 MHz, no more than our lock of 990 MHz")


def test_a_clock_that_a_power_cap_holds_down_says_nothing_of_a_lock(gpus, rank):
    """Another cause that the driver names."""
    undo = LOCK.prepare(HOST)
    LOCK.inject(HOST, undo)
    LOCK.revert(HOST, undo)
    gpus.edit(1, limit=200_000)

    gone = LOCK.gone(HOST, undo)

    assert gone.holds
    assert gone.says.endswith("its clock is held down by sw_power_cap")


def test_a_driver_that_says_no_leaves_nothing_locked(gpus, rank):
    """And the revert does not need the right either."""
    undo = LOCK.prepare(HOST)
    gpus.edit(1, failure="no_permission")

    with pytest.raises(GpuError, match=r"GPU 1 .*Insufficient Permissions"):
        LOCK.inject(HOST, undo)

    LOCK.revert(HOST, undo)
    assert [(0, 0), (0, 0)] == locks(gpus)
    assert LOCK.gone(HOST, undo).holds


@pytest.mark.row("L13", "L27")
@pytest.mark.parametrize(
    ("clocks", "proven"),
    [([1980, 990, 990, 990], True), ([990, 990, 990, 1980], False), ([990, 1980, 990, 990], False), ([990, 990], False)],
)
def test_only_the_last_looks_prove_a_lock_and_all_of_them_must(gpus, rank, monkeypatch, clocks, proven):
    """A lock may take a moment to be felt; a clock that rises again was not held by one."""
    undo = LOCK.prepare(HOST)
    LOCK.inject(HOST, undo)
    looks = [Sample(620.0, clock, 0, 100, [rank.pid], 700.0, 0.0) for clock in clocks]
    with monkeypatch.context() as staged:
        staged.setattr(nvml, "look", lambda *_, **__: looks)
        witness = LOCK.witness(HOST, undo)
    LOCK.revert(HOST, undo)

    assert proven == witness.holds


def test_clocks_that_we_never_locked_are_left_alone(gpus, rank):
    """Armed and never injected: a lock that is there by now is its operator's."""
    undo = LOCK.prepare(HOST)
    gpus.edit(1, lock_low=210, lock_high=1800)

    LOCK.revert(HOST, undo)

    assert (210, 1800) == locks(gpus)[1]


def test_a_lock_that_was_set_after_ours_had_ended_is_left_alone(gpus, rank):
    """Whoever reverts once more, as the fuse and `heal` may."""
    undo = LOCK.prepare(HOST)
    LOCK.inject(HOST, undo)
    LOCK.revert(HOST, undo)
    gpus.edit(1, lock_low=210, lock_high=1800)

    LOCK.revert(HOST, undo)

    assert (210, 1800) == locks(gpus)[1]


@pytest.mark.row("L35")
def test_a_lock_whose_mark_somebody_has_cleared_is_ended_by_whoever_set_it(gpus, rank):
    """A folder in memory that is tidied up in the middle of a fault takes no way back; and one that failed is not called gone."""
    undo = LOCK.prepare(HOST)
    LOCK.inject(HOST, undo)
    Path(undo["mark"]).unlink()
    rank.send_signal(signal.SIGSTOP)
    gpus.edit(1, failure="unknown", failing="nvmlDeviceReset")
    with pytest.raises(GpuError):
        LOCK.revert(HOST, undo)
    gpus.edit(1, failure="", failing="")
    held = LOCK.gone(HOST, undo)

    LOCK.revert(HOST, undo)

    assert (False, [(0, 0), (0, 0)]) == (held.holds, locks(gpus))
    assert LOCK.gone(HOST, undo).holds


@pytest.mark.parametrize(
    ("failure", "error"),
    [("unknown", r"GPU 1 .*Unknown Error"), ("hang", r"GPU 1 .*did not answer in time")],
)
def test_a_lock_of_which_nobody_knows_whether_it_was_set_is_ended(gpus, rank, monkeypatch, failure, error):
    """It may have been, before the driver failed."""
    undo = LOCK.prepare(HOST)
    gpus.edit(1, failure=failure, failing="nvmlDeviceSet")
    with monkeypatch.context() as quick:
        quick.setattr(nvml, "SET_WITHIN", 2.0)
        with pytest.raises(NodeError, match=error):
            LOCK.inject(HOST, undo)
    gpus.edit(1, failure="", lock_low=990, lock_high=990)
    held = LOCK.gone(HOST, undo)

    LOCK.revert(HOST, undo)

    assert not held.holds
    assert (0, 0) == locks(gpus)[1]
    assert LOCK.gone(HOST, undo).holds


def test_a_library_that_ends_badly_takes_nothing_from_the_lock(gpus, rank, monkeypatch):
    """It is set, witnessed and ended as any."""
    broken = "import pynvml\ndef fail(): raise pynvml.NVMLError(999)\npynvml.nvmlShutdown = fail\nmain(order)"
    monkeypatch.setattr(children, "CHILD", children.CHILD.replace("main(order)", broken))
    undo = LOCK.prepare(HOST)
    LOCK.inject(HOST, undo)

    held, witness = locks(gpus), LOCK.witness(HOST, undo)
    LOCK.revert(HOST, undo)

    assert ([(0, 0), (990, 990)], True) == (held, witness.holds)
    assert [(0, 0), (0, 0)] == locks(gpus)


def test_a_lock_ends_with_the_driver(gpus, rank):
    """And loaded anew, the clock shows it."""
    undo = LOCK.prepare(HOST)
    LOCK.inject(HOST, undo)
    gpus.unload_driver()
    unloaded = LOCK.gone(HOST, undo)
    gpus.edit(1, lock_low=0, lock_high=0)
    gpus.load_driver()
    loaded = LOCK.gone(HOST, undo)
    LOCK.revert(HOST, undo)

    assert (True, True) == (unloaded.holds, loaded.holds)
    assert loaded.says.endswith("works at 1980 MHz, above our lock of 990 MHz")


def test_after_a_reboot_the_operators_clocks_are_the_boots(gpus, rank):
    """None of ours is left, and what was set since then is not touched."""
    undo = LOCK.prepare(HOST)
    LOCK.inject(HOST, undo)
    Path(undo["mark"]).unlink()  # as /run is empty after a boot
    gpus.edit(1, lock_low=210, lock_high=1800)
    booted = {**undo, "boot_id": "another"}

    LOCK.revert(HOST, booted)

    assert (210, 1800) == locks(gpus)[1]
    assert LOCK.gone(HOST, booted).holds


def test_a_lock_on_a_gpu_that_is_lost_is_owed(gpus, rank):
    """It says which GPU, and what to do."""
    undo = LOCK.prepare(HOST)
    LOCK.inject(HOST, undo)
    gpus.edit(1, failure="lost")

    with pytest.raises(GpuError, match=r"GPU 1 .*GPU is lost .*reset the GPU or reboot"):
        LOCK.revert(HOST, undo)
    with pytest.raises(NodeError):
        LOCK.gone(HOST, undo)

    gpus.edit(1, failure="")
    LOCK.revert(HOST, undo)
    assert LOCK.gone(HOST, undo).holds
