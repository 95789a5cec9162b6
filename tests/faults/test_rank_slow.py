"""One rank gets less of the CPU, below its own control group, and everything is as it was afterwards."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fair_watch import until

from chaoskit.agent import cpu_quota, mounts, procs, ranks
from chaoskit.agent.contract import Refusal, Site, TrainingFacts
from chaoskit.agent.host import Host
from chaoskit.errors import InputError, NodeError
from chaoskit.faults import load, rank_slow
from chaoskit.faults.rank_slow import RankSlow

WORKS = "import time\nwhile True: sum(range(20000)); time.sleep(0.001)"
IDLE = "import signal; signal.pause()"
FAMILY = "import os, time\nos.fork()\nwhile True: sum(range(20000)); time.sleep(0.001)"
FORKS = """
import os, signal, time
signal.signal(signal.SIGUSR1, lambda *_: os.fork())
while True: sum(range(20000)); time.sleep(0.001)
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(rank_slow, "MEASURE", 0.5)
    monkeypatch.setattr(rank_slow, "LOOK", 0.3)


@pytest.fixture
def group(request):
    """Return the folder of a control group of the test's own, where CPU time is shared out; gone afterwards with what is in it."""
    if os.geteuid() != 0:
        pytest.skip("making control groups needs root")
    top, _ = cpu_quota.located(Path("/proc/self/cgroup").read_text(encoding="ascii"), mounts.table())
    folder = Path(top) / "chaoskit-test-{}".format(os.urandom(4).hex())
    folder.mkdir()
    if not (folder / "cpu.stat").exists() or not ((folder / "cpu.max").exists() or (folder / "cpu.cfs_quota_us").exists()):
        folder.rmdir()
        pytest.skip("this machine gives its control groups no cpu controller")
    yield folder
    for below in [*folder.iterdir(), folder]:
        if below.is_dir():
            until(lambda below=below: _emptied(below))


def _emptied(folder):
    for pid in cpu_quota.members(str(folder)):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(OSError):  # somebody is still leaving
        folder.rmdir()
    return not folder.exists()


@pytest.fixture
def run_id(request):
    """Return a run id that no other test's processes have."""
    return "{}-{}".format(request.node.name, os.getpid())


@pytest.fixture
def start(run_id, group):
    """Return a function that starts a rank in the group and waits until it has so many `members`; all are ended afterwards."""
    started = []

    def begin(rank, code=WORKS, members=1, where=group):
        env = {"RANK": str(rank), "LOCAL_RANK": str(rank % 8), "TORCHELASTIC_RUN_ID": run_id}
        inside = "open({!r}, 'w').write('0')\n".format(str(where / "cgroup.procs"))
        process = subprocess.Popen([sys.executable, "-S", "-c", inside + code], env=env, start_new_session=True)
        started.append(process)
        until(lambda: len(ranks.family(run_id, rank)) == members and cpu_quota.folder_of(process.pid) == str(where))
        return process

    yield begin
    for process in started:
        with contextlib.suppress(ProcessLookupError):  # the test killed it, and it had no helpers
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def host(run_id):
    return Host(Site("node7", training=TrainingFacts(run_id=run_id)))


def refusal(fault, host):
    with pytest.raises(Refusal) as refused:
        fault.prepare(host)
    return str(refused.value)


def catches(pid, number):
    status = Path("/proc/{}/status".format(pid)).read_text(encoding="ascii").splitlines()
    return int(next(line.split()[1] for line in status if line.startswith("SigCgt:")), 16) >> (number - 1) & 1


def set_quota(folder, quota, period):
    if (folder / "cpu.max").exists():
        (folder / "cpu.max").write_text("{} {}".format(quota, period), encoding="ascii")
    else:
        (folder / "cpu.cfs_period_us").write_text(str(period), encoding="ascii")
        (folder / "cpu.cfs_quota_us").write_text(str(quota), encoding="ascii")


def where(*pids):
    return [cpu_quota.folder_of(pid) for pid in pids]


