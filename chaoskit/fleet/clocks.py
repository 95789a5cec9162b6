"""
The node's clock, mapped to the controller's: pure reckoning over round trips.

A round trip says that the node's clock read `mono` somewhere between the moment it was sent and the moment the answer
came. Two clocks drift apart by at most `DRIFT`, so each round trip bounds the controller's time of *every* moment on
the node: tightly near it, by the drift allowance further away. The mapping of a moment is the intersection of those
bounds; it is piecewise linear, needs no symmetry of the network, and its width is the uncertainty.
"""

import bisect
import threading
from dataclasses import dataclass

from chaoskit.model.interval import Interval

DRIFT = 1e-3
"""Most that two monotonic clocks drift apart, in seconds a second: the kernel slews each by at most 500 ppm."""
KEPT = 16384
"""Round trips kept; the oldest go first. At one a second these are four hours."""
NEIGHBOURS = 32
"""Round trips looked at on each side of a moment; those further away only bound it more loosely."""


@dataclass(frozen=True, slots=True)
class Trip:
    """One round trip: sent and received on the controller's clock, `mono` and `wall` read on the node in between."""

    sent: float
    received: float
    mono: float
    wall: float

    @property
    def rtt(self) -> float:
        """Seconds from question to answer."""
        return self.received - self.sent

    def bound(self, mono: float) -> Interval:
        """Return what this trip alone says of the controller's time when the node's clock read `mono`."""
        away = mono - self.mono
        return Interval(self.sent + away - DRIFT * abs(away), self.received + away + DRIFT * abs(away))


class ClockMap:
    """
    The mapping of one node's monotonic clock, for one boot.

    Clocks that jump against each other (a suspended machine, a paused virtual one) begin a new piece: the trips before
    and after then contradict each other, and a moment between them lies anywhere between what both say.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._trips: list[Trip] = []
        self._jumps: list[float] = []  # the node's clock at the first trip of each further piece

    def add(self, trip: Trip) -> None:
        """Take in a round trip. One that says nothing beyond another is not kept."""
        with self._lock:
            trips = self._trips
            if trips and trip.mono <= trips[-1].mono:
                return  # answers are in order on one channel; an equal reading tells nothing new
            if trips and _apart(trips[-1], trip):
                self._jumps.append(trip.mono)
            elif trips and _implies(trips[-1], trip):
                return
            while trips and trips[-1].mono not in self._jumps and _implies(trip, trips[-1]):
                trips.pop()
            trips.append(trip)
            if len(trips) > KEPT:
                del trips[: KEPT // 4]

    def to_controller(self, mono: float) -> Interval:
        """
        Return the controller's time of a moment on the node.

        Raises:
            LookupError: There was no round trip yet.
        """
        pieces = self._pieces_at(mono)
        if not pieces:
            raise LookupError("the clock of the node was never asked")
        bounds = [_intersection([trip.bound(mono) for trip in piece]) for piece in pieces]
        return Interval(min(bound.lo for bound in bounds), max(bound.hi for bound in bounds))

    def to_node(self, time: float) -> float:
        """
        Return what the node's clock reads at a moment of the controller's.

        Raises:
            LookupError: There was no round trip yet.
        """
        with self._lock:
            last = self._trips[-1] if self._trips else None
        if last is None:
            raise LookupError("the clock of the node was never asked")
        guess = last.mono + time - (last.sent + last.received) / 2
        for _ in range(3):  # the slope is one within the drift, so each round shrinks the error by about 1000
            guess += time - self.to_controller(guess).mid
        return guess

    def from_wall(self, wall: float) -> Interval:
        """
        Return the controller's time of a wall-clock stamp of the node, as log lines carry it.

        The node's wall clock may be stepped; a stamp between two trips then lies anywhere between what both say.

        Raises:
            LookupError: There was no round trip yet.
        """
        with self._lock:
            place = bisect.bisect_left(self._trips, wall, key=lambda trip: trip.wall)
            near = self._trips[max(0, place - 1) : place + 1]
        if not near:
            raise LookupError("the clock of the node was never asked")
        found = [self.to_controller(trip.mono + wall - trip.wall) for trip in near]
        return Interval(min(each.lo for each in found), max(each.hi for each in found))

    def _pieces_at(self, mono: float) -> list[list[Trip]]:
        """Return the trips around a moment, by piece: one piece, or the two that a jump around the moment parts."""
        with self._lock:
            place = bisect.bisect_right(self._trips, mono, key=lambda trip: trip.mono)
            before, after = self._trips[max(0, place - NEIGHBOURS) : place], self._trips[place : place + NEIGHBOURS]
            cut = list(self._jumps)
        if before:
            start = max((jump for jump in cut if jump <= before[-1].mono), default=float("-inf"))
            before = [trip for trip in before if trip.mono >= start]
        if after:
            end = min((jump for jump in cut if jump > after[0].mono), default=float("inf"))
            after = [trip for trip in after if trip.mono < end]
        if before and after and after[0].mono in cut:
            return [before, after]
        return [before + after] if before or after else []


def _apart(one: Trip, other: Trip) -> bool:
    """Say whether two trips contradict each other, whatever the drift."""
    away = other.mono - one.mono
    slack = DRIFT * abs(away)
    return one.received + away + slack < other.sent or one.sent + away - slack > other.received


def _implies(one: Trip, other: Trip) -> bool:
    """Say whether `one` bounds the moment of `other` no looser than `other` itself; then it does so for every moment."""
    away = other.mono - one.mono
    slack = DRIFT * abs(away)
    return one.sent + away - slack >= other.sent and one.received + away + slack <= other.received


def _intersection(bounds: list[Interval]) -> Interval:
    """Return what all bounds allow; when rounding or a jump too small to notice leaves nothing, what any allows."""
    lo, hi = max(bound.lo for bound in bounds), min(bound.hi for bound in bounds)
    return Interval(lo, hi) if lo <= hi else Interval(min(bound.lo for bound in bounds), max(bound.hi for bound in bounds))
