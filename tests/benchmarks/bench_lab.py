"""What the benchmarks of the wire share: a lab of their own with a fleet over it, and percentiles."""

import contextlib
import math
import os

from chaoskit.fleet.fleet import SshFleet
from chaoskit.lab import control
from chaoskit.model.load import load_inventory

NAME = f"bench-{os.getpid()}"
"""Two benchmarks at once must not share a lab."""
NODES = 8


@contextlib.contextmanager
def lab_fleet(faults=None):
    """Yield a fleet over a fresh lab of eight nodes and their names; the lab is removed afterwards."""
    lab = control.up(name=NAME, nodes=NODES)
    try:
        inventory = load_inventory(lab.inventory_path)
        fleet = SshFleet(inventory, faults)
        try:
            yield fleet, [node.name for node in inventory.group("workers")]
        finally:
            fleet.close()
    finally:
        control.down(NAME)


def percentile(values, share):
    """Return the smallest value that `share` percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)]
