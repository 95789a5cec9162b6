"""The engine on a simulated cluster: every path reverts, and the verdict says no more than was seen."""

import json
import os
import signal
import threading
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulated import Kill, SimAgent, SimClock, SimTraining, Slow
from simulated_cluster import Cluster, injection

from chaoskit.agent.contract import Sign
from chaoskit.engine import journal
from chaoskit.engine.guard import silence
from chaoskit.engine.hold import EVERY
from chaoskit.engine.replay import read_run, state_of
from chaoskit.engine.state import RunState
from chaoskit.errors import ChaosError, TrainingError
from chaoskit.judge.timeline import Observed
from chaoskit.judge.verdict import Outcome
from chaoskit.model.experiment import Abort, Budgets
from chaoskit.model.wire import Finding, Held


@pytest.fixture
def cluster(tmp_path):
    return Cluster(tmp_path)


@pytest.fixture(autouse=True)
def _hears_hangups():
    """The suite itself may run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


class LiveClock(SimClock):
    """Time passes by itself as well, so that no two moments are the same, as on a real machine."""

    def now(self) -> float:
        self.time += 1e-4
        return self.time


def test_the_node_of_a_log_is_reached_though_it_does_not_train(cluster):
    cluster.training = SimTraining(cluster.clock, {name: cluster.nodes[name] for name in ("n1", "n2")})
    cluster.training.log_nodes = ("n3",)
    result = cluster.run(injection())

    assert Outcome.PASSED is result.verdict.outcome
    assert ["3 nodes"] == [event.says for event in cluster.events if event.kind == "connected"]


def test_a_held_fault_is_felt_reverted_proven_and_judged(cluster):
    result = cluster.run(
        injection(together=True, targets=("n1", "n2")), budgets=Budgets(restarts=0, throughput_during=0.4, settle_time=10.0)
    )

    assert result.verdict.outcome is Outcome.PASSED
    assert result.verdict.injections[0].gone.holds is True
    assert result.verdict.injections[0].spread == pytest.approx(0.0, abs=1e-6)
    assert result.verdict.quantities["throughput_during"].value.mid == pytest.approx(0.5, abs=0.05)
    assert cluster.owed == []
    assert cluster.training.stopped


def test_a_node_that_the_fault_takes_away_comes_back_into_the_run(cluster):
    result = cluster.run(injection(Kill()), budgets=Budgets(restarts=1, lost_steps=10))

    facts = result.verdict.injections[0]
    assert (facts.present.holds, facts.gone.holds) == (True, True)
    assert facts.t0 is not None
    assert result.verdict.outcome is Outcome.PASSED


@pytest.mark.row("L32")
def test_a_node_that_dies_without_a_word_is_taken_away_as_well(cluster):
    """A machine that reboots hard closes no connection: the request runs into its deadline before the loss is noticed."""
    cluster.nodes["n2"].dies_silently = True
    result = cluster.run(injection(Kill()), budgets=Budgets(restarts=1, lost_steps=10))

    assert result.verdict.outcome is Outcome.PASSED
    assert result.verdict.injections[0].present.holds is True


def fill_the_disk(path: Path) -> None:
    """Let every further write to a file that this process has open fail as on a full disk."""
    full = os.open("/dev/full", os.O_WRONLY)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if Path(f"/proc/self/fd/{fd}").exists() and Path(f"/proc/self/fd/{fd}").resolve() == path.resolve():
            os.dup2(full, fd)
    os.close(full)


@pytest.mark.row("R6", "L22")
def test_an_arming_whose_answer_got_lost_is_owed(cluster, monkeypatch):
    """The node may have done it, and never comes back: the journal says so before it is asked."""
    arm = SimAgent.arm

    def lost(agent, entry, lease):
        arm(agent, entry, lease)
        agent.node.cut_until = float("inf")
        return arm(agent, entry, lease)

    monkeypatch.setattr(SimAgent, "arm", lost)
    result = cluster.run(injection())

    assert result.verdict.outcome is Outcome.LEAKED
    assert [entry.owes for entry in state_of(cluster.run_dir)[0].entries.values()] == [True]


@pytest.mark.row("L8", "R10")
@pytest.mark.parametrize("targets", [("n2",), ("n1", "n2")])
def test_what_a_node_refuses_to_arm_is_not_owed(cluster, targets):
    """Another run was faster, and what it does there cannot be seen gone: that is its debt, not ours, and no reason to wait."""

    def taken(_):
        cluster.nodes["n2"].refuses, cluster.nodes["n2"].refuses_at = "nic:eth2 is taken by run other of ops@far:1", "arm"
        cluster.nodes["n2"].never_gone = cluster.nodes["n2"].entries["sim-run/0/n2"].harmed = True

    cluster.on_event["exposed"] = taken
    result = cluster.run(injection(targets=targets))
    told = [*result.verdict.reasons, *(event.says for event in cluster.events)]

    assert Outcome.INCONCLUSIVE is result.verdict.outcome
    assert "n2: nic:eth2 is taken by run other of ops@far:1" in result.verdict.reasons
    assert [] == [says for says in told if "armed" in says or "leaked" in says]
    assert result.elapsed < 60.0, "the lease and the time to come back were waited for"
    assert [] == [entry for entry in state_of(cluster.run_dir)[0].entries.values() if entry.owes]
    assert [name for name in targets if name != "n2"] == [event.data["node"] for event in cluster.events if event.kind == "ended"]


@pytest.mark.row("R3")
def test_a_disk_that_fills_before_the_harm_leaves_nothing_leaked(cluster):
    """The record of the first arming is refused: no node was asked for anything, and the nodes prove it."""

    def fill(event):
        if event.data["entry"].endswith("n2"):
            fill_the_disk(cluster.run_dir / journal.NAME)

    cluster.on_event["exposed"] = fill
    result = cluster.run(injection(targets=("n1", "n2")))

    assert result.verdict.outcome is Outcome.INCONCLUSIVE
    assert all(entry.t0 is None for node in cluster.nodes.values() for entry in node.entries.values())
    assert "No space left" in " ".join(result.verdict.reasons)
    assert "No space left" in " ".join(result.notes)


@pytest.mark.row("L6", "L21")
def test_the_undo_is_in_the_journal_before_anything_is_armed(cluster):
    cluster.run(injection())

    kinds = [record["kind"] for record in journal.read(cluster.run_dir).records]
    planned = next(record for record in journal.read(cluster.run_dir).records if record["kind"] == "planned")
    assert planned["undo"] == {"was": "fast"}
    assert (planned["boot_id"], planned["site"]["node"]) == ("n2-boot-0", "n2")
    assert kinds.index("planned") < kinds.index("armed") < kinds.index("injected") < kinds.index("ended") < kinds.index("verdict")


@pytest.mark.row("R7", "L22")
def test_many_nodes_cost_no_more_waits_for_the_disk_than_one(cluster, tmp_path, monkeypatch):
    """On a slow disk a wait for each node and stage would cost all of them their leases; all is on the disk before any is armed."""
    sync, arm, synced, waits = os.fsync, SimAgent.arm, [], []

    def counted(fd):
        sync(fd)
        synced.append(os.fstat(fd).st_size)

    def armed(agent, entry, lease):
        assert synced[-1] == (tmp_path / journal.NAME).stat().st_size
        return arm(agent, entry, lease)

    one, both = injection(targets=("n1",)), injection(targets=("n2", "n3"), number=1, together=True)
    session = cluster.session(one, both)
    session.connect()
    session.start()
    monkeypatch.setattr(os, "fsync", counted)
    monkeypatch.setattr(SimAgent, "arm", armed)
    for planned in (one, both):
        before = len(synced)
        session.inject(planned)
        waits.append(len(synced) - before)
    session.close()

    assert waits[0] == waits[1]


def test_what_nodes_want_a_person_to_know_is_said_once_for_all_of_them(cluster):
    for name in ("n1", "n3"):
        cluster.nodes[name].notes = ("other users' processes: eve",)
    cluster.run(injection())

    assert [event.says for event in cluster.events if event.kind == "note"] == ["n[1,3]: other users' processes: eve"]


def test_a_missed_budget_fails(cluster):
    result = cluster.run(injection(), budgets=Budgets(throughput_during=0.9))

    assert result.verdict.outcome is Outcome.FAILED
    assert "throughput_during" in result.verdict.reasons[0]


@pytest.mark.row("L21")
def test_a_refusal_on_one_node_comes_before_harm_on_any(cluster):
    cluster.nodes["n3"].refuses = "eth0 carries the SSH connection"
    result = cluster.run(injection(targets=("n1", "n2", "n3")))

    assert result.verdict.outcome is Outcome.INCONCLUSIVE
    assert "n3" in result.verdict.reasons[0]
    assert "eth0 carries" in result.verdict.reasons[0]
    assert all(entry.t0 is None for node in cluster.nodes.values() for entry in node.entries.values())


def test_what_a_fault_needs_and_its_target_lacks_is_found_before_the_training_starts(cluster):
    """With the doctor's words; a node that no fault comes to may lack what it likes."""
    lack = Finding("tools", "defect", "slow needs sch_netem of the kernel: it was built without it", "boot another")
    cluster.nodes["n2"].findings = cluster.nodes["n3"].findings = {"tools": (lack,)}
    result = cluster.run(injection(targets=("n2",)))

    assert Outcome.INCONCLUSIVE is result.verdict.outcome
    assert result.verdict.reasons[0].startswith("n2: slow needs sch_netem of the kernel: it was built without it")
    assert not any("starting the training" in event.says for event in cluster.events)


