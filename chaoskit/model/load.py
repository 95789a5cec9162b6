"""
Files to validated types: `load_experiment` and `load_inventory`.

Each reports *all* problems of its file at once, in file order, each with line and column: those of the YAML, those of
types and units, those of each fault's parameters, and those that only several values together make.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from chaoskit.agent.contract import FaultTypes
from chaoskit.model.experiment import Experiment, LoadedExperiment
from chaoskit.model.experiment_checks import check_experiment, check_name
from chaoskit.model.inventory import Inventory, InventoryFile
from chaoskit.model.inventory_checks import check_inventory
from chaoskit.model.inventory_nodes import expand_nodes
from chaoskit.model.parameters import read_fault
from chaoskit.model.source import EnoughError, Source
from chaoskit.model.typed import read_typed
from chaoskit.model.yaml_source import parse_source, read_source


def load_experiment(path: Path | str, faults: FaultTypes | None = None) -> LoadedExperiment:
    """
    Read an experiment file. `faults` are the known faults, those discovered when not given.

    Raises InputError with every problem of the file.
    """
    return experiment_from(read_source(Path(path)), faults)


def load_inventory(path: Path | str) -> Inventory:
    """Read an inventory file and expand its host ranges. Raises InputError with every problem of the file."""
    return inventory_from(read_source(Path(path)))


def experiment_from(source: Source, faults: FaultTypes | None = None, *, growing: bool = False) -> LoadedExperiment:
    """
    Return the experiment of a source that was read. Raises InputError with every problem.

    One that is `growing` gets its injections while it runs, from a Python test, and may have none yet.
    """
    known = _discovered(source) if faults is None else faults
    instances: tuple[Any, ...] = ()
    experiment: Experiment | None = None
    with suppress(EnoughError):
        check_name(source)
        if source.value is not None:
            experiment = read_typed(source, Experiment, source.value)
            instances = tuple(read_fault(source, known, index, entry) for index, entry in enumerate(_entries(source)))
            if experiment is not None and source.whole:
                check_experiment(source, experiment, instances, growing=growing)
    source.raise_problems()
    assert experiment is not None  # noqa: S101 - read_typed returns None only after reporting a problem
    path = Path(source.file)
    return LoadedExperiment(path.stem, path, experiment, instances, source.positions())


def inventory_from(source: Source) -> Inventory:
    """Return the inventory of a source that was read. Raises InputError with every problem."""
    inventory: Inventory | None = None
    with suppress(EnoughError):
        if source.value is not None:
            file: InventoryFile | None = read_typed(source, InventoryFile, source.value)
            if file is not None and source.whole:
                nodes = expand_nodes(source, file)
                inventory = Inventory(file.name, source.file, nodes, file, source.positions())
                check_inventory(source, inventory)
    source.raise_problems()
    assert inventory is not None  # noqa: S101 - as above
    return inventory


def _discovered(source: Source) -> FaultTypes:
    """Return our own faults; those of installed packages as well when the method names one that is not ours."""
    from chaoskit.faults import discover  # noqa: PLC0415 - an inventory needs no faults, and schema tools bring their own

    own: FaultTypes = dict(discover(installed=False))
    names = [entry.get("fault") for entry in _entries(source) if isinstance(entry, Mapping)]
    return own if all(isinstance(name, str) and name in own for name in names) else dict(discover())


def _entries(source: Source) -> list[Any]:
    """Return the method's entries as far as there are any; of a file that was cut off inside them, not the last."""
    if not isinstance(source.value, Mapping):
        return []
    method = source.value.get("method")
    entries = method if isinstance(method, list) else []
    cut = not source.whole and list(source.value)[-1:] == ["method"]
    return entries[:-1] if cut else entries


__all__ = ["experiment_from", "inventory_from", "load_experiment", "load_inventory", "parse_source"]
