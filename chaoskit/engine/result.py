"""What a run leaves behind for the reports: who ran what, where, and the verdict."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from chaoskit.engine.residue import Remnant
from chaoskit.errors import EXIT_BAD_INPUT
from chaoskit.judge.verdict import Verdict
from chaoskit.model.experiment import Position


@dataclass(frozen=True, slots=True)
class RunInfo:
    """
    The head of a run, as its journal's first record holds it.

    `positions` gives the file position of each value of the experiment, such as `budgets.lost_steps`.
    """

    run: str
    """Name of the run directory."""
    name: str
    """Name of the experiment: its file's stem."""
    title: str
    why: str
    file: str
    """Path of the experiment file as it was given."""
    inventory: str
    """Name of the site."""
    inventory_file: str
    seed: int
    nodes: int
    """Nodes that train."""
    gpus: int
    started: datetime
    """Aware, UTC."""
    began: float = 0.0
    """The controller's monotonic clock at `started`, seconds: places the verdict's moments on the wall clock."""
    positions: Mapping[str, Position] = field(default_factory=dict)
    version: str = ""

    @property
    def is_test(self) -> bool:
        """Whether it is a Python test, and `file` its node id."""
        return "::" in self.file

    @property
    def rerun(self) -> str:
        """The line that runs the same again: an experiment file, or a Python test by its node id."""
        if self.is_test:
            return shlex.join(["pytest", self.file, "--chaos-seed", str(self.seed), "--chaos-inventory", self.inventory_file])
        return shlex.join(["chaoskit", "run", self.file, "--seed", str(self.seed), "--inventory", self.inventory_file])


@dataclass(frozen=True, slots=True)
class RunResult:
    """
    A finished, aborted or crashed run.

    `teardown_errors` are reported apart and never replace the verdict; `residue` is what the faults left behind though they
    are gone. `complete` is false when the journal ends
    before a verdict was written: the controller died. `heard` names an ending signal that came while it ran, also one that
    came during the last reverts and was too late to change the verdict: whoever sent it wants nothing more to begin. `lost`
    are the nodes that the run lost: not reached at its end, or not proven mended. `unwritten` says which of its records and
    reports the disk did not take.
    """

    info: RunInfo
    verdict: Verdict
    run_dir: Path
    elapsed: float
    teardown_errors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    residue: tuple[Remnant, ...] = ()
    complete: bool = True
    heard: str = ""
    lost: tuple[str, ...] = ()
    unwritten: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """The verdict's; but what passed without a record or report that tells of it is no success for whoever reads those."""
        return self.verdict.outcome.exit_code or (EXIT_BAD_INPUT if self.unwritten else 0)
