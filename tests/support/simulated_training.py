"""
A training whose whole course is known: it steps, is killed, stands still, slows down, and keeps the true answers.

The answers are reckoned here from what is done to it, by arithmetic of their own, never by the judge's code.
"""

from dataclasses import dataclass, field

from judged import YES

from chaoskit.judge.timeline import InjectionFacts, Interval, Mark, MarkKind, Sample, Timeline


def point(t):
    return Interval.at(t)


@dataclass
class Training:
    """One training at a steady pace; each deed appends what its log would tell and what is true of it."""

    pace: float
    now: float = 0.0
    step: int = 0
    session: int = 0
    baseline_end: float = 0.0
    samples: list = field(default_factory=list)
    marks: list = field(default_factory=list)
    injections: list = field(default_factory=list)
    truth: list = field(default_factory=list)

    def __post_init__(self):
        self._log()

    def run(self, steps, factor=1.0):
        """Go on for some steps, each taking the pace times the factor."""
        for _ in range(steps):
            self.now += self.pace * factor
            self.step += 1
            self._log()

    def end_of_baseline(self):
        self.baseline_end = self.now

    def kill(self, *, after, delay, lost, in_flight=0, stillborn=0, told=True):
        """Kill it `after` (a share of a step) past its last step; a new life's first step comes `delay` seconds after the kill."""
        t0, last = self.now + after * self.pace, self.now
        self.run(in_flight)
        top, resumed = self.step, self.step - in_flight - lost
        self._mark(MarkKind.DETECT, max(t0, self.now) + 0.1 * self.pace)
        first = max(t0, self.now) + delay
        for number in range(stillborn):
            self.session += 1
            self._mark(MarkKind.BORN, first - delay * (stillborn - number) / (stillborn + 1) * 0.8)
        self.session += 1
        self._mark(MarkKind.BORN, first - delay * 0.1)
        if told:
            self._mark(MarkKind.LOADED, first - delay * 0.05, resumed)
        self.now, self.step = first - self.pace, resumed
        self.run(top - resumed + 1)
        self.truth.append(
            {
                "t0": t0,
                "time_to_detect": max(t0, last + in_flight * self.pace) + 0.1 * self.pace - t0,
                "time_to_resume": first - t0,
                "time_to_recover": self.now - t0,
                "time_to_steady": self.now - t0,
                "lost_steps": lost + in_flight,
                "restarts": 1,
                "boots": 1 + stillborn,
                "lost_time": self.now - last - (in_flight + 1) * self.pace,
            }
        )
        self.inject(t0, None)

    def stall(self, *, after, length, held):
        """Stand still for `length` seconds beyond a step; the fault is held for a share of them."""
        t0, last = self.now + after * self.pace, self.now
        self.now += length
        self.run(1)
        t1 = t0 + held * (self.now - t0)
        self.truth.append(
            {
                "t0": t0,
                "time_to_resume": self.now - t0,
                "time_to_recover": self.now - t0,
                "time_to_steady": self.now - t0,
                "settle_time": self.now - t1,
                "lost_steps": 0,
                "restarts": 0,
                "boots": 0,
                "lost_time": self.now - last - self.pace,
            }
        )
        self.inject(t0, t1)

    def slow(self, *, steps, factor):
        """Step more slowly for a while, from one step to another."""
        t0 = self.now
        self.run(steps, factor)
        self.truth.append(
            {
                "t0": t0,
                "time_to_resume": 0.0,
                "time_to_recover": 0.0,
                "time_to_steady": self.now - t0,
                "settle_time": 0.0,
                "throughput_during": 1 / factor,
                "lost_steps": 0,
                "restarts": 0,
                "boots": 0,
                "lost_time": steps * (factor - 1) * self.pace,
            }
        )
        self.inject(t0, self.now)

    def shrug(self, *, after, held):
        """A fault is held for some steps' time, and nothing changes."""
        t0 = self.now + after * self.pace
        nothing = dict.fromkeys(("time_to_resume", "time_to_recover", "time_to_steady", "settle_time", "lost_time"), 0.0)
        self.truth.append({"t0": t0, "throughput_during": 1.0, "lost_steps": 0, "restarts": 0, "boots": 0, **nothing})
        self.run(held + 2)
        self.inject(t0, t0 + held * self.pace)

    def timeline(self):
        return Timeline(
            samples=tuple(self.samples),
            marks=tuple(self.marks),
            baseline=(0.0, self.baseline_end),
            injections=tuple(self.injections),
            watched_until=self.now,
        )

    def _log(self):
        self.samples.append(Sample(point(self.now), self.step, f"s{self.session}"))

    def _mark(self, kind, t, step=None):
        self.marks.append(Mark(point(t), kind, f"s{self.session}", step))

    def inject(self, t0, t1):
        """Say that a fault was there from t0 to t1; None: it struck once."""
        self.injections.append(
            InjectionFacts(
                "fault",
                "",
                ("node1",),
                one_shot=t1 is None,
                t0=point(t0),
                t1=None if t1 is None else point(t1),
                present=YES,
                exposed=YES,
                gone=YES,
            )
        )
