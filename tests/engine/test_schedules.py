"""Generated schedules with everything that may go wrong, on the simulated cluster: what holds of every run, however it ends."""

import json
import signal
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import check, tried
from schedules import Run, Schedule, Trouble, schedules
from simulated import Kill, Slow
from simulated_plan import LEASE, injection_of

from chaoskit.engine import journal
from chaoskit.engine.replay import read_run, state_of
from chaoskit.judge.verdict import BudgetState, Outcome
from chaoskit.model.experiment import Expect


@pytest.fixture(autouse=True)
def _hears_hangups():
    """The suite itself may run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def played(schedule, then):
    """Run a schedule in a directory of its own, and look at what became of it."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(schedule, Path(folder)).play()
        then(run, read_run(run.run_dir))


@pytest.mark.row("R14", "L15", "L49")
@tried(12, 1000)
def test_what_holds_of_every_run_however_it_ends(examples):
    """Everything that may go wrong, at any moment: each of the promises below holds."""

    @given(schedule=schedules(), cut=st.floats(0, 1))
    def holds(schedule, cut):
        def then(run, told):
            nobody_renews_but_the_loop(run, told)
            nothing_stays_harmed(run, told)
            what_is_not_proven_gone_is_leaked(run, told)
            green_is_proven(run, told)
            the_undo_is_on_disk_before_the_harm(run)
            the_journal_says_the_same(run, told)
            a_torn_journal_says_no_more(run, cut)

        played(schedule, then)

    check(holds, examples)


def nobody_renews_but_the_loop(run, told):
    """Only the thread of the run renews, nobody does after it, and no lease runs out unless the engine or a channel stood still."""
    renewals = {name: node.renewals for name, node in run.nodes.items()}
    assert {thread for node in run.nodes.values() for thread in node.renewed_by} <= {threading.get_ident()}
    run.clock.sleep(LEASE + 1)
    assert {name: node.renewals for name, node in run.nodes.items()} == renewals
    if not run.troubled("hang", "cut"):
        assert not any("the lease ended before it was renewed" in says for says in told.verdict.reasons)


def nothing_stays_harmed(run, _):
    """The leases are over: every node is as it was, save one that cannot be mended; and the training was ended."""
    assert run.harmed <= run.troubled("stuck")
    assert run.training.stopped or not state_of(run.run_dir)[0].samples


def what_is_not_proven_gone_is_leaked(run, told):
    """LEAKED exactly when something armed was not proven gone; only planned targets were armed, and none without a record of it."""
    state, _ = state_of(run.run_dir)
    armed = {name for name, entry in state.entries.items() if entry.armed}
    assert any(entry.owes for entry in state.entries.values()) is (told.verdict.outcome is Outcome.LEAKED)
    assert armed <= {f"sim-run/{one.number}/{node}" for one in run.schedule.planned for node in one.targets}
    every = {name: entry for node in run.nodes.values() for name, entry in node.entries.items()}
    assert {name for name, entry in every.items() if entry.state != "prepared"} <= armed


def green_is_proven(run, told):
    """Whatever was refused, not seen, not used or not mended keeps the verdict from PASSED; without any trouble it is PASSED."""
    verdict = told.verdict
    if not run.schedule.troubles:
        assert verdict.outcome is Outcome.PASSED, verdict.reasons
    if verdict.outcome is not Outcome.PASSED:
        return
    assert all(one.state is BudgetState.MET for one in (*verdict.budgets, *verdict.expectations))
    for one, facts in zip(run.schedule.planned, verdict.injections, strict=True):
        entries = [run.nodes[node].entries[f"sim-run/{one.number}/{node}"] for node in one.targets]
        assert all(entry.t0 is not None and not entry.harmed for entry in entries)
        assert all(one.one_shot or entry.t1 - entry.t0 >= one.duration - 0.5 for entry in entries), "held to its end"
        assert (facts.present.holds, facts.exposed.holds, facts.gone.holds) == (True, True, True)
        assert not set(one.targets) & run.troubled("unwitnessed")
        assert one.one_shot or not set(one.targets) & run.troubled("stuck"), "a kill owes no revert that could fail"
        assert set(one.targets) - run.troubled("unexposed")


