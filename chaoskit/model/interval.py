"""A moment or a figure with its uncertainty; the fleet makes them, the judge reckons with them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Interval:
    """A moment or a figure with its uncertainty: the truth lies in [lo, hi]."""

    lo: float
    hi: float

    @classmethod
    def at(cls, value: float, spread: float = 0.0) -> "Interval":
        """Return value plus or minus spread."""
        return cls(value - spread, value + spread)

    @property
    def mid(self) -> float:
        """The middle, shown as the value."""
        return (self.lo + self.hi) / 2

    @property
    def spread(self) -> float:
        """Half the width, shown after the plus-minus sign."""
        return (self.hi - self.lo) / 2

    def __sub__(self, other: "Interval") -> "Interval":
        return Interval(self.lo - other.hi, self.hi - other.lo)
