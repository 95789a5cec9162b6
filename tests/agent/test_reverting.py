"""How long an end may take, on a clock of our own: whoever reverts must be done, and have told, before the fuse kills it for it."""

import pytest

from chaoskit.agent.contract import Evidence, Site
from chaoskit.agent.host import Host
from chaoskit.agent.ledger import Entry, Ledger
from chaoskit.agent.reverting import GRACE, close, record, revert

HUNG = 10.0
"""Seconds that a call takes which asks a hung GPU: its child's deadline, and the wait for its end."""


class Clock(Host):
    """A host on which only sleeping, and what a fault says it took, lets time pass."""

    def __init__(self) -> None:
        super().__init__(Site("n1"))
        self.now = 100.0

    def monotonic(self) -> float:
        """Return the time in seconds."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


class Stubborn:
    """A fault whose revert takes so long, and fails or is never seen gone."""

    def __init__(self, took, fails):
        self.took, self.fails, self.attempts = took, fails, 0

    def revert(self, host, undo):
        """Take its time."""
        self.attempts += 1
        host.sleep(self.took)
        if self.fails:
            raise OSError("attempt {}".format(self.attempts))

    def gone(self, host, undo):
        """Never."""
        return Evidence(False, "attempt {}".format(self.attempts))


@pytest.mark.parametrize(
    ("took", "fails", "attempts"),
    [(0.0, True, 3), (HUNG, True, 1), (0.0, False, 2), (5.5, True, 2), (HUNG, False, 1)],
    ids=["fails at once", "hangs", "not seen gone", "slow", "slow and not seen gone"],
)
def test_an_end_that_does_not_come_is_told_before_the_fuse_kills_for_it(took, fails, attempts):
    """As often as there is time, and with what the last attempt found."""
    host, fault = Clock(), Stubborn(took, fails)

    result = revert(fault, host, {}, one_shot=False)

    assert fault.attempts == attempts
    assert host.now - 100.0 < GRACE
    assert not result.evidence.holds
    assert "attempt {}".format(attempts) in result.evidence.says


class Flaky:
    """A fault whose first reverts raise, whose reads of what is back then raise, and which is back after that."""

    def __init__(self, reverts, reads):
        self.reverts, self.reads, self.tried, self.read = reverts, reads, 0, 0

    def revert(self, host, undo):
        """Raise as often as was said."""
        self.tried += 1
        if self.tried <= self.reverts:
            raise OSError("revert {} fails".format(self.tried))

    def gone(self, host, undo):
        """Raise as often as was said, then say yes."""
        self.read += 1
        if self.read <= self.reads:
            raise OSError("read {} fails".format(self.read))
        return Evidence(True, "back")


@pytest.mark.row("R12", "L3", "L5")
@pytest.mark.parametrize(("reverts", "held"), [(0, True), (1, True), (2, True), (3, False), (1000, False)])
def test_a_revert_that_fails_is_tried_a_bounded_number_of_times(reverts, held):
    """Once, twice, for ever: it is never called gone without a read that says so, and what failed is told."""
    host, fault = Clock(), Flaky(reverts, reads=0)

    result = revert(fault, host, {}, one_shot=False)

    assert (result.evidence.holds, fault.tried) == (held, min(reverts + 1, 3))
    assert held or "revert 3 fails" in result.evidence.says


@pytest.mark.row("R12", "L4")
@pytest.mark.parametrize(("reads", "held"), [(1, True), (20, True), (10**6, False)])
def test_a_read_back_that_raises_proves_nothing_and_is_tried_for_a_bounded_time(reads, held):
    """What cannot be read is unknown, never recovered."""
    host, fault = Clock(), Flaky(reverts=0, reads=reads)

    result = revert(fault, host, {}, one_shot=False)

    assert result.evidence.holds is held
    assert host.now - 100.0 < GRACE
    assert held or "the read-back failed" in result.evidence.says


class Odd:
    """A fault whose state is back at once, and whose read-back says so in its own way."""

    def __init__(self, evidence):
        self.evidence = evidence

    def holds(self):
        """One span."""
        return ((0.0, 1.0),)

    def revert(self, host, undo):
        """At once."""

    def gone(self, host, undo):
        """Say what was given."""
        return self.evidence


class Unprintable:
    """What cannot even be shown."""

    def __repr__(self):
        """Fail."""
        raise ZeroDivisionError


@pytest.mark.row("R12", "L4")
@pytest.mark.parametrize(
    ("evidence", "held"),
    [
        (Evidence(True, "back", {"mhz": float("nan")}), True),
        (Evidence(True, "back", {"pids": {1, 2}}), True),
        (Evidence(True, "back", {"raw": b"\xff"}), True),
        (Evidence(True, "back", {b"raw": 1}), True),
        (Evidence(True, b"back", {}), True),
        (Evidence(True, "back", {"it": Unprintable()}), False),
        (Evidence({1}, "back", {}), True),
        (Evidence(True, "back", None), False),
        (None, False),
        (True, False),
    ],
    ids=[
        "nan",
        "set",
        "bytes",
        "bytes for a key",
        "bytes for a sentence",
        "unprintable",
        "set for a bool",
        "no readings",
        "none",
        "a bool",
    ],
)
def test_whatever_a_read_back_returns_the_entry_is_closed_or_told_as_failed(tmp_path, evidence, held):
    """What is no JSON never keeps a revert's outcome from the ledger, and what is no evidence proves nothing."""
    ledger = Ledger(str(tmp_path / "ledger"))
    entry = ledger.plan(Entry("run/1/n1", "run", "odd", {}, {}, {"node": "n1"}, holds=[[0.0, 1.0]]))
    ledger.append(entry.entry, "armed", lease=1.0)
    host = Clock()

    result = close(ledger, host, entry, revert(Odd(evidence), host, {}, one_shot=False), "a test")

    written = ledger.read(entry.entry)
    assert (result.evidence.holds, result.note, written.open, written.failures, written.damage) == (held, "", not held, int(not held), [])


def test_a_record_that_is_no_json_is_told_and_stops_nobody(tmp_path):
    """A revert goes on without its record."""
    ledger = Ledger(str(tmp_path / "ledger"))
    ledger.plan(Entry("run/1/n1", "run", "odd", {}, {}, {"node": "n1"}))

    assert "JSON" in record(ledger, "run/1/n1", "failed", says={1, 2})
    assert "JSON" in record(ledger, "run/1/n1", "failed", says=float("nan"))