def the_undo_is_on_disk_before_the_harm(run):
    seen = {}
    for record in journal.read(run.run_dir).records:
        if record["kind"] in ("planned", "armed", "injected"):
            seen.setdefault(record["entry"], {})[record["kind"]] = None
    assert all(list(kinds) == ["planned", "armed", "injected"][: len(kinds)] for kinds in seen.values())


def the_journal_says_the_same(run, told):
    """A run that a defect of ours ended has a journal all the same."""
    assert run.result is None or told.verdict == run.result.verdict
    assert told.complete


def a_torn_journal_says_no_more(run, cut):
    """Torn anywhere it is PASSED only with its verdict, and what it owes by then is LEAKED."""
    raw = (run.run_dir / journal.NAME).read_bytes()
    head = raw.index(b"\n") + 1
    (run.run_dir / journal.NAME).write_bytes(raw[: head + int(cut * (len(raw) - head))])
    torn, (state, _) = read_run(run.run_dir), state_of(run.run_dir)
    assert torn.complete or torn.verdict.outcome is not Outcome.PASSED
    assert any(entry.owes for entry in state.entries.values()) is (torn.verdict.outcome is Outcome.LEAKED)


@pytest.mark.row("L13")
def test_a_fault_that_is_felt_as_stated_passes_and_a_hidden_one_does_not():
    """Steps take twice as long while a simulated node is slow: stated so the run passes, stated as 1.5 it proves nothing."""

    def outcome(expect):
        told = []
        played(Schedule((injection_of(Slow(hold=20.0), ("n2",), expect=expect),), serial=True), lambda _, result: told.append(result))
        return told[0].verdict

    assert outcome(Expect(2.0)).outcome is Outcome.PASSED
    hidden = outcome(Expect(1.5))
    assert hidden.outcome is Outcome.INCONCLUSIVE
    assert hidden.reasons[0].startswith("slow on n2: step time moved 2")


@pytest.mark.row("R7", "L47")
def test_a_lease_that_ran_out_while_the_engine_hung_is_said():
    """A hang of 40 s some seconds after the injection: the node heals itself, and the verdict says why."""
    schedule = Schedule((injection_of(Slow(hold=60.0), ("n2",)),), serial=True, troubles=(Trouble("hang", at_event=20, seconds=40.0),))

    def then(run, told):
        assert told.verdict.outcome is Outcome.ABORTED
        assert "the lease ended before it was renewed" in told.verdict.reasons[0]
        assert not run.harmed

    played(schedule, then)


def test_a_kill_among_held_faults_leaves_nothing():
    planned = (injection_of(Slow(hold=20.0), ("n1",)), injection_of(Kill(), ("n2",), 1, 5.0))

    def then(run, told):
        assert (run.harmed, told.verdict.outcome) == (set(), Outcome.PASSED)

    played(Schedule(planned, serial=False), then)


@pytest.mark.row("R14")
@tried(2, 20)
def test_a_schedule_that_is_played_again_is_the_same_run(examples):
    """A seed that failed is worth something only when it fails again: every record of the journal is the same, byte by byte."""

    @given(schedule=schedules())
    def replays(schedule):
        told = set()
        for _ in range(3 if examples < 20 else 20):
            played(schedule, lambda run, _: told.add(written(run)))
        assert len(told) == 1

    check(replays, examples)


def written(run):
    """Return what a journal says, without the time of day at its head, and the name of its folder."""
    records = journal.read(run.run_dir).records
    for record in records:
        record.pop("wall", None)
        record.pop("started", None)
    return json.dumps(records).replace(str(run.run_dir), "")
