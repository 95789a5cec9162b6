"""
The conformance check that every fault must pass, ours or a third party's: `check_fault(fault, bench)`.

It tries every duty of the contract on the real thing: a link in a network namespace, a process of the test's own. Needs
no test framework and runs on Python 3.8, so that it can run wherever the fault can:

    check_fault(LinkFlap(plane="A", down=1.0), Bench(Host(site), snapshot=what_ip_route_shows))
"""

import dataclasses
import json
import subprocess
import sys
from typing import Any, Callable, Dict, List, Mapping, Optional

from chaoskit.agent.contract import Evidence, Fault, Json, Site, Undo
from chaoskit.agent.host import Host
from chaoskit.faults import field_docs

_TIMEOUT = 60.0
_OTHER_PROCESS = """
import importlib, json, sys
task = json.load(sys.stdin)
sys.path[:] = task["path"]
from chaoskit import testing
json.dump(testing.run_task(task), sys.stdout)
"""


class ConformanceError(AssertionError):
    """A fault broke a duty of the contract; `duty` names it."""

    def __init__(self, fault: Fault, duty: str, saw: object) -> None:
        super().__init__("{}: {}: {}".format(type(fault).__name__, duty, saw))
        self.duty = duty


@dataclasses.dataclass(frozen=True)
class Bench:
    """
    Where a fault is tried.

    `snapshot` reads what the fault could change, independently of the fault's own code, and returns something that can
    be compared: equal means unchanged. `inject` replaces the call of the fault's own `inject` when that would take this
    very process away: it must make the same call where only a stand-in is lost.
    """

    host: Host
    snapshot: Callable[[], object]
    inject: Optional[Callable[[Fault, Undo], None]] = None


def check_fault(fault: Fault, bench: Bench) -> Undo:
    """
    Try every duty of the contract, in the order of a fault's life, and return the undo that was captured.

    The harm is really done, once. Raises ConformanceError with the first duty that is broken.
    """
    _check_declaration(fault)
    undo = _check_prepare(fault, bench)
    try:
        _check_before(fault, bench, undo)
        _check_injected(fault, bench, undo)
        _check_reverted(fault, bench, undo)
    except BaseException:
        fault.revert(bench.host, undo)
        raise
    return undo


def _require(fault: Fault, duty: str, met: bool, saw: object) -> None:
    if not met:
        raise ConformanceError(fault, duty, saw)


def _check_declaration(fault: Fault) -> None:
    """The class is a frozen dataclass, documented down to its fields, and its parameters are JSON."""
    kind = type(fault)
    frozen = dataclasses.is_dataclass(kind) and "__dataclass_fields__" in vars(kind) and vars(kind)["__dataclass_params__"].frozen
    _require(fault, "it is a frozen dataclass", frozen, kind)
    doc = vars(kind).get("__doc__") or ""
    # A dataclass without a docstring gets its signature as one.
    _require(fault, "it has a docstring", bool(doc) and not doc.startswith(kind.__name__ + "("), repr(doc))
    docs = field_docs(kind)
    bare = [field.name for field in dataclasses.fields(fault) if not docs.get(field.name)]
    _require(fault, "every field has a docstring under it", not bare, bare)
    params = _thaw(fault, "its parameters survive JSON", _params(fault))
    _require(fault, "it is equal when made again from its parameters", kind(**params) == fault, params)
    spans = fault.holds()
    moments = [moment for span in spans for moment in span]
    _require(fault, "its spans follow each other", moments == sorted(moments), spans)


def _check_prepare(fault: Fault, bench: Bench) -> Undo:
    before = bench.snapshot()
    captured = fault.prepare(bench.host)
    _require_same(fault, "prepare changes nothing", before, bench.snapshot())
    undo: Undo = _thaw(fault, "its undo survives JSON", captured)
    names = fault.resource(undo)
    _require(fault, "it names what it locks", bool(names) and all(isinstance(name, str) and name for name in names), names)
    return undo