def test_who_is_the_odd_one_out_of_the_training_is_said_and_the_run_goes_on(cluster):
    for name, mtu in (("n1", "9000"), ("n2", "9000"), ("n3", "1500")):
        cluster.nodes[name].findings = {"alike": (Finding("alike", "ok", "", "", {"facts": {"rail 0 MTU": mtu}}),)}
    result = cluster.run(injection())

    assert Outcome.PASSED is result.verdict.outcome
    notes = [event.says for event in cluster.events if event.kind == "note"]
    assert ["n3: rail 0 MTU is 1500, and 9000 on 2 of 3 in the training"] == notes


def test_an_unreachable_node_is_inconclusive_and_nothing_starts(cluster):
    cluster.nodes["n2"].cut_until = float("inf")
    result = cluster.run(injection())

    assert result.verdict.outcome is Outcome.INCONCLUSIVE
    assert "n2" in result.verdict.reasons[0]
    assert cluster.training.step == 0


@pytest.mark.row("L19")
def test_zero_targets_are_inconclusive(cluster):
    assert cluster.run(empty="group `spares` has no node").verdict.outcome is Outcome.INCONCLUSIVE


@pytest.mark.row("L46")
def test_leftovers_of_an_earlier_run_stop_a_new_one(cluster, tmp_path):
    agent = cluster.fleet.connect(["n1"])["n1"]
    agent.prepare("old", "old/0/n1", "slow", {}, None)
    agent.arm("old/0/n1", 1e9)
    result = cluster.run(injection())

    assert result.verdict.outcome is Outcome.INCONCLUSIVE
    assert "old/0/n1" in result.verdict.reasons[0]


