"""Where a group with a CPU quota can be made, by what the kernel says of the groups that are there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaoskit.agent import cpu_quota
from chaoskit.agent.cpu_quota import Home, MissingError, Quota
from chaoskit.agent.mounts import parsed

V1 = parsed("32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct")
CPUSET = parsed("33 31 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset")
V2 = parsed("34 31 0:31 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw")
CONTAINER = parsed("35 31 0:29 /docker/ab12 /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu")
UNIFIED = parsed("36 31 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw")


@pytest.mark.parametrize(
    ("groups", "table", "folder"),
    [
        ("3:cpuset:/other\n1:cpu,cpuacct:/slurm/job_7\n0::/\n", [CPUSET, V1, UNIFIED], "/sys/fs/cgroup/cpu,cpuacct/slurm/job_7"),
        ("0::/system.slice/slurmd.service/job_7\n", [V2], "/sys/fs/cgroup/system.slice/slurmd.service/job_7"),
        ("1:cpu:/docker/ab12/gpu0\n0::/\n", [CONTAINER], "/sys/fs/cgroup/cpu/gpu0"),
        ("1:cpu:/\n0::/x\n", [V1], "/sys/fs/cgroup/cpu,cpuacct"),
        ("3:cpuset:/other\n0::/x\n", [CPUSET, UNIFIED], "/sys/fs/cgroup/unified/x"),
        ("1:cpu:/a b\n", [parsed("1 1 0:1 / /cg\\040roups rw - cgroup cgroup rw,cpu")], "/cg roups/a b"),
    ],
    ids=["v1", "v2", "container", "top", "hybrid", "spaces"],
)
def test_the_group_is_found_where_cpu_time_is_shared_out(groups, table, folder):
    assert cpu_quota.located(groups, table)[0] == folder


@pytest.mark.parametrize(
    ("groups", "table", "says"),
    [
        ("1:cpu:/docker/cd34\n", [CONTAINER], "its group /docker/cd34 is in no mount here"),
        ("1:cpu:/docker/ab12345\n", [CONTAINER], "its group /docker/ab12345 is in no mount here"),
        ("1:cpu:/../sibling\n", [V1], "its group /../sibling is in no mount here"),
        ("1:cpu:/job\n", [V2], "its group /job is in no mount here"),
        ("3:cpuset:/job\n", [CPUSET], "it stands in no control group of the cpu controller"),
    ],
    ids=["another container", "a longer name", "outside of the namespace", "not mounted", "no controller"],
)
def test_a_group_that_cannot_be_reached_is_refused(groups, table, says):
    with pytest.raises(MissingError, match=says) as missing:
        cpu_quota.located(groups, table)

    assert missing.value.hint


def group(folder, controllers, subtree, root=False):
    folder.mkdir(exist_ok=True)
    (folder / "cgroup.controllers").write_text(controllers + "\n", encoding="ascii")
    (folder / "cgroup.subtree_control").write_text(subtree + "\n", encoding="ascii")
    if not root:
        (folder / "cgroup.type").write_text("domain\n", encoding="ascii")
    return str(folder)


def test_v2_says_which_line_gives_a_group_the_controller(tmp_path):
    folder = group(tmp_path / "job", "memory pids", "")

    with pytest.raises(MissingError, match="has no cpu controller") as missing:
        cpu_quota.examined(folder, V2)

    assert missing.value.hint == "run: echo +cpu > {}/cgroup.subtree_control".format(tmp_path)


def test_v2_s_topmost_group_is_not_changed_for_all(tmp_path):
    folder = group(tmp_path / "top", "cpu memory", "memory", root=True)

    with pytest.raises(MissingError, match="gives no cpu controller") as missing:
        cpu_quota.examined(folder, V2)

    assert missing.value.hint == "run: echo +cpu > {}/cgroup.subtree_control".format(folder)


@pytest.mark.parametrize("subtree", ["", "cpu pids"])
def test_v2_remembers_whether_the_controller_was_handed_down(tmp_path, subtree):
    folder = group(tmp_path / "job", "cpu memory", subtree)

    assert cpu_quota.examined(folder, V2) == Home(folder, 2, handed_down=bool(subtree))


def test_v2_s_group_with_others_below_it_is_not_changed_for_them(tmp_path):
    """The controller that was handed down for ours would be theirs too, and could not be taken back."""
    folder = group(tmp_path / "job", "cpu memory", "memory")
    (tmp_path / "job" / "foreign").mkdir()

    with pytest.raises(MissingError, match="the group {} has others below it".format(folder)) as missing:
        cpu_quota.examined(folder, V2)

    assert missing.value.hint == "remove them, or run: echo +cpu > {}/cgroup.subtree_control".format(folder)


def test_v2_s_group_with_others_below_it_that_have_the_controller_is_taken(tmp_path):
    """There is nothing to take back then."""
    folder = group(tmp_path / "job", "cpu memory", "cpu")
    (tmp_path / "job" / "foreign").mkdir()

    assert cpu_quota.examined(folder, V2).handed_down


def test_v1_needs_no_files(tmp_path):
    assert cpu_quota.examined(str(tmp_path), V1) == Home(str(tmp_path), 1, handed_down=True)


@given(st.floats(cpu_quota.LEAST_RATE, 1000.0))
def test_a_quota_is_one_that_the_kernel_takes_and_amounts_to_what_was_asked(rate):
    """At least a millisecond in a period of at most a second; within half a percent of a core's share."""
    quota = cpu_quota.quota_for(rate)

    assert quota.quota >= 1000
    assert 5000 <= quota.period <= 1_000_000
    assert quota.rate == pytest.approx(rate, rel=0.005)


def test_a_quota_has_the_short_period_where_it_can():
    assert cpu_quota.quota_for(0.4) == Quota(2000, 5000)
    assert cpu_quota.quota_for(8.0) == Quota(40_000, 5000)
    assert cpu_quota.quota_for(0.05) == Quota(1000, 20_000)


@pytest.mark.parametrize(
    ("text", "held"),
    [("nr_periods 9\nnr_throttled 4\nthrottled_time 2500000000\n", 2.5), ("usage_usec 1\nnr_throttled 4\nthrottled_usec 2500000\n", 2.5)],
    ids=["v1", "v2"],
)
def test_both_versions_tell_how_long_a_group_was_held_back(tmp_path, text, held):
    (tmp_path / "cpu.stat").write_text(text, encoding="ascii")

    assert cpu_quota.throttled(str(tmp_path)) == (4, held)


def test_a_group_that_is_gone_was_not_held_back(tmp_path):
    assert cpu_quota.throttled(str(tmp_path / "gone")) == (0, 0.0)
    assert cpu_quota.members(str(tmp_path / "gone")) == []
    assert cpu_quota.remove(str(tmp_path / "gone"), Home(str(tmp_path), 1, handed_down=True)) == []
