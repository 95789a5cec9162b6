"""
Planning: a pure function of experiment, inventory and seed.

`plan` refuses, all at once and with positions, what must never begin; what may be meant but is probably not becomes a
warning of the plan. Zero targets are no bad input: the plan says so in `empty`, and the run is inconclusive.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import MISSING, Field, asdict, fields, replace
from typing import Any

from chaoskit.agent.contract import Fault, duration_of
from chaoskit.engine.plan_checks import refuse, warnings_of
from chaoskit.engine.planned import Plan, PlannedInjection
from chaoskit.engine.refusals import Refusals
from chaoskit.engine.targets import Chosen, choose
from chaoskit.judge.timeline import Spec
from chaoskit.model.experiment import Abort, Budgets, Experiment, Injection, LoadedExperiment
from chaoskit.model.experiment_checks import HELD_ONLY, watch_seconds
from chaoskit.model.inventory import Inventory, TrainingSpec
from chaoskit.model.typed import did_you_mean
from chaoskit.model.units import show_share, show_size


def plan(loaded: LoadedExperiment, inventory: Inventory, seed: int | None = None, *, over: Collection[int] = ()) -> Plan:
    """
    Return what a run would do; `seed` overrides the experiment's own.

    `over` are the numbers of injections that have ended: where a run grows, nothing overlaps them any more.

    Raises InputError with every refusal: what exceeds the blast radius or a site limit, touches a protected host, names
    what the inventory does not have, or overlaps another injection on the same resource.
    """
    experiment, refusals = loaded.experiment, Refusals(loaded, inventory)
    seed = experiment.seed if seed is None else seed
    training = _training(refusals, experiment, inventory)
    numbered = list(enumerate(experiment.method, 1))
    chosen = [choose(refusals, inventory, training, injection, number, seed) for number, injection in numbered]
    planned = tuple(_planned(number, injection, loaded.faults[number - 1], chosen[number - 1]) for number, injection in numbered)
    refuse(refusals, loaded, inventory, planned, chosen, over)
    abort = _abort(refusals, experiment.abort, inventory)
    refusals.raise_all()
    spec = _spec(experiment, inventory, training, planned)
    return Plan(
        name=loaded.name,
        seed=seed,
        training_name=experiment.training,
        training=training,
        planned=planned,
        touched=_touched(inventory, planned),
        spec=spec,
        abort=abort,
        steady_within=experiment.steady_state.within,
        watch=watch_seconds(experiment.watch, spec.budgets),
        lease=inventory.file.lease,
        warnings=warnings_of(experiment, inventory, training, planned, spec),
        empty="; ".join(one.empty for one in chosen if one.empty),
    )


def _training(refusals: Refusals, experiment: Experiment, inventory: Inventory) -> TrainingSpec:
    known = inventory.file.trainings
    if experiment.training in known:
        return known[experiment.training]
    what = f"{inventory.name} has no training {experiment.training!r}"
    refusals.add("training", what, did_you_mean(experiment.training, sorted(known), "trainings"))
    return TrainingSpec(launcher="attach")


def _abort(refusals: Refusals, abort: Abort, inventory: Inventory) -> Abort:
    """Return the abort conditions with the site's Prometheus where a query names none."""
    site, queries = inventory.file.prometheus, []
    for index, query in enumerate(abort.queries):
        if query.url is None and site is None:
            what = f"nobody says where Prometheus is: {inventory.name} has none"
            refusals.add(f"abort.queries.{index}", what, "add `prometheus: {url: http://HOST:9090}` to the inventory, or `url` here")
        elif query.url is None and site is not None:
            query = replace(query, url=site.url, token_env=site.token_env)  # noqa: PLW2901 - the same question, addressed
        queries.append(query)
    return replace(abort, queries=tuple(queries))


def _touched(inventory: Inventory, planned: Sequence[PlannedInjection]) -> tuple[str, ...]:
    names = {name for one in planned for name in one.targets}
    return tuple(name for name in inventory.nodes if name in names)


def _planned(number: int, injection: Injection, fault: Fault, chosen: Chosen) -> PlannedInjection:
    return PlannedInjection(
        number=number,
        fault=injection.fault,
        detail=_detail(injection.fault, fault),
        params=asdict(fault),
        instance=fault,
        targets=tuple(node.name for node in chosen.targets),
        after=injection.after,
        together=injection.together,
        one_shot=not fault.holds(),
        duration=duration_of(fault),
        expect=injection.expect,
        allow=injection.allow,
    )


def _detail(name: str, fault: Fault) -> str:
    """Return the fault's name with the parameters that were chosen; how long it is held is told elsewhere."""
    said = [f"{item.name} {_shown(item, getattr(fault, item.name))}" for item in fields(fault) if _is_chosen(item, fault)]
    return " ".join([name, *said])


def _shown(item: "Field[Any]", value: Any) -> str:
    """Return a parameter's value as the file writes it."""
    writers: dict[str, Callable[[float], str]] = {"share": show_share, "size": show_size}
    write = writers.get(item.metadata.get("unit", ""))
    return write(value) if write and value is not None else str(value)


def _is_chosen(item: "Field[Any]", fault: Fault) -> bool:
    default = item.default if item.default_factory is MISSING else item.default_factory()
    return item.metadata.get("unit") != "duration" and getattr(fault, item.name) != default


def _spec(experiment: Experiment, inventory: Inventory, training: TrainingSpec, planned: Sequence[PlannedInjection]) -> Spec:
    steady = experiment.steady_state.throughput
    return Spec(
        budgets=_merged(experiment.budgets, inventory.file.limits.budgets, held=any(not one.one_shot for one in planned)),
        band=steady.within,
        for_=steady.for_,
        checkpoint_every=training.checkpoints.every,
        may_shrink=experiment.world == "may_shrink",
        gpus=max(sum(node.gpus for node in inventory.training_nodes(training)), 1),
        price_per_gpu_hour=inventory.file.price_per_gpu_hour,
    )


def _merged(own: Budgets, site: Budgets, *, held: bool) -> Budgets:
    """Return the experiment's budgets, and the site's where it states none and there is something to measure."""
    missing = [item.name for item in fields(own) if getattr(own, item.name) is None and (held or item.name not in HELD_ONLY)]
    return replace(own, **{name: getattr(site, name) for name in missing})


__all__ = ["Plan", "PlannedInjection", "plan"]