@pytest.mark.row("L17")
def test_no_progress_aborts_and_reverts(cluster):
    cluster.on_event["injected"] = lambda _: setattr(cluster.training, "next_at", float("inf"))
    result = cluster.run(injection(Slow(hold=300.0)), abort=Abort(no_progress=20.0))

    assert result.verdict.outcome in (Outcome.ABORTED, Outcome.FAILED)
    assert any("no new step" in reason for reason in result.verdict.reasons)
    assert cluster.owed == []


@pytest.mark.row("L17", "L28")
def test_a_training_that_dies_fails(cluster):
    cluster.on_event["injected"] = lambda event: setattr(cluster.training, "dies_at", cluster.clock.now() + 1.0)
    result = cluster.run(injection(Kill()), budgets=Budgets(time_to_recover=30.0))

    assert result.verdict.outcome is Outcome.FAILED
    assert result.verdict.quantities["time_to_recover"].beyond


def test_a_dead_training_is_not_hit_again(cluster):
    cluster.on_event["injected"] = lambda event: setattr(cluster.training, "dies_at", cluster.clock.now() + 1.0)
    result = cluster.run(injection(), injection(targets=("n3",), number=1, after=30.0))

    assert result.verdict.outcome is Outcome.FAILED
    assert any("died" in reason for reason in result.verdict.reasons)
    assert not cluster.nodes["n3"].entries


def test_a_training_that_ends_before_any_fault_is_not_waited_for(cluster):
    cluster.training.dies_at = cluster.clock.now() + 5.0
    result = cluster.run(injection(), steady_within=600.0)

    assert result.verdict.outcome is Outcome.INCONCLUSIVE
    assert "ended before any fault: exit code 1" in result.verdict.reasons[0]
    assert result.elapsed < 10.0


@pytest.mark.row("L4")
def test_what_cannot_be_proven_gone_is_leaked(cluster):
    cluster.nodes["n2"].never_gone = True
    result = cluster.run(injection())

    assert result.verdict.outcome is Outcome.LEAKED
    assert [event.says for event in cluster.events if event.kind == "ended"] == ["n2: still harmed"]  # once, however often it was tried


@pytest.mark.row("L4", "L5")
def test_a_node_lost_for_good_while_the_fault_is_held_is_leaked_not_passed(cluster):
    cluster.on_event["injected"] = lambda _: setattr(cluster.nodes["n2"], "cut_until", float("inf"))
    result = cluster.run(injection())

    assert result.verdict.outcome is Outcome.LEAKED


@pytest.mark.row("R6")
def test_a_channel_cut_and_back_reads_the_ledger_and_goes_on(cluster):
    cluster.on_event["injected"] = lambda _: setattr(cluster.nodes["n2"], "cut_until", cluster.clock.now() + 4.0)
    result = cluster.run(injection(Slow(hold=10.0)))

    assert result.verdict.outcome is Outcome.PASSED
    assert result.verdict.injections[0].gone.holds is True


