"""How often a property is tried: a few times in the suite, many times under `./dev prove`."""

import pytest
from hypothesis import HealthCheck, settings

# A machine that does other work too, and examples that are whole runs.
UNHURRIED = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def tried(few, many):
    """Give a test the argument `examples`: few, and in a test of its own that is marked `prove`, many."""
    return pytest.mark.parametrize("examples", [few, pytest.param(many, marks=pytest.mark.prove)], ids=["few", "many"])


def check(holds, examples):
    """Try a property (a function under `given`) on so many examples."""
    settings(max_examples=examples, deadline=None, suppress_health_check=UNHURRIED, print_blob=True)(holds)()
