"""
Experiment files as pytest's items.

The run is an item's set-up and the judgement its call, so that a missed budget is a failure while inconclusive, aborted
and leaked are errors.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from chaoskit.pytest_plugin.keys import NO_INVENTORY, REACH, Told, repetition_id

if TYPE_CHECKING:
    from chaoskit.engine.result import RunResult
    from chaoskit.model.experiment import LoadedExperiment

FOLDER = "experiments"
SUFFIXES = (".yaml", ".yml")
LOOKS_LIKE_ONE = re.compile(r"^(method\s*:|#.*experiment\.schema\.json)", re.MULTILINE)
"""In a folder called `experiments` lie other tools' files as well; one that is named on the command line needs no look."""


def is_experiment(path: Path, *, named: bool) -> bool:
    """Say whether a YAML file is an experiment: named on the command line, or below a folder `experiments` and like one."""
    return named or (FOLDER in path.parts and LOOKS_LIKE_ONE.search(path.read_text(encoding="utf-8", errors="replace")) is not None)


class ExperimentFile(pytest.File):
    """One experiment file: one item."""

    def collect(self) -> Iterator["ExperimentItem"]:
        """Yield the item, as often as it is to be repeated; skipped when there is no site to run on."""
        count: int = self.config.getoption("chaos_repeat")
        marks = ["chaos", *self._lifetimes()]
        for number in range(1, count + 1):
            name = self.path.stem if count == 1 else f"{self.path.stem}[{repetition_id(number, count)}]"
            item: ExperimentItem = ExperimentItem.from_parent(self, name=name)
            for mark in marks:
                item.add_marker(mark)
            if not self.config.getoption("chaos_inventory"):
                item.add_marker(pytest.mark.skip(reason=NO_INVENTORY))
            yield item

    def _lifetimes(self) -> list[str]:
        """Return the lifetimes of the experiment's faults; none of a file that cannot be used, which its run will tell."""
        from chaoskit.errors import InputError
        from chaoskit.model.load import load_experiment

        try:
            return sorted({fault.lifetime.name.lower() for fault in load_experiment(self.path).faults})
        except InputError:
            return []


class ExperimentItem(pytest.Item):
    """One experiment against the site of `--chaos-inventory`."""

    result: "RunResult | None" = None

    def setup(self) -> None:
        """Run the experiment; anything but PASSED and FAILED ends here, as an error."""
        from chaoskit.judge.verdict import Outcome
        from chaoskit.pytest_plugin.told import keep, told

        self.result = self._run()
        keep(self, Told(self.path.stem, self.result, where_of(self)))
        if ended_by_signal(self.result):
            self.session.shouldstop = self.result.verdict.reasons[0]
        elif self.result.heard:
            self.session.shouldstop = f"{self.result.heard} came while it was being reverted"
        if self.result.verdict.outcome not in (Outcome.PASSED, Outcome.FAILED):
            pytest.fail(told(self.result), pytrace=False)

    def runtest(self) -> None:
        """Fail when a budget was missed or the training did not recover."""
        from chaoskit.pytest_plugin.told import told

        assert self.result is not None  # noqa: S101 - set-up ran, or we were not called
        if self.result.verdict.outcome.exit_code:
            pytest.fail(told(self.result), pytrace=False)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return where the experiment stands, and what it is called."""
        return self.path, 0, f"experiment: {self.name}"

    def _run(self) -> "RunResult":
        from chaoskit.errors import InputError

        try:
            return self._ordered()
        except InputError as error:
            problems = str(error)
        return pytest.fail(problems, pytrace=False)  # outside the handler, or pytest would show the problems twice

    def _ordered(self) -> "RunResult":
        """Read the input and run it. Raises InputError."""
        import sys  # pytest replaces sys.stdout; it is looked up when the run begins

        from chaoskit.model.load import load_inventory
        from chaoskit.report.live import watching
        from chaoskit.wiring import Order, run_order

        loaded = self.load()
        site = load_inventory(self.config.getoption("chaos_inventory"))
        order = Order(loaded, site, self.seed(loaded), Path(self.config.getoption("chaos_out")))
        return run_order(order, lambda info: watching(info, sys.stdout), self.config.stash.get(REACH, None))

    def load(self) -> "LoadedExperiment":
        """Read the file. Raises InputError."""
        from chaoskit.model.load import load_experiment

        return load_experiment(as_written(self.path, self.config.invocation_params.dir))

    def seed(self, loaded: "LoadedExperiment") -> int:
        """Return the seed: that of the command line, or the experiment's own."""
        given: int | None = self.config.getoption("chaos_seed")
        return loaded.experiment.seed if given is None else given


def as_written(path: Path, start: Path) -> Path:
    """Return the path as one would write it from where pytest was started, so that the rerun line is short."""
    return path.relative_to(start) if path.is_relative_to(start) else path


def where_of(item: pytest.Item) -> str:
    """Return the node id of what an item stands in."""
    return item.parent.nodeid if item.parent is not None else ""


def ended_by_signal(result: "RunResult") -> bool:
    """Say whether a signal ended the run: then whoever sent it wants pytest to end as well."""
    return any("ended by SIG" in reason for reason in result.verdict.reasons)
