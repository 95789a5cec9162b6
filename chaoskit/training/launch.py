"""From what an inventory says of a training to the training itself."""

from chaoskit.errors import InputError
from chaoskit.model.hostlist import expand
from chaoskit.model.inventory import Inventory, TrainingSpec
from chaoskit.training.attach import AttachedTraining
from chaoskit.training.command import CommandTraining
from chaoskit.training.formats import compile_format
from chaoskit.training.logged import LoggedTraining, Setup
from chaoskit.training.torchrun import TorchrunTraining


def open_training(name: str, spec: TrainingSpec, inventory: Inventory, run: str) -> LoggedTraining:
    """
    Return a training; nothing is started or connected yet.

    Args:
        name: Its name in the inventory, for error texts.
        spec: What the inventory says of it.
        inventory: The site.
        run: The run's name.

    Raises:
        InputError: The format, the nodes, the account or the log cannot be used.
    """
    where = f"trainings.{name}"
    nodes = expand(spec.nodes) if spec.nodes else tuple(node.name for node in inventory.group(spec.group))
    if not nodes:
        raise InputError("no node trains", where=where, hint=f"give nodes: or put nodes into the group {spec.group}")
    if not spec.log:
        raise InputError("expected a log to follow", where=f"{where}.log", hint="such as /var/tmp/{run}.log")
    setup = Setup(
        name,
        spec,
        run,
        nodes,
        expand(spec.log_nodes) if spec.log_nodes else nodes,
        spec.user or inventory.file.ssh.user,
        compile_format(spec.format, f"{where}.format"),
    )
    if spec.launcher == "torchrun":
        return TorchrunTraining(_with_user(setup), max(inventory.nodes[nodes[0]].gpus, 1))
    return CommandTraining(setup) if spec.launcher == "command" else AttachedTraining(setup)


def _with_user(setup: Setup) -> Setup:
    """The agent on the nodes is root; a training must never become that by omission."""
    if setup.user is None:
        raise InputError("expected the account that trains", where=f"{setup.where}.user", hint="give user: here or in ssh:")
    return setup
