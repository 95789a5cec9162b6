"""`chaoskit audit` and `chaoskit heal`: what nodes still owe from any earlier run, and paying it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chaoskit.cli.site import chosen, inventory_option

if TYPE_CHECKING:
    from chaoskit.engine.audit import Ground
    from chaoskit.engine.ports import Fleet

RUNS = click.option(
    "--runs",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs"),
    show_default=True,
    help="Where the journals of earlier runs lie; they remember what a node has lost.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead; its schema has a version.")


@click.command("audit", short_help="Say what nodes still owe from any run.")
@inventory_option
@RUNS
@JSON
def audit_command(inventory: str | None, runs: Path, *, as_json: bool) -> int:
    """
    Ask every node of a site what it owes, look at what stands on it, and change nothing.

    What no ledger explains is looked for on the nodes themselves: what bears our tag was leaked, what could be anybody's is
    told as foreign. Debts that were given up (`heal --forget`) are listed, and count no more.

    Exits 0 when every node answered and owes nothing, 5 when one owes or something was leaked, 3 when one could not be asked
    or belongs to a run that goes on.
    """
    from chaoskit.engine.audit import audit, ground_of
    from chaoskit.report import leftovers as report
    from chaoskit.wiring import ssh_fleet

    site = chosen(inventory)
    with ssh_fleet(site) as fleet:
        found = audit(fleet, ground_of(site, runs if runs.is_dir() else None))
    if as_json:
        click.echo(json.dumps(report.audit_document(site.name, found), indent=2))
    else:
        _show([*report.audit_lines(found), report.audit_closing(site.name, found)])
    return found.exit_code


@click.command("heal", short_help="Pay every debt of a site's nodes.")
@inventory_option
@RUNS
@JSON
@click.option("--live", is_flag=True, help="Also end the faults of runs that go on, whose controller still holds the lease.")
@click.option("--forget", metavar="NODE", help="Give the debts of a node up that never returns; they stay listed by `audit`.")
@click.option("--purge", is_flag=True, help="Then remove the agent and its folders from every node that owes nothing.")
@click.option("--because", metavar="TEXT", help="Why it never returns; recorded in the journals, with who and when.")
def heal_command(
    inventory: str | None, runs: Path, forget: str | None, because: str | None, *, as_json: bool, live: bool, purge: bool
) -> int:
    """
    Pay every debt of a site's nodes: restore what earlier runs left, also from their journals, and sweep what no ledger explains.

    Run it as often as you like, from any machine that has the inventory. Faults of runs that go on are left alone.

    Exits 0 when everything is proven gone, 5 when something is not, 3 when a node could not be asked or belongs to a run that
    goes on.
    """
    from chaoskit.engine.audit import ground_of
    from chaoskit.engine.heal import heal, purged
    from chaoskit.report import leftovers as report
    from chaoskit.wiring import ssh_fleet

    if (forget is None) != (because is None):
        raise click.UsageError("--forget NODE and --because TEXT belong together")
    site = chosen(inventory)
    ground = ground_of(site, runs if runs.is_dir() else None)
    with ssh_fleet(site) as fleet:
        if forget is not None and because is not None:
            _forget(fleet, ground, forget, because)
        done = heal(fleet, ground, live=live)
        if purge:
            done = purged(fleet, ground, done)
    if as_json:
        click.echo(json.dumps(report.heal_document(site.name, done), indent=2))
    else:
        _show([*report.heal_lines(done), report.heal_closing(site.name, done)])
    return done.exit_code


def _forget(fleet: "Fleet", ground: "Ground", node: str, because: str) -> None:
    from chaoskit.engine.heal import forget as give_up
    from chaoskit.report.sanitise import line

    for owed in give_up(fleet, ground, node, because):
        click.echo("  " + line(f"{node}: {owed.entry}: {owed.fault}: forgotten, written into {owed.run_dir}"), err=True)


def _show(lines: list[str]) -> None:
    for line in lines:
        click.echo(line)
