"""
Launching and watching the training under test.

From a line in a log on some node to a sample that the judge can trust, each a module of its own:

    tailing     follows the logs, remembers what was read, knows when nobody was watching
    cleaning    colours, carriage returns, prefixes of whoever merged several writers
    formats     which event a line tells (known: well-known trainers; launchers: torchrun, Slurm, NCCL)
    stamps      when it happened, as an interval that contains the truth
    lives       which life of the training's processes it belongs to

and on top `watched` (any training), `torchrun`, `command` and `attach` (the launchers), `launch` (from an inventory).
Nothing here imports the engine or the fleet; nodes are reached through `ports.TrainingNode`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chaoskit.model.inventory import Inventory, TrainingSpec
    from chaoskit.training.logged import LoggedTraining


def make_training(spec: "TrainingSpec", inventory: "Inventory", run: str) -> "LoggedTraining":
    """Return the training that an inventory's entry describes; nothing is started yet. Raises InputError."""
    from chaoskit.training.launch import open_training  # noqa: PLC0415 - loaded when a run begins, not for `plan`

    name = next((name for name, one in inventory.file.trainings.items() if one is spec), spec.launcher)
    return open_training(name, spec, inventory, run)
