"""
How long one judgement takes, on timelines that grow: the engine judges twice a second. Prints, and asserts nothing.

Run as `python tests/benchmarks/bench_judge.py` from the root of the project.
"""

import time

from chaoskit.judge import find_baseline, judge
from chaoskit.judge.timeline import Fact, InjectionFacts, Interval, Sample, Spec, Timeline
from chaoskit.model.experiment import Budgets

YES = Fact(True)
SPEC = Spec(Budgets(time_to_recover=30.0), gpus=4)
PACE, STAMP, ROUNDS = 0.1, 0.002, 7


def course(steps: int) -> Timeline:
    """A restart at two thirds of the steps, ten of them done twice."""
    kill = steps * 2 // 3
    before = [Sample(Interval.at(PACE * step, STAMP), step, "a") for step in range(kill)]
    again = [Sample(Interval.at(PACE * step + 9.0, STAMP), step, "b") for step in range(kill - 10, steps)]
    t0 = Interval.at(PACE * kill, STAMP)
    fault = InjectionFacts("rank_kill", "", ("node1",), one_shot=True, t0=t0, present=YES, exposed=YES, gone=YES)
    samples = (*before, *again)
    return Timeline(samples, (), (0.0, PACE * kill / 2), (fault,), watched_until=samples[-1].t.hi)


def best(what: object, *args: object) -> float:
    """The fastest of some rounds, in milliseconds of processor time: the rest measures the machine's other work."""
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        what(*args)  # type: ignore[operator]  # a benchmark of any callable
        times.append(time.process_time() - start)
    return min(times) * 1000


def main() -> None:
    print(f"{'samples':>8} {'judge':>10} {'find_baseline':>15}")
    for steps in (1_000, 10_000, 50_000):
        timeline = course(steps)
        judged = best(judge, timeline, SPEC)
        found = best(find_baseline, timeline.samples, SPEC, timeline.watched_until)
        print(f"{steps:>8} {judged:>7.1f} ms {found:>12.1f} ms")


if __name__ == "__main__":
    main()
