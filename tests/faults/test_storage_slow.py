"""What is special about `storage_slow`: each case runs as a program of its own in fresh namespaces (storage_cases.py)."""

import sys
from pathlib import Path

import pytest

CASES = str(Path(__file__).parent / "storage_cases.py")
BLKIO = Path("/sys/fs/cgroup/blkio")

NETWORK = (
    "only_the_server_is_capped",
    "an_ipv6_server_is_capped",
    "a_server_that_hangs_hangs_nobody",
    "a_save_that_outlasts_the_witness_is_slow",
    "a_viewer_that_waits_to_be_reaped_vouches_for_nothing",
    "what_a_killed_probe_left_is_swept",
    "two_that_time_saves_at_once_leave_nothing",
    "a_save_of_this_node_is_exposed_and_one_of_another_is_not",
    "what_another_job_of_this_node_saves_exposes_nothing",
    "storage_that_the_training_does_not_use_is_void",
    "the_view_is_that_of_a_rank",
    "what_the_node_hangs_by_is_refused",
    "what_other_users_have_open_is_refused_unless_the_node_is_shared",
    "what_cannot_be_slowed_or_proven_is_refused",
    "a_cap_of_an_earlier_run_is_named",
    "a_foreign_qdisc_that_came_meanwhile_stays",
    "a_device_that_went_away_took_the_cap_along",
)
LONG = (
    "a_server_that_hangs_hangs_nobody",
    "a_save_that_outlasts_the_witness_is_slow",
    "what_another_job_of_this_node_saves_exposes_nothing",
)
"""Cases that wait for ten seconds and more: `./dev prove` runs them."""
DISK = (
    "a_disk_keeps_every_duty_under_cgroup_v1",
    "a_throttle_that_somebody_else_set_meanwhile_stays",
    "a_save_to_a_disk_is_exposed_by_its_group",
    "a_disk_that_is_throttled_already_is_refused",
)


@pytest.mark.parametrize("case", [pytest.param(case, marks=pytest.mark.prove) if case in LONG else case for case in NETWORK])
def test_on_a_network_file_system(case, isolated):
    """The case's docstring states the promise."""
    done = isolated(sys.executable, CASES, case)

    assert (done.returncode, done.stdout) == (0, "as promised\n"), done.stderr


@pytest.mark.skipif(not BLKIO.is_dir() or not Path("/dev/loop0").exists(), reason="needs the v1 hierarchy blkio, and loop devices")
@pytest.mark.parametrize("case", DISK)
def test_on_a_disk(case, isolated):
    """The case's docstring states the promise."""
    done = isolated(sys.executable, CASES, case)

    assert (done.returncode, done.stdout) == (0, "as promised\n"), done.stderr
