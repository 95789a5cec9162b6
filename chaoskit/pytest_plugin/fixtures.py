"""The fixtures `cluster`, `training` and `inject`. Their types and their ways stand in `chaoskit.scripting`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from chaoskit.pytest_plugin.keys import NO_INVENTORY, RUNNING

if TYPE_CHECKING:
    from chaoskit.pytest_plugin.running import Running
    from chaoskit.scripting import Cluster, Inject, Training


@pytest.fixture
def chaos_repetition(request: pytest.FixtureRequest) -> int:
    """Return which repetition of the experiment this is, from 1; see `--chaos-repeat`."""
    return int(getattr(request, "param", 1))


@pytest.fixture
def chaos_experiment(request: pytest.FixtureRequest, chaos_repetition: int) -> "Iterator[Running]":
    """The experiment that this test is; skipped where there is no site to run on."""
    if not request.config.getoption("chaos_inventory"):
        pytest.skip(NO_INVENTORY)
    from chaoskit.pytest_plugin.running import Running

    running = request.node.stash[RUNNING] = Running(request.node, repetition=chaos_repetition)
    try:
        yield running
    finally:
        running.close()


@pytest.fixture
def cluster(chaos_experiment: "Running") -> "Cluster":
    """The nodes of the site: `cluster.group("workers").pick(1, avoid="rendezvous")`. Touches nothing."""
    return chaos_experiment.cluster


@pytest.fixture
def training(chaos_experiment: "Running") -> "Training":
    """The live run under test, started or attached: `training.await_steady()`, `training.await_recovery(within="10m")`."""
    chaos_experiment.begin()
    return chaos_experiment.training


@pytest.fixture
def inject(chaos_experiment: "Running") -> "Inject":
    """What injects faults on nodes of the `cluster`; reverts them at the end of the `with` block, and of the test."""
    chaos_experiment.begin()
    return chaos_experiment.inject
