"""What drives a Python test's experiment: its method, which grows as the test injects, and the session that carries it out."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from chaoskit.engine.injector import Live
from chaoskit.engine.plan import Plan, PlannedInjection, plan
from chaoskit.engine.result import RunResult
from chaoskit.engine.session import Session
from chaoskit.engine.targets import how_many
from chaoskit.errors import AbortedError, ChaosError, InputError, RefusedError
from chaoskit.judge.verdict import Baseline
from chaoskit.model.experiment import LoadedExperiment
from chaoskit.model.inventory import Inventory
from chaoskit.model.load import experiment_from
from chaoskit.model.source import Source, Where
from chaoskit.model.units import parse_duration, parse_pick
from chaoskit.wiring import Run, training_nodes

OURS = "chaoskit."


@dataclass(frozen=True, slots=True)
class Script:
    """
    A Python test as an experiment.

    `settings` are the keys of an experiment file as the marker `chaos` gives them, such as `blast_radius` or `budgets`. Where
    `lifetimes` are declared every fault must be of one of them; otherwise the site's own limits count alone.
    """

    name: str
    """The test's name, which names its run."""
    nodeid: str
    """How pytest is told to run it again."""
    file: str
    line: int
    title: str
    why: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    lifetimes: frozenset[str] = frozenset()

    def loaded(self, inventory: Inventory, method: Sequence[Mapping[str, Any]] = (), lines: Sequence[int] = ()) -> LoadedExperiment:
        """
        Return the experiment that the test is so far. Raises InputError.

        Args:
            inventory: The site, which says what a share of the nodes is.
            method: The injections, as in a file.
            lines: Where in the test each of them stands; one more is where the test is now.
        """
        here = lines[-1] if lines else self.line
        settings = {"title": self.title, "why": self.why, **self.settings}
        places: dict[Where, tuple[int, int]] = {(): (here, 1), **{(key,): (self.line, 1) for key in settings}}
        if "blast_radius" in settings:
            stated = settings["blast_radius"]
            settings["blast_radius"] = dict(stated) if isinstance(stated, Mapping) else {"nodes": stated}
            if "nodes" in settings["blast_radius"]:
                settings["blast_radius"]["nodes"] = self._radius(inventory, settings["blast_radius"]["nodes"])
                places["blast_radius", "nodes"] = (self.line, 1)
        places |= {("method", number): (line, 1) for number, line in enumerate(lines)}
        source = Source(self.file, {**settings, "method": list(method)}, places)
        loaded = experiment_from(source, growing=True)
        return replace(loaded, name=self.name, path=Path(self.nodeid))

    def _radius(self, inventory: Inventory, stated: Any) -> Any:
        """A file's share is one of the nodes that a target is picked from; here targets are named, so it is one of those that train."""
        try:
            radius = parse_pick(stated)
        except ValueError:
            return stated  # read again, and reported, with everything else
        if not isinstance(radius, float):
            return stated
        return how_many(radius, len(training_nodes(inventory, self.settings.get("training", "default"))))


