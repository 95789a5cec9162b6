"""
What the wall clocks of a site say about each other: pure.

Everything that chaoskit itself measures runs on monotonic clocks, mapped by round trips. But credentials (munge,
Kerberos) and the reading of logs stand on wall clocks: where those differ, jobs are refused and histories lie.
"""

from collections.abc import Mapping
from statistics import median

from chaoskit.model.interval import Interval
from chaoskit.model.wire import Finding

LIMIT = 1.0
"""Seconds that a wall clock may be off."""
VOTERS = 3
"""Clocks, ours among them, from which on the majority is believed; of two nobody knows which is wrong, and ours is taken."""


def clock_findings(offsets: Mapping[str, Interval]) -> dict[str, Finding]:
    """
    Return a finding for each node, and one under the empty name when it is this machine's clock that is off.

    Args:
        offsets: Seconds that each node's wall clock is ahead of this machine's, as intervals that hold the truth.
    """
    votes = [0.0, *(offset.mid for offset in offsets.values())]
    right = median(votes) if len(votes) >= VOTERS else 0.0
    found = {name: _finding(Interval(offset.lo - right, offset.hi - right)) for name, offset in offsets.items()}
    if abs(right) > LIMIT:
        found[""] = Finding("clock", "defect", f"this machine's clock is {_apart(-right)} most nodes'", "set it: is NTP running here?")
    return found


def _finding(off: Interval) -> Finding:
    within = f"to within {off.spread * 1000:.0f} ms"
    if off.lo > LIMIT or off.hi < -LIMIT:
        do = "set it (chronyc tracking; timedatectl): munge and Kerberos refuse credentials from such a clock"
        return Finding("clock", "defect", f"the wall clock is {_apart(off.mid)} the others', {within}", do)
    if off.lo < -LIMIT or off.hi > LIMIT:
        says = f"the wall clock could be read only {within}: is the way to this node so slow?"
        return Finding("clock", "unknown", says, "ping the node, and look at what else loads it and the way to it; then ask again")
    return Finding("clock", "ok", f"the wall clock differs by {abs(off.mid) * 1000:.0f} ms, known {within}")


def _apart(seconds: float) -> str:
    return f"{abs(seconds):.1f} s {'ahead of' if seconds > 0 else 'behind'}"
