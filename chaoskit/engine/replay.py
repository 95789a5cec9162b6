"""Between a journal and a result: the head record, and any run rebuilt from its journal alone."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from chaoskit.engine import journal
from chaoskit.engine.plan import Plan
from chaoskit.engine.result import RunInfo, RunResult
from chaoskit.engine.state import RunState
from chaoskit.errors import InputError
from chaoskit.judge import judge
from chaoskit.judge.timeline import Spec
from chaoskit.model.experiment import Budgets, Position

UNFINISHED = "the journal ends before the verdict: the run goes on, or its controller died"


def head_of(info: RunInfo, plan: Plan) -> dict[str, Any]:
    """Return the journal's first record: all that a report or a healer needs beside the later records."""
    head = asdict(info)
    head["started"] = info.started.isoformat()
    head["positions"] = {path: [at.file, at.line, at.col] for path, at in info.positions.items()}
    return head | method_of(plan)


def method_of(plan: Plan) -> dict[str, Any]:
    """Return what of the head may still change while a run goes on: its injections, and with them what it is judged by."""
    planned = [
        {
            "number": planned.number,
            "fault": planned.fault,
            "detail": planned.detail,
            "targets": list(planned.targets),
            "one_shot": planned.one_shot,
            "expect": asdict(planned.expect) if planned.expect else None,
        }
        for planned in plan.planned
    ]
    return {"spec": asdict(plan.spec), "planned": planned}


def info_of(head: Mapping[str, Any]) -> RunInfo:
    """Rebuild the head of a run from its record."""
    fields = {name: head[name] for name in RunInfo.__dataclass_fields__}
    fields["started"] = datetime.fromisoformat(head["started"])
    fields["positions"] = {path: Position(*at) for path, at in head["positions"].items()}
    return RunInfo(**fields)


def spec_of(head: Mapping[str, Any]) -> Spec:
    """Rebuild what a run is judged by."""
    fields = dict(head["spec"])
    return Spec(**{**fields, "budgets": Budgets(**fields["budgets"])})


def result_of(state: RunState, run_dir: Path, notes: tuple[str, ...] = ()) -> RunResult:
    """Judge what a run's records say; where they end before the verdict, the watch was cut short."""
    info, timeline = info_of(state.head), state.timeline()
    if not state.judged:
        timeline = replace(timeline, trouble=timeline.trouble or UNFINISHED)
    paid = tuple(
        f"{entry.name}: {entry.itself}" if entry.itself else f"{entry.name} was paid later by `chaoskit heal`"
        for entry in state.entries.values()
        if entry.healed
    )
    given_up = tuple(
        f"{entry.name} was given up by {told['who']} at {told['when']}, and is owed still: {told['because']}"
        for entry in state.entries.values()
        if (told := entry.forgotten) and entry.owes
    )
    return RunResult(
        info=info,
        verdict=judge(timeline, spec_of(state.head)),
        run_dir=run_dir,
        elapsed=state.watched_until - info.began,
        teardown_errors=tuple(state.teardown),
        residue=state.residue,
        notes=notes + paid + given_up,
        complete=state.judged,
        lost=tuple(sorted(state.lost | {entry.node for entry in state.entries.values() if entry.owes})),
    )


def state_of(run_dir: Path) -> tuple[RunState, tuple[str, ...]]:
    """Read a run's journal into its state, as `read_state` does. Raises InputError, also when it has no head."""
    state, notes = read_state(run_dir)
    if "run" not in state.head:
        raise InputError(
            "the journal has no head record: the run died before it began, or it was damaged", where=str(run_dir / journal.NAME)
        )
    return state, notes


def read_state(run_dir: Path) -> tuple[RunState, tuple[str, ...]]:
    """
    Read a journal into a state, with a note for each line that could not be read, be its head there or not. Raises InputError.

    A record that speaks of one that was lost says nothing, and keeps none of the others from being heard.
    """
    read = journal.read(run_dir)
    state, notes = RunState(), list(read.notes)
    for record in read.records:
        try:
            state.apply(record)
        except (KeyError, TypeError, ValueError) as error:
            notes.append(f"{run_dir / journal.NAME}: a record {record['kind']!r} is skipped: {type(error).__name__}: {error}")
    return state, tuple(notes)


def read_run(run_dir: Path) -> RunResult:
    """
    Rebuild the result of any run from its journal, also of one whose controller died. Raises InputError.

    An entry that was armed and never proven gone makes the verdict LEAKED, as it must: the journal does not know
    whether the node healed itself; `chaoskit audit` does, and `chaoskit heal` writes it down there.
    """
    state, notes = state_of(run_dir)
    return replace(result_of(state, run_dir, notes), run_dir=run_dir)
