"""
The judge: what was observed of one run, to the figures and the verdict. Pure: no I/O, no clock.

`judge(timeline, spec)` gives the verdict as it would be if the watch ended now; `find_baseline(samples, spec, now)` looks
for a steady training before any fault. This page defines every number that chaoskit reports; whoever changes one changes
it here in the same commit, and says why. `tests/judge/test_histories.py` works through twelve examples.

**Clock and samples.** All times are seconds on the controller's monotonic clock, intervals [lo, hi] that hold the truth.

- A *sample* is a finished step: when, which, in which session. An *incarnation* (a *life*) is one session of the
  training's processes, or the part of a session up to a step that falls back. Lines of one read share one interval; their
  best estimates are spread evenly over it. The order of arrival means nothing.
- *Throughput* is steps a second times the global batch of the life, as a share of the baseline's. Between two steps work
  is done evenly; a step that ends a stall, and the first of a life, did its work in its last d0 seconds.
- The *baseline pace* d0 is length / steps over the baseline, which covers at least 5 windows. A *window* is the longest of
  `for`, 20 steps, one checkpoint interval. A baseline is steady when every window stays within the stated band of the
  mean, or when 10 windows scatter more but show no drift, by two bands and half the pace at most: in more, a fault as large
  would not show, and the run is INCONCLUSIVE. The *noise* is how far 99 % of the baseline's windows stay from its mean pace at
  most, as a share of it, up or down; a window begins at each step (at 400 of them, spread evenly, where there are more). The
  *band* is the larger of the stated one and the noise.
- A *smaller world* has fewer GPUs than the baseline's life, or, where they are not known, a smaller global batch. It is
  `reduced`, never steady, unless the experiment says `world: may_shrink`; then its band begins at its share of the
  baseline.

**Moments.** t0, the first effect of a fault, and t1, the end of its last, come with the injection; a one-shot has no t1.

- S is the highest step of the old life, whenever its line came; R the step resumed from: the one the checkpoint's line
  names, else the one before the new life's first (anywhere in the step before it, where only every n-th step is logged).
- *Disrupted* is a new life, or a gap between steps above 5 x the 99th percentile of the baseline's gaps and above its
  longest: a pause that the baseline shows too (a checkpoint) is no disruption. A gap that is so long only if its stamps
  are at their worst may be one: its times then begin at 0. When lines are missing between two steps, the first of them
  may have been done at any moment between; where the observer was blind then, a restart may be hidden there, and counts
  and lost steps are lower bounds.
- A disruption starts at t0 of the latest injection before it, unless an earlier disruption started there; any other at
  the last step before it.
- T is the earliest moment at or after recovery, and after the end of every fault held meanwhile, from which a whole
  window stays in the band, or above it: going faster than the baseline is no harm, and no reason to wait. A span [a, b]
  is a = the last step at or before the start, b = the first at or after T.

**Quantities**, of each disruption and of the run. The run's times are the worst over its disruptions and slow-downs, each
from its own start; counts and losses are totals over their spans, overlapping ones joined. Where throughput never left
the band all times and losses are 0: what happens within the band is noise.

==================  ================================================================================================
time_to_detect      start to the stack's own first sign: failure line, launcher's news, a new life's. None seen: none
time_to_resume      start to the first step of the new life; after a stall, to the first step after the gap
time_to_recover     start to the first step beyond the highest before; after a slow-down 0, as steps went on
time_to_steady      start to T
settle_time         T minus t1, at least 0, for faults with an end
lost_steps          S - R for each restart, summed
restarts, boots     new lives that made a step; all new lives. More boots than restarts are a restart storm
lost_time           elapsed over [a, b] minus the new steps in it x d0
lost_gpu_hours      lost_time x the GPUs allocated at each moment (those of the latest life that was born)
lost_cost           lost_gpu_hours x the inventory's price
throughput_during   throughput over [t0, t1] as a share of the baseline's, the lowest over the held faults; give or take
                    the baseline's noise over spans of that length, as a share of it
window_goodput      new steps x d0 / elapsed over [a, b], at most 1. Not comparable with a whole job's goodput or ETTR
==================  ================================================================================================

*Step time* over a span is the median of the times of its whole steps, those that surely began and ended in it: a step
under way at an edge is on neither side, and a pause on fewer than half of them (a checkpoint, a stall) moves nothing. What
lies between two lives is no step; a smaller global batch is less than a step. Where two stamps widen a step of the
baseline's pace by more than 2 %, times are taken over as many steps as make them sure to that. An injection's stated
*step time* (`expect`) is compared with that over [t0, t1] as a multiple of that over the baseline: for steps of one length
the inverse of throughput_during, which counts every pause and the edges. Its interval holds what the stamps allow, the
ranks between which a median lies with 95 % certainty (the least and the most of fewer than six), and the noise: the
deviation that 99 % of the medians over as many consecutive steps of the baseline (at most 100) do not exceed. Without a
whole step it is a lower bound, from the longest time without a logged step, or unknown where the observer was blind.

The *ledger* of a run that was steady before its faults cuts the spans at detect, old processes gone, new process, process
group up, checkpoint loaded, first step, recovery, steady. Each phase's loss is its length minus its new steps x d0; they sum
to lost_time exactly.

**Budgets.** Missed or met when the whole interval is; undecided when the limit lies inside it, or when both the budget
and what was measured are smaller than the baseline's own noise. A time whose moment never came while the observer was
alive is missed, shown as "> the time watched". It is undecided instead when the observer was blind at the end, when the
watch ended before a whole window could be seen, or when an abort or trouble cut it short with the limit still ahead;
never when the training is dead or the time watched is beyond the limit already.

**Stated step times.** As stated when the whole interval lies within the stated share of the stated ratio; not so when all of
it lies outside; undecided otherwise. A fault that is not felt as stated was hidden, or is not of the size that it claims.

**Facts of a fault.** *Present*: its witness on the node. *Exposed*: the training used what it hit just before. *Felt*: it
disrupted the training, or a window that touches it fell below the band, or the throughput over [t0, t1] did (and below the
noise of baseline windows of that length too). Not exposed is *void*. A run is *absorbed* when the training was steady before,
every fault of it is present, exposed and not felt, steps were seen for a whole window after the end of each (of a one-shot:
after t0), and no disruption came.

**Outcomes**, the worst wins: LEAKED > FAILED > ABORTED > INCONCLUSIVE > PASSED.

- LEAKED: a fault that had an effect, or may have had one, is not proven gone.
- FAILED: a budget missed; what a Python test stated does not hold; training dead, silent or unsteady at the end of the watch
  after a fault that is proven present, unless an abort, a refusal or other trouble cut the watch short.
- ABORTED: an abort condition or a signal ended the run.
- INCONCLUSIVE: not steady before the fault, void, not proven present or exposed, not felt as stated, no targets, undecided
  budgets or step times, an observer too blind to tell, a watch too short to see a whole window after recovery
  or after the end of a fault that was not felt.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chaoskit.judge.baseline import find_baseline
    from chaoskit.judge.judging import is_steady, judge

__all__ = ["find_baseline", "is_steady", "judge"]


def __getattr__(name: str) -> Any:
    # Loaded at the first use: `plan` and the reports need the judge's values, and not the judge.
    if name == "find_baseline":
        from chaoskit.judge.baseline import find_baseline  # noqa: PLC0415 - see above

        return find_baseline
    if name in ("is_steady", "judge"):
        from chaoskit.judge import judging  # noqa: PLC0415 - see above

        return getattr(judging, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