def test_exactly_the_rank_and_its_helpers_are_slowed_below_their_own_group(start, host, run_id, group):
    neighbour = start(3)
    start(4, FAMILY, members=2)
    family = [process.pid for process in ranks.family(run_id, 4)]
    fault = RankSlow(rank=4, cpu=0.3)
    undo = fault.prepare(host)
    assert not fault.witness(host, undo).holds
    assert fault.exposed(host, undo).holds

    fault.inject(host, undo)
    evidence = fault.witness(host, undo)

    assert evidence.holds, evidence
    assert evidence.readings["nr_throttled"] > 0
    assert Path(undo["own"]).parent == group
    assert where(*family, neighbour.pid) == [undo["own"]] * 2 + [str(group)]
    assert cpu_quota.read(undo["own"], undo["home"]["version"]) == (undo["quota"], undo["period"])
    assert not fault.gone(host, undo).holds

    fault.revert(host, undo)

    assert where(*family, neighbour.pid) == [str(group)] * 3
    assert [entry for entry in group.iterdir() if entry.is_dir()] == []
    assert fault.gone(host, undo).holds


def test_it_gets_the_stated_share_of_what_it_used_and_no_more(start, host, run_id):
    """Measured by the kernel's account of its CPU time, while it is held."""
    process = start(4)
    fault = RankSlow(rank=4, cpu=0.25)
    undo = fault.prepare(host)
    assert undo["quota"] / undo["period"] == pytest.approx(0.25 * undo["used"], rel=0.01)
    fault.inject(host, undo)

    before, began = procs.read(process.pid).cpu, time.monotonic()
    time.sleep(2)
    used = (procs.read(process.pid).cpu - before) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - began)

    assert used < 0.5 * undo["used"]
    fault.revert(host, undo)


def test_children_born_meanwhile_go_back_too(start, host, run_id, group):
    process = start(4, FORKS)
    until(lambda: catches(process.pid, signal.SIGUSR1))
    fault = RankSlow(rank=4)
    undo = fault.prepare(host)
    fault.inject(host, undo)
    process.send_signal(signal.SIGUSR1)
    until(lambda: len(ranks.family(run_id, 4)) == 2)
    family = [member.pid for member in ranks.family(run_id, 4)]
    assert where(*family) == [undo["own"]] * 2

    fault.revert(host, undo)

    assert where(*family) == [str(group)] * 2


def test_it_nests_below_a_quota_that_is_there_and_leaves_it_alone(start, host, group):
    """As in the lab, where the quota of the group above is the simulated GPU."""
    gpu = group / "gpu0"
    if (group / "cgroup.subtree_control").exists():
        (group / "cgroup.subtree_control").write_text("+cpu", encoding="ascii")
    gpu.mkdir()
    set_quota(gpu, 2000, 5000)
    process = start(4, where=gpu)
    fault = RankSlow(rank=4, cpu=0.5)
    undo = fault.prepare(host)
    fault.inject(host, undo)

    assert fault.witness(host, undo).holds
    assert where(process.pid) == [undo["own"]]
    assert Path(undo["own"]).parent == gpu
    fault.revert(host, undo)
    assert where(process.pid) == [str(gpu)]
    assert cpu_quota.read(str(gpu), undo["home"]["version"]) == (2000, 5000)


def test_a_quota_above_that_is_smaller_refuses_ours_before_anybody_is_moved(start, host, group):
    process = start(4)
    fault = RankSlow(rank=4, cpu=0.9)
    undo = fault.prepare(host)
    if undo["home"]["version"] == 2:
        pytest.skip("v2 takes any quota below a smaller one, which then decides")
    set_quota(group, 1000, 1_000_000)

    with pytest.raises(Refusal, match="a quota above it may be smaller"):
        fault.inject(host, undo)

    assert where(process.pid) == [str(group)]
    fault.revert(host, undo)
    assert fault.gone(host, undo).holds


@pytest.mark.row("L11")
def test_a_rank_that_died_meanwhile_leaves_nothing(start, host, group):
    process = start(4, FAMILY, members=2)
    fault = RankSlow(rank=4)
    undo = fault.prepare(host)
    fault.inject(host, undo)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()

    for _ in range(2):
        fault.revert(host, undo)
        assert fault.gone(host, undo).holds
    assert not fault.witness(host, undo).holds


@pytest.mark.row("L2")
def test_an_inject_that_was_cut_off_is_reverted(start, host, group):
    """The group was made, and the rank not moved yet."""
    process = start(4)
    fault = RankSlow(rank=4)
    undo = fault.prepare(host)
    os.mkdir(undo["own"])
    assert not fault.gone(host, undo).holds

    fault.revert(host, undo)

    assert fault.gone(host, undo).holds
    assert where(process.pid) == [str(group)]


@pytest.mark.row("L11", "L20")
def test_a_group_of_that_name_that_is_not_ours_is_not_taken(start, host, group):
    """Made by somebody between prepare and inject."""
    process = start(4)
    undo = RankSlow(rank=4).prepare(host)
    os.mkdir(undo["own"])

    with pytest.raises(Refusal, match="File exists"):
        RankSlow(rank=4).inject(host, undo)

    assert where(process.pid) == [str(group)]


