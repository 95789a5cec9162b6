"""
What a node's GPUs count: memory errors, and time that they were held back. Only the difference of two looks says anything.

Standard library only, Python 3.8.
"""

from typing import Dict

from chaoskit.agent.nvml import ask
from chaoskit.errors import NodeError

STALL = 2.0
"""Seconds without a word after which a GPU counts as hanging, and what is behind it stays unread."""


def read_counters(within: float) -> Dict[str, int]:
    """Return each counter that a GPU offers, as `gpu/0/ecc_uncorrected`; fewer where one hangs or the driver is not there."""
    try:
        answer = ask({"do": "counters"}, within, STALL)
    except NodeError:
        return {}
    told = (line["counters"] for line in answer.lines if "counters" in line)
    return {"gpu/{}/{}".format(one["index"], name): value for one in told for name, value in one["values"].items()}
