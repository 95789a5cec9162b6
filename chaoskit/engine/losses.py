"""The budget of nodes that the experiments of one command may lose."""

from collections.abc import Iterable

from chaoskit.model.hostlist import fold


class Losses:
    """
    Counts the nodes that were lost, each once.

    A node is lost that could not be reached when its run ended, or that was not proven mended. How many one experiment can
    lose is bounded by its blast radius; this bounds how many a campaign goes on to lose.
    """

    def __init__(self, most: int) -> None:
        """Take how many may be lost before nothing more begins."""
        self._most = most
        self._lost: dict[str, None] = {}

    def add(self, names: Iterable[str]) -> None:
        """Count the nodes that a run has lost."""
        self._lost |= dict.fromkeys(names)

    @property
    def spent(self) -> str:
        """Why no further experiment may begin; empty while one may."""
        if len(self._lost) < self._most:
            return ""
        are = "node is" if len(self._lost) == 1 else "nodes are"
        return f"{len(self._lost)} {are} lost ({fold(self._lost)}), and no more than {self._most} may be: mend what is lost first"
