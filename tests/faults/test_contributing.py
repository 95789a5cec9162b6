"""The fault that CONTRIBUTING.md shows is a fault, and its test passes."""

import contextlib
import importlib
import re
import sys
from pathlib import Path

import pytest

from chaoskit.testing import ConformanceError

PAGE = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
FAULT, TEST = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def conformance(tmp_path, monkeypatch):
    """Return a function that runs the page's test of a fault, whose text is given, and takes away what that left behind."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(fault: str, wires: int) -> None:
        (tmp_path / "mtu_cut.py").write_text(fault)
        importlib.invalidate_caches()
        names: dict = {}
        exec(TEST.replace("chaoskit.faults.mtu_cut", "mtu_cut"), names)  # noqa: S102 - the text is our own page's
        names["test_it_keeps_every_duty"](wires)

    yield run
    sys.modules.pop("mtu_cut", None)
    for mark in Path("/run/chaoskit").glob("mtu_cut-*"):
        mark.unlink()
    with contextlib.suppress(OSError):  # other things of ours lie there, or it never was
        Path("/run/chaoskit").rmdir()


def test_the_example_keeps_every_duty(conformance, wires):
    conformance(FAULT, wires)


def test_the_example_broken_on_purpose_fails(conformance, wires):
    broken = FAULT.replace('_set_mtu(host, undo["netdev"], undo["mtu"])', '_set_mtu(host, undo["netdev"], 1400)')

    with pytest.raises(ConformanceError, match="revert is harmless when inject never ran"):
        conformance(broken, wires)
