"""`chaoskit doctor`: everything at a site that would spoil an experiment, and what to do about it."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chaoskit.cli.leftovers import RUNS
from chaoskit.cli.site import inventory_option
from chaoskit.errors import EXIT_INCONCLUSIVE, EXIT_PASSED, InputError, RefusedError

if TYPE_CHECKING:
    from chaoskit.engine.doctor import Diagnosis
    from chaoskit.engine.doctor_orders import Checkup


@click.command(short_help="Say what must be mended at a site before an experiment.")
@click.argument("experiments", metavar="[EXPERIMENT]...", nargs=-1, type=click.Path(path_type=Path))
@inventory_option
@RUNS
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table; its schema has a version.")
@click.option("--junit", type=click.Path(path_type=Path, dir_okay=False), help="Write JUnit XML too: a testcase for each node and check.")
@click.option("--canary/--no-canary", default=True, help="Whether a fault without harm is taken to each node and back.", show_default=True)
@click.option("--sudoers", is_flag=True, help="Only print the exact lines of sudoers that the account needs on each node.")
def doctor(
    experiments: tuple[Path, ...], inventory: str | None, runs: Path, junit: Path | None, *, as_json: bool, canary: bool, sudoers: bool
) -> int:
    """
    Examine every node of a site, also the protected ones, and leave everything as it is.

    Looked at: the way to each node (reachable, host key, login, Python, sudo, agent, machine), other users' jobs, GPUs, rails,
    wall clocks, the programs, rights and kernel features that faults need, what trainings stand on, free disk, leftovers of
    earlier runs, and who is the odd one out of its group: driver, firmware, CUDA, NCCL, kernel, MTU, sysctl, links. With
    EXPERIMENT files also whether they can be planned and their faults prepared here; without, what any fault would need is
    only told.

    A canary then goes the way of a fault, through ledger, lease and fuse, on each node that is well: an empty table of the
    packet filter, a signal to a child, an empty control group, the power limit that a GPU has. No link is touched.

    Exits 0 when nothing is to be mended, 3 when something is or could not be found out, 5 when earlier runs left something,
    2 for bad input.
    """
    from chaoskit.engine.doctor import diagnose
    from chaoskit.report import doctor as report
    from chaoskit.report import table
    from chaoskit.wiring import ssh_fleet

    checkup = replace(_checkup(experiments, inventory), canary=canary)
    with ssh_fleet(checkup.inventory) as fleet:
        if sudoers:
            return _sudoers(fleet, checkup)
        found = diagnose(
            fleet,  # type: ignore[arg-type]  # its agents can do more than the engine asks of a fleet's
            checkup,
            runs if runs.is_dir() else None,
            lambda says: click.echo(f"  {says}", err=True) if not as_json else None,
        )
    if as_json:
        click.echo(json.dumps(report.document(found, [str(path) for path in experiments]), indent=2))
    else:
        table.show([*report.table(found), report.closing(found)], sys.stdout)
    if junit is not None:
        _write_junit(found, junit, experiments)
    return found.exit_code


def _write_junit(found: "Diagnosis", path: Path, experiments: tuple[Path, ...]) -> None:
    from chaoskit.report import doctor_junit

    try:
        doctor_junit.write(found, path, [str(experiment) for experiment in experiments])
    except OSError as error:
        raise InputError(f"the JUnit file cannot be written: {error.strerror or error}", where=str(path), hint="choose --junit") from error


def _sudoers(fleet: Any, checkup: "Checkup") -> int:
    """Print the lines for each node, once for those that have the same; a node that was not reached is told, and is an error."""
    from chaoskit.engine.doctor import CONNECT_WITHIN
    from chaoskit.engine.gather import gather
    from chaoskit.model.hostlist import fold
    from chaoskit.report.sanitise import text

    if checkup.inventory.file.ssh.become != "sudo":
        click.echo("the inventory says `become: none`: the account is root, and no sudo is asked")
        return EXIT_PASSED
    got = gather({name: fleet.sudoers(name) for name in checkup.inventory.nodes}, CONNECT_WITHIN)
    for wanted in dict.fromkeys(got.answers.values()):
        names = fold(name for name, lines in got.answers.items() if lines == wanted)
        click.echo(text("\n".join((f"# {names}: /etc/sudoers.d/chaoskit (this agent's hash only; it runs as root)", *wanted))))
    for name, error in got.failures.items():
        click.echo(text(f"{name}: {error}"), err=True)
    return EXIT_INCONCLUSIVE if got.failures else EXIT_PASSED


def _checkup(files: tuple[Path, ...], inventory: str | None) -> "Checkup":
    """Read the input and plan every experiment; what a plan refuses is a finding. Raises InputError for what cannot be used."""
    from chaoskit.cli.run import read_inputs
    from chaoskit.engine.doctor_orders import Checkup
    from chaoskit.engine.plan import plan
    from chaoskit.faults import discover

    loaded, site = read_inputs(files, inventory)
    needs = {name: kind.needs for name, kind in discover().items() if kind.runs_on == "node"}
    plans, refused = [], {}
    for experiment in loaded:
        try:
            plans.append(plan(experiment, site))
        except (InputError, RefusedError) as error:
            problems = error.problems if isinstance(error, InputError) else ()
            refused[experiment.name] = tuple(map(str, problems)) or (str(error),)
    return Checkup(site, needs, tuple(plans), refused)