def test_what_cannot_be_removed_is_said(start, host, group, monkeypatch):
    """Somebody made a group below ours: it is not ours to remove."""
    monkeypatch.setattr(cpu_quota, "REMOVE_WITHIN", 0.1)
    process = start(4)
    fault = RankSlow(rank=4)
    undo = fault.prepare(host)
    fault.inject(host, undo)
    foreign = Path(undo["own"], "foreign")
    foreign.mkdir()

    with pytest.raises(NodeError, match=r"not put back: .*Device or resource busy"):
        fault.revert(host, undo)

    assert where(process.pid) == [str(group)]
    assert not fault.gone(host, undo).holds
    foreign.rmdir()
    fault.revert(host, undo)
    assert fault.gone(host, undo).holds


def test_a_reused_pid_is_never_moved(start, host, group):
    process = start(4)
    undo = RankSlow(rank=4).prepare(host)

    with pytest.raises(Refusal, match="is not in {} any more".format(group)):
        RankSlow(rank=4).inject(host, {**undo, "start_time": undo["start_time"] + 1})

    assert where(process.pid) == [str(group)]
    assert not os.path.exists(undo["own"])


def test_a_rank_that_only_waits_is_refused(start, host):
    """A quota on it would prove nothing."""
    process = start(4, IDLE)

    says = refusal(RankSlow(rank=4), host)

    assert "process {} of rank 4 used 0.0% of a core in 0.5 s, so that no quota would slow it".format(process.pid) in says


def test_a_rank_that_stopped_computing_is_not_exposed(start, host):
    process = start(4)
    undo = RankSlow(rank=4).prepare(host)
    process.send_signal(signal.SIGSTOP)

    evidence = RankSlow(rank=4).exposed(host, undo)

    assert (evidence.holds, len(evidence.readings["cores"])) == (False, rank_slow.LOOKS)
    assert "rank 4 used 0.00 cores, not above the" in evidence.says


def test_a_group_of_an_earlier_run_is_refused(start, host, group):
    start(4)
    if (group / "cgroup.subtree_control").exists():
        (group / "cgroup.subtree_control").write_text("+cpu", encoding="ascii")  # else any group below would be in the way
    (group / "chaoskit-rank_slow-0000").mkdir()

    assert "the group {}/chaoskit-rank_slow-0000 of an earlier run is in the way".format(group) in refusal(RankSlow(rank=4), host)


def test_a_rank_that_is_slowed_already_is_refused(start, host):
    """By another controller: its group would be taken for the rank's own."""
    start(4)
    undo = RankSlow(rank=4).prepare(host)
    RankSlow(rank=4).inject(host, undo)

    assert "the group {} of an earlier run is in the way".format(undo["own"]) in refusal(RankSlow(rank=4), host)
    RankSlow(rank=4).revert(host, undo)


def test_threads_in_several_groups_are_refused(start, host, group):
    """They could not be put back one by one."""
    process = start(4, "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n" + WORKS)
    until(lambda: len(procs.states(process.pid)) == 2)
    other = group / "other"
    other.mkdir()
    thread = next(name for name in os.listdir("/proc/{}/task".format(process.pid)) if name != str(process.pid))
    if (other / "tasks").exists():
        (other / "tasks").write_text(thread, encoding="ascii")
    else:
        (other / "cgroup.type").write_text("threaded", encoding="ascii")
        (other / "cgroup.threads").write_text(thread, encoding="ascii")

    says = refusal(RankSlow(rank=4), host)

    assert "the threads of process {} stand in several groups: {}, {}/other".format(process.pid, group, group) in says


def test_a_real_time_rank_is_refused(start, host, group):
    """The kernel's quota is not for it."""
    process = start(4, IDLE)
    allowed = group / "cpu.rt_runtime_us"
    if allowed.exists():
        allowed.write_text("10000", encoding="ascii")
    os.sched_setscheduler(process.pid, os.SCHED_RR, os.sched_param(1))

    assert "has real-time threads, which no quota slows" in refusal(RankSlow(rank=4), host)


@pytest.mark.parametrize("params", [{"rank": 1, "local_rank": 1}, {"cpu": 0.0}, {"cpu": 1.0}, {"hold": 0}, {"cpu": "50%"}], ids=str)
def test_parameters_that_make_no_sense_are_refused(params):
    with pytest.raises(InputError):
        load("rank_slow", params)
