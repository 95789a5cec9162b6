"""What a plan must refuse, and what it warns of."""

from collections.abc import Collection, Sequence
from itertools import combinations

from chaoskit.agent.contract import Lifetime
from chaoskit.engine.planned import PlannedInjection
from chaoskit.engine.refusals import Refusals
from chaoskit.engine.targets import Chosen, how_many, rendezvous_of, share_text
from chaoskit.judge.timeline import Spec
from chaoskit.model.experiment import BUDGET_SENSE, Experiment, LoadedExperiment
from chaoskit.model.hostlist import fold
from chaoskit.model.inventory import Inventory, Node, TrainingSpec
from chaoskit.model.typed import did_you_mean
from chaoskit.model.units import show_duration

SHORTEST_LEASE = 10.0
"""Seconds: two renewals of five seconds each; with fewer, one lost packet would end a run."""
BOOT = 120.0
"""Seconds that a node is taken to be away after a fault that reboots it: nothing else can be injected there meanwhile."""
NEEDS_PROGRESS = ("time_to_resume", "time_to_recover", "time_to_steady")


def refuse(
    refusals: Refusals,
    loaded: LoadedExperiment,
    inventory: Inventory,
    planned: Sequence[PlannedInjection],
    chosen: Sequence[Chosen],
    over: Collection[int] = (),
) -> None:
    """Report everything that must be refused once targets are chosen; nothing overlaps an injection that is over."""
    pool = {node.name for one in chosen for node in one.pool}
    _blast_radius(refusals, loaded, inventory, planned, len(pool))
    _groups_left(refusals, loaded.experiment, inventory, planned)
    for one in planned:
        _rails_exist(refusals, inventory, one)
        _lifetime(refusals, inventory, one)
    for first, second in combinations([one for one in planned if one.number not in over], 2):
        _overlap(refusals, inventory, first, second)
    if loaded.experiment.budgets.lost_cost is not None and inventory.file.price_per_gpu_hour is None:
        refusals.add(
            "budgets.lost_cost", f"{inventory.name} states no price_per_gpu_hour", "add it to the inventory, or budget lost_gpu_hours"
        )
    if inventory.file.lease < SHORTEST_LEASE:
        refusals.add_site(
            "lease", f"{show_duration(inventory.file.lease)} leaves no room for a lost renewal", f"at least {show_duration(SHORTEST_LEASE)}"
        )


def warnings_of(
    experiment: Experiment, inventory: Inventory, training: TrainingSpec, planned: Sequence[PlannedInjection], spec: Spec
) -> tuple[str, ...]:
    """Return what is allowed, but probably not meant."""
    return (
        *_abort_first(experiment, spec),
        *_no_budgets(spec),
        *_unusual_targets(inventory, training, planned),
        *_no_gpus(inventory, training, spec),
        *_out_of_reach(inventory, planned),
    )


def _blast_radius(
    refusals: Refusals, loaded: LoadedExperiment, inventory: Inventory, planned: Sequence[PlannedInjection], pool: int
) -> None:
    """One node unless said; a share counts the nodes that the targets could have been chosen from."""
    stated = "blast_radius.nodes" in loaded.positions
    radius = loaded.experiment.blast_radius.nodes
    touched: dict[str, None] = {}
    for one in planned:
        touched |= dict.fromkeys(one.targets)
        at = "blast_radius.nodes" if stated else f"method.{one.number - 1}.target"
        if len(touched) > how_many(radius, max(pool, 1)):
            what = f"{fold(touched)} would be touched, {len(touched)} nodes; the blast radius is {share_text(radius, pool)}"
            refusals.add("blast_radius", what, f"pick fewer, or say `{refusals.all_nodes}`", at=at)
            break
    site = inventory.file.limits.blast_radius
    if site is not None and len(touched) > how_many(site, len(inventory.nodes)):
        what = f"{len(touched)} nodes would be touched; {inventory.name} allows {share_text(site, len(inventory.nodes))}"
        hint = "the limit stands in the inventory: limits.blast_radius"
        refusals.add("blast_radius", what, hint, at="blast_radius" if stated else "method.0.target")
    _radius_per_group(refusals, loaded, inventory, set(touched))


def _radius_per_group(refusals: Refusals, loaded: LoadedExperiment, inventory: Inventory, touched: Collection[str]) -> None:
    """What experiment and site each allow of a group; a group that is not there limits nothing, which nobody can have meant."""
    groups = sorted({node.group for node in inventory.nodes.values() if node.group})
    own = loaded.experiment.blast_radius.per_group
    for group in [group for group in own if group not in groups]:
        what = f"no node of {inventory.name} is in the group {group!r}"
        refusals.add(f"blast_radius.per_group.{group}", what, did_you_mean(group, groups, "groups"))
    for group in groups:
        members = [node.name for node in inventory.group(group)]
        hit = [name for name in members if name in touched]
        for limits, who, hint in (
            (own, "the experiment", "pick fewer, or allow more"),
            (inventory.file.limits.per_group, inventory.name, "the limit stands in the inventory: limits.per_group"),
        ):
            if group in limits and len(hit) > how_many(limits[group], len(members)):
                most = share_text(limits[group], len(members))
                what = f"{fold(hit)} of the group {group!r} would be touched, {len(hit)} nodes; {who} allows {most}"
                refusals.add(f"blast_radius.per_group.{group}", what, hint, at=None if limits is own else "method.0.target")


