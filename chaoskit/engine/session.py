"""
A run, one stage at a time: the parts of the one loop that injects and always reverts.

`chaoskit.engine.run` plays an experiment file through it; `chaoskit.scripting` lets a Python test drive it. Either way
leases are renewed by whoever calls `tick` here and by nobody else, so that one who hangs loses them and the nodes heal
themselves. Reverting is not configurable and not skippable: `conclude` and `close` do it whatever became of the stages
before, no signal can interrupt them, and the nodes do it themselves when we die.
"""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from chaoskit.engine.aborts import Starter, Watches, on_a_thread
from chaoskit.engine.clock import SystemClock
from chaoskit.engine.events import Listener
from chaoskit.engine.gather import gather, sentence
from chaoskit.engine.guard import why_abort
from chaoskit.engine.hold import Hold
from chaoskit.engine.injector import Injector, Live
from chaoskit.engine.journal import Journal
from chaoskit.engine.keeper import Keeper
from chaoskit.engine.leftovers import AUDIT_WITHIN, connect, refuse_leftovers, remarks
from chaoskit.engine.plan import Plan, PlannedInjection
from chaoskit.engine.ports import Clock, Fleet, NodeAgent, Training
from chaoskit.engine.preflight import preflight
from chaoskit.engine.recorder import Recorder
from chaoskit.engine.remediation import reactions
from chaoskit.engine.replay import head_of, method_of, result_of
from chaoskit.engine.result import RunInfo, RunResult
from chaoskit.engine.signals import alarms_kept, ending_signals
from chaoskit.engine.stopping import why_stopped
from chaoskit.engine.traces import Traces
from chaoskit.errors import AbortedError, ChaosError, RefusedError
from chaoskit.judge import find_baseline, is_steady, judge
from chaoskit.judge.timeline import MarkKind
from chaoskit.judge.verdict import Baseline, Verdict
from chaoskit.model.experiment import Abort

TICK = 0.05
"""Seconds between looks at everything."""
JUDGE_EVERY = 0.5
"""Seconds between judgements."""
REST = 4.0
"""Times as long as a judgement took until the next: judging a day of steps takes seconds, and the leases come first."""
LONGEST_REST = 30.0
"""Seconds between judgements at most: one that took long because we were stopped says nothing about the next."""
COME_BACK = 30.0
"""Seconds that nodes get after the lease to come back for the final proof."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a run is made of, beside its plan; the caller closes the fleet. `asking` is how abort conditions are asked."""

    fleet: Fleet
    training: Training
    clock: Clock
    asking: Starter = on_a_thread