@pytest.mark.row("L28")
def test_an_observer_that_is_blind_to_the_end_cannot_fail_the_training(cluster):
    """The blind span ends with the last look, and reading the clock again makes no later one."""
    cluster.clock.__class__ = LiveClock
    blind = []
    cluster.on_event["ended"] = lambda _: blind.append(cluster.clock.time)
    poll = cluster.training.poll
    cluster.training.poll = lambda now: Observed(blind=((blind[0], now),)) if blind else poll(now)
    result = cluster.run(injection(), budgets=Budgets(time_to_steady=50.0))

    assert result.verdict.outcome is Outcome.INCONCLUSIVE
    assert any("blind" in reason for reason in result.verdict.reasons)
    assert read_run(cluster.run_dir).verdict == result.verdict


def test_an_ending_that_takes_long_is_no_silence_of_the_training(cluster):
    def stop():
        cluster.clock.sleep(65.0)
        raise TrainingError("the training may still run on n2")

    cluster.training.stop = stop
    result = cluster.run(injection(), budgets=Budgets(restarts=0))

    assert result.verdict.outcome is Outcome.PASSED
    assert result.teardown_errors == ("the training may still run on n2",)
    assert read_run(cluster.run_dir).verdict == result.verdict


def test_what_was_logged_during_a_long_refusal_is_no_silence_of_the_training(cluster):
    """The second injection is refused late; the training went on meanwhile, and nobody looked."""
    cluster.nodes["n3"].refuses = "no"
    cluster.on_event["trouble"] = lambda _: cluster.clock.sleep(20.0)
    result = cluster.run(injection(), injection(targets=("n3",), number=1, after=30.0))

    assert result.verdict.outcome is Outcome.INCONCLUSIVE
    assert not any("silent" in reason for reason in result.verdict.reasons)


def test_leases_are_renewed_by_the_loop_while_a_fault_is_held(cluster):
    cluster.run(injection(Slow(hold=65.0)), watch=30.0)

    assert cluster.nodes["n2"].renewals >= 12


def test_leases_are_renewed_while_another_node_is_slow_to_answer(cluster):
    """The second node takes six seconds to prepare; here its answer comes when the first one's lease is renewed, or never."""
    agents = cluster.fleet.connect(["n1", "n2"])
    cluster.fleet.connect = lambda names: agents
    renew, prepare = agents["n1"].renew, agents["n2"].prepare
    asked, slow = [], Future()

    def slow_to_prepare(*args):
        cluster.clock.sleep(6.0)
        asked.append(prepare(*args).result())
        return slow

    def renewed(*args):
        if asked and not slow.done():
            slow.set_result(asked[0])
        return renew(*args)

    agents["n1"].renew, agents["n2"].prepare = renewed, slow_to_prepare
    cluster.training.all = {name: cluster.nodes[name] for name in agents}
    result = cluster.run(injection(Slow(hold=20.0), targets=("n1",)), injection(targets=("n2",), number=1, after=8.0))

    assert result.verdict.outcome is Outcome.PASSED, result.verdict.reasons


@pytest.mark.row("R10", "L8")
@pytest.mark.parametrize("verb", ["audit", "strays", "examine", "revert"])
def test_the_nodes_stay_ours_while_another_is_slow_to_answer(cluster, monkeypatch, verb):
    """From the first look for leftovers to the last for residue; the answer comes when the hold on another node is renewed, or never."""
    monkeypatch.setattr(Slow, "signs", (Sign.GPU_SLOW,))
    agents = cluster.fleet.connect(["n1", "n2", "n3"])
    cluster.fleet.connect = lambda names: agents
    ask, hold = getattr(agents["n2"], verb), agents["n1"].hold
    late = []

    def slowly(*args, **more):
        cluster.clock.sleep(EVERY + 1.0)
        late.append((Future(), ask(*args, **more)))
        return late[-1][0]

    def held(*args):
        for future, answer in late:
            if not future.done():
                future.set_result(answer.result())
        return hold(*args)

    setattr(agents["n2"], verb, slowly)
    agents["n1"].hold = held
    planned = injection(Slow(hold=60.0))
    session = cluster.session(planned)
    session.connect()
    session.start()
    session.inject(planned)
    session.conclude()
    assert late
    assert all(future.done() for future, _ in late)
    session.close()
    assert not cluster.owed


def test_nodes_that_another_run_has_taken_are_reverted_all_the_same(cluster):
    """Whoever comes too late to renew its hold still pays what it owes."""
    agents = cluster.fleet.connect(["n1", "n2", "n3"])
    cluster.fleet.connect = lambda names: agents
    planned = injection(Slow(hold=60.0), targets=("n1", "n2"))
    session = cluster.session(planned)
    session.connect()
    session.start()
    session.inject(planned)
    revert, lost = agents["n2"].revert, Future()

    def slowly(entry):
        cluster.nodes["n3"].holder = Held("other", "bob@desk:8", 0.0, 60.0)
        threading.Timer(0.6, lambda: lost.set_result(revert(entry).result())).start()
        cluster.clock.sleep(EVERY + 1.0)
        return lost

    agents["n2"].revert = slowly
    session.close()
    assert lost.done()
    assert not cluster.owed
    assert not session.result.notes


