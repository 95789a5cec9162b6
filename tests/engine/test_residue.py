"""What stayed behind: the difference of two looks, and that it never changes a verdict."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaoskit.engine.residue import LONGEST, MOST, Remnant, as_record, is_left, of_record, remnants

pytestmark = pytest.mark.row("L42", "S9", "S10")

NAMES = st.sampled_from(["nic/rail0/carrier_changes", "rdma/mlx5_0:1/link_downed", "gpu/0/ecc_corrected", "gpu/0/ecc_uncorrected"])
COUNTERS = st.dictionaries(NAMES, st.integers(0, 2**64))
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
SNAPSHOT = st.fixed_dictionaries({}, optional=dict.fromkeys(("boot_id", "counters", "kernel", "states"), ANYTHING)) | st.fixed_dictionaries(
    {
        "kernel": st.fixed_dictionaries({"lines": ANYTHING, "lost": ANYTHING, "why": ANYTHING}),
        "states": st.fixed_dictionaries({"slurm": ANYTHING}),
    }
)


def shown(counters=(), boot="b1", lines=(), **states):
    return {"boot_id": boot, "counters": dict(counters), "kernel": {"seq": 1, "lines": [list(line) for line in lines]}, "states": states}


@given(COUNTERS, COUNTERS)
def test_exactly_the_counters_that_moved_are_told(before, after):
    """Each once, by how much it moved; those of one look only are no step."""
    moved = {name for name in before.keys() & after.keys() if before[name] != after[name]}
    told = [one for one in remnants("n1", shown(before), shown(after)) if one.kind == "counter" and "no more" not in one.says]

    assert len(moved) == len(told)
    for name in moved:
        _, device, what = name.split("/")
        step = after[name] - before[name]
        (one,) = [one for one in told if one.says.startswith(f"{what} of ") and device in one.says]
        assert f"{step:+d}" in one.says


@given(COUNTERS)
def test_what_did_not_move_is_not_told(counters):
    assert () == remnants("n1", shown(counters), shown(counters))


@given(SNAPSHOT, SNAPSHOT)
def test_whatever_a_node_sends_it_is_bounded_text(before, after):
    """It never raises, and what it gives can be written down and read again."""
    left = remnants("n1", before, after)

    assert len(left) <= MOST + 1
    assert all(isinstance(one.says, str) and len(one.says) <= LONGEST and len(one.clear) <= LONGEST for one in left)
    assert left == of_record({"remnants": as_record(left)})


def test_each_comes_with_the_command_that_clears_it():
    before = shown({"rdma/mlx5_0:1/link_downed": 0, "nic/rail0/carrier_changes": 4, "gpu/3/ecc_corrected": 1})
    slurm = {"name": "gpu1", "state": "IDLE+DRAIN", "reason": "Kill task failed"}
    after = shown(
        {"rdma/mlx5_0:1/link_downed": 1, "nic/rail0/carrier_changes": 6, "gpu/3/ecc_corrected": 3},
        lines=[(8, 3, "NVRM: Xid (PCI:0000:04:00): 79, pid=1")],
        slurm=slurm,
        gpud={"infiniband": "port flapped"},
    )

    assert [
        Remnant("n1", "counter", "ecc_corrected of GPU 3 +2", "nvidia-smi -i 3 -p 0"),
        Remnant("n1", "counter", "carrier_changes of rail0 +2", ""),
        Remnant("n1", "counter", "link_downed of mlx5_0:1 +1", "perfquery -C mlx5_0 -P 1 -R"),
        Remnant("n1", "kernel", "NVRM: Xid (PCI:0000:04:00): 79, pid=1", "gpud set-healthy, where gpud runs"),
        Remnant("n1", "state", "Slurm has it as IDLE+DRAIN (Kill task failed)", "scontrol update nodename=gpu1 state=resume"),
        Remnant("n1", "state", "gpud has infiniband as unhealthy: port flapped", "gpud set-healthy --components infiniband"),
    ] == list(remnants("n1", before, after))


def test_what_the_fault_does_itself_and_what_nobody_could_read_was_not_left_behind():
    """A link that flapped has changed its carrier, and nothing sets that back; an unreadable log tells nothing."""
    before, after = shown({"nic/rail0/carrier_changes": 0}), shown({"nic/rail0/carrier_changes": 6})
    after["kernel"] = {"why": "cannot read /dev/kmsg"}
    flapped, unread = remnants("n1", before, after, ["link_flap"])

    assert Remnant("n1", "expected", "carrier_changes of rail0 +6, as the fault does") == flapped
    assert [False, False] == [is_left(one) for one in (flapped, unread)]
    assert is_left(remnants("n1", before, after, ["rank_kill"])[0])


def test_a_node_that_was_drained_before_is_told_as_such():
    slurm = {"name": "gpu1", "state": "DRAINED", "reason": "disk"}
    (one,) = remnants("n1", shown(slurm=slurm), shown(slurm=slurm))

    assert "Slurm has it as DRAINED (disk), as it was before" == one.says


def test_no_words_of_a_node_get_into_a_command():
    slurm = {"name": "a; reboot", "state": "DOWN"}
    after = shown({"rdma/$(reboot):1/link_downed": 1}, slurm=slurm, gpud={"`reboot`": "x"})
    left = remnants("n1", shown({"rdma/$(reboot):1/link_downed": 0}), after)

    assert ["", "", "gpud set-healthy"] == [one.clear for one in left]


def test_after_a_reboot_counters_begin_anew_and_only_ports_that_moved_since_are_told():
    left = remnants(
        "n1", shown({"nic/rail0/carrier_changes": 9}), shown({"nic/rail0/carrier_changes": 2, "rdma/mlx5_0:1/link_downed": 1}, "b2")
    )

    assert ["it was rebooted, and its counters began anew", "link_downed of mlx5_0:1 +1"] == [one.says for one in left]


@pytest.mark.parametrize(("before", "after", "word"), [(None, shown(), "before"), (shown(), None, "afterwards")])
def test_a_look_that_nobody_got_is_said(before, after, word):
    (one,) = remnants("n1", before, after)

    assert ("unknown", f"what it showed {word} is not known") == (one.kind, one.says)
