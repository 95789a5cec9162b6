"""What the parts of the plugin share: names, and what is kept on pytest's own objects."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from chaoskit.engine.result import RunResult
    from chaoskit.pytest_plugin.running import Running
    from chaoskit.wiring import Reach

FIXTURE = "chaos_experiment"
"""The fixture that every other one of ours stands on: a test that uses it is an experiment."""
REPETITION = "chaos_repetition"
LIFETIMES = ("volatile", "persistent", "irreversible")
NO_INVENTORY = "no site to run on: give --chaos-inventory FILE (or NAME)"


@dataclass(frozen=True)
class Told:
    """A result, and the experiment that it is one of several repetitions of."""

    experiment: str
    result: "RunResult"
    where: str
    """Node id of the file or class that it stands in: others may have an experiment of that name as well."""


RESULTS: "pytest.StashKey[list[Told]]" = pytest.StashKey()
PENDING: "pytest.StashKey[set[str]]" = pytest.StashKey()
"""Node ids of the tests whose own code ended well while their experiment did not."""
REFUSED: "pytest.StashKey[list[str]]" = pytest.StashKey()
"""Node ids of the experiments whose plan was refused, under `--chaos-plan`."""
PLANNED: "pytest.StashKey[int]" = pytest.StashKey()
"""How many experiments were planned."""
RUNNING: "pytest.StashKey[Running]" = pytest.StashKey()
REACH: "pytest.StashKey[Reach]" = pytest.StashKey()
"""How runs get to their nodes, where it is not over SSH."""


def repetition_id(number: int, count: int) -> str:
    """Return what names one of several repetitions."""
    return f"{number}-{count}"
