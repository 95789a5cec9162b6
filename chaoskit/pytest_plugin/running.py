"""One Python test as one experiment, from its fixtures to its verdict."""

import inspect
import sys
from collections.abc import Generator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast
from unittest import TestCase

import pytest

from chaoskit.engine.result import RunResult
from chaoskit.engine.signals import Whose
from chaoskit.errors import AbortedError, ChaosError, InputError
from chaoskit.judge.verdict import Outcome
from chaoskit.model.experiment import LoadedExperiment
from chaoskit.model.inventory import Inventory
from chaoskit.model.load import load_inventory
from chaoskit.pytest_plugin.items import as_written, where_of
from chaoskit.pytest_plugin.keys import LIFETIMES, PENDING, REACH, REPETITION, Told
from chaoskit.pytest_plugin.told import keep, told
from chaoskit.report.live import watching
from chaoskit.scripting import Cluster, Inject, Training
from chaoskit.scripting.driver import Driver, Script, is_ours
from chaoskit.wiring import Order, Reach, Run

SEED = "seed"


class Running:
    """
    The experiment that one test is.

    The run begins with the fixture `training` or `inject`. When the test's own code has ended everything is reverted and
    judged; a FAILED run fails the test there, and whatever else is no PASSED is an error at teardown, beside the test's own
    failure and never in its place.
    """

    def __init__(self, item: pytest.Item, *, repetition: int) -> None:
        """Read the site and the test's own marks; what is wrong with them is an error of the test."""
        self.item = item
        self.repetition = repetition
        try:
            self.site: Inventory = load_inventory(item.config.getoption("chaos_inventory"))
            self.driver = Driver(script_of(item), self.site, seed_of(item), self._run)
            self.driver.known()
        except InputError as error:
            problems = str(error)
        else:
            problems = ""
        if problems:
            pytest.fail(problems, pytrace=False)
        self.cluster = Cluster(self.site, self.driver.seed, self.driver.known)
        self.training = Training(self.driver)
        self.inject = Inject(self.driver)
        self._pending: BaseException | None = None
        self._closed = False
        self._refused = False
        self._interrupted = False
        self._calling = False
        self._subtest_failed: BaseException | None = None

    def _run(self, loaded: LoadedExperiment) -> Run:
        order = Order(loaded, self.site, self.driver.seed, Path(self.item.config.getoption("chaos_out")))
        reach = self.item.config.stash.get(REACH, Reach())
        return Run(order, lambda info: watching(info, cast("IO[str]", Captured())), reach)

    def begin(self) -> None:
        """Begin the run, once; what keeps it from beginning is an error of the test's set-up."""
        if self.driver.run is not None:
            return
        problems = ""
        try:
            self.driver.begin()
            self.driver.session.gate.whose = Whose.TESTS if self._calling else Whose.OTHERS
        except ChaosError as error:
            problems = str(error)
        if problems:
            self._end()
            self._refused = True
            pytest.fail(problems if self.result is None else told(self.result), pytrace=False)

    @property
    def result(self) -> RunResult | None:
        """The run's result so far; None when nothing began, and nothing was refused."""
        run = self.driver.run
        return run.result if run is not None and (run.session is not None or self.driver.over) else None

    def around(self) -> Generator[None, Any, Any]:
        """Go around the test's own code: what it ends with decides how its experiment ends."""
        answer, ended = None, None
        try:
            self._hear_signals()
            answer = yield
        except ChaosError as error:
            self.driver.end_early(error)
            ended = error.with_traceback(outside(error.__traceback__))
        except (pytest.xfail.Exception, pytest.exit.Exception) as error:  # which states nothing that does not hold
            self._ended_by_test(error)
            self._interrupted = isinstance(error, pytest.exit.Exception)
            raise
        except (Exception, pytest.fail.Exception) as error:
            if self._refused:  # the test's own code asked for the fixture, and the run could not begin
                self._pend(error)
                return answer
            self.driver.conclude(in_short(error))
            self._pend_leak()
            raise
        except BaseException as error:  # skipped, or pytest itself ends
            self._ended_by_test(error)
            self._interrupted = not isinstance(error, pytest.skip.Exception)
            raise
        if self._subtest_failed is not None and ended is None:  # then pytest fails the test by itself
            self.driver.conclude(in_short(self._subtest_failed))
            self._pend_leak()
        else:
            self._judge(ended)
        return answer

    def _ended_by_test(self, error: BaseException) -> None:
        """The test's own code says that it is over, or somebody that all of it is: what it has harmed and not proved is no success."""
        self.driver.heed_signal()
        self.driver.end_early(AbortedError(f"the test ended early: {in_short(error)}"))
        self.driver.conclude()
        if self.driver.injected:
            self._pend_verdict()  # pytest calls a test no failure that is skipped or expected to fail
        self._pend_leak()

    def take_in(self, failure: BaseException) -> None:
        """Take in what pytest is about to report of the call; before its end that is a subtest, whose test goes on."""
        if self.driver.over:
            return
        if isinstance(failure, ChaosError):
            self.driver.end_early(failure)
        else:
            self._subtest_failed = self._subtest_failed or failure

    def _hear_signals(self) -> None:
        """From here on it is the test's own code that an ending signal interrupts, and no longer pytest's."""
        self._calling = True
        if self.driver.begun:
            gate = self.driver.session.gate
            gate.whose = Whose.TESTS
            gate.raise_pending()

    def _judge(self, ended: ChaosError | None) -> None:
        """The test's own code stated nothing that does not hold: the experiment has the last word, also where it ended early."""
        result = self.driver.conclude()
        outcome = result.verdict.outcome if result is not None else Outcome.PASSED
        if result is not None and outcome is Outcome.FAILED:
            pytest.fail(told(result), pytrace=False)
        if ended is not None:
            self._pend(ended)
        elif result is not None and outcome is not Outcome.PASSED:
            self._pend_verdict()

    def _pend(self, error: BaseException) -> None:
        """Keep an error for the teardown, and keep pytest from calling the test passed."""
        self._pending = error
        self.item.config.stash[PENDING].add(self.item.nodeid)

    def _pend_verdict(self) -> None:
        """Keep the verdict, which is no PASSED, for the teardown."""
        if self.result is not None:
            self._pend(pytest.fail.Exception(told(self.result), pytrace=False))

    def _pend_leak(self) -> None:
        """What leaked is told beside the test's own failure."""
        if self.result is not None and self.result.verdict.outcome is Outcome.LEAKED:
            self._pend_verdict()

    def close(self) -> None:
        """End the run, and raise what was kept for the teardown."""
        self._end()
        if self._pending is not None and not self._interrupted:
            raise self._pending

    def interrupt(self) -> None:
        """End the run at once, since pytest ends: of a teardown that is interrupted it drops the rest, and raises whatever we would."""
        self._interrupted = True
        self._end()

    def _end(self) -> None:
        run = self.driver.run
        if self._closed or run is None:
            return
        self._closed = True
        if run.session is None:
            self.driver.end_early(AbortedError("interrupted on the way to the nodes"))  # unless why is known already
            run.close()
        else:
            with run.session.gate.ours():
                self.driver.heed_signal()
                if not self._calling:
                    self.driver.end_early(AbortedError("the test's set-up did not come to its end"))
                run.close()
        result = run.result
        keep(self.item, Told(experiment_of(self.item), result, where_of(self.item)))
        if result.heard:  # also when it came too late to end the run
            self.item.session.shouldstop = f"ended by {result.heard}"
        if self._pending is not None:
            return
        if self.driver.injected and not self._calling:  # a set-up that is skipped is no failure to pytest
            self._pend_verdict()
        self._pend_leak()