class Driver:
    """Drives one experiment; whatever goes wrong in it ends it, and nothing is injected after that."""

    def __init__(self, script: Script, site: Inventory, seed: int, start: Callable[[LoadedExperiment], Run]) -> None:
        """Take the test, the site, the seed of every choice, and what makes a run of the experiment."""
        self.script = script
        self.site = site
        self.seed = seed
        self.run: Run | None = None
        self.over = ""
        """Why it has ended early; empty while it goes on."""
        self.baseline: Baseline | None = None
        self._start = start
        self._method: list[Mapping[str, Any]] = []
        self._lines: list[int] = []
        self._lives: dict[int, list[Live]] = {}

    def known(self) -> LoadedExperiment:
        """Return the experiment so far, positioned at the line of the test that asks."""
        return self.script.loaded(self.site, self._method, [*self._lines, calling_line()])

    def begin(self) -> None:
        """Connect, audit for leftovers, and start the training. Raises ChaosError; `run.close` must be called in any case."""
        self.run = self._start(self.known())
        try:
            session = self.run.begin()
            session.connect()
            session.start()
        except ChaosError as error:
            self.end_early(error)
            raise

    @property
    def begun(self) -> bool:
        """Whether there is a session."""
        return self.run is not None and self.run.session is not None

    @property
    def session(self) -> Session:
        """The session, once it was begun."""
        if self.run is None or self.run.session is None:
            raise RefusedError("the experiment has not begun")
        return self.run.session

    @property
    def plan(self) -> Plan:
        """The plan so far."""
        return self.session.plan

    @contextmanager
    def alive(self) -> Iterator[Session]:
        """Yield the session; a ChaosError ends the experiment and goes on. Raises RefusedError when it has ended."""
        if self.over:
            raise RefusedError(f"the experiment has ended: {self.over}")
        try:
            with self.session.gate.ours():
                self.session.gate.raise_pending()
                yield self.session
        except ChaosError as error:
            self.end_early(error)
            raise

    def end_early(self, error: ChaosError) -> None:
        """Record why it ends before its time; the first reason counts."""
        if self.over or self.run is None:
            return
        with self.session.gate.ours() if self.begun else nullcontext():
            self.over = str(error)
            self.run.end_early(error)

    def heed_signal(self) -> None:
        """End it by a signal that nobody heeded: it was kept while a fixture ran, or the test's own code caught its error."""
        if self.begun:
            try:
                self.session.gate.raise_pending()
            except AbortedError as error:
                self.end_early(error)

    def await_steady(self) -> Baseline:
        """Return the baseline; wait for it when there is none yet."""
        if self.baseline is None:
            with self.alive() as session:
                self.baseline = session.await_steady()
        return self.baseline

    def inject(self, entry: Mapping[str, Any]) -> tuple[PlannedInjection, list[Live]]:
        """
        Add an injection to the method, and carry it out.

        Args:
            entry: As in a file, but for `after`, which is now.

        Raises:
            InputError: The plan refuses it; the position is the line of the test.
            RefusedError: A node refuses it, or the training has ended.
        """
        self.await_steady()
        with self.alive() as session:
            if session.judge().phase == "dead":
                raise RefusedError("the training has ended: nothing more is injected")
            after = round(session.clock.now() - session.steady_at, 3)
            method, lines = [*self._method, {**entry, "after": f"{after:.3f}s"}], [*self._lines, calling_line()]
            loaded = self.script.loaded(self.site, method, lines)
            made = plan(loaded, self.site, self.seed, over=self._ended())
            self._refuse_undeclared(made.planned[-1], lines[-1])
            self._method, self._lines = method, lines
            session.extend(made)
            planned = made.planned[-1]
            self._lives[planned.number] = []
            lives = self._lives[planned.number] = session.inject(planned)
        return planned, lives

    def _ended(self) -> frozenset[int]:
        """Return the numbers of the injections that are proven gone."""
        entries = self.session.recorder.state.entries
        return frozenset(number for number, lives in self._lives.items() if all(entries[live.entry].gone.holds for live in lives))

    def _refuse_undeclared(self, planned: PlannedInjection, line: int) -> None:
        lifetime, declared = planned.instance.lifetime.name.lower(), self.script.lifetimes
        if declared and lifetime not in declared:
            what = f"{planned.fault} is {lifetime}, and the test is marked as {' and '.join(sorted(declared))}"
            hint = f"mark it `@pytest.mark.{lifetime}` as well, so that `-m` can leave it out"
            raise InputError(what, where=f"{self.script.file}:{line}", hint=hint)

    def held(self, lives: Sequence[Live]) -> list[Live]:
        """Return those whose fault is in force still, as far as is known."""
        entries = self.session.recorder.state.entries
        return [live for live in lives if not live.planned.one_shot and not entries[live.entry].ended]

    @property
    def injected(self) -> bool:
        """Whether anything was injected, or may have been."""
        return bool(self._lives)

    @property
    def all_lives(self) -> list[Live]:
        """Everything that was injected."""
        return [live for lives in self._lives.values() for live in lives]

    def conclude(self, failure: str = "") -> RunResult | None:
        """
        Revert everything, judge, and return the result so far; None when nothing began.

        A test that ended well, and did not wait until the training was steady again, is not done before it is, or before the
        longest watch of its plan is over.

        Args:
            failure: What the test stated and what does not hold; empty when it ended well.
        """
        if not self.begun:
            return None
        with self.session.gate.ours():
            self.heed_signal()
            self._conclude(failure)
        return self.session.result

    def _conclude(self, failure: str) -> None:
        if failure and not self.over:
            self.over = failure
            self.session.does_not_hold(failure)
        elif not self.over and self.injected and not self.session.judge().settled:
            left = max((live.planned.duration for live in self.held(self.all_lives)), default=0.0)
            with suppress(ChaosError), self.alive() as session:  # recorded, and told with the verdict
                session.watch(left + session.plan.watch)
        self.session.conclude()
        self.over = self.over or "it has been judged"


def seconds_of(value: float | str) -> float:
    """Return seconds from a number of them, or from text such as `10m`. Raises InputError."""
    try:
        return parse_duration(value) if isinstance(value, str) else float(value)
    except ValueError as error:
        raise InputError(str(error)) from error


def calling_line() -> int:
    """Return the line of the nearest code that is not ours: that of the test, or of its fixture."""
    frame = sys._getframe()  # noqa: SLF001 - the one way to know who called, and as old as Python
    while frame.f_back is not None and is_ours(frame):
        frame = frame.f_back
    return frame.f_lineno


def is_ours(frame: FrameType) -> bool:
    """Say whether a frame belongs to chaoskit, or to the context managers that it is made of."""
    return frame.f_globals.get("__name__", "").startswith(OURS) or frame.f_code.co_filename == contextmanager.__code__.co_filename
