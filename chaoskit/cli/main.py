"""The entry point: the group of commands, and what an error becomes."""

import errno
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress

import click

import chaoskit
from chaoskit.cli.doctor import doctor
from chaoskit.cli.faults import faults
from chaoskit.cli.lab import lab
from chaoskit.cli.leftovers import audit_command, heal_command
from chaoskit.cli.plan import plan
from chaoskit.cli.report import report
from chaoskit.cli.run import run
from chaoskit.cli.schema import schema
from chaoskit.cli.stop import stop
from chaoskit.cli.trust import trust
from chaoskit.errors import EXIT_ABORTED, EXIT_BAD_INPUT, ChaosError, InputError, RefusedError
from chaoskit.model.secrets import redacted

EXIT_DEFECT = 70
"""EX_SOFTWARE: chaoskit itself failed; none of 0 to 5, so that it is never taken for a verdict."""

REFUSALS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT})
"""What a machine says when a file of ours may not be read or written, or there is no room for it."""

EPILOG = """\b
Exit codes: 0 passed, 1 failed, 2 bad input, 3 inconclusive, 4 aborted, 5 leaked;
            70 a defect of chaoskit itself.
First steps: `chaoskit lab up`, then `chaoskit run experiments/plane_loss.yaml`."""


@click.group(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(chaoskit.__version__, prog_name="chaoskit")
def chaoskit_command() -> None:
    """Break a live training run over SSH, judge how it recovers, and prove that nothing is left behind."""


for _each in (lab, faults, trust, doctor, plan, run, stop, heal_command, audit_command, report, schema):
    chaoskit_command.add_command(_each)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    try:
        code = _invoke(argv)
    except BaseExceptionGroup as group:
        code = _told_group(group)
    except ChaosError as error:
        code = _told(error)
    except BrokenPipeError:
        code = EXIT_DEFECT  # whoever read our output has gone before we could say anything
    except OSError as error:
        code = _told_by_the_system(error)
    except Exception:  # noqa: BLE001 - the last line of defence: a defect is shown whole, under a code of its own
        code = _defect()
    _flush_stdout()
    return code


def _invoke(argv: Sequence[str] | None) -> int:
    """Run one command line; click's own errors are told here, ours are raised."""
    try:
        code: object = chaoskit_command.main(args=argv, prog_name="chaoskit", standalone_mode=False)
    except (click.Abort, KeyboardInterrupt):
        click.echo("aborted", err=True)
        return EXIT_ABORTED
    except click.ClickException as error:
        error.show()
        return EXIT_BAD_INPUT
    return code if isinstance(code, int) else 0


def _told(error: ChaosError) -> int:
    """Print what a person must read: every problem of an input on its own line, and no traceback."""
    from chaoskit.report.sanitise import text

    with suppress(OSError):  # a terminal that was closed costs nobody the exit code
        click.echo(text(str(error)), err=True)
        _count(_problems(error))
    return error.exit_code


def _told_by_the_system(error: OSError) -> int:
    """Tell what this machine refuses us, a file and why; every other error of the system is a defect of ours."""
    if error.errno not in REFUSALS or not error.filename:
        return _defect()
    return _told(RefusedError(f"cannot use {str(error.filename)!r}: {error.strerror}", hint="change its owner or rights, or make room"))


def _defect() -> int:
    """Show a defect whole, and under a code of its own."""
    click.echo(redacted(traceback.format_exc()), err=True, nl=False)
    click.echo("this is a defect of chaoskit; nodes heal themselves when their lease ends, `chaoskit audit` tells", err=True)
    return EXIT_DEFECT


def _problems(error: ChaosError) -> int:
    return max(1, len(error.problems)) if isinstance(error, InputError) else 0


def _count(problems: int) -> None:
    if problems > 1:
        click.echo(f"{problems} problems", err=True)


def _told_group(group: BaseExceptionGroup[BaseException]) -> int:
    """Print every error of a group; the highest exit code counts, and anything that is not ours is a defect."""
    from chaoskit.report.sanitise import text

    ours, others = group.split(ChaosError)
    if others is not None or ours is None:
        click.echo(redacted("".join(traceback.format_exception(group))), err=True, nl=False)
        return EXIT_DEFECT
    errors = _leaves(ours)
    for error in errors:
        click.echo(text(str(error)), err=True)
    _count(sum(map(_problems, errors)))
    return max(error.exit_code for error in errors)


def _leaves(group: BaseExceptionGroup[ChaosError]) -> list[ChaosError]:
    found: list[ChaosError] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


def _flush_stdout() -> None:
    """Write what is left; when nobody reads it any more, let the interpreter's own last flush go nowhere instead of failing."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def entry() -> None:
    """Run as a program. Once there is an exit code no Ctrl-C changes it: the interpreter takes a moment to end, which one ends at once."""
    code = main()
    signal.signal(signal.SIGINT, lambda *_: os._exit(code))
    sys.exit(code)
