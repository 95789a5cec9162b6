"""What only several values of an inventory together make right or wrong."""

import re
from collections.abc import Sequence

from chaoskit.errors import InputError
from chaoskit.model.experiment_checks import check_hostlist, check_quantity, check_url
from chaoskit.model.inventory import Format, Inventory, Ssh, TrainingSpec
from chaoskit.model.source import Source, Where
from chaoskit.model.ssh_names import check_user, hops_of, parse_hop
from chaoskit.model.typed import did_you_mean

_LAUNCHER_KEYS = {
    "torchrun": ("argv", "python", "interface", "env", "max_restarts", "rdzv_conf", "min_nodes"),
    "command": ("start", "stop", "nodes_command", "state_command"),
}
_REQUIRED = {"torchrun": ("argv",), "command": ("start", "log"), "attach": ("log",)}
_PLACEHOLDER = re.compile(r"\{([a-z_]*)\}")
_LOG_PLACEHOLDERS = ["run", "job", "node"]


def check_inventory(source: Source, inventory: Inventory) -> None:
    """Report what does not fit together in the inventory."""
    if not inventory.nodes:
        _report(source, ("nodes",), "no nodes", "list at least one host range")
    _check_ssh(source, inventory.file.ssh)
    _check_limits(source, inventory)
    if inventory.file.prometheus is not None:
        check_url(source, inventory.file.prometheus.url, ("prometheus", "url"))
    for index, text in enumerate(inventory.file.protected):
        _check_known(source, inventory, text, ("protected", index))
    for name, training in inventory.file.trainings.items():
        _check_training(source, inventory, training, ("trainings", name))


def _report(source: Source, path: Where, what: str, hint: str = "") -> None:
    if not source.is_broken(path):
        source.report(path, what, hint)


def _check_ssh(source: Source, ssh: Ssh) -> None:
    """What reaches ssh's own command line or configuration must not look like an option."""
    try:
        if ssh.user is not None:
            check_user(ssh.user)
    except InputError as error:
        _report(source, ("ssh", "user"), error.what, error.hint)
    try:
        for hop in hops_of(ssh.jump or ""):
            parse_hop(hop)
    except InputError as error:
        _report(source, ("ssh", "jump"), error.what, error.hint)


def _check_limits(source: Source, inventory: Inventory) -> None:
    limits = inventory.file.limits
    if limits.blast_radius is not None:
        check_quantity(source, limits.blast_radius, ("limits", "blast_radius"))
    groups = sorted({node.group for node in inventory.nodes.values() if node.group})
    for group, quantity in limits.per_group.items():
        where: Where = ("limits", "per_group", group)
        check_quantity(source, quantity, where)
        if group not in groups:
            _report(source, where, f"no node is in the group {group!r}", did_you_mean(group, groups, "groups"))


def _check_known(source: Source, inventory: Inventory, text: str, where: Where) -> tuple[str, ...]:
    """Return the names of a host list whose hosts must all be nodes of the inventory."""
    names = check_hostlist(source, text, where)
    missing = [name for name in names if name not in inventory.nodes]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        _report(
            source, where, f"{missing[0]} is not a node of this inventory{more}", did_you_mean(missing[0], list(inventory.nodes), "nodes")
        )
    return names


def _check_training(source: Source, inventory: Inventory, training: TrainingSpec, where: Where) -> None:
    names = _check_training_nodes(source, inventory, training, where)
    if training.log_nodes is not None:
        _check_known(source, inventory, training.log_nodes, (*where, "log_nodes"))
    if training.rendezvous is not None and names and training.rendezvous not in names:
        hint = did_you_mean(training.rendezvous, names, "training nodes")
        _report(source, (*where, "rendezvous"), f"{training.rendezvous!r} is not one of the nodes that train", hint)
    if training.min_nodes is not None and names and training.min_nodes > len(names):
        _report(source, (*where, "min_nodes"), f"more than the {len(names)} nodes that train")
    _check_launcher(source, training, where)
    _check_format(source, training.format, (*where, "format"))
    for unknown in _PLACEHOLDER.findall(training.log):
        if unknown not in _LOG_PLACEHOLDERS:
            _report(source, (*where, "log"), f"unknown placeholder {{{unknown}}}", did_you_mean(unknown, _LOG_PLACEHOLDERS, "placeholders"))


def _check_training_nodes(source: Source, inventory: Inventory, training: TrainingSpec, where: Where) -> Sequence[str]:
    if training.nodes is not None:
        return _check_known(source, inventory, training.nodes, (*where, "nodes"))
    names = [node.name for node in inventory.group(training.group)]
    if not names and not training.nodes_command:  # otherwise the job itself says where it runs
        groups = sorted({node.group for node in inventory.nodes.values() if node.group})
        _report(source, (*where, "group"), f"no node is in the group {training.group!r}", did_you_mean(training.group, groups, "groups"))
    return names


def _check_launcher(source: Source, training: TrainingSpec, where: Where) -> None:
    """What a launcher needs must be given; what it does not read would be ignored in silence."""
    for key in _REQUIRED[training.launcher]:
        if not getattr(training, key):
            _report(source, (*where, key), f"missing, and `launcher: {training.launcher}` needs it", f"add `{key}:` here")
    for launcher, keys in _LAUNCHER_KEYS.items():
        if launcher == training.launcher:
            continue
        for key in keys:
            if (*where, key) in source.keys:
                _report(
                    source, (*where, key), f"`launcher: {training.launcher}` does not read this", f"it belongs to `launcher: {launcher}`"
                )


def _check_format(source: Source, form: str | Format, where: Where) -> None:
    if isinstance(form, str):
        return
    if bool(form.regex) == bool(form.jsonl):
        _report(source, where, "expected exactly one of regex and jsonl")
    for event, pattern in form.regex.items():
        try:
            re.compile(pattern)
        except re.error as error:
            _report(source, (*where, "regex", event), f"not a regular expression: {error}")
