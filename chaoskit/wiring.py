"""
One experiment file to one run with its artefacts: reads the input, builds the parts, hands them to the engine.

The command line and the pytest plugin both stand on this. Whatever goes wrong once the files were read still ends in a
run directory with a verdict and a JUnit file; SSH and the training's code are loaded only when a run begins.
"""

import errno
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import chaoskit
from chaoskit.engine.events import Listener
from chaoskit.engine.plan import Plan, plan
from chaoskit.engine.ports import Clock, Fleet, Training
from chaoskit.engine.result import RunInfo, RunResult
from chaoskit.engine.signals import Gate, ending_signals
from chaoskit.errors import AbortedError, ChaosError, InputError
from chaoskit.judge import judge
from chaoskit.judge.timeline import Spec, Timeline
from chaoskit.model.experiment import LoadedExperiment, Position
from chaoskit.model.hostlist import expand
from chaoskit.model.inventory import Inventory, Node
from chaoskit.model.secrets import hide

if TYPE_CHECKING:
    from chaoskit.engine.session import Session

RUNS = Path("runs")
LATEST = "latest"
UNSAFE = re.compile(r"[^A-Za-z0-9._-]")

OpenFleet = Callable[[Inventory], AbstractContextManager[Fleet]]
MakeTraining = Callable[[Plan, Inventory, str], Training]
Show = Callable[[RunInfo], AbstractContextManager[Listener]]


@dataclass(frozen=True, slots=True)
class Order:
    """What to run: one experiment at one site, with which seed, and below which directory its run lies."""

    experiment: LoadedExperiment
    inventory: Inventory
    seed: int
    out: Path = RUNS


@contextmanager
def ssh_fleet(inventory: Inventory) -> Iterator[Fleet]:
    """Yield the inventory's nodes over SSH; every connection is closed at the end."""
    from chaoskit.faults import installed_files
    from chaoskit.fleet.fleet import SshFleet

    fleet = SshFleet(inventory, {name: Path(file) for name, file in installed_files().items()})
    try:
        yield fleet  # type: ignore[misc]  # Future is invariant: one of an AgentClient is used as one of a NodeAgent
    finally:
        fleet.close()
        for warning in fleet.warnings:
            logging.getLogger(__name__).warning(warning)


def real_training(made: Plan, inventory: Inventory, run: str) -> Training:
    """Return the training that the plan names, launched or attached as the inventory says."""
    from chaoskit.training import make_training

    return make_training(made.training, inventory, run)


@dataclass(frozen=True, slots=True)
class Reach:
    """How a run gets to its nodes, its training and the time: over SSH and for real, unless somebody says otherwise."""

    open_fleet: OpenFleet = ssh_fleet
    training: MakeTraining = real_training
    clock: Clock | None = None


def run_order(order: Order, show: Show, reach: Reach | None = None) -> RunResult:
    """
    Run one experiment and write what it leaves behind.

    Args:
        order: What to run.
        show: Given the head of the run, yields the listener that shows it.
        reach: How to get to the nodes and the training.

    Returns:
        The result, also when the set-up failed: then its verdict says why.

    Raises:
        InputError: The run directory cannot be made, or experiment and inventory do not fit together.
        BaseException: Whatever else ended it, a defect of ours for one; the run's verdict says so and is never PASSED.
    """
    from chaoskit.engine.run import play, unforeseen

    run = Run(order, show, reach)
    try:
        play(run.begin())
    except ChaosError as error:
        if isinstance(error, InputError) and run.session is None:
            run.forget()
            raise
        run.end_early(error)
    except BaseException as error:
        run.end_early(unforeseen(error))
        raise
    finally:
        run.close()
    return run.result


class Run:
    """
    One run from its directory to its reports.

    `begin` gives the session; `close` must be called in any case, and then `result` is there unless the run was forgotten.
    """

    def __init__(self, order: Order, show: Show, reach: Reach | None = None) -> None:
        """Make the run's directory. Raises InputError. The arguments are those of `run_order`."""
        self.order = order
        hide(dict(os.environ))
        for spec in order.inventory.file.trainings.values():
            hide(spec.env)
        self.run_dir = new_run_dir(order.out, order.experiment.name)
        self.info = _head(order, self.run_dir)
        self.session: Session | None = None
        self._result: RunResult | None = None
        self._forgotten = False
        self._show = show
        self._reach = reach or Reach()
        self._open = ExitStack()
        self._signals = ExitStack()
        self._gate = Gate()

    def begin(self) -> "Session":
        """
        Plan, reach for the fleet, and begin the journal.

        Raises:
            InputError: Experiment and inventory do not fit together.
            ChaosError: The plan refuses, or the site cannot be used.
        """
        from chaoskit.engine.session import Session, parts_of

        self._gate = self._signals.enter_context(ending_signals())  # around the session's own: the set-up and the reports have none
        made = plan(self.order.experiment, self.order.inventory, self.order.seed)
        fleet = self._open.enter_context(self._reach.open_fleet(self.order.inventory))
        listener = self._open.enter_context(self._show(self.info))
        training = self._reach.training(made, self.order.inventory, self.info.run)
        _point_latest_to(self.run_dir)  # from here on it is the last run, also when its controller dies
        parts = parts_of(fleet, training, self._reach.clock)
        self.session = Session(made, self.info, parts, run_dir=self.run_dir, listener=listener)
        self._open.callback(self.session.close)
        return self.session

    def forget(self) -> None:
        """Nothing began, since what the user wrote cannot be used: leave no directory behind."""
        self._forgotten = True
        self.run_dir.rmdir()

    def end_early(self, error: ChaosError) -> None:
        """Keep why the run ended before its time."""
        self._gate.closed = True
        if self.session is None:
            self._result = _not_set_up(self.order, self.info, self.run_dir, error)
        else:
            self.session.end_early(error)

    def close(self) -> None:
        """Revert, judge, end the training, close the connections, write the reports; no signal interrupts any of it."""
        self._gate.closed = True
        with self._signals:
            self._open.close()
            if self.session is not None:
                self._result = self.session.result
            if self._result is not None and not self._forgotten:
                self._result = reported(self._result)
                _point_latest_to(self.run_dir)
        if self._result is not None:
            self._result = replace(self._result, heard=self._result.heard or self._gate.heard)

    @property
    def result(self) -> RunResult:
        """The result of a run that was closed, and the result so far of one that has a session."""
        if self._result is None and self.session is not None:
            return self.session.result
        assert self._result is not None  # noqa: S101 - closed, and not forgotten
        return self._result


