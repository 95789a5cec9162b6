"""`chaoskit report`: the reports of any run again, from its journal alone, also of one whose controller died."""

import sys
from pathlib import Path

import click

from chaoskit.errors import InputError, RefusedError


@click.command(short_help="Judge a run again, and write its reports.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--runs", type=click.Path(path_type=Path, file_okay=False), default=Path("runs"), show_default=True, help="Where runs lie.")
def report(run: Path, runs: Path) -> int:
    """
    Judge RUN again and write its reports: a directory, a name below runs/, or `latest`.

    Exits with the code of the verdict; 3 while the run goes on, and then no report is written.
    """
    from chaoskit.engine.journal import is_live
    from chaoskit.engine.replay import read_run
    from chaoskit.report import table
    from chaoskit.report.layout import Row
    from chaoskit.wiring import reported

    run_dir = run_dir_of(run, runs, "report")
    told = read_run(run_dir)
    if not told.complete and is_live(run_dir):
        raise RefusedError("the run goes on, so there is no verdict yet", where=str(run_dir), hint=f"`chaoskit stop {run_dir}` ends it")
    result = reported(told)
    rows = [*table.verdict_table(result), table.artefacts(result)]
    if not result.complete:
        rows.append(Row("  the controller died: `chaoskit audit` tells what nodes still owe"))
    table.show([*rows, table.closing(result)], sys.stdout)
    return result.exit_code


def run_dir_of(run: Path, runs: Path, where: str) -> Path:
    """Return the directory that was meant. Raises InputError."""
    for path in (run, runs / run):
        if path.is_dir():
            return path.parent / path.readlink() if path.is_symlink() else path  # `latest` will be another run's tomorrow
    names = sorted((path.name for path in runs.glob("*-*") if path.is_dir()), reverse=True)[:3] if runs.is_dir() else []
    raise InputError(
        f"there is no run {str(run)!r}", where=where, hint=f"the newest are: {', '.join(names)}" if names else f"{runs}/ has none"
    )
