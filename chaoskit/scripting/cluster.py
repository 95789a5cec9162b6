"""The nodes of a site, as a test chooses among them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import overload

from chaoskit.engine.refusals import Refusals
from chaoskit.engine.targets import choose, rendezvous_of
from chaoskit.errors import InputError, RefusedError
from chaoskit.model.experiment import Injection, LoadedExperiment, Target
from chaoskit.model.hostlist import HostListError, expand, fold
from chaoskit.model.inventory import Inventory
from chaoskit.model.typed import did_you_mean
from chaoskit.model.units import parse_pick

Known = Callable[[], LoadedExperiment]
"""Returns the experiment so far, with the line of the test that asks as the position of everything."""


class Cluster:
    """The site under test. Choosing touches nothing; the same seed chooses the same nodes."""

    def __init__(self, inventory: Inventory, seed: int, known: Known) -> None:
        """Take the site, the seed of every choice, and what tells where in the test a choice is made."""
        self.inventory = inventory
        self.seed = seed
        self.known = known
        self._picks = 0

    @property
    def name(self) -> str:
        """The site's name."""
        return self.inventory.name

    @property
    def rendezvous(self) -> str | None:
        """The node that hosts the training's rendezvous."""
        experiment = self.known()
        return rendezvous_of(self.inventory, self.inventory.file.trainings[experiment.experiment.training])

    def group(self, name: str) -> "Nodes":
        """Return the nodes of a group of the inventory; none when this site has no such group."""
        return Nodes(self, Target(group=name), tuple(node.name for node in self.inventory.group(name)))

    def nodes(self, names: str) -> "Nodes":
        """Return named nodes: a host list such as `node[01-04]`. Raises InputError for one that the inventory does not have."""
        at = self.known().at("")
        try:
            asked = expand(names)
        except HostListError as error:
            raise InputError(error.what, where=str(at), hint=error.hint) from error
        if missing := [name for name in asked if name not in self.inventory.nodes]:
            hint = did_you_mean(missing[0], list(self.inventory.nodes), "nodes")
            raise InputError(f"{missing[0]} is not a node of {self.name}", where=str(at), hint=hint)
        return Nodes(self, Target(nodes=names), tuple(name for name in self.inventory.nodes if name in set(asked)))

    def choose(self, target: Target) -> tuple[str, ...]:
        """
        Return the nodes that the seed chooses.

        Raises:
            InputError: More are asked for than there are, or only protected ones.
            RefusedError: There is no node to choose from.
        """
        self._picks += 1
        loaded = self.known()
        refusals = Refusals(loaded, self.inventory)
        training = self.inventory.file.trainings[loaded.experiment.training]
        chosen = choose(refusals, self.inventory, training, Injection("a pick", target), self._picks, self.seed)
        refusals.raise_all()
        if chosen.empty:
            raise RefusedError(chosen.empty)
        return tuple(node.name for node in chosen.targets)

    def __repr__(self) -> str:
        return f"<cluster {self.name}: {fold(self.inventory.nodes)}>"


class Nodes(Sequence[str]):
    """Some nodes of the site by name, in the inventory's order."""

    def __init__(self, cluster: Cluster, target: Target, names: tuple[str, ...]) -> None:
        """Take the site, how the nodes were asked for, and their names."""
        self._cluster = cluster
        self._target = target
        self._names = names

    def pick(self, count: int | str = 1, *, avoid: str | Sequence[str] = ()) -> "Nodes":
        """
        Return some of them, chosen by the seed; protected ones never are.

        Args:
            count: A number, a share such as `25%`, or `all`.
            avoid: Host lists of nodes not to take, or `rendezvous` for the node that hosts the training's rendezvous.

        Raises:
            InputError: What is asked for cannot be had.
            RefusedError: There is no node to choose from: nothing is proven here.
        """
        try:
            quantity = parse_pick(count)
        except ValueError as error:
            raise InputError(str(error), where=str(self._cluster.known().at(""))) from error
        avoided = (avoid,) if isinstance(avoid, str) else tuple(avoid)
        names = self._cluster.choose(replace(self._target, pick=quantity, avoid=avoided))
        return Nodes(self._cluster, Target(nodes=fold(names)), names)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return self._names[index]

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __str__(self) -> str:
        return fold(self._names) or "no node"

    def __repr__(self) -> str:
        return f"<{self}>"

    @property
    def asked(self) -> str:
        """How they were asked for, for messages."""
        return f"the group {self._target.group!r}" if self._target.group is not None else str(self._target.nodes)
