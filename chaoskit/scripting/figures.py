"""What was measured, as values that compare with limits honestly."""

from chaoskit.errors import UndecidedError
from chaoskit.judge import words
from chaoskit.judge.budgets import compare, noise_of
from chaoskit.judge.timeline import Interval, Spec
from chaoskit.judge.verdict import BudgetResult, BudgetState, Disruption, Quantity, Verdict
from chaoskit.model.experiment import AT_LEAST, AT_MOST


class Figure:
    """
    A measured figure with its uncertainty: the truth lies in [`lo`, `hi`], in `unit`.

    Times are seconds, shares fractions of one. Compare it with a number: the answer is a plain bool when the whole interval
    is on one side of the limit. Otherwise UndecidedError is raised, as it is for a figure that could not be measured, and
    for one that, like its limit, is smaller than the baseline's own noise.
    """

    def __init__(self, quantity: Quantity, noise: float = 0.0) -> None:
        """
        Take a quantity of the judge's.

        Args:
            quantity: What was measured.
            noise: What the baseline itself shows of it, in the same unit.
        """
        self._quantity = quantity
        self._noise = noise

    @property
    def name(self) -> str:
        """The quantity's name, such as `lost_steps`."""
        return self._quantity.name

    @property
    def unit(self) -> str:
        """`s`, `steps`, `share`, `GPU-h`, `cost`, or empty for a count."""
        return self._quantity.unit

    @property
    def lo(self) -> float:
        """The least that it may be. Raises UndecidedError when it could not be measured."""
        return self._value(bounded=False).lo

    @property
    def hi(self) -> float:
        """The most that it may be. Raises UndecidedError when there is no bound: its moment never came."""
        return self._value(bounded=True).hi

    @property
    def value(self) -> float:
        """The middle. Raises UndecidedError like `hi`."""
        return self._value(bounded=True).mid

    def holds(self, sense: str, limit: float) -> BudgetResult:
        """Return how it compares with a limit, `at most` or `at least`, without raising: `met`, `missed` or `undecided`."""
        return compare(sense, float(limit), self._quantity, self._noise)

    def __le__(self, limit: float) -> bool:
        return self._decided(AT_MOST, limit)

    def __ge__(self, limit: float) -> bool:
        return self._decided(AT_LEAST, limit)

    def __lt__(self, limit: float) -> bool:
        return not self._decided(AT_LEAST, limit)

    def __gt__(self, limit: float) -> bool:
        return not self._decided(AT_MOST, limit)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, bool) or not isinstance(other, int | float):
            return NotImplemented
        states = {self.holds(sense, other).state for sense in (AT_MOST, AT_LEAST)}
        if BudgetState.MISSED in states:
            return False
        if BudgetState.UNDECIDED in states:
            raise self._undecided(f"{self}, compared with {other:g}")
        return True

    __hash__ = None  # type: ignore[assignment]  # what compares with uncertainty has no hash

    def __bool__(self) -> bool:
        raise TypeError(f"{self.name} is a figure with uncertainty: compare it with a limit, such as `{self.name} <= 10`")

    def __str__(self) -> str:
        note = f" ({self._quantity.note})" if self._quantity.note else ""
        return f"{self.name} {words.measured(self._quantity)}{note}"

    def __repr__(self) -> str:
        return f"<{self}>"

    def _decided(self, sense: str, limit: float) -> bool:
        if isinstance(limit, bool) or not isinstance(limit, int | float):
            raise TypeError(f"{self.name} compares with a number{_of(self.unit)}, and not with {limit!r}")
        compared = self.holds(sense, limit)
        if compared.state is BudgetState.UNDECIDED:
            raise self._undecided(compared.says)
        return compared.state is BudgetState.MET

    def _value(self, *, bounded: bool) -> Interval:
        value = self._quantity.value
        if value is None or (bounded and self._quantity.beyond):
            raise self._undecided(str(self))
        return value

    @staticmethod
    def _undecided(says: str) -> UndecidedError:
        return UndecidedError(says, hint="what was measured does not decide this")


def _of(unit: str) -> str:
    return {"s": " of seconds", "share": ", a fraction of one", "steps": " of steps", "GPU-h": " of GPU-hours"}.get(unit, "")


class Recovery:
    """
    How the training came back, over all that was injected so far: every quantity of the judge's as a `Figure`.

    The times are the worst over the disruptions, each from its own start; counts and losses are totals. The docstring of
    `chaoskit.judge` defines each of them.
    """

    def __init__(self, verdict: Verdict, spec: Spec) -> None:
        """Take a verdict of the judge's, and what it was judged by."""
        self._verdict = verdict
        self._spec = spec

    def _figure(self, name: str) -> Figure:
        spec = self._spec
        return Figure(self._verdict.quantities[name], noise_of(name, self._verdict.baseline, spec.gpus, spec.price_per_gpu_hour))

    @property
    def time_to_detect(self) -> Figure:
        """Seconds from the fault to the stack's own first sign."""
        return self._figure("time_to_detect")

    @property
    def time_to_resume(self) -> Figure:
        """Seconds from the fault to the first step of the new life, or the first after the stall."""
        return self._figure("time_to_resume")

    @property
    def time_to_recover(self) -> Figure:
        """Seconds from the fault to the first step beyond the highest before."""
        return self._figure("time_to_recover")

    @property
    def time_to_steady(self) -> Figure:
        """Seconds from the fault until the pace stays in its band again."""
        return self._figure("time_to_steady")

    @property
    def settle_time(self) -> Figure:
        """Seconds from the end of the fault until the pace stays in its band again."""
        return self._figure("settle_time")

    @property
    def lost_steps(self) -> Figure:
        """Steps done twice."""
        return self._figure("lost_steps")

    @property
    def restarts(self) -> Figure:
        """New lives that made a step."""
        return self._figure("restarts")

    @property
    def boots(self) -> Figure:
        """All new lives, also those that died without a step."""
        return self._figure("boots")

    @property
    def lost_time(self) -> Figure:
        """Seconds that made no new step at the baseline's pace."""
        return self._figure("lost_time")

    @property
    def lost_gpu_hours(self) -> Figure:
        """Lost time times the GPUs allocated, in hours."""
        return self._figure("lost_gpu_hours")

    @property
    def lost_cost(self) -> Figure:
        """Lost GPU-hours times the inventory's price."""
        return self._figure("lost_cost")

    @property
    def throughput_during(self) -> Figure:
        """Throughput while the fault was held, as a share of the baseline's."""
        return self._figure("throughput_during")

    @property
    def window_goodput(self) -> Figure:
        """New steps at the baseline's pace over the time that passed, a share."""
        return self._figure("window_goodput")

    @property
    def disruptions(self) -> tuple[Disruption, ...]:
        """Each stall and each restart, by itself."""
        return self._verdict.disruptions

    @property
    def absorbed(self) -> bool:
        """Whether every fault was there and hit what the training used, and its throughput never left the band."""
        return self._verdict.absorbed

    def __repr__(self) -> str:
        told = [words.measured(one) for one in self._verdict.quantities.values() if one.value is not None]
        names = [name for name, one in self._verdict.quantities.items() if one.value is not None]
        return f"<recovery: {', '.join(f'{name} {value}' for name, value in zip(names, told, strict=True))}>"
