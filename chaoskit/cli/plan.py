"""`chaoskit plan`: who would be touched, when, with what, and what the run would be judged by. Touches nothing."""

from pathlib import Path

import click

from chaoskit.cli.site import chosen, inventory_option
from chaoskit.errors import EXIT_INCONCLUSIVE, EXIT_PASSED


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@inventory_option
@click.option("--seed", type=int, help="Seed of every choice, instead of the experiment's.")
def plan(files: tuple[Path, ...], inventory: str | None, seed: int | None) -> int:
    """Show what each FILE would do at a site, and touch nothing."""
    from chaoskit.engine.plan import plan as make_plan
    from chaoskit.model.load import load_experiment

    experiments = [load_experiment(file) for file in files]
    site = chosen(inventory)
    plans = [make_plan(loaded, site, loaded.experiment.seed if seed is None else seed) for loaded in experiments]
    click.echo(f"site {site.name}")
    empty = [f"{loaded.name}: {made.empty}" for loaded, made in zip(experiments, plans, strict=True) if made.empty]
    for loaded, made in zip(experiments, plans, strict=True):
        rows = made.describe()
        if len(plans) > 1:
            rows = [f"-- {loaded.name}", *rows]
        for row in rows[:-1] if empty and len(plans) == 1 else rows:
            click.echo(row)
    if empty:
        click.echo(f"INCONCLUSIVE: {'; '.join(empty)}")  # the last line carries the word of the exit code
    return EXIT_INCONCLUSIVE if empty else EXIT_PASSED
