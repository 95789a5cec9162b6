"""The lease: it always runs, only renewals move it, and once over it is over."""

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from chaoskit.agent.lease import Lease, Leases, forget_lease, last_deadline, read_lease, write_lease
from chaoskit.agent.paths import Paths
from chaoskit.errors import RefusedError


class LeaseMachine(RuleBasedStateMachine):
    """One run's lease against the plainest model: a deadline, and the entries it has ended."""

    def __init__(self):
        super().__init__()
        self.written = {}
        self.leases = Leases(self.written.__setitem__)
        self.now = 100.0
        self.deadline = None
        self.open = []
        self.ended = []
        self.count = 0

    @rule(length=st.floats(0.5, 60.0))
    def arm(self, length):
        self.expire()
        self.count += 1
        self.open.append(f"run/{self.count}/n")
        self.leases.begin("run", length, self.now)
        self.deadline = self.now + length

    @rule(length=st.floats(0.5, 60.0))
    def renew(self, length):
        lease = self.leases.renew("run", length, self.now)
        alive = self.deadline is not None and self.now < self.deadline
        assert (lease is not None) == alive
        if alive:
            self.deadline = self.now + length

    @rule(step=st.floats(0.0, 40.0))
    def wait(self, step):
        self.now += step

    @rule()
    def expire(self):
        """What the server does at each turn of its loop."""
        over = self.leases.over(self.now)
        assert over == (["run"] if self.deadline is not None and self.now >= self.deadline else [])
        if over:
            self.leases.expire("run", self.open)
            self.ended += self.open
            self.open, self.deadline = [], None

    @precondition(lambda self: self.deadline is not None and self.now < self.deadline)
    @rule()
    def inject(self):
        lease = self.leases.get("run")
        assert lease.enough(self.now) == (lease.deadline - self.now >= lease.length / 2)

    @invariant()
    def no_renewal_revives(self):
        assert self.leases.expired("run") == self.ended
        if self.deadline is not None:
            assert self.written["run"].deadline == self.deadline == self.leases.next_deadline()


LeaseMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLease = pytest.mark.row("R7")(LeaseMachine.TestCase)


@pytest.mark.prove
@pytest.mark.row("R7")
def test_a_hundred_thousand_steps():
    """The whole row: no renewal revives, whatever came before it."""
    many = settings(max_examples=500, stateful_step_count=200, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(LeaseMachine, settings=many)


@pytest.mark.row("R7")
@pytest.mark.parametrize("length", [0.0, -1.0, 1e9, float("nan"), float("inf")])
def test_a_lease_has_bounds(length):
    """Neither none nor for ever."""
    with pytest.raises(RefusedError):
        Leases(lambda *_: None).begin("run", length, 0.0)


def test_the_bounds_are_allowed_and_what_is_beyond_is_named_with_them():
    leases = Leases(lambda *_: None)
    assert [leases.begin("run", length, 100.0).deadline for length in (0.5, 3600.0)] == [100.5, 3700.0]
    with pytest.raises(RefusedError) as caught:
        leases.begin("run", 3600.5, 100.0)

    assert caught.value.what == "a lease of 3600.5 s is not between 0.5 and 3600.0 s"


def test_a_lease_is_over_at_its_deadline_and_an_injection_wants_half_of_it():
    """To the moment."""
    lease = Lease(30.0, 130.0)

    assert [lease.over(now) for now in (129.9, 130.0)] == [False, True]
    assert [lease.enough(at) for at in (115.0, 115.1)] == [True, False]


def test_the_next_deadline_is_the_earliest_of_all():
    leases = Leases(lambda *_: None)
    assert leases.next_deadline() is None
    for run, length in (("run1", 30.0), ("run2", 20.0), ("run3", 40.0)):
        leases.begin(run, length, 100.0)

    assert leases.next_deadline() == 120.0


def test_the_file_is_what_the_fuse_reads(tmp_path):
    """What is written is read; a missing or damaged file is None, so that the ledger's deadline counts."""
    paths = Paths(run=str(tmp_path / "run"))
    assert read_lease(paths, "run1") is None

    write_lease(paths, "run1", Lease(30.0, 130.5))
    assert read_lease(paths, "run1") == Lease(30.0, 130.5)

    with open(paths.lease("run1"), "w") as file:
        file.write('{"length": 3')
    assert read_lease(paths, "run1") is None


def test_the_last_of_all_deadlines_is_told_whatever_else_lies_there(tmp_path):
    """Of every run's file; a damaged one, and a name that is no run's, count for nothing."""
    paths = Paths(run=str(tmp_path / "run"))
    assert last_deadline(paths) == 0.0

    for run, deadline in (("run1", 130.5), ("run2", 140.5), ("run3", 150.5)):
        write_lease(paths, run, Lease(30.0, deadline))
    os.rename(os.path.dirname(paths.lease("run3")), str(tmp_path / "run" / "runs" / ".run3"))
    assert last_deadline(paths) == 140.5

    with open(paths.lease("run2"), "w") as file:
        file.write('{"length": 30.0, "deadline": Infinity}')
    assert last_deadline(paths) == 130.5

    os.unlink(paths.lease("run1"))
    assert last_deadline(paths) == 0.0


def test_a_lease_is_forgotten_once_and_what_else_lies_beside_it_stays(tmp_path):
    """Its folder goes with it when it is empty."""
    paths = Paths(run=str(tmp_path / "run"))
    for run in ("run1", "run2"):
        write_lease(paths, run, Lease(30.0, 130.5))
    (tmp_path / "run" / "runs" / "run2" / "other").touch()
    for _ in range(2):
        forget_lease(paths, "run1")
        forget_lease(paths, "run2")

    assert os.listdir(str(tmp_path / "run" / "runs")) == ["run2"]
    assert os.listdir(str(tmp_path / "run" / "runs" / "run2")) == ["other"]
