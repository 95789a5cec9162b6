"""What launching and watching a training needs of a node, as a Protocol; `chaoskit.fleet` provides it."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

from chaoskit.model.wire import Beat, Lines, Spawned, TailEnd, TailEvent


class TrainingNode(Protocol):
    """One node that trains."""

    @property
    def name(self) -> str:
        """Inventory name of the node."""

    @property
    def boot_id(self) -> str:
        """The node's boot id when it was connected."""

    @property
    def connected(self) -> bool:
        """False once the channel is lost."""

    def spawn(self, key: str, argv: Sequence[str], env: Mapping[str, str], user: str | None, cwd: str, log: str) -> Future[Spawned]:
        """Start a process in its own session and cgroup, its output appended to `log`; it outlives the agent."""

    def spawned(self, key: str) -> Future[Spawned]:
        """Ask for a process that was started under this key."""

    def stop(self, key: str, grace: float) -> Future[bool]:
        """End the processes started under this key: SIGTERM, SIGKILL after `grace` seconds; true when none is left."""

    def tail(self, stream: str, path: str, user: str | None, whole: bool, on_event: Callable[[TailEvent], None]) -> Future[None]:
        """Follow a file (from its start when `whole`); events arrive on the channel's reader thread."""

    def untail(self, stream: str) -> Future[None]:
        """Stop following."""


__all__ = ["Beat", "Lines", "Spawned", "TailEnd", "TailEvent", "TrainingNode"]