class Session:
    """
    One run from its journal's first line to its verdict.

    The order of its stages: `connect`, `start`, `await_steady`, `inject`, `wait` or `watch`, `conclude`, `close`. What
    goes wrong in one is for the caller to tell `end_early`; `close` must be called in any case.
    """

    def __init__(self, plan: Plan, info: RunInfo, parts: Parts, *, run_dir: Path, listener: Listener = lambda _: None) -> None:
        """
        Begin the journal, and turn ending signals into AbortedError.

        Args:
            plan: What to do; `extend` may add to it.
            info: The head of the run.
            parts: The fleet, the training under test and the clock.
            run_dir: An existing, empty directory; gets the journal.
            listener: Told of everything that happens.

        Raises:
            JournalError: The journal could not be created.
        """
        self.plan = plan
        self.training = parts.training
        self.fleet = parts.fleet
        self.clock = parts.clock
        self.run_dir = run_dir
        self.agents: dict[str, NodeAgent] = {}
        self.steady_at = 0.0
        """When the baseline was found; injections are timed from here."""
        self._heeded: set[int] = set()
        """Numbers of the injections whose targets were asked who acts on them."""
        self._concluded = False
        self._ending = ExitStack()
        journal = Journal(run_dir)
        self._ending.callback(journal.close)
        self.recorder = Recorder(journal, self.clock, listener)
        try:
            self.recorder.record("run", head_of(info, plan))
        except BaseException:
            self._ending.close()
            raise
        self.gate = self._ending.enter_context(ending_signals())
        self.injector = Injector(info.run, plan.lease, parts.fleet, self.agents, self.recorder, self.clock)
        self.keeper = Keeper(self.injector, parts.training)
        self._hold = Hold(info.run, self.clock)
        self._traces = Traces(parts.fleet, self.recorder)
        self.injector.meanwhile = self._meanwhile
        self._asking = parts.asking
        self._watches = Watches(Abort())
        self._pace = 0.0
        """Seconds a step of the baseline; 0 when there is none yet."""

    # --- the stages ---

    def connect(self) -> None:
        """Reach every node that trains, has a log of it or is in the plan; refuse what an earlier run left on one. Raises RefusedError."""
        self._watches = Watches(self.plan.abort, self._asking)
        self._ending.callback(self._watches.close)
        names = list(dict.fromkeys([*self.plan.touched, *self.training.nodes, *self.training.log_nodes]))
        self._stage(f"connecting to {len(names)} nodes")
        self._connected(connect(self.fleet, names))
        if self.plan.empty:
            raise RefusedError(self.plan.empty)
        self._heed_remediators()
        self._examine()
        self._heed_remediators()

    def start(self) -> None:
        """Launch the training or attach to it. Raises TrainingError."""
        self._stage(f"starting the training on {len(self.training.nodes)} nodes")
        self.training.start(self.agents, self._heed)
        self.injector.facts = self.plan.facts(self.training.run_id)
        self._show_before()

    def await_steady(self) -> Baseline:
        """Wait for the baseline and record it. Raises RefusedError when it does not come in the plan's time."""
        self._stage("baseline: waiting until the throughput is steady")
        give_up = self.clock.now() + self.plan.steady_within
        asked = self.clock.now()
        while isinstance(found := self._baseline(), str):
            self._refuse_the_ended()
            if self.clock.now() >= give_up:
                raise RefusedError(f"not steady before the fault within {self.plan.steady_within:g} s: {found}")
            self._tend(asked)
            asked = self.clock.now()
        self.recorder.record("baseline", {"start": found.start, "end": found.end})
        self.recorder.say("steady", f"{1 / found.pace:.2f} steps/s over {found.steps} steps", pace=found.pace, band=found.band)
        self.steady_at = self.clock.now()
        self._pace = found.pace
        return found

    def extend(self, plan: Plan) -> None:
        """
        Go on by a plan that adds injections to the present one, and reach the nodes that it adds.

        Raises:
            RefusedError: One of them cannot be reached, or owes something.
        """
        self.plan = plan
        self.recorder.record("method", method_of(plan))
        if added := [name for name in plan.touched if name not in self.agents]:
            self._stage(f"connecting to {len(added)} more nodes")
            got = gather({name: self.fleet.reconnect(name) for name in added}, AUDIT_WITHIN, self._meanwhile)
            if got.failures:
                raise RefusedError(sentence(got.failures))
            self._connected(got.answers)
        self._heed_remediators()
        self._show_before()

    def inject(self, planned: PlannedInjection) -> list[Live]:
        """Prepare, look whether it is exposed, arm, inject and witness, on all targets; return what is now owed. Raises RefusedError."""
        self._stage(f"injecting {planned.detail} on {', '.join(planned.targets)}")
        return self.injector.begin(planned, self._stay_steady if not self.injector.lives else lambda: None)

    def revert(self, lives: Sequence[Live]) -> None:
        """Revert held faults before their time. What cannot be reached stays owed, and is tried again by `conclude`."""
        self.keeper.revert([live for live in lives if not self.recorder.state.entries[live.entry].ended])

    def wait(self, seconds: float) -> None:
        """Look after everything for so long. Raises AbortedError."""
        until = self.clock.now() + seconds
        while self.clock.now() < until:
            self.tick()

    def watch(self, seconds: float) -> Verdict:
        """Watch for recovery until more watching could change nothing, for so long at most; return the verdict so far."""
        self._stage("watching for recovery")
        give_up = self.clock.now() + seconds
        judged = self.clock.now()
        while self.clock.now() < give_up:
            self._tend(judged)
            judged = self.clock.now()
            if (verdict := self.judge()).settled:
                return verdict
        self.recorder.say("stage", f"watched for {seconds:g} s: judging")
        return self.judge()

    def judge(self) -> Verdict:
        """Return the verdict as it would be if the watch ended now."""
        verdict = judge(self.recorder.state.timeline(), self.plan.spec)
        self.recorder.say("phase", verdict.phase)
        return verdict

    def tick(self) -> None:
        """Look at everything once: the logs, the leases, the lost nodes, the abort conditions. Raises AbortedError."""
        self.gate.raise_pending()
        self.clock.sleep(TICK)
        now = self._look()
        self.keeper.tick(now)
        self._heed()
        if why := why_abort(self.plan.abort, self.recorder.state, self.keeper.unexplained(now), now, self._pace):
            raise AbortedError(why)

    def end_early(self, error: ChaosError) -> None:
        """Record why the run ends before its time; from here on no signal interrupts anything."""
        self._close_gate()
        kind = "aborted" if isinstance(error, AbortedError) else "trouble"
        self.recorder.record(kind, {"why": str(error)})
        self.recorder.say(kind, str(error))

    def does_not_hold(self, why: str) -> None:
        """Record that what a test stated of the training does not hold: the run has failed, and ends early."""
        self._close_gate()
        self.recorder.record("denied", {"why": why})
        self.recorder.say("denied", why)

    def conclude(self) -> None:
        """Revert everything and write the verdict down, once, before anything else can go wrong."""
        if self._concluded:
            return
        self._concluded = True
        self._close_gate()
        with alarms_kept(), ExitStack() as ending:  # last in, first out: each is done whatever became of those before it
            ending.callback(self._show_residue)
            ending.callback(self._write_verdict)
            ending.callback(self._look_a_last_time)
            ending.callback(self._revert)

    def close(self) -> None:
        """Conclude, end the training, and give the signals back."""
        with self._ending, ExitStack() as ending:
            ending.callback(self._hold.release)
            ending.callback(self._tear_down)
            ending.callback(self.conclude)

    @property
    def result(self) -> RunResult:
        """The run as its journal tells it so far."""
        told = result_of(self.recorder.state, self.run_dir, notes=self.recorder.notes)
        return replace(told, heard=self.gate.heard, unwritten=(self.recorder.broken,) if self.recorder.broken else ())

    # --- what they are made of ---

    def _stage(self, name: str) -> None:
        self.recorder.say("stage", name)

    def _close_gate(self) -> None:
        self.gate.closed = True
        self.recorder.must_go_on = True

    def _connected(self, agents: dict[str, NodeAgent]) -> None:
        self.agents.update(agents)
        notes = remarks(self.fleet, agents)
        self.recorder.record("connected", {"nodes": {name: agent.boot_id for name, agent in agents.items()}, "notes": notes})
        self.recorder.say("connected", f"{len(agents)} nodes")
        for note in notes:
            self.recorder.say("note", note)
        self._hold.take(agents, self.agents, self.keeper.renew)
        for says in refuse_leftovers(self.fleet, agents, self._meanwhile, [one.fault for one in self.plan.planned]):
            self.recorder.say("note", says)

    def _examine(self) -> None:
        """Look whether the faults can be trusted on their targets, before anything starts. Raises RefusedError."""
        found = preflight(self.fleet, self.agents, self.plan.planned, self.training.nodes, self._heed)
        for says in found.says:
            self.recorder.say("note", says)
        found.refuse()

    def _heed_remediators(self) -> None:
        """Say who else acts on the targets, and refuse what would cost a machine. Raises RefusedError."""
        new = [one for one in self.plan.planned if one.number not in self._heeded]
        self._heeded.update(one.number for one in new)
        targets = {name: self.agents[name] for one in new for name in one.targets}
        found = reactions(self.fleet, targets, new, self._meanwhile)
        if found.says:
            self.recorder.record("remediators", {"says": list(found.says)})
        for says in found.says:
            self.recorder.say("note", says)
        found.refuse()

    def _show_before(self) -> None:
        self._traces.show_before(self.agents, self.plan.touched, self._meanwhile)

    def _show_residue(self) -> None:
        self._traces.show_left(self.agents, self.injector.lives, self._keep_anyway)

    def _heed(self) -> None:
        """Look whether somebody else wants the run to end, and keep the nodes ours."""
        self._hold.keep()
        if why := why_stopped(self.run_dir) or self._watches.why(self.clock.now()):
            raise AbortedError(why)

    def _meanwhile(self) -> None:
        """What is looked after while nodes are waited for."""
        self.keeper.renew()
        self._heed()

    def _keep_anyway(self) -> None:
        """Keep the nodes ours in the end as well; one that another run has taken since is reverted all the same."""
        with suppress(AbortedError):
            self._hold.keep()

    def _baseline(self) -> Baseline | str:
        return find_baseline(self.recorder.state.samples, self.plan.spec, self.clock.now())

    def _tend(self, judged: float) -> None:
        """Look after everything until it is time to judge again; the last judgement began at `judged`."""
        now = self.clock.now()
        until = now + max(JUDGE_EVERY, min(REST * (now - judged), LONGEST_REST))
        while self.clock.now() < until:
            self.tick()

    def _refuse_the_ended(self) -> None:
        if ended := next((mark for mark in self.recorder.state.marks if mark.kind is MarkKind.EXIT), None):
            raise RefusedError(f"the training ended before any fault: {ended.says}")

    def _stay_steady(self) -> None:
        """
        Have the first fault begin in a steady training: one that has wavered since its baseline is waited for.

        Later ones begin as long after the first as they are planned. Raises RefusedError when it does not come back.
        """
        began = asked = self._look()
        while self._pace and not is_steady(self.recorder.state.timeline(), self.plan.spec, asked):
            self._refuse_the_ended()
            if asked >= began + self.plan.steady_within:
                within = f"within {self.plan.steady_within:g} s"
                raise RefusedError(f"not steady before the fault: it left the band, and did not come back {within}")
            if asked == began:
                self._stage("waiting until the throughput is steady again")
            self._tend(asked)
            asked = self._look()
        self.steady_at += asked - began

    def _look(self) -> float:
        """Take in what the training's logs told; return the moment of this look."""
        now = self.clock.now()
        self.recorder.observe(self.training.poll(now), now)
        return now

    def _revert(self) -> None:
        if self.keeper.owed:
            self._stage("reverting")
            self.keeper.revert_all(self.plan.lease + COME_BACK, self._keep_anyway)

    def _look_a_last_time(self) -> None:
        """Refusals and reverts take time in which nobody looked: that is no silence of the training."""
        try:
            self._look()
        except ChaosError as error:
            self.end_early(error)

    def _write_verdict(self) -> None:
        self.recorder.record("watched", {}, at=self.recorder.state.watched_until)
        if lost := sorted(name for name, agent in self.agents.items() if not agent.connected):
            self.recorder.record("lost", {"nodes": lost})
        verdict = judge(self.recorder.state.timeline(), self.plan.spec)
        self.recorder.record("verdict", {"outcome": verdict.outcome.value, "reasons": list(verdict.reasons)})
        self.recorder.say("verdict", verdict.outcome.value, reasons=list(verdict.reasons))

    def _tear_down(self) -> None:
        """End the training; what goes wrong in that is reported apart from the verdict."""
        if self.agents:
            self._stage("ending the training")
            try:
                self.training.stop()
            except ChaosError as error:
                self.recorder.record("teardown", {"why": str(error)})
                self.recorder.say("teardown", str(error))


def parts_of(fleet: Fleet, training: Training, clock: Clock | None = None) -> Parts:
    """Return the parts of a run, with this machine's clock when none is given."""
    return Parts(fleet, training, clock or SystemClock())
