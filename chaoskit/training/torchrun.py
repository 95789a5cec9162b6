"""
`launcher: torchrun`: chaoskit starts one elastic agent a node, and starts it again on a node that comes back.

Some settings decide between recovery and death, and torch's own defaults are made for another purpose, so we set them
unless the inventory does:

    read_timeout=600            a control plane that is out for longer than this ends the whole run; the default is 60 s
    keep_alive_interval=2       with keep_alive_max_attempt=3: a dead node is evicted from the rendezvous after 6 s, not 15
    last_call_timeout=5         with min_nodes, every round waits this long for more nodes; the default is 30 s
    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
                                each round gets a store of its own; in the shared one a fast restart reads the addresses
                                of the round before, dies, and burns another restart (pytorch #135712)

The node that hosts the rendezvous is the run's single point of failure: an experiment should `avoid: [rendezvous]`.
"""

import time
import zlib
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from typing import Any

from chaoskit.agent.contract import training_key
from chaoskit.errors import NodeError, TrainingError
from chaoskit.judge.timeline import Observed
from chaoskit.training.agents import Liveness, Restart
from chaoskit.training.logged import LoggedTraining, Setup
from chaoskit.training.placeholders import fill, fill_all
from chaoskit.training.ports import Spawned, TrainingNode

SPAWN_WITHIN = 60.0
GRACE = 5.0
"""Seconds from SIGTERM to SIGKILL when the run is over."""
PORTS = range(20000, 30000)
"""Where the rendezvous listens, by the run's name: below the ports that Linux gives to outgoing connections."""

RENDEZVOUS = {"read_timeout": "600", "keep_alive_interval": "2", "keep_alive_max_attempt": "3", "last_call_timeout": "5"}
ENVIRONMENT = {"LOGLEVEL": "INFO", "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def rendezvous_port(run: str) -> int:
    """Return the run's own port; two runs at a time rarely share one, and then the second fails to start."""
    return PORTS[zlib.crc32(run.encode()) % len(PORTS)]


class TorchrunTraining(LoggedTraining):
    """A training under torchrun's elastic agents, one a node."""

    def __init__(self, setup: Setup, gpus: int) -> None:
        super().__init__(setup)
        self._gpus = gpus
        self._key = training_key(setup.run)
        self._liveness: Liveness | None = None
        self._restarts: dict[str, Restart] = {}
        self._ended = False

    @property
    def launches(self) -> bool:
        """Whether chaoskit starts and ends it: yes."""
        return True

    @property
    def run_id(self) -> str:
        """TORCHELASTIC_RUN_ID of the training: the run's name."""
        return self.setup.run

    def argv(self, node: str) -> list[str]:
        """Return the elastic agent's argument list on a node."""
        spec, host = self.spec, self.spec.rendezvous or self.nodes[0]
        count = len(self.nodes)
        # Said, not guessed: torch would look whether the host's name resolves to an address of this machine.
        conf = RENDEZVOUS | {"is_host": str(int(node == host))} | dict(spec.rdzv_conf)
        return [
            *(spec.python, "-m", "torch.distributed.run"),
            *("--nnodes", str(count) if spec.min_nodes in (None, count) else f"{spec.min_nodes}:{count}"),
            *("--nproc-per-node", str(self._gpus)),
            *("--rdzv-backend", "c10d", "--rdzv-id", self.run_id, "--rdzv-endpoint", f"{host}:{rendezvous_port(self.run_id)}"),
            *("--rdzv-conf", ",".join(f"{key}={value}" for key, value in conf.items())),
            *("--max-restarts", str(spec.max_restarts), "--local-addr", node),
            *fill_all(spec.argv, run=self.setup.run, node=node),
        ]

    def environment(self, node: str) -> dict[str, str]:
        """Return the elastic agent's environment on a node, beside a login's."""
        interface = self.spec.interface
        sockets = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface} if interface else {}
        own = {key: fill(value, run=self.setup.run, node=node) for key, value in self.spec.env.items()}
        return ENVIRONMENT | sockets | own

    def _spawn(self, node: TrainingNode) -> Future[Spawned]:
        log = fill(self.spec.log, run=self.setup.run, node=node.name)
        return node.spawn(self._key, self.argv(node.name), self.environment(node.name), self.setup.user, "/", log)

    def _launch(self) -> None:
        self._follow(self.setup.log_nodes, whole=True)
        parts = {name: self._spawn(self.agents[name]) for name in self.nodes}
        if why := failures(parts, SPAWN_WITHIN):
            raise TrainingError("\n".join(f"cannot start torchrun on {name}: {text}" for name, text in why.items()), where=self.setup.where)
        self._liveness = Liveness(self._key, time.monotonic(), {name: self.agents[name] for name in self.nodes})

    def _over(self) -> str:
        if self._liveness and self._fewest > len(self.nodes) - len(self._liveness.ended):
            return f"ended before its first step on {', '.join(self._liveness.ended)}"
        return ""

    @property
    def _fewest(self) -> int:
        """How many nodes it needs to go on."""
        return self.spec.min_nodes or len(self.nodes)

    def _look(self, now: float) -> Observed:
        if self._liveness and not self._ended:
            self._liveness.look(now)
            self._restart(now, self._liveness)
            self._note_end(now, self._liveness)
        return super()._look(now)

    def _restart(self, now: float, liveness: Liveness) -> None:
        for name, restart in list(self._restarts.items()):
            if restart.look(now):
                del self._restarts[name]
                if restart.spawned:
                    liveness.started(name, now)

    def _note_end(self, now: float, liveness: Liveness) -> None:
        """
        The run is over when too few agents are left that live or may live, and no worker works.

        Without its agent a worker may well go on, so that alone is no end; nobody but us starts an agent again, and we do
        so only on a node that was lost.
        """
        ended, left = liveness.ended, len(self.nodes) - len(liveness.ended)
        if ended and left < self._fewest and not self._restarts and (self.watch.lives.stands_still or not liveness.lives):
            self._ended = True
            self.watch.exited(now, liveness.ended_after, f"torchrun has ended on {', '.join(ended)}")

    def rejoin(self, agent: TrainingNode) -> None:
        """A lost node is connected again: follow its log again and start its torchrun again if it is gone."""
        super().rejoin(agent)
        if self._liveness and agent.name in self.nodes and not self._ended:
            self._liveness.connected(agent)
            self._restarts[agent.name] = Restart(agent, self._key, self._spawn)

    def stop(self) -> None:
        """
        End it on every reachable node and stop following.

        Raises:
            TrainingError: Something may be left; names each node.
        """
        self.watch.stop()
        if not self.agents:
            return
        reachable = {name: self.agents[name].stop(self._key, GRACE) for name in self.nodes if self.agents[name].connected}
        why = {name: "not reachable, so what runs there is unknown" for name in self.nodes if name not in reachable}
        why |= failures(reachable, GRACE + SPAWN_WITHIN)
        why |= {name: "processes are left" for name, future in reachable.items() if name not in why and not future.result()}
        if why:
            raise TrainingError(
                "\n".join(f"the training may still run on {name}: {text}" for name, text in why.items()), where=self.setup.where
            )
        self.agents = {}


def failures(futures: Mapping[str, Future[Any]], within: float) -> dict[str, str]:
    """Wait for every future; return, by node, why it failed."""
    until, why = time.monotonic() + within, {}
    for name, future in futures.items():
        try:
            future.result(max(until - time.monotonic(), 0.0))
        except NodeError as error:
            why[name] = str(error)
        except Late:
            why[name] = f"no answer within {within:g} s"
    return why
