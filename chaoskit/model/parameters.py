"""A fault's parameters: the `with` block of an injection, read into the fault's own dataclass."""

from collections.abc import Mapping
from typing import Any

from chaoskit.agent.contract import Fault, FaultTypes
from chaoskit.model.source import Source, Where
from chaoskit.model.typed import did_you_mean, read_typed


def read_fault(source: Source, known: FaultTypes, index: int, entry: Any) -> Fault | None:
    """Return the fault that an entry of the method asks for; None after reporting why it cannot be made."""
    name = entry.get("fault") if isinstance(entry, Mapping) else None
    if not isinstance(name, str):
        return None  # the experiment's own types have reported it
    where: Where = ("method", index)
    if name not in known:
        source.report((*where, "fault"), f"there is no fault {name!r}", did_you_mean(name, sorted(known), "known faults"))
        return None
    parameters = entry.get("with", {})
    if not isinstance(parameters, Mapping):
        return None  # reported likewise
    before = len(source.problems)
    if (*where, "with") not in source.values:
        source.values[(*where, "with")] = source.value_at((*where, "fault"))
    fault = read_typed(source, known[name], parameters, (*where, "with"))
    return fault if isinstance(fault, Fault) and len(source.problems) == before else None
