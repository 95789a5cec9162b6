"""The training and its faults, as a test handles them. Waiting here is what renews the leases."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from chaoskit.engine.injector import Live
from chaoskit.engine.planned import PlannedInjection
from chaoskit.errors import RefusedError, UndecidedError
from chaoskit.judge.verdict import Baseline, Verdict
from chaoskit.model.units import show_duration
from chaoskit.scripting.cluster import Nodes
from chaoskit.scripting.driver import Driver, seconds_of
from chaoskit.scripting.figures import Recovery

LATE = 30.0
"""Seconds beyond its hold after which a fault that has not ended is given up on."""


class Training:
    """The live run under test; it is up when the test begins."""

    def __init__(self, driver: Driver) -> None:
        """Take what drives the experiment."""
        self._driver = driver

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that train."""
        return self._driver.session.training.nodes

    @property
    def step(self) -> int:
        """The highest step seen so far; -1 before the first."""
        return self._driver.session.recorder.state.highest

    @property
    def checkpoint_interval(self) -> int:
        """Steps from one checkpoint to the next, as the inventory states them. Raises RefusedError when it does not."""
        every = self._driver.plan.spec.checkpoint_every
        if every is None:
            where = f"trainings.{self._driver.plan.training_name}.checkpoints.every"
            raise RefusedError(f"the inventory does not state {where}", hint="add it, in steps")
        return every

    def await_steady(self) -> Baseline:
        """
        Wait until the throughput is steady, and return the baseline; once it was found, return that at once.

        Raises:
            RefusedError: It does not become steady in the time allowed.
        """
        return self._driver.await_steady()

    def wait(self, seconds: float | str) -> None:
        """
        Let time pass: `20`, or `"20s"`. The leases are renewed meanwhile, which no `time.sleep` does.

        Raises:
            AbortedError: An abort condition, or a signal.
        """
        with self._driver.alive() as session:
            session.wait(seconds_of(seconds))

    def await_recovery(self, within: float | str) -> Recovery:
        """
        Wait until every fault is over and the training is steady again, and return how it came back.

        Args:
            within: The longest wait from now: seconds, or text such as `"10m"`.

        Raises:
            AssertionError: It did not come back; the test fails.
            UndecidedError: Nothing saw enough to say; the test is an error.
            AbortedError: An abort condition, or a signal.
        """
        driver, seconds = self._driver, seconds_of(within)
        with driver.alive() as session:
            if not driver.injected:
                raise RefusedError("nothing was injected, so that there is nothing to recover from")
            verdict = session.watch(seconds)
            told = _not_recovered(verdict, show_duration(seconds), held=bool(driver.held(driver.all_lives)))
            if isinstance(told, UndecidedError):
                raise told
        if told is not None:
            raise told
        return Recovery(verdict, driver.plan.spec)


def _not_recovered(verdict: Verdict, within: str, *, held: bool) -> AssertionError | UndecidedError | None:
    steady = verdict.quantities["time_to_steady"]
    if steady.value is not None and not steady.beyond and verdict.settled:
        return None
    why = "; ".join(verdict.reasons) or steady.note
    if held:
        return UndecidedError(f"a fault is held for longer than {within}", hint="wait longer, or leave its `with` block first")
    if not steady.beyond or steady.open:
        return UndecidedError(f"nothing says whether the training recovered within {within}: {why}")
    return AssertionError(f"the training did not recover within {within}: {why}")


class Injection:
    """One fault on its targets. As a context manager it is reverted at the end of the block, if it has not ended by itself."""

    def __init__(self, driver: Driver, planned: PlannedInjection, lives: Sequence[Live]) -> None:
        """Take what drives the experiment, and what was injected."""
        self._driver = driver
        self._planned = planned
        self._lives = lives

    @property
    def targets(self) -> tuple[str, ...]:
        """The nodes that it was injected on."""
        return self._planned.targets

    @property
    def present(self) -> bool | None:
        """Whether its witness saw it on every target; None when one could not say."""
        return self._facts("present")

    @property
    def exposed(self) -> bool | None:
        """Whether the training used what it hit, on some target; None when nobody could say."""
        known = [getattr(entry, "exposed").holds for entry in self._entries]  # noqa: B009 - as `_facts` reads it
        return True if True in known else None if None in known else False

    @property
    def gone(self) -> bool | None:
        """Whether it is proven gone on every target; None when one could not say, as while it is held."""
        return self._facts("gone")

    def revert(self) -> None:
        """End it now. Nothing happens for a kill, which has no undo, and for a fault that has ended."""
        if not self._driver.over and self._driver.held(self._lives):
            with self._driver.alive() as session:
                session.revert(self._lives)

    def await_end(self) -> None:
        """
        Wait until the nodes have ended it by themselves, when its hold is over.

        Raises:
            UndecidedError: A node did not say so in time.
            AbortedError: An abort condition, or a signal.
        """
        with self._driver.alive() as session:
            give_up = session.clock.now() + self._planned.duration + LATE
            while held := self._driver.held(self._lives):
                if session.clock.now() >= give_up:
                    nodes = ", ".join(live.node for live in held)
                    raise UndecidedError(f"{self._planned.fault} has not ended on {nodes}, as far as is known")
                session.tick()

    def _facts(self, name: str) -> bool | None:
        known = [getattr(entry, name).holds for entry in self._entries]
        return False if False in known else None if None in known else True

    @property
    def _entries(self) -> list[Any]:
        entries = self._driver.session.recorder.state.entries
        return [entries[live.entry] for live in self._lives]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.revert()

    def __repr__(self) -> str:
        return f"<{self._planned.detail} on {', '.join(self.targets)}>"


class Inject:
    """
    Injects faults: `inject("link_flap", target=cluster.group("workers").pick(1), rail=1, down="20s")`.

    The fault begins at the call, once the training is steady, and not at the `with`. What is held ends by itself when its
    hold is over, at the end of the `with` block, at the end of the test, or when the lease ends, whichever comes first.
    """

    def __init__(self, driver: Driver) -> None:
        """Take what drives the experiment."""
        self._driver = driver

    def __call__(
        self,
        fault: str,
        *,
        target: Nodes,
        together: bool = False,
        expect: Mapping[str, Any] | None = None,
        allow: Sequence[str] = (),
        **parameters: Any,
    ) -> Injection:
        """
        Inject a fault on all targets, and return it with its proofs.

        Args:
            fault: Its name, as in `chaoskit faults`.
            target: The nodes, such as `cluster.group("workers").pick(1)`.
            together: One T0 on all targets, instead of one after another.
            expect: What the training must feel meanwhile, as in a file.
            allow: What is refused otherwise, as in a file: `["control_path"]`.
            parameters: The fault's parameters, written as in a file: `down="20s"`.

        Raises:
            InputError: The plan refuses it: an unknown fault or parameter, the blast radius, a protected host, an overlap.
            RefusedError: A node refuses it, or there is no node to inject it on; nothing was harmed.
            AbortedError: An abort condition, or a signal.
        """
        if not target:
            with self._driver.alive():
                raise RefusedError(f"{fault} has no target: there is no node in {target.asked}")
        entry: dict[str, Any] = {"fault": fault, "target": {"nodes": str(target), "pick": "all"}, "with": parameters}
        entry |= {"together": together, "allow": list(allow)} | ({} if expect is None else {"expect": expect})
        planned, lives = self._driver.inject(entry)
        return Injection(self._driver, planned, lives)
