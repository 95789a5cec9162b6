"""What an entry does when: the starts and ends of its spans, counted from T0. Standard library only, Python 3.8."""

from typing import List, NamedTuple


class Act(NamedTuple):
    """Something due at `at` (mono): the start or the end of a span."""

    at: float
    harm: bool
    span: int
    last: bool


def agenda(holds: List[List[float]], t0: float) -> List[Act]:
    """Return what is due and when: for each span its start and its end; for a one-shot fault the one act."""
    if not holds:
        return [Act(t0, True, 0, True)]
    last = len(holds) - 1
    return [
        Act(t0 + moment, harm, number, number == last)
        for number, span in enumerate(holds)
        for harm, moment in ((True, span[0]), (False, span[1]))
    ]
