"""The traces that a run leaves on its nodes: shown before its first fault, and once more after its verdict, which they cannot change."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from chaoskit.engine.injector import Live
from chaoskit.engine.ports import Fleet, NodeAgent
from chaoskit.engine.recorder import Recorder
from chaoskit.engine.residue import as_record, is_left, look, remnants


class Traces:
    """What the nodes of one run showed before, and what of the difference is recorded and said."""

    def __init__(self, fleet: Fleet, recorder: Recorder) -> None:
        self._fleet = fleet
        self._recorder = recorder
        self._before: dict[str, Any] = {}

    def show_before(self, agents: Mapping[str, NodeAgent], names: Iterable[str], meanwhile: Callable[[], None]) -> None:
        """Let nodes show what a fault may leave behind, once each."""
        new = {name: agents[name] for name in names if name not in self._before}
        if new:
            self._before |= look(self._fleet, new, meanwhile=meanwhile)

    def show_left(self, agents: Mapping[str, NodeAgent], lives: Iterable[Live], meanwhile: Callable[[], None]) -> None:
        """Record and say what the faults left behind on the nodes that they came to."""
        faults: dict[str, list[str]] = {}
        for live in lives:
            faults.setdefault(live.node, []).append(live.planned.fault)
        if not faults:
            return
        after = look(self._fleet, {name: agents[name] for name in faults}, self._before, meanwhile)
        left = tuple(one for name in faults for one in remnants(name, self._before.get(name), after.get(name), faults[name]))
        self._recorder.record("residue", {"remnants": as_record(left)})
        if count := sum(map(is_left, left)):
            what = "trace of what was injected stays" if count == 1 else "traces of what was injected stay"
            self._recorder.say("residue", f"{count} {what} (counters, logs, states of others)", count=count)
