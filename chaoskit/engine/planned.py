"""What a plan says, as frozen types: who is touched, when, with what, and what the run is judged by. Times are seconds."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chaoskit.agent.contract import CONTROL_PATH, REPLACEMENT, Fault, Lifetime, TrainingFacts
from chaoskit.judge.timeline import Spec
from chaoskit.model.experiment import BUDGET_SENSE, Abort, Expect
from chaoskit.model.hostlist import fold
from chaoskit.model.inventory import TrainingSpec
from chaoskit.model.units import show_duration, show_share
from chaoskit.training.placeholders import fill

_SHARES = ("throughput_during", "window_goodput")


@dataclass(frozen=True, slots=True)
class PlannedInjection:
    """
    One injection with its targets chosen.

    `detail` is what a person reads, such as `link_flap plane B`; `params` are JSON for the node; `after` is seconds after
    the steady baseline; `duration` seconds from T0 to the end of the last span, 0 for a one-shot fault; `expect` is what
    the training must feel meanwhile, where stated; `allow` is what is refused otherwise.
    """

    number: int
    fault: str
    detail: str
    params: Mapping[str, Any]
    instance: Fault
    targets: tuple[str, ...]
    after: float
    together: bool
    one_shot: bool
    duration: float
    expect: Expect | None = None
    allow: tuple[str, ...] = ()

    @property
    def may_cut_us_off(self) -> bool:
        """Whether the experiment allows it to cut the way to its own targets: then they heal themselves, and answer later."""
        return CONTROL_PATH in self.allow

    def describe(self, lease: float) -> list[str]:
        """Return who, when and what, and how it is undone."""
        count = f"{len(self.targets)} node{'' if len(self.targets) == 1 else 's'}"
        who = f"{fold(self.targets)} ({count})" if self.targets else "nobody"
        how = ", all at one instant" if self.together and len(self.targets) > 1 else ""
        held = "" if self.one_shot else f", held {show_duration(self.duration)}"
        expected = [f"   expect: step time {self.expect} times the baseline's while it is applied"] if self.expect else []
        allowed = ["   allowed: it may cut off its own targets, which then mend it alone"] if self.may_cut_us_off else []
        allowed += ["   allowed: a remediator may replace the machine for it"] if REPLACEMENT in self.allow else []
        return [
            f"{self.number}. {show_duration(self.after)} after the baseline: {self.detail} on {who}{how}{held}",
            f"   undo: {self._undo(lease)}",
            *allowed,
            *expected,
        ]

    def _undo(self, lease: float) -> str:
        if self.one_shot:
            back = "the node must come back by itself" if self.instance.takes_agent_away else "the training must recover by itself"
            return f"none, a kill cannot be undone; {back}"
        kept = "" if self.instance.lifetime is Lifetime.VOLATILE else "; it survives a reboot, and so does its undo"
        return f"by the node itself when the hold ends, or {show_duration(lease)} after the last word from the controller{kept}"


@dataclass(frozen=True, slots=True)
class Plan:
    """
    Who is touched, when, with what, and what the run is judged by. Times are seconds.

    `empty` says why no target was found (then the run is inconclusive), and is empty otherwise. `touched` are all
    targets, `watch` is the longest watch after the last fault, `steady_within` the longest wait for the baseline.
    """

    name: str
    seed: int
    training_name: str
    training: TrainingSpec
    planned: tuple[PlannedInjection, ...]
    touched: tuple[str, ...]
    spec: Spec
    abort: Abort
    steady_within: float
    watch: float
    lease: float
    warnings: tuple[str, ...] = ()
    empty: str = ""

    def facts(self, run_id: str) -> TrainingFacts:
        """Return what identifies the training on its nodes, once its run id is known (empty until then)."""
        spec = self.training
        saves = spec.checkpoints.dir
        return TrainingFacts(
            run_id=run_id, user=spec.user, interface=spec.interface, checkpoints=fill(saves, run=run_id) if saves is not None else None
        )

    def describe(self) -> list[str]:
        """Return the plan as lines for a person."""
        lines = [f"{self.name}, seed {self.seed}, training {self.training_name} ({self.training.launcher}, {self.spec.gpus} GPUs)"]
        within = f"{show_share(self.spec.band)} for {show_duration(self.spec.for_)}"
        lines.append(f"baseline: throughput within {within}, waited for {show_duration(self.steady_within)} at most")
        for planned in self.planned:
            lines += planned.describe(self.lease)
        lines.append(f"touched: {fold(self.touched) or 'nobody'} ({len(self.touched)} in all)")
        lines.append(f"abort: {self._abort()}")
        lines.append(f"watched for {show_duration(self.watch)} at most after the last fault")
        lines += [f"budget: {line}" for line in self._budgets()] or ["budget: none"]
        lines += [f"warning: {warning}" for warning in self.warnings]
        return [*lines, f"inconclusive: {self.empty}"] if self.empty else lines

    def _abort(self) -> str:
        said = []
        if self.abort.no_progress is not None:
            said.append(f"no step for {show_duration(self.abort.no_progress)}")
        if self.abort.nodes_unreachable is not None:
            said.append(f"more than {self.abort.nodes_unreachable} nodes unreachable that no fault explains")
        if (slump := self.abort.throughput) is not None:
            said.append(f"throughput below {show_share(slump.below)} for {show_duration(slump.for_)}")
        said += [f"`{shlex.join(one.argv)}` exits with other than 0, asked every {show_duration(one.every)}" for one in self.abort.commands]
        said += [f"{one.says}, asked every {show_duration(one.every)}" for one in self.abort.queries]
        return " or ".join(said) or "only by hand"

    def _budgets(self) -> list[str]:
        limits = {name: getattr(self.spec.budgets, name) for name in BUDGET_SENSE}
        return [f"{name} {BUDGET_SENSE[name]} {_show(name, limit)}" for name, limit in limits.items() if limit is not None]


def _show(name: str, limit: float) -> str:
    if name in _SHARES:
        return show_share(limit)
    return show_duration(limit) if "time" in name else f"{limit:g}"
