"""Every fault, ours or one to come, keeps every duty of the contract, on the oldest Python too."""

from pathlib import Path

import pytest

from chaoskit.faults import discover

BENCH = str(Path(__file__).parent / "bench.py")
SITUATIONS = ("wrong parameters", "missing tools", "no rights", "in the way")


@pytest.mark.row("L3", "L6", "L11", "L13")
@pytest.mark.parametrize("name", sorted(discover()))
def test_a_fault_keeps_every_duty_on_the_real_thing(name, python, isolated):
    """A new fault needs a file in benches/, and nothing here."""
    done = isolated(python, BENCH, name)

    assert (done.returncode, done.stdout) == (0, "every duty kept\n"), done.stderr


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("name", sorted(discover()))
def test_what_cannot_work_is_refused_before_any_harm_and_says_what_to_do(name, situation, python, isolated):
    """The table of refusals, every fault by every situation; one that a fault cannot come into says why."""
    done = isolated(python, BENCH, name, situation)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("refused: ", "cannot be: "))


@pytest.mark.row("R2", "L18", "L46")
@pytest.mark.parametrize("python", ["this", pytest.param("3.8", marks=pytest.mark.prove)], indirect=True)
@pytest.mark.parametrize("name", sorted(discover()))
def test_what_a_fault_leaves_without_its_ledger_is_found_and_only_our_own_is_taken_away(name, python, isolated):
    """A fault that is still to come needs its `strays` for this, and nothing here."""
    done = isolated(python, BENCH, name, "left without its ledger")

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("found: ", "nothing to find"))
