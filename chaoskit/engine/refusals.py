"""Collecting what a plan must refuse, each with its position in the experiment or in the inventory."""

from chaoskit.errors import InputError, Problem
from chaoskit.model.experiment import LoadedExperiment, Position
from chaoskit.model.inventory import Inventory


class Refusals:
    """Every refusal of one plan; raised together."""

    def __init__(self, loaded: LoadedExperiment, inventory: Inventory) -> None:
        self._loaded = loaded
        self._inventory = inventory
        self._problems: dict[str, Problem] = {}

    @property
    def all_nodes(self) -> str:
        """How an experiment says that any number of nodes may be touched: its own file, or its Python test."""
        in_python = self._loaded.at("").file.endswith(".py")
        return '@pytest.mark.chaos(blast_radius="all")' if in_python else "blast_radius: {nodes: all}"

    def position(self, path: str) -> Position:
        """Return where something stands in the experiment."""
        return self._loaded.at(path)

    def add(self, path: str, what: str, hint: str = "", *, at: str | None = None) -> None:
        """Refuse something at a path of the experiment; `at` is for a key that the file may lack, and then the path is shown."""
        self._keep(self._loaded.at(at or path), path, what, hint)

    def add_site(self, path: str, what: str, hint: str = "") -> None:
        """Refuse something at a path of the inventory."""
        self._keep(self._inventory.at(path), path, what, hint)

    def raise_all(self) -> None:
        """Raise an InputError with every refusal, if there are any."""
        if self._problems:
            raise InputError(problems=sorted(self._problems.values(), key=lambda problem: (problem.file, problem.line, problem.col)))

    def _keep(self, position: Position, path: str, what: str, hint: str) -> None:
        problem = Problem(position.file, position.line, position.col, path, what, hint)
        self._problems.setdefault(str(problem), problem)