class Slowness:
    """n2's answers to a verb: they come when n1's lease is renewed for the second time after, or never."""

    def __init__(self, monkeypatch, cluster, verb):
        self.late = []
        ask, renew = getattr(SimAgent, verb), SimAgent.renew

        def slowly(agent, *args):
            if agent.name != "n2":
                return ask(agent, *args)
            self.late.append([Future(), ask(agent, *args), 2])
            cluster.clock.sleep(6.0)
            return self.late[-1][0]

        def renewed(agent, *args):
            answer = renew(agent, *args)
            for one in self.late if agent.name == "n1" else ():
                if one[2] == 1:
                    one[0].set_result(one[1].result())
                elif one[2] == 2:
                    cluster.clock.sleep(6.0)
                one[2] -= 1
            return answer

        monkeypatch.setattr(SimAgent, verb, slowly)
        monkeypatch.setattr(SimAgent, "renew", renewed)

    @property
    def answered(self):
        return [future.done() for future, _, _ in self.late]


@pytest.fixture
def two_held(cluster):
    """A session that holds a fault on n1 for 60 s, and one on n2 for 8 s whose witness has not seen it yet."""
    long, short = injection(Slow(hold=60.0), targets=("n1",)), injection(number=1)
    cluster.nodes["n2"].witnessed = False
    session = cluster.session(long, short)
    session.connect()
    session.start()
    session.await_steady()
    session.lives = [*session.inject(long), *session.inject(short)]
    cluster.nodes["n2"].witnessed = True
    yield session
    session.close()


@pytest.mark.row("R7", "L47")
@pytest.mark.parametrize("verb", ["entries", "witness"])
def test_leases_are_renewed_while_a_node_that_is_back_is_slow_to_tell(cluster, monkeypatch, two_held, verb):
    """What happened there is asked while the others' faults go on; its own ended in time while it was away, and is no lapse."""
    cluster.nodes["n2"].cut_until = cluster.clock.now() + 12.0
    slow = Slowness(monkeypatch, cluster, verb)
    two_held.watch(120.0)
    two_held.close()

    assert slow.answered == [True]
    assert two_held.result.verdict.outcome is Outcome.PASSED


@pytest.mark.row("R7", "L47")
def test_a_node_that_was_told_to_revert_may_say_that_it_has_while_another_is_slow_to(cluster, monkeypatch, two_held):
    """A renewal's answer that names what we have just ended is no lapse."""
    slow = Slowness(monkeypatch, cluster, "revert")
    two_held.revert(two_held.lives)

    assert slow.answered == [True]
    assert not cluster.owed


def test_judgements_that_take_long_leave_most_of_the_time_to_the_leases(cluster):
    """Two seconds a judgement, as for a day of steps: at most a fifth of the watch is spent on them."""
    cluster.on_event["phase"] = lambda _: cluster.clock.sleep(2.0)
    cluster.run(injection(Slow(hold=65.0)), watch=30.0)

    assert 5 <= sum(event.kind == "phase" for event in cluster.events) <= 11
    assert cluster.nodes["n2"].renewals >= 12


def test_a_judgement_during_which_we_were_stopped_does_not_put_off_the_next_for_long(cluster):
    judged = []

    def stopped(_event):
        judged.append(cluster.clock.now())
        if len(judged) == 2:
            cluster.clock.sleep(25.0)

    cluster.on_event["phase"] = stopped
    cluster.run(injection(Slow(hold=150.0)), watch=10.0)

    assert max(later - earlier for earlier, later in pairwise(judged)) < 60.0


def test_no_progress_is_told_from_the_highest_step_whenever_its_line_came():
    """Twenty samples of a new life that repeats old steps are no progress."""
    state = RunState()
    state.apply({"at": 10.0, "kind": "observed", "samples": [[9.0, 9.5, 50, "a"], [9.5, 10.0, 51, "a"]]})
    state.apply({"at": 30.0, "kind": "observed", "samples": [[20.0 + step, 21.0 + step, 40 + step, "b"] for step in range(12)]})

    assert silence(state, 40.0) == 30.0
    state.apply({"at": 41.0, "kind": "observed", "samples": [[40.0, 41.0, 52, "b"]]})
    assert silence(state, 42.0) == 1.0
    assert silence(RunState(), 40.0) == 0.0


@pytest.mark.row("R7", "R11", "L47")
def test_an_engine_that_hung_past_its_lease_says_so(cluster):
    slept = []

    def hang(event):
        if not slept:
            slept.append(True)
            cluster.clock.sleep(40.0)

    cluster.on_event["witness"] = hang
    result = cluster.run(injection(Slow(hold=100.0)))

    assert result.verdict.outcome is Outcome.ABORTED
    assert any("lease" in reason for reason in result.verdict.reasons)
    assert cluster.owed == []


