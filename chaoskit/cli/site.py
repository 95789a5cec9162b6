"""Which inventory a command means: a path, a name in `inventories/`, the environment's, or that of the lab that is up."""

from typing import TYPE_CHECKING, Any, TypeVar

import click

from chaoskit.sites import FOLDER, VARIABLE, lab_path, path_of

if TYPE_CHECKING:
    from chaoskit.model.inventory import Inventory

F = TypeVar("F", bound=Any)


def inventory_option(function: F) -> F:
    """Give a command the option `--inventory`."""
    return click.option(
        "-i",
        "--inventory",
        metavar="FILE|NAME",
        envvar=VARIABLE,
        help=f"The site: a file, or NAME for {FOLDER}/NAME.yaml; else ${VARIABLE}, else the lab that is up.",
    )(function)


def chosen(given: str | None) -> "Inventory":
    """Return the inventory that was asked for. Raises InputError with everything wrong in it, or when there is none."""
    from chaoskit.model.load import load_inventory

    return load_inventory(path_of(given) if given else lab_path())
