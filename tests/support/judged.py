"""Short words to write a course of a training in, and to have it judged."""

from chaoskit.judge import judge
from chaoskit.judge.timeline import Fact, InjectionFacts, Interval, Mark, Sample, Spec, Timeline
from chaoskit.model.experiment import Budgets

YES, NO, UNKNOWN = Fact(True), Fact(False), Fact(None)


def at(value, spread=0.0):
    return Interval.at(value, spread)


def steps(first, last, start, pace=1.0, session="a"):
    """Steps first to last, the first done at start."""
    return [Sample(at(start + pace * place), step, session) for place, step in enumerate(range(first, last + 1))]


BEFORE = steps(0, 50, 0.0)
"""The baseline of the worked histories: step n done at t = n, one second a step."""


def mark(kind, t, session="", step=None):
    return Mark(at(t), kind, session, step)


def injection(t0=50.4, t1=None, *, one_shot=None, exposed=YES, present=YES, gone=YES, targets=("node1",)):
    """A fault from t0 to t1; a one-shot when it has no t1, unless said otherwise."""
    return InjectionFacts(
        "fault",
        "",
        targets,
        one_shot=t1 is None if one_shot is None else one_shot,
        t0=None if t0 is None else at(t0),
        t1=None if t1 is None else at(t1),
        present=present,
        exposed=exposed,
        gone=gone,
    )


def timeline(samples, marks=(), injections=None, *, watched=None, baseline=(0.0, 50.0), **rest):
    """One injection at 50.4 when none is given; watched until the last step when nothing else is said."""
    return Timeline(
        samples=tuple(samples),
        marks=tuple(marks),
        baseline=baseline,
        injections=tuple([injection()] if injections is None else injections),
        watched_until=watched if watched is not None else max(sample.t.hi for sample in samples),
        **rest,
    )


def verdict(samples, marks=(), injections=None, *, budgets=None, spec=None, **rest):
    """Judge a course with four GPUs and a window of 20 steps."""
    given = {"for_": 10.0, "gpus": 4, **(spec or {})}
    return judge(timeline(samples, marks, injections, **rest), Spec(budgets=budgets or Budgets(), **given))


def values(quantities):
    """The middle of every quantity that has a value."""
    return {name: one.value.mid for name, one in quantities.items() if one.value is not None}