@pytest.mark.row("L47")
def test_a_fault_that_the_lease_cut_short_is_no_fault_that_ended_in_time(cluster):
    """Nobody came for a minute: the node's own end of the fault is heard of first, and must not pass for the end of its hold."""
    slept = []

    def hang(event):
        if event.says == "held" and not slept:  # by now the node is being asked when it ends
            slept.append(True)
            cluster.clock.sleep(60.0)

    cluster.on_event["phase"] = hang
    result = cluster.run(injection(Slow(hold=50.0)), budgets=Budgets(restarts=0))

    assert result.verdict.outcome is Outcome.ABORTED
    assert any("the lease ended before it was renewed" in reason for reason in result.verdict.reasons)
    assert cluster.owed == []


def test_a_node_that_got_no_renewal_ends_the_run_though_the_others_got_theirs(cluster):
    """One connection is lost for longer than the lease: the node has healed itself, and says when it ended before it is renewed."""
    cluster.on_event["injected"] = lambda event: setattr(cluster.nodes["n2"], "cut_until", cluster.clock.now() + 45.0)
    result = cluster.run(injection(Slow(hold=100.0), targets=("n1", "n2"), together=True), budgets=Budgets(restarts=0))

    assert result.verdict.outcome is Outcome.ABORTED
    assert "the lease ended before it was renewed; healed by the node itself: sim-run/0/n2" in result.verdict.reasons[0]
    assert cluster.nodes["n1"].renewals >= 5
    assert cluster.owed == []


def test_a_node_that_is_back_before_its_lease_ends_is_renewed_at_once(cluster):
    """Cut for longer than the pause between renewals, but not for a lease: the fault is held to its end."""
    cluster.on_event["injected"] = lambda event: setattr(cluster.nodes["n2"], "cut_until", cluster.clock.now() + 27.0)
    result = cluster.run(injection(Slow(hold=100.0)), budgets=Budgets(restarts=0))

    assert result.verdict.outcome is Outcome.PASSED


def held_for(cluster, seconds, then):
    """Hold a fault for 100 s in a session, do something after so many seconds, close it, and return the verdict."""
    planned = injection(Slow(hold=100.0))
    session = cluster.session(planned)
    try:
        session.connect()
        session.start()
        session.await_steady()
        lives = session.inject(planned)
        session.wait(seconds)
        then(session, lives)
    except ChaosError as error:
        session.end_early(error)
    finally:
        session.close()
    return session.result.verdict


def test_a_revert_before_its_time_is_no_fault_that_was_cut_short(cluster):
    verdict = held_for(cluster, 20.0, lambda session, lives: (session.revert(lives), session.watch(60.0)))

    assert verdict.outcome is Outcome.PASSED, verdict.reasons


def test_a_revert_after_a_hang_does_not_hide_that_the_lease_had_run_out(cluster):
    """As a test does that sleeps inside its `with` block: the node has healed itself before it was asked."""
    verdict = held_for(cluster, 0.0, lambda session, lives: (cluster.clock.sleep(60.0), session.revert(lives), session.watch(60.0)))

    assert verdict.outcome is Outcome.ABORTED
    assert "the lease ended before it was renewed" in verdict.reasons[0]


def heal(cluster):
    """End the fault as somebody else would, from another machine."""
    cluster.fleet.connect(["n2"])["n2"].heal(None, ())


@pytest.mark.parametrize(
    ("seconds", "then"),
    [
        (20.0, lambda cluster, session, lives: (heal(cluster), session.watch(60.0))),
        (20.0, lambda cluster, session, lives: (heal(cluster), cluster.clock.sleep(2.0), session.revert(lives), session.watch(60.0))),
        (20.0, lambda cluster, *_: (heal(cluster), cluster.clock.sleep(2.0))),
    ],
    ids=["heard of", "then reverted", "then concluded"],
)
def test_a_fault_that_ended_before_its_time_never_passes_whoever_ended_it(cluster, seconds, then):
    verdict = held_for(cluster, seconds, lambda session, lives: then(cluster, session, lives))

    assert verdict.outcome is Outcome.ABORTED
    assert "n2 ended slow after 20 s of 100 s: its next span failed there, or somebody healed it" in verdict.reasons[0]


def test_a_hang_before_the_end_of_the_run_is_told_from_what_the_node_says(cluster):
    """Nobody ticks any more: the end of the fault says that its lease had run out."""
    verdict = held_for(cluster, 0.0, lambda *_: cluster.clock.sleep(60.0))

    assert verdict.outcome is Outcome.ABORTED
    assert "n2 ended slow after 30 s of 100 s: its lease had run out" in verdict.reasons[0]


