"""`chaoskit run`: experiments, one after another, each to its verdict and its artefacts."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chaoskit.cli.site import chosen, inventory_option
from chaoskit.errors import EXIT_INCONCLUSIVE, EXIT_PASSED, InputError, NodeError, RefusedError

if TYPE_CHECKING:
    from chaoskit.engine.events import Event
    from chaoskit.engine.losses import Losses
    from chaoskit.engine.ports import Fleet
    from chaoskit.engine.result import RunResult
    from chaoskit.engine.signals import Gate
    from chaoskit.model.experiment import LoadedExperiment
    from chaoskit.model.inventory import Inventory
    from chaoskit.report.layout import Row


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@inventory_option
@click.option("--seed", type=int, help="Seed of every choice, instead of the experiment's.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("runs"), show_default=True, help="Where runs lie.")
@click.option("--dry", is_flag=True, help="Connect, audit and prepare, and inject nothing.")
@click.option(
    "--lose-at-most",
    metavar="N",
    type=click.IntRange(1),
    help="Begin no further experiment once N nodes are lost, instead of the inventory's limits.nodes_lost.",
)
def run(files: tuple[Path, ...], inventory: str | None, seed: int | None, out: Path, dry: bool, lose_at_most: int | None) -> int:
    """
    Run experiments against a live training, and judge it.

    Each run leaves a directory TIME-NAME with journal.jsonl, junit.xml and summary.json, and `latest` points at the last.
    The last line is the verdict; with several experiments, the worst.
    """
    from chaoskit.engine.losses import Losses
    from chaoskit.engine.signals import Whose, ending_signals

    loaded, site = read_inputs(files, inventory)
    _check_together(loaded, site, seed)
    with ending_signals() as gate:
        gate.whose = Whose.TESTS  # what hangs in here, such as a name server, can be ended by a second signal
        if dry:
            return _dry(loaded, site, seed)
        return _runs(loaded, site, Losses(lose_at_most or site.file.limits.nodes_lost), seed, out, gate)


def read_inputs(files: tuple[Path, ...], inventory: str | None) -> "tuple[list[LoadedExperiment], Inventory]":
    """Read all files before anything begins. Raises InputError with the problems of all of them."""
    from chaoskit.model.load import load_experiment

    loaded, broken = [], []
    for file in files:
        try:
            loaded.append(load_experiment(file))
        except InputError as error:
            broken.append(error)
    try:
        site = chosen(inventory)
    except InputError as error:
        broken.append(error)
    _raise_all(broken)
    return loaded, site


def _check_together(loaded: "list[LoadedExperiment]", site: "Inventory", seed: int | None) -> None:
    """Plan every experiment before the first one begins. Raises InputError; what a plan refuses is that run's own verdict."""
    from chaoskit.engine.plan import plan

    broken = []
    for experiment in loaded:
        try:
            plan(experiment, site, _seed(experiment, seed))
        except InputError as error:
            broken.append(error)
        except RefusedError:
            continue
    _raise_all(broken)


def _raise_all(broken: list[InputError]) -> None:
    if broken:
        raise broken[0] if len(broken) == 1 else ExceptionGroup("input that cannot be used", broken)


def _seed(experiment: "LoadedExperiment", given: int | None) -> int:
    return experiment.experiment.seed if given is None else given


def _runs(loaded: "list[LoadedExperiment]", site: "Inventory", losses: "Losses", seed: int | None, out: Path, gate: "Gate") -> int:
    from chaoskit.judge.verdict import Outcome
    from chaoskit.report import table
    from chaoskit.report.layout import Row
    from chaoskit.report.live import watching
    from chaoskit.report.sanitise import line as clean
    from chaoskit.wiring import Order, run_order

    results: list[RunResult] = []
    heard = ""
    for number, experiment in enumerate(loaded, 1):
        if len(loaded) > 1:
            _show([Row(""), Row(f"{number} of {len(loaded)}: {clean(experiment.name)}: {clean(experiment.experiment.title)}", "bold")])
        result = run_order(Order(experiment, site, _seed(experiment, seed), out), lambda info: watching(info, sys.stdout))
        results.append(result)
        with gate.kept():
            _show([Row(""), *table.verdict_table(result), table.artefacts(result), table.closing(result)])
        heard = result.heard or gate.heard
        losses.add(result.lost)
        if heard or losses.spent or result.verdict.outcome is Outcome.ABORTED:
            break  # somebody wants nothing more to begin, or the site is not as it was: the next experiment would not be a fair one
    skipped = loaded[len(results) :]
    outcome = table.over_all(results, len(skipped))
    if len(loaded) > 1:
        why = f"{heard} came" if heard else losses.spent or "the run before it was aborted"
        rows = [Row(f"{clean(str(each.path))}: not run, since {why}") for each in skipped]
        with gate.kept():
            _show([*rows, *table.summary_table(results), table.summary_closing(results, len(skipped))])
    return outcome.exit_code or max((result.exit_code for result in results), default=0)


def _show(rows: "list[Row]") -> None:
    from chaoskit.report.table import show

    with suppress(OSError):  # `| head`, a terminal that was closed: the artefacts are on disk, and the exit code is the verdict's
        show(rows, sys.stdout)


def _dry(loaded: "list[LoadedExperiment]", site: "Inventory", seed: int | None) -> int:
    """Try every experiment, also when one before it met an obstacle; the last line carries the word of the exit code."""
    from chaoskit.wiring import ssh_fleet

    stopped = []
    with ssh_fleet(site) as fleet:
        for experiment in loaded:
            click.echo(f"{experiment.path}: dry run, nothing will be injected")
            if not _dry_run(experiment, site, _seed(experiment, seed), fleet):
                stopped.append(experiment.name)
    if stopped:
        click.echo(f"INCONCLUSIVE: {len(stopped)} of {len(loaded)} dry runs met an obstacle: {', '.join(stopped)}")
        return EXIT_INCONCLUSIVE
    click.echo("PASSED: the dry run met no obstacle")
    return EXIT_PASSED


def _dry_run(experiment: "LoadedExperiment", site: "Inventory", seed: int, fleet: "Fleet") -> bool:
    """Say whether the experiment could be run, as far as can be known without running it; an obstacle is printed."""
    from chaoskit.engine.dry import dry_run
    from chaoskit.engine.plan import plan
    from chaoskit.report.sanitise import text
    from chaoskit.wiring import training_nodes

    try:
        made = plan(experiment, site, seed)
        run_id = (made.training.run_id or "") if made.training.launcher == "attach" else ""
        nodes = tuple(node.name for node in training_nodes(site, made.training_name))
        dry_run(made, fleet, nodes, run_id=run_id, listener=_say)
    except (RefusedError, NodeError) as error:
        click.echo(f"  {text(str(error))}", err=True)
        return False
    return True


def _say(event: "Event") -> None:
    click.echo(f"  {event.says}")
