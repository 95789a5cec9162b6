"""The tier of virtual machines, booted once for all that is tried on it."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import image
from tier import Tier


@pytest.fixture(scope="session")
def tier(tmp_path_factory):
    if os.geteuid() != 0:
        pytest.skip("the machines' disk is made by root")
    if lacks := image.missing():
        pytest.skip(f"not installed: {', '.join(lacks)}")
    tier = Tier(tmp_path_factory.mktemp("machines"), image.build())
    try:
        tier.start()
        yield tier
    finally:
        tier.one.remove()
        tier.two.remove()


@pytest.fixture
def controller(tier):
    """Return a function that begins a fault; whatever holds one is killed at the end."""
    begun = []

    def hold(*arguments, **more):
        begun.append(tier.hold(*arguments, **more))
        return begun[-1]

    yield hold
    for one in begun:
        one.kill()
        one.wait()
