"""
Experiments in Python: what the pytest fixtures `cluster`, `training` and `inject` give to a test, for its annotations.

    from chaoskit.scripting import Cluster, Inject, Training

    def test_a_lost_node_costs_at_most_one_checkpoint_interval(cluster: Cluster, training: Training, inject: Inject):
        training.await_steady()
        with inject("node_kill", target=cluster.group("workers").pick(1, avoid="rendezvous")):
            recovery = training.await_recovery(within="10m")
        assert recovery.lost_steps <= training.checkpoint_interval + 1

Every test that uses `training` or `inject` is one experiment, with one run directory. It goes through the same engine,
the same plan and the same refusals as an experiment file, and is judged by the same judge.

**Time.** Leases are renewed while one of these objects waits, and at no other time: a test that hangs in its own code for
longer than the inventory's `lease` (30 s) loses them, the nodes heal themselves, and the run is aborted. So let time pass
by `training.wait("20s")`, never by `time.sleep(20)`.

**Figures** carry their uncertainty. `recovery.lost_steps <= 26` is True or False only when the whole interval is on one
side; when the limit lies inside it the comparison raises UndecidedError, and the test is an error and no failure.
"""

from chaoskit.errors import UndecidedError
from chaoskit.judge.verdict import Baseline
from chaoskit.scripting.cluster import Cluster, Nodes
from chaoskit.scripting.figures import Figure, Recovery
from chaoskit.scripting.live import Inject, Injection, Training

__all__ = ["Baseline", "Cluster", "Figure", "Inject", "Injection", "Nodes", "Recovery", "Training", "UndecidedError"]