def test_a_kill_needs_no_lease(cluster):
    """Nothing of a kill can be cut short: a controller that slept through it saw it all the same."""
    slept = []

    def hang(_event):
        if not slept:
            slept.append(True)
            cluster.clock.sleep(60.0)

    cluster.on_event["injected"] = hang
    result = cluster.run(injection(Kill()), budgets=Budgets(restarts=1))

    assert result.verdict.outcome is Outcome.PASSED


@pytest.mark.row("R11", "L25", "L30")
@pytest.mark.parametrize("when", ["connected", "steady", "injected", "witness"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_signals_revert_then_judge_then_tear_down(cluster, when, number):
    cluster.on_event[when] = lambda _: signal.raise_signal(number)
    result = cluster.run(injection(Slow(hold=100.0)))

    assert result.verdict.outcome is Outcome.ABORTED
    assert signal.Signals(number).name in " ".join(result.verdict.reasons)
    assert cluster.owed == []


@pytest.mark.row("R11", "L36")
def test_a_second_signal_cannot_interrupt_the_reverts(cluster, capfd):
    cluster.on_event["injected"] = lambda _: signal.raise_signal(signal.SIGINT)
    cluster.on_event["ended"] = lambda _: signal.raise_signal(signal.SIGINT)
    result = cluster.run(injection(Slow(hold=100.0), targets=("n1", "n2")))

    assert result.verdict.outcome is Outcome.ABORTED
    assert cluster.owed == []
    assert "the run is ending already" in capfd.readouterr().err


def test_a_signal_too_late_for_the_verdict_is_told_all_the_same(cluster):
    """Whoever runs several experiments must not begin the next one."""
    cluster.on_event["verdict"] = lambda _: signal.raise_signal(signal.SIGTERM)
    result = cluster.run(injection(Slow(hold=10.0)))

    assert (result.verdict.outcome, result.heard) == (Outcome.PASSED, "SIGTERM")


@pytest.mark.row("R11", "L25")
def test_a_terminal_that_closes_costs_neither_reverts_nor_verdict_nor_teardown(cluster):
    """SIGHUP tells that the terminal is gone: from then on whoever shows the run fails."""

    def hang_up(_event):
        signal.raise_signal(signal.SIGHUP)

    def dead_terminal(event):
        if cluster.events[-1].kind in ("aborted", "stage", "ended", "verdict") and hung_up:
            raise OSError(5, "Input/output error")

    hung_up = []
    cluster.on_event["injected"] = lambda event: (hung_up.append(event), hang_up(event))
    for kind in ("aborted", "stage", "ended", "verdict"):
        cluster.on_event[kind] = dead_terminal
    result = cluster.run(injection(Slow(hold=100.0)))

    assert result.verdict.outcome is Outcome.ABORTED
    assert cluster.owed == []
    assert cluster.training.stopped
    assert any("could not be shown" in note for note in result.notes)


def test_a_closed_standard_error_does_not_interrupt_the_reverts(cluster):
    """Several processes pass SIGHUP on when a terminal closes, and the answer to the second one has nowhere to go."""
    kept, (nobody, end) = os.dup(2), os.pipe()
    os.close(nobody)
    os.dup2(end, 2)
    os.close(end)
    cluster.on_event["injected"] = lambda _: signal.raise_signal(signal.SIGHUP)
    cluster.on_event["ended"] = lambda _: signal.raise_signal(signal.SIGHUP)
    try:
        result = cluster.run(injection(Slow(hold=100.0), targets=("n1", "n2")))
    finally:
        os.dup2(kept, 2)
        os.close(kept)

    assert result.verdict.outcome is Outcome.ABORTED
    assert cluster.owed == []
    assert result.notes == ()


def test_a_hangup_that_nohup_ignores_stays_ignored(cluster):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    cluster.on_event["injected"] = lambda _: signal.raise_signal(signal.SIGHUP)
    try:
        assert cluster.run(injection()).verdict.outcome is Outcome.PASSED
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.row("L15")
def test_a_defect_of_ours_still_reverts_and_is_not_swallowed(cluster):
    def fail(_event):
        raise ZeroDivisionError

    cluster.on_event["witness"] = fail
    with pytest.raises(ZeroDivisionError):
        cluster.run(injection(Slow(hold=100.0)))
    assert cluster.owed == []
    verdict = read_run(cluster.run_dir).verdict
    assert (verdict.outcome, verdict.reasons[0]) == (Outcome.INCONCLUSIVE, "ended by ZeroDivisionError")


def test_a_defect_when_all_was_well_keeps_the_journal_from_saying_passed(cluster):
    """The training is steady again, so that nothing else is wrong with the run."""

    def fail(event):
        if event.says == "steady" and any(each.kind == "ended" for each in cluster.events):
            raise ZeroDivisionError("a defect\nof two lines")

    cluster.on_event["phase"] = fail
    with pytest.raises(ZeroDivisionError):
        cluster.run(injection())
    verdict = read_run(cluster.run_dir).verdict
    assert (verdict.outcome, verdict.reasons[0]) == (Outcome.INCONCLUSIVE, "ended by ZeroDivisionError: a defect of two lines")


def test_a_report_from_the_journal_alone_says_the_same(cluster):
    result = cluster.run(injection(), budgets=Budgets(restarts=0))
    again = read_run(cluster.run_dir)

    assert again.verdict == result.verdict
    assert again.info == result.info
    assert again.complete


@pytest.mark.row("L3")
def test_a_report_says_when_a_debt_was_paid_later(cluster):
    cluster.nodes["n2"].never_gone = True
    cluster.run(injection())
    book = journal.Journal(cluster.run_dir, new=False)
    book.append("healed", cluster.clock.now(), {"entry": "sim-run/0/n2", "says": "back as it was"})
    book.close()

    assert read_run(cluster.run_dir).verdict.outcome is Outcome.LEAKED
    assert read_run(cluster.run_dir).notes == ("sim-run/0/n2 was paid later by `chaoskit heal`",)


@pytest.mark.row("R1", "L4")
def test_a_journal_that_ends_while_a_fault_is_owed_is_leaked_and_incomplete(cluster):
    cluster.run(injection())
    path = cluster.run_dir / journal.NAME
    lines = path.read_text().splitlines()
    cut = next(number for number, line in enumerate(lines) if json.loads(line)["kind"] == "witness")
    path.write_text("\n".join(lines[: cut + 1]) + '\n{"v":1,"at":3,"ki')
    again = read_run(cluster.run_dir)

    assert not again.complete
    assert again.verdict.outcome is Outcome.LEAKED
    assert any("torn" in note for note in again.notes)


@pytest.mark.row("R1", "L14")
def test_a_journal_that_ends_while_the_training_recovers_is_inconclusive(cluster):
    """Nobody watched for long enough to say that it would not have."""
    cluster.run(injection(Kill()))
    path = cluster.run_dir / journal.NAME
    lines = path.read_text().splitlines(keepends=True)
    cut = next(number for number, line in enumerate(lines) if json.loads(line)["kind"] == "ended")
    path.write_text("".join(lines[: cut + 1]))
    again = read_run(cluster.run_dir)

    assert again.verdict.outcome is Outcome.INCONCLUSIVE
    assert any("ends before the verdict" in reason for reason in again.verdict.reasons)


def test_it_runs_outside_the_main_thread_too(cluster):
    got = []
    thread = threading.Thread(target=lambda: got.append(cluster.run(injection()).verdict.outcome))
    thread.start()
    thread.join()

    assert got == [Outcome.PASSED]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_whatever_the_schedule_and_the_losses_nothing_stays_harmed(tmp_path_factory, data):
    """Any overlap-free schedule, any cut, any signal: when `run_experiment` returns and leases are over, all is back."""
    cluster = Cluster(tmp_path_factory.mktemp("run"))
    count = data.draw(st.integers(1, 3))
    planned = [
        injection(
            data.draw(st.sampled_from([Slow(hold=3.0), Slow(hold=20.0), Kill()])),
            targets=(f"n{number + 1}",),
            number=number,
            after=data.draw(st.floats(0, 30)),
            together=data.draw(st.booleans()),
        )
        for number in range(count)
    ]
    cut = data.draw(st.sampled_from(["", "n1", "n2"]))
    if cut:
        cluster.on_event["injected"] = lambda _: setattr(cluster.nodes[cut], "cut_until", cluster.clock.now() + data.draw(st.floats(1, 50)))
    if data.draw(st.booleans()):
        cluster.on_event["witness"] = lambda _: signal.raise_signal(signal.SIGTERM)
    cluster.run(*planned, watch=40.0)
    cluster.clock.sleep(31.0)

    assert cluster.owed == []


@pytest.mark.parametrize("moment", ["steady", "injected"])
def test_a_stop_file_ends_the_run_as_an_abort_with_its_words(cluster, moment):
    cluster.on_event[moment] = lambda _: (cluster.run_dir / "STOP").write_text("stopped by ann@desk\n")
    result = cluster.run(injection(Slow(hold=60.0)), budgets=Budgets(restarts=0))

    assert (result.verdict.outcome, result.verdict.reasons[0]) == (Outcome.ABORTED, "aborted: stopped by ann@desk")
    assert cluster.owed == []
    assert cluster.training.stopped
    assert result.complete


def test_a_stop_file_ends_the_wait_for_a_training_that_makes_no_step(cluster):
    def never(agents, meanwhile):
        (cluster.run_dir / "STOP").touch()
        meanwhile()
        pytest.fail("it waits on")

    cluster.training.start = never
    result = cluster.run(injection())

    assert (result.verdict.outcome, result.verdict.reasons[0]) == (Outcome.ABORTED, "aborted: stopped by a file STOP in the run directory")
