"""`chaoskit stop`: end a live run from another terminal."""

import getpass
import socket
import sys
from pathlib import Path

import click

from chaoskit.cli.report import run_dir_of
from chaoskit.errors import InputError
from chaoskit.model.units import parse_duration


def _seconds(_context: click.Context, _option: click.Parameter, value: str) -> float:
    """Read a duration as experiments write it."""
    try:
        return parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command(short_help="End a live run: it reverts, judges and writes its verdict.")
@click.argument("run", type=click.Path(path_type=Path), required=False)
@click.option("--runs", type=click.Path(path_type=Path, file_okay=False), default=Path("runs"), show_default=True, help="Where runs lie.")
@click.option("--within", metavar="DURATION", callback=_seconds, default="2m", show_default=True, help="How long to wait for its end.")
@click.option("--because", metavar="TEXT", help="What the verdict shall say beside who stopped it.")
def stop(run: Path | None, runs: Path, within: float, because: str | None) -> int:
    """
    End RUN: a directory or a name below runs/. Without it, the one that goes on there.

    The run reverts every fault, judges, and writes its verdict, which is ABORTED; this waits for it and prints its last line.
    A file STOP in the run's directory does the same without chaoskit.

    Exits with the code of the verdict: 4 when it was aborted, 5 when something leaked; 2 when there is no such run or it has
    ended already, 3 when its controller is dead or it has not ended in time.
    """
    from chaoskit.engine.stopping import stop as stop_run
    from chaoskit.report import table

    reason = f"stopped by {getpass.getuser()}@{socket.gethostname()} with chaoskit stop"
    result = stop_run(run_dir_of(run or _live_run(runs), runs, "stop"), f"{reason}: {because}" if because else reason, within)
    table.show([table.closing(result)], sys.stdout)
    return result.verdict.outcome.exit_code


def _live_run(runs: Path) -> Path:
    """Return the one run that goes on, or `latest` when none does. Raises InputError when there are several."""
    from chaoskit.engine.journal import is_live

    live = sorted(path.name for path in runs.glob("*-*") if not path.is_symlink() and is_live(path))
    if len(live) > 1:
        raise InputError(f"{len(live)} runs go on: {', '.join(live)}", where="stop", hint="name the one that is to end")
    return runs / live[0] if live else Path("latest")
