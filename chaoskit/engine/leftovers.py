"""
Reaching nodes, all of them or each by itself, and refusing to begin over what an earlier run has left on one.

What they owe, `audit` tells; `heal` pays it.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TypeVar

from chaoskit.agent.contract import TRAINING
from chaoskit.engine.gather import Gathered, gather, sentence
from chaoskit.engine.ports import Fleet, NodeAgent
from chaoskit.errors import DeadlineError, NodeError, RefusedError
from chaoskit.model.hostlist import fold

T = TypeVar("T")

AUDIT_WITHIN = 60.0
"""Seconds for a node to be reached, or to read what it owes: one under full load starts its agent in half of that."""
STRAYS_WITHIN = 30.0
"""Seconds for a node to look for everything that faults could have left."""
AT_ONCE = 16
"""Nodes reached at a time: a fleet dials no more at once, and who waits behind dead nodes must not seem dead as well."""
HEAL = "`chaoskit audit` shows them, `chaoskit heal` mends them"


def connect(fleet: Fleet, names: Iterable[str]) -> dict[str, NodeAgent]:
    """Connect to all of the nodes or to none. Raises RefusedError that names every node that failed."""
    try:
        return dict(fleet.connect(list(dict.fromkeys(names))))
    except ExceptionGroup as group:
        known, unknown = group.split(NodeError)
        if unknown is not None or known is None:
            raise
        failures = [one if isinstance(one, NodeError) else NodeError(str(one)) for one in known.exceptions]
        raise RefusedError(sentence({str(number): one for number, one in enumerate(failures)})) from group


def remarks(fleet: Fleet, agents: Mapping[str, NodeAgent]) -> list[str]:
    """Return what connecting brought up, each sentence once, with all of its nodes."""
    nodes: dict[str, list[str]] = {}
    for name, agent in agents.items():
        for note in agent.notes:
            nodes.setdefault(note, []).append(name)
    return [*fleet.warnings, *(f"{fold(names)}: {note}" for note, names in nodes.items())]


def reach(fleet: Fleet, names: Iterable[str], within: float = AUDIT_WITHIN) -> tuple[dict[str, NodeAgent], dict[str, str]]:
    """Connect to each node by itself, each in `within` seconds: the ones that answered, and why the others did not."""
    got = reach_each(fleet.reconnect, names, within)
    return got.answers, {name: str(error) for name, error in got.failures.items()}


def reach_each(reconnect: "Callable[[str], Future[T]]", names: Iterable[str], within: float) -> Gathered[T]:
    """Connect to each node by itself, each in `within` seconds from when it has its turn; a dead one keeps none waiting behind it."""
    waiting = deque(dict.fromkeys(names))
    every: Gathered[T] = Gathered()
    dialled: dict[str, tuple[Future[T], float]] = {}
    while waiting or dialled:
        while waiting and len(dialled) < AT_ONCE:
            dialled[waiting[0]] = reconnect(waiting[0]), time.monotonic() + within
            waiting.popleft()
        soonest = min(until for _, until in dialled.values())
        wait([future for future, _ in dialled.values()], max(0.0, soonest - time.monotonic()), FIRST_COMPLETED)
        over = {name: future for name, (future, until) in dialled.items() if future.done() or time.monotonic() >= until}
        got = gather({name: future for name, future in over.items() if future.done()}, within)
        every.answers.update(got.answers)
        every.failures.update(got.failures)
        for name in over:
            if name not in got.answers and name not in got.failures:
                every.failures[name] = DeadlineError(f"no answer within {within:g} s", node=name)
            del dialled[name]
    return every


def refuse_leftovers(
    fleet: Fleet, agents: Mapping[str, NodeAgent], meanwhile: Callable[[], None] = lambda: None, faults: Iterable[str] = ()
) -> list[str]:
    """
    Refuse to begin where a node owes something, is held by another run, bears a stray of ours, or cannot say.

    Args:
        fleet: Knows the sites.
        agents: The nodes.
        meanwhile: Called while they are waited for; what it raises ends the wait.
        faults: Those that are planned: a look for what one of them may have left must not fail.

    Returns:
        The looks for other faults' leftovers that failed, as sentences.

    Raises:
        RefusedError: Names them.
    """
    asked = {name: agent.audit() for name, agent in agents.items()}
    looks = {name: agent.strays(fleet.site(name)) for name, agent in agents.items()}
    got, seen = gather(asked, AUDIT_WITHIN, meanwhile), gather(looks, STRAYS_WITHIN, meanwhile)
    if got.failures or seen.failures:
        raise RefusedError(sentence({**seen.failures, **got.failures}))
    entries = [entry for found in got.answers.values() for entry in found]
    if held := sorted(f"{entry.entry}: {entry.held}" for entry in entries if entry.held):
        raise RefusedError(f"another run goes on here: {'; '.join(held)}", hint="wait for it to end, or `chaoskit stop` it")
    if owed := sorted(entry.entry for entry in entries):
        raise RefusedError(f"still owed from earlier runs: {', '.join(owed)}", hint=HEAL)
    ours = [(name, one) for name, strays in seen.answers.items() for one in strays.found if one.ours]
    if runs := sorted({one.says for _, one in ours if one.fault == TRAINING}):
        nodes = fold([name for name, one in ours if one.fault == TRAINING])
        raise RefusedError(f"a training is left over on {nodes}: {'; '.join(runs)}", hint="`chaoskit heal` ends it once its run is over")
    if left := [f"{name}: {one.says}" for name, one in ours]:
        raise RefusedError(f"left by earlier runs, and in no ledger any more: {'; '.join(left)}", hint=HEAL)
    unread = [f"{name}: {says}" for name, strays in seen.answers.items() for says in strays.unread]
    if blind := [says for says in unread if any(f" of {fault} " in says for fault in faults)]:
        raise RefusedError(f"what earlier runs left may be there: {'; '.join(blind)}", hint="see what keeps that look from ending")
    return unread
