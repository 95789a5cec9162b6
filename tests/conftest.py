"""What all tests share: golden files, pytest's own harness for the plugin's tests, and one lab for all that need a cluster."""

import os
import re
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from chaoskit.lab import control, nvml, requirements
from chaoskit.lab.gpus import Gpus

pytest_plugins = ["pytester"]

GOLDEN = Path(__file__).parent / "golden"

# Machines are shared and noisy: a slow example is no failure. The gate tries the same examples each time, so that no change is
# refused for a defect that it has not made; `./dev prove` tries new ones.
settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("new", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("CHAOSKIT_EXAMPLES", "same"))


def pytest_addoption(parser):
    parser.addoption("--update", action="store_true", help="rewrite the golden files in tests/golden from what the tests see")


@pytest.fixture
def golden(request):
    """
    Return a function that compares a text with a golden file.

    `pytest --update` rewrites the files instead; read the diff before you commit it.
    """

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update"):
            path.write_text(text, encoding="utf-8")
        assert path.read_text(encoding="utf-8") == text

    return check


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory):
    """Return the simulated NVML, built once a session."""
    return nvml.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def gpus(tmp_path, monkeypatch, nvml_library):
    """Return two simulated GPUs, which are this process's and its children's for one test."""
    made = Gpus(tmp_path / "gpus")
    made.make(count=2, machine_id="0" * 32)
    for name, value in made.environment(nvml_library).items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture(scope="session")
def can_have_lab():
    """Skip, with the reason, where no lab can be made."""
    if os.geteuid() != 0:
        pytest.skip("the lab needs root")
    if lacks := requirements.missing():
        pytest.skip("; ".join(lacks))


def _remove_orphans():
    """Remove the labs of earlier test sessions that were killed: their name carries the session's pid."""
    for name in control.names():
        owner = re.fullmatch(r"test-(?:[a-z]+-)?(\d+)", name)
        if owner and not Path("/proc", owner[1]).exists():
            control.down(name)


@pytest.fixture(scope="session")
def lab(can_have_lab):
    """
    Return a lab of 4 training nodes, shared by the whole session and gone at its end, also on SIGTERM.

    With CHAOSKIT_TEST_LAB=NAME an own lab that is up is used and left up: for quick turns while developing.
    """
    if name := os.environ.get("CHAOSKIT_TEST_LAB"):
        yield control.up(name=name, nodes=4)
        return
    _remove_orphans()
    before = signal.signal(signal.SIGTERM, lambda *_: pytest.exit("SIGTERM", returncode=143))
    name = f"test-{os.getpid()}"
    try:
        yield control.up(name=name, nodes=4)
    finally:
        control.down(name)
        signal.signal(signal.SIGTERM, before)