def _groups_left(refusals: Refusals, experiment: Experiment, inventory: Inventory, planned: Sequence[PlannedInjection]) -> None:
    """Touching the last node of a group must be meant."""
    if experiment.blast_radius.nodes == "all":
        return
    touched: set[str] = set()
    for one in planned:
        touched |= set(one.targets)
        for group in sorted({group for name in one.targets if (group := inventory.nodes[name].group)}):
            if experiment.blast_radius.per_group.get(group) == "all":
                continue
            if {node.name for node in inventory.group(group)} <= touched:
                what = f"no node of the group {group!r} would be left untouched"
                refusals.add(f"method.{one.number - 1}.target", what, f"if that is meant, say `{refusals.all_nodes}`")


def rails_of(one: PlannedInjection, node: Node) -> frozenset[int] | None:
    """Return the rails of a node that an injection takes, by its `rail` and `plane` parameters; None when it has neither."""
    rail, plane = one.params.get("rail"), one.params.get("plane")
    if rail is None and plane is None:
        return None
    return frozenset(index for index, spec in enumerate(node.rails) if index == rail or (plane is not None and spec.plane == plane))


def _rails_exist(refusals: Refusals, inventory: Inventory, one: PlannedInjection) -> None:
    lacking = [node for name in one.targets if rails_of(one, node := inventory.nodes[name]) == frozenset()]
    if not lacking:
        return
    nodes = fold(node.name for node in lacking)
    if (plane := one.params.get("plane")) is not None:
        planes = sorted({rail.plane for node in lacking for rail in node.rails if rail.plane})
        refusals.add(
            f"method.{one.number - 1}.with.plane", f"no rail of {nodes} is in plane {plane!r}", did_you_mean(str(plane), planes, "planes")
        )
    else:
        count = min(len(node.rails) for node in lacking)
        hint = f"rails are counted from 0; the inventory gives {count}" if count else "the inventory gives it no rails"
        refusals.add(f"method.{one.number - 1}.with.rail", f"{nodes} has no rail {one.params.get('rail')}", hint)


def _lifetime(refusals: Refusals, inventory: Inventory, one: PlannedInjection) -> None:
    lifetime = one.instance.lifetime
    if lifetime.name.lower() not in inventory.file.lifetimes:
        meaning = "survives a reboot" if lifetime is Lifetime.PERSISTENT else "cannot be undone"
        hint = f"if it may run there, add {lifetime.name.lower()} to `limits: {{lifetimes: [...]}}` of the inventory"
        refusals.add(f"method.{one.number - 1}.fault", f"{one.fault} {meaning}, and {inventory.name} does not allow that", hint)


def _overlap(refusals: Refusals, inventory: Inventory, first: PlannedInjection, second: PlannedInjection) -> None:
    """Two faults on one resource at one time could neither be told apart nor reverted one by one."""
    if not _meet_in_time(first, second):
        return
    shared = [name for name in first.targets if name in second.targets and _share(first, second, inventory.nodes[name])]
    if shared:
        what = f"{second.detail} overlaps {first.detail} (injection {first.number}) on {fold(shared)}"
        refusals.add(f"method.{second.number - 1}", what, "let one end before the other begins, or choose other targets")


def _busy(one: PlannedInjection) -> tuple[float, float]:
    return one.after, one.after + max(one.duration, BOOT if one.instance.takes_agent_away else 0.0)


def _meet_in_time(first: PlannedInjection, second: PlannedInjection) -> bool:
    (start, end), (other_start, other_end) = _busy(first), _busy(second)
    return start <= other_end and other_start <= end


def _share(first: PlannedInjection, second: PlannedInjection, node: Node) -> bool:
    if first.instance.takes_agent_away or second.instance.takes_agent_away:
        return True
    rails, other = rails_of(first, node), rails_of(second, node)
    if rails is not None and other is not None:
        return bool(rails & other)
    return first.fault == second.fault


def _abort_first(experiment: Experiment, spec: Spec) -> list[str]:
    patience = experiment.abort.no_progress
    if patience is None:
        return []
    late = {name: limit for name in NEEDS_PROGRESS if (limit := getattr(spec.budgets, name)) is not None and limit > patience}
    told = "abort after {} without progress would fire before {} {} could be judged"
    return [told.format(show_duration(patience), name, show_duration(limit)) for name, limit in late.items()]


def _no_budgets(spec: Spec) -> list[str]:
    if any(getattr(spec.budgets, name) is not None for name in BUDGET_SENSE):
        return []
    return ["no budgets: only a training that dies or never gets steady again could fail this"]


def _unusual_targets(inventory: Inventory, training: TrainingSpec, planned: Sequence[PlannedInjection]) -> list[str]:
    trains = {node.name for node in inventory.training_nodes(training)}
    rendezvous = rendezvous_of(inventory, training)
    said = []
    for one in planned:
        if rendezvous in one.targets and not (one.duration and len(one.targets) == len(trains)):
            said.append(f"{one.detail}: {rendezvous} hosts the rendezvous, and most trainings do not survive its loss")
        idle = [name for name in one.targets if name not in trains]
        if idle:
            said.append(f"{one.detail}: {fold(idle)} does not train, so that the fault proves nothing there")
    return said


def _out_of_reach(inventory: Inventory, planned: Sequence[PlannedInjection]) -> list[str]:
    """Nothing renews the lease of a node that is cut off."""
    lease = inventory.file.lease
    late = [one for one in planned if one.may_cut_us_off and one.duration >= lease]
    told = "{}: held for {}, and a node that is cut off ends it when its lease of {} is over: the run is then aborted"
    return [told.format(one.detail, show_duration(one.duration), show_duration(lease)) for one in late]


def _no_gpus(inventory: Inventory, training: TrainingSpec, spec: Spec) -> list[str]:
    counted = spec.budgets.lost_gpu_hours is not None or spec.budgets.lost_cost is not None
    if counted and not any(node.gpus for node in inventory.training_nodes(training)):
        return ["the inventory gives the training nodes no GPUs: GPU-hours are counted for one"]
    return []
