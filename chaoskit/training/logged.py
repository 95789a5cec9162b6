"""What every training under test has in common: logs on some nodes, followed from the start to the end of the run."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from chaoskit.errors import TrainingError
from chaoskit.judge.timeline import Observed
from chaoskit.model.inventory import TrainingSpec
from chaoskit.training.events import LogFormat
from chaoskit.training.placeholders import fill
from chaoskit.training.ports import TrainingNode
from chaoskit.training.watch import Watch

TICK = 0.05
"""Seconds between looks while the first step is awaited."""


class Setup:
    """
    What an inventory says of one training, worked out.

    Args:
        name: Its name in the inventory, for error texts.
        spec: What the inventory says.
        run: The run's name; unique at this site.
        nodes: The nodes that train.
        log_nodes: The nodes whose log is followed.
        user: The account that trains; None when it is the agent's own.
        log_format: How the log is read.
    """

    def __init__(
        self,
        name: str,
        spec: TrainingSpec,
        run: str,
        nodes: tuple[str, ...],
        log_nodes: tuple[str, ...],
        user: str | None,
        log_format: LogFormat,
    ) -> None:
        self.name = name
        self.spec = spec
        self.run = run
        self.nodes = nodes
        self.log_nodes = log_nodes
        self.user = user
        self.log_format = log_format

    @property
    def where(self) -> str:
        """The training's place in the inventory."""
        return f"trainings.{self.name}"


class LoggedTraining(ABC):
    """A training that is watched through its logs; the launchers say how it begins and ends."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.spec = setup.spec
        self.agents: dict[str, TrainingNode] = {}
        self.watch = Watch(setup.log_format, setup.user, setup.spec.batch)
        self._boots: dict[str, str] = {}
        self._early: list[Observed] = []
        self._meanwhile: Callable[[], None] = lambda: None

    @property
    @abstractmethod
    def launches(self) -> bool:
        """Whether chaoskit starts and ends it."""

    @property
    def run_id(self) -> str:
        """TORCHELASTIC_RUN_ID of the training, empty when unknown."""
        return fill(self.spec.run_id or "", run=self.setup.run)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Inventory names of the nodes that train."""
        return self.setup.nodes

    @property
    def log_nodes(self) -> tuple[str, ...]:
        """Inventory names of the nodes whose logs are followed."""
        return self.setup.log_nodes

    def start(self, agents: Mapping[str, TrainingNode], meanwhile: Callable[[], None] = lambda: None) -> None:
        """
        Launch it or attach to it, follow its logs, and wait for its first step.

        Args:
            agents: The connected nodes.
            meanwhile: Called while the queue and the first step are waited for; what it raises ends the wait.

        Raises:
            TrainingError: It could not be started, or made no step within `start_within`.
        """
        wanted = dict.fromkeys([*self.nodes, *self.log_nodes])
        if missing := [name for name in wanted if name not in agents]:
            raise TrainingError(f"not connected: {', '.join(missing)}", where=self.setup.where)
        self.agents = {name: agents[name] for name in wanted}
        self._boots = {name: agent.boot_id for name, agent in self.agents.items()}
        self._meanwhile = meanwhile
        self._launch()
        self._await_first_step()

    @abstractmethod
    def _launch(self) -> None:
        """Start it, when we do, and follow its logs. Raises TrainingError."""

    def _follow(self, nodes: Sequence[str], *, whole: bool, job: str = "") -> None:
        now = time.monotonic()
        for name in nodes:
            path = fill(self.spec.log, run=self.setup.run, node=name, job=job)
            self.watch.follow(self.agents[name], path, whole=whole, now=now)

    def _await_first_step(self) -> None:
        until = time.monotonic() + self.spec.start_within
        while not self.watch.lives.steps:
            now = time.monotonic()
            if now > until:
                raise self._failed(f"made no step within {self.spec.start_within:g} s")
            self._early.append(self._look(now))
            if why := self._over():
                raise self._failed(why)
            self._meanwhile()
            time.sleep(TICK)

    def _failed(self, what: str) -> TrainingError:
        """Return the error, with the last lines of the logs, which say more than we can."""
        lines = self.watch.last_lines()
        told = f"the training {what}; its log ends:\n{lines}" if lines else f"the training {what}, and no line was read from its log"
        return TrainingError(told, where=self.setup.where, hint="run its command by hand on one node, or raise start_within")

    def _over(self) -> str:
        """Return why it can make no step any more; empty while it can."""
        return ""

    def poll(self, now: float) -> Observed:
        """
        Return what came in since the last call; never waits.

        Raises:
            TrainingError: A node that came back could not take its part again.
        """
        early, self._early = self._early, []
        return joined([*early, self._look(now)])

    def _look(self, now: float) -> Observed:
        return self.watch.poll(now)

    def rejoin(self, agent: TrainingNode) -> None:
        """A lost node is connected again: follow its log again and, when we launched it, start its part again if it is gone."""
        if agent.name not in self.agents:
            return
        rebooted = agent.boot_id != self._boots[agent.name]
        self.agents[agent.name] = agent
        self._boots[agent.name] = agent.boot_id
        self.watch.again(agent, rebooted=rebooted, now=time.monotonic())

    @abstractmethod
    def stop(self) -> None:
        """End what we launched, on every reachable node, and stop following. Raises TrainingError."""


def joined(parts: Sequence[Observed]) -> Observed:
    """Return several looks as one; of a blind span that was told twice the later word counts."""
    return Observed(
        tuple(sample for part in parts for sample in part.samples),
        tuple(mark for part in parts for mark in part.marks),
        tuple(sorted(dict(span for part in parts for span in part.blind).items())),
        {session: size for part in parts for session, size in (part.batch or {}).items()},
        {session: count for part in parts for session, count in (part.gpus or {}).items()},
    )
