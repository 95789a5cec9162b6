"""The elastic agents (torchrun) that we started: whether each is alive, and how one is started again after a reboot."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from chaoskit.errors import NodeError, TrainingError
from chaoskit.training.ports import Spawned, TrainingNode

ASK_EVERY = 1.0
"""Seconds between questions whether an agent is alive."""
TRIES = 5
"""How often starting a part again is tried before the run gives up on it."""
RETRY_EVERY = 2.0
CLEAR_WITHIN = 5.0
"""Seconds that what is left of an agent's old workers gets to end by itself."""

Ask = Callable[[TrainingNode], "Future[Spawned]"]


@dataclass
class Asked:
    """What is known of one node's agent: alive, ended, or (None) unknown."""

    alive: bool | None = None
    seen: float = 0.0
    """When it was last known alive."""
    at: float = float("-inf")
    future: "Future[Spawned] | None" = None


class Liveness:
    """Asks every connected node once a second whether its agent lives; never waits."""

    def __init__(self, key: str, now: float, nodes: Mapping[str, TrainingNode]) -> None:
        self._key = key
        self._nodes = dict(nodes)
        self._asked = {name: Asked(True, now) for name in nodes}

    def look(self, now: float) -> None:
        """Take answers in and ask again where it is time."""
        for name, asked in self._asked.items():
            if asked.future is not None and asked.future.done():
                self._answer(asked)
            node = self._nodes[name]
            if not node.connected:
                asked.alive = None
            elif asked.future is None and now - asked.at >= ASK_EVERY:
                asked.at, asked.future = now, node.spawned(self._key)

    def _answer(self, asked: Asked) -> None:
        assert asked.future is not None  # noqa: S101 - the caller has looked
        future, asked.future = asked.future, None
        try:
            asked.alive = future.result().alive
        except NodeError:
            asked.alive = None  # lost, or a node that came up anew and was started nothing yet
        if asked.alive:
            asked.seen = asked.at

    def connected(self, node: TrainingNode) -> None:
        """A node is connected again; what is left of questions over the old channel says nothing about it."""
        self._nodes[node.name] = node
        self._asked[node.name] = Asked(None, self._asked[node.name].seen)

    def started(self, name: str, now: float) -> None:
        """A node's agent was started again."""
        self._asked[name] = Asked(True, now, at=now)

    @property
    def ended(self) -> tuple[str, ...]:
        """The nodes whose agent has ended."""
        return tuple(name for name, asked in self._asked.items() if asked.alive is False)

    @property
    def lives(self) -> bool:
        """Whether any agent is known to live."""
        return any(asked.alive for asked in self._asked.values())

    @property
    def ended_after(self) -> float:
        """When the last of those that have ended was last known alive."""
        return max((asked.seen for asked in self._asked.values() if asked.alive is False), default=0.0)


class Restart:
    """
    Starts a node's agent again when it is gone, over as many looks as it takes.

    Args:
        node: The node, connected again.
        key: Under which its agent was started.
        spawn: Starts it.
    """

    def __init__(self, node: TrainingNode, key: str, spawn: Ask) -> None:
        self.node = node
        self.spawned = False
        """True once it was started again; false when it turned out to be alive."""
        self._key = key
        self._spawn = spawn
        self._tries = 0
        self._at = float("-inf")
        self._steps: Iterator[Future[Spawned] | Future[bool]] | None = None
        self._waits: Future[Spawned] | Future[bool] | None = None

    def look(self, now: float) -> bool:
        """
        Go on where the last look ended; true when there is nothing more to do.

        Raises:
            TrainingError: It failed too often.
        """
        if not self.node.connected:
            return True  # lost again: its next return begins anew
        if self._steps is None:
            if now - self._at < RETRY_EVERY:
                return False
            self._at, self._steps = now, self._go()
            self._tries += 1
        try:
            return self._advance()
        except NodeError as error:
            self._steps = self._waits = None
            if self._tries < TRIES or not self.node.connected:
                return False
            raise TrainingError(
                f"came back, but its part of the training could not be started again: {error}", where=self.node.name
            ) from error

    def _advance(self) -> bool:
        assert self._steps is not None  # noqa: S101 - look has set it
        while self._waits is None or self._waits.done():
            self._waits = next(self._steps, None)
            if self._waits is None:
                return True
        return False

    def _go(self) -> "Iterator[Future[Spawned] | Future[bool]]":
        asked = self.node.spawned(self._key)
        yield asked
        try:
            if asked.result().alive:
                return
        except NodeError:  # nothing was started under this key since the node came up
            if not self.node.connected:
                raise
        cleared = self.node.stop(self._key, CLEAR_WITHIN)
        yield cleared
        cleared.result()
        started = self._spawn(self.node)
        yield started
        started.result()
        self.spawned = True
