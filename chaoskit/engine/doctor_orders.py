"""What a doctor asks of which node, and what the inventory and the experiments already tell without asking anybody: pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from chaoskit.agent.contract import Needs
from chaoskit.engine.doctor_alike import ALIKE
from chaoskit.engine.plan import Plan
from chaoskit.faults import find
from chaoskit.model.hostlist import expand, fold
from chaoskit.model.inventory import Inventory, Node, TrainingSpec
from chaoskit.model.wire import Finding
from chaoskit.training.placeholders import fill

ROOT: None = None
Checks = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Checkup:
    """
    What is examined: a site, for the experiments of `plans`; when there are none, for every fault of `faults`.

    `refused` are experiments that cannot be run here at all: name -> everything that stands against it.
    """

    inventory: Inventory
    faults: Mapping[str, Needs]
    plans: tuple[Plan, ...] = ()
    refused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    canary: bool = True
    """Whether a canary is sent over the nodes that are well."""

    @property
    def named(self) -> bool:
        """Whether experiments were named: then what they lack is a defect, and not only worth knowing."""
        return bool(self.plans or self.refused)

    @property
    def trainings(self) -> dict[str, TrainingSpec]:
        """The trainings that are meant: the experiments', or all of the site."""
        known = self.inventory.file.trainings
        wanted = {plan.training_name for plan in self.plans} if self.named else set(known)
        return {name: spec for name, spec in known.items() if name in wanted}


def parts_for(checkup: Checkup, name: str) -> list[dict[str, Any]]:
    """Return what a node is asked for, as `chaoskit.agent.examine` takes it: one part for root, one for each account that trains."""
    node = checkup.inventory.nodes[name]
    parts: list[dict[str, Any]] = [{"user": ROOT, "checks": _root_checks(checkup, node)}]
    users: dict[str, list[dict[str, Any]]] = {}
    for training, spec in checkup.trainings.items():
        if told := _training(checkup.inventory, training, spec, name):
            users.setdefault(spec.user or checkup.inventory.file.ssh.user or "", []).append(told)
    return parts + [{"user": user, "checks": {"training": {"trainings": told}}} for user, told in users.items()]


def _root_checks(checkup: Checkup, node: Node) -> Checks:
    file = checkup.inventory.file
    checks: Checks = {"disk": {}}
    if node.rails:
        checks["rails"] = {}
    if node.gpus:
        checks["gpus"] = {"count": node.gpus}
    if node.protected:
        return checks  # no fault ever comes here: whose jobs run on it is nobody's business
    if node.group:
        checks[ALIKE] = {}
    needs, state = needs_of(checkup, node.name), "defect" if checkup.named else "note"
    if file.allow == "file":
        checks["consent"] = {"faults": sorted(needs), "state": state}
    if file.shared != "accept":
        users = {spec.user for spec in file.trainings.values() if spec.user}
        checks["jobs"] = {"users": sorted(users)}
    if needs:
        checks["tools"] = {"faults": {fault: one.to_json() for fault, one in needs.items()}, "state": state}
        checks["remediators"] = {"faults": {fault: [sign.value for sign in find(fault).signs] for fault in needs}}
    return checks


def needs_of(checkup: Checkup, node: str) -> dict[str, Needs]:
    """Return what each fault needs that may come to a node: those of the experiments, or all."""
    if not checkup.named:
        return dict(checkup.faults)
    return {planned.fault: planned.instance.needs for plan in checkup.plans for planned in plan.planned if node in planned.targets}


def _training(inventory: Inventory, name: str, spec: TrainingSpec, node: str) -> dict[str, Any] | None:
    """Return what a training stands on at a node: its Python when we launch it there, and its folders as [what, path, is written]."""
    trains = node in {one.name for one in inventory.training_nodes(spec)}
    logs = node in expand(spec.log_nodes) if spec.log_nodes else trains
    launched = trains and spec.launcher == "torchrun"
    folders = []
    if trains and spec.checkpoints.dir:
        # Whether a job's own account may write there nobody knows, unless the inventory names it.
        folders.append(["checkpoints", standing(spec.checkpoints.dir, node), launched or spec.user is not None])
    if logs and spec.log:
        folders.append(["log", standing(str(PurePosixPath(spec.log).parent), node), launched])
    python = spec.python if launched else ""
    return {"name": name, "python": python, "folders": folders} if python or folders else None


def standing(path: str, node: str) -> str:
    """Return the part of a path that is there before a run: up to the first folder that is named after the run or the job."""
    parts = PurePosixPath(fill(path, node=node)).parts
    fixed = next((parts[:index] for index, part in enumerate(parts) if "{run}" in part or "{job}" in part), parts)
    return str(PurePosixPath(*fixed))


def site_findings(checkup: Checkup, warnings: Sequence[str]) -> tuple[Finding, ...]:
    """Return what is to be said of no single node."""
    found = [*_planes(checkup.inventory), *_experiments(checkup)]
    return (*found, *(Finding("host key", "note", warning) for warning in warnings))


def _planes(inventory: Inventory) -> Iterator[Finding]:
    """Rails without a plane cannot be lost together; where some have one, the others were forgotten."""
    rails = [(node.name, index, rail) for node in inventory.nodes.values() for index, rail in enumerate(node.rails)]
    without = [(name, index) for name, index, rail in rails if rail.plane is None]
    if not without:
        return
    bare = "; ".join(f"rail {index} of {fold(name for name, at in without if at == index)}" for index in sorted({at for _, at in without}))
    if len(without) == len(rails):
        yield Finding("planes", "note", "the inventory states no planes, so no fault can take one", "give each rail its `plane`")
    else:
        yield Finding("planes", "defect", f"the inventory states no plane for {bare}, but for others", "give each rail its `plane`")


def _experiments(checkup: Checkup) -> Iterator[Finding]:
    for name, reasons in checkup.refused.items():
        for why in reasons:
            yield Finding(
                "plan", "defect", f"{name} cannot be run here: {why}", f"`chaoskit plan` shows it; choose another site, or change {name}"
            )
    for plan in checkup.plans:
        if plan.empty:
            yield Finding("plan", "defect", f"{plan.name} finds no target here: {plan.empty}", "its run would be INCONCLUSIVE")
        for warning in plan.warnings:
            yield Finding("plan", "note", f"{plan.name}: {warning}")