def _check_before(fault: Fault, bench: Bench, undo: Undo) -> None:
    before = bench.snapshot()
    _expect(fault, "witness is false before inject", fault.witness(bench.host, undo), holds=False)
    _expect(fault, "gone is true before inject", fault.gone(bench.host, undo), holds=True)
    _expect(fault, "exposed is evidence", fault.exposed(bench.host, undo), holds=None)
    fault.revert(bench.host, undo)
    _require_same(fault, "revert is harmless when inject never ran", before, bench.snapshot())
    _expect(fault, "gone is true after a revert without inject", fault.gone(bench.host, undo), holds=True)


def _check_injected(fault: Fault, bench: Bench, undo: Undo) -> None:
    if bench.inject is None:
        fault.inject(bench.host, undo)
    else:
        bench.inject(fault, undo)
    _expect(fault, "witness is true after inject", fault.witness(bench.host, undo), holds=True)
    _expect(fault, "gone is false while a held fault is applied", fault.gone(bench.host, undo), holds=False if fault.holds() else None)


def _check_reverted(fault: Fault, bench: Bench, undo: Undo) -> None:
    fault_again = in_other_process(fault, bench.host.site, undo, "revert")
    _require(fault, "revert works in another process, from the JSON alone", fault_again is None, fault_again)
    _expect(fault, "gone is true after revert", fault.gone(bench.host, undo), holds=True)
    if fault.witness_lasts or not fault.holds():
        _expect(fault, "witness stays true after revert", fault.witness(bench.host, undo), holds=True)
    reverted = bench.snapshot()
    fault.revert(bench.host, undo)
    _require_same(fault, "a second revert is harmless", reverted, bench.snapshot())
    _expect(fault, "gone stays true after a second revert", fault.gone(bench.host, undo), holds=True)


def in_other_process(fault: Fault, site: Site, undo: Undo, verb: str) -> Json:
    """
    Call a verb in a fresh Python, with the fault made from its parameters, and return what it returned as JSON.

    Raises:
        ConformanceError: That Python failed; carries what it wrote.
    """
    kind = type(fault)
    place = {"module": kind.__module__, "kind": kind.__qualname__, "params": _params(fault)}
    task = {"path": sys.path, "site": site.to_json(), "undo": undo, "verb": verb, **place}
    argv = [sys.executable, "-c", _OTHER_PROCESS]
    done = subprocess.run(
        argv, input=json.dumps(task).encode(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=_TIMEOUT, check=False
    )
    _require(fault, "{} works in another process".format(verb), done.returncode == 0, done.stderr.decode("utf-8", "replace"))
    return json.loads(done.stdout)


def run_task(task: Mapping[str, Any]) -> Json:
    """Do what `in_other_process` asks, inside that process."""
    import importlib  # noqa: PLC0415 - only the other process needs it

    kind = getattr(importlib.import_module(task["module"]), task["kind"])
    answer = getattr(kind(**task["params"]), task["verb"])(Host(Site.from_json(task["site"])), task["undo"])
    return answer.to_json() if isinstance(answer, Evidence) else answer


def _params(fault: Fault) -> Dict[str, Json]:
    return {field.name: getattr(fault, field.name) for field in dataclasses.fields(fault)}


def _thaw(fault: Fault, duty: str, value: Json) -> Json:
    """Return what is left of a value after JSON. Raises ConformanceError when that is something else."""
    try:
        thawed = json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise ConformanceError(fault, duty, error) from error
    _require(fault, duty, thawed == value, "{!r} became {!r}".format(value, thawed))
    return thawed


def _expect(fault: Fault, duty: str, evidence: Evidence, holds: Optional[bool]) -> None:
    """Require evidence that says something, survives JSON, and holds or not; None when both are right."""
    sound = isinstance(evidence, Evidence) and isinstance(evidence.holds, bool) and bool(evidence.says)
    _require(fault, duty, sound and holds in (None, evidence.holds), evidence)
    _thaw(fault, "{} (as JSON)".format(duty), evidence.to_json())


def _require_same(fault: Fault, duty: str, before: object, after: object) -> None:
    _require(fault, duty, before == after, "\nbefore: {}\nafter:  {}".format(before, after))


__all__: List[str] = ["Bench", "ConformanceError", "check_fault", "in_other_process"]