class Captured:
    """Standard output as it is at the moment of writing: pytest changes it from phase to phase."""

    def write(self, text: str) -> int:
        """Write."""
        return sys.stdout.write(text)

    def flush(self) -> None:
        """Flush."""
        sys.stdout.flush()

    def isatty(self) -> bool:
        """Plain lines, also on a terminal: pytest writes there as well."""
        return False


def script_of(item: pytest.Item) -> Script:
    """Return the experiment that a test's name, docstring and marks are. Raises InputError."""
    file = as_written(item.path, item.config.invocation_params.dir)
    if issubclass(getattr(item, "cls", None) or object, TestCase):
        what = "a unittest.TestCase cannot be an experiment: unittest keeps its failures to itself"
        raise InputError(what, where=item.nodeid, hint="write it as a function, or as a class without that base")
    doc = inspect.getdoc(getattr(item, "obj", None)) or ""
    title, _, why = doc.partition("\n")
    return Script(
        name=item.name,
        nodeid=f"{file}::{item.nodeid.partition('::')[2]}",
        file=str(file),
        line=(item.location[1] or 0) + 1,
        title=title.strip() or item.name.replace("_", " "),
        why=" ".join(why.split()),
        settings={key: value for key, value in settings_of(item).items() if key != SEED},
        lifetimes=frozenset(name for name in LIFETIMES if item.get_closest_marker(name)),
    )


def settings_of(item: pytest.Item) -> Mapping[str, Any]:
    """Return what the marks `chaos` say, the closest last. Raises InputError."""
    settings: dict[str, Any] = {}
    for marker in reversed(list(item.iter_markers("chaos"))):
        if marker.args:
            raise InputError("the marker `chaos` takes keywords only", where=item.nodeid, hint="such as `chaos(blast_radius=2)`")
        settings |= marker.kwargs
    return settings


def seed_of(item: pytest.Item) -> int:
    """Return the seed: that of the command line, the marker's, or 0. Raises InputError."""
    given: int | None = item.config.getoption("chaos_seed")
    stated = settings_of(item).get(SEED, 0)
    if not isinstance(stated, int):
        raise InputError(f"the seed is a whole number; found {stated!r}", where=item.nodeid)
    return stated if given is None else given


def experiment_of(item: pytest.Item) -> str:
    """Return what names the experiment that the test is a repetition of."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    own = [f"{name}={value}" for name, value in parameters.items() if name != REPETITION]
    name = getattr(item, "originalname", item.name)
    return f"{name}[{', '.join(own)}]" if own else name


def outside(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without what is ours, so that a refusal points at the line of the test."""
    if trace is None:
        return None
    rest = outside(trace.tb_next)
    ours = is_ours(trace.tb_frame)
    return rest if ours else TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


def in_short(error: BaseException) -> str:
    """Return the first line of what a test failed with."""
    first = next(iter(str(error).strip().splitlines()), "").removeprefix("assert ")
    kind = "" if isinstance(error, AssertionError | pytest.fail.Exception) else f"{type(error).__name__}: "
    return f"{kind}{first}".strip() or "an assertion does not hold"