def _not_set_up(order: Order, info: RunInfo, run_dir: Path, error: ChaosError) -> RunResult:
    """Return the result of a run that ended before the engine began: refused by the plan, or the site cannot be used."""
    timeline = Timeline(aborted=str(error)) if isinstance(error, AbortedError) else Timeline(trouble=str(error))
    verdict = judge(timeline, Spec(order.experiment.experiment.budgets))
    return RunResult(info, verdict, run_dir, elapsed=time.monotonic() - info.began)


def reported(result: RunResult) -> RunResult:
    """Write the reports, and return the result: what could not be written is told beside the verdict, and never costs it."""
    return replace(result, unwritten=(*result.unwritten, *write_reports(result)))


def write_reports(result: RunResult) -> tuple[str, ...]:
    """Write the JUnit file and the JSON summary into the run's directory; return a sentence for each that could not be written."""
    from chaoskit.report import junit, summary

    told = []
    for write, path in ((junit.write, result.run_dir / "junit.xml"), (summary.write, result.run_dir / "summary.json")):
        try:
            write(result, path)
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, "")
            told.append(f"{path} cannot be written: {error.strerror or error}{name and f' ({name})'}; what stood there still does")
    return tuple(told)


def new_run_dir(out: Path, name: str) -> Path:
    """Make and return a new directory `TIME-NAME` below `out`. Raises InputError."""
    stamp = f"{datetime.now(UTC):%Y-%m-%dT%H%M%S}-{UNSAFE.sub('_', name)}"
    try:
        out.mkdir(mode=0o755, parents=True, exist_ok=True)
        _refuse_open_to_all(out)
        for number in range(1, 100):
            path = out / (stamp if number == 1 else f"{stamp}-{number}")
            if not path.exists():
                path.mkdir(mode=0o755)
                return path
    except OSError as error:
        raise InputError(f"the run directory cannot be made: {error.strerror or error}", where=str(out), hint="choose --out") from error
    raise InputError("100 runs of this experiment began in this second", where=str(out), hint="choose --out")


def _refuse_open_to_all(out: Path) -> None:
    """Refuse a place where any user could swap a run's directory under us. Raises InputError, OSError."""
    link, found = out.lstat(), out.stat()
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (0, os.geteuid()):
        raise InputError("runs would be written through another user's link", where=str(out), hint="choose --out")
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise InputError("anybody may rename or replace what lies there", where=str(out), hint=f"chmod o-w {out}, or choose --out")


def _head(order: Order, run_dir: Path) -> RunInfo:
    loaded, inventory = order.experiment, order.inventory
    nodes = training_nodes(inventory, loaded.experiment.training)
    return RunInfo(
        run=run_dir.name,
        name=loaded.name,
        title=loaded.experiment.title,
        why=loaded.experiment.why,
        file=str(loaded.path),
        inventory=inventory.name,
        inventory_file=inventory.path,
        seed=order.seed,
        nodes=len(nodes),
        gpus=sum(node.gpus for node in nodes),
        started=datetime.now(UTC),
        began=time.monotonic(),
        positions={**_site_budgets(inventory), **loaded.positions},
        version=chaoskit.__version__,
    )


def _site_budgets(inventory: Inventory) -> dict[str, Position]:
    """Return where the site states budgets, as if the experiment did: they are judged like its own."""
    place = "limits."
    return {path.removeprefix(place): at for path, at in inventory.positions.items() if path.startswith(f"{place}budgets.")}


def training_nodes(inventory: Inventory, training: str) -> tuple[Node, ...]:
    """Return the nodes that train, as far as the inventory knows them; none when it has no such training."""
    spec = inventory.file.trainings.get(training)
    if spec is None:
        return ()
    return tuple(inventory.nodes[name] for name in expand(spec.nodes)) if spec.nodes else inventory.group(spec.group)


def _point_latest_to(run_dir: Path) -> None:
    """Let the link `latest` point at this run, unless it points at another that goes on; a file of that name is left alone."""
    from chaoskit.engine.journal import is_live

    link = run_dir.parent / LATEST
    if link.exists() and not link.is_symlink():
        return
    if link.is_symlink() and link.readlink().name != run_dir.name and is_live(link):
        return
    fresh = run_dir.parent / f".{LATEST}-{os.getpid()}"
    fresh.symlink_to(run_dir.name)
    fresh.replace(link)
