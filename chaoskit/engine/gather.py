"""Waiting for many nodes at once: one node's failure is its own answer and never hides another's."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from chaoskit.errors import DeadlineError, NodeError
from chaoskit.model.hostlist import fold

T = TypeVar("T")

BREATH = 0.25
"""Seconds of waiting between two calls of `meanwhile`."""


@dataclass(frozen=True, slots=True)
class Gathered(Generic[T]):
    """Answers and failures by key."""

    answers: dict[str, T] = field(default_factory=dict)
    failures: dict[str, NodeError] = field(default_factory=dict)


def gather(futures: Mapping[str, "Future[T]"], within: float, meanwhile: Callable[[], None] = lambda: None) -> Gathered[T]:
    """
    Wait for all futures; what is not there `within` seconds is a DeadlineError of its key.

    Args:
        futures: What is awaited, by key.
        within: Seconds to wait at most.
        meanwhile: Called every `BREATH` seconds of the wait; what it raises ends the wait.

    Raises:
        Exception: whatever a future failed with that is no NodeError, since that is a defect of ours.
    """
    until = time.monotonic() + within
    while wait(futures.values(), timeout=min(BREATH, until - time.monotonic())).not_done and time.monotonic() < until:
        meanwhile()
    gathered: Gathered[T] = Gathered()
    for key, future in futures.items():
        try:
            gathered.answers[key] = future.result(timeout=0)
        except TimeoutError:
            gathered.failures[key] = DeadlineError(f"no answer within {within:g} s; what happened there is unknown", node=key)
        except NodeError as error:
            gathered.failures[key] = error
    return gathered


def sentence(failures: Mapping[str, NodeError]) -> str:
    """Return one sentence that names every node that failed, and why; once for all that have the same reason."""
    first: dict[str, str] = {}
    for key, error in failures.items():
        first.setdefault(error.node or key, str(error))
    return "; ".join(f"{says} (the same on {fold(others)})" if others else says for says, others in alike(first))


def alike(reasons: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """Return each reason as the first node told it, with the other nodes whose reason differs in nothing but their name."""
    nodes: dict[str, list[str]] = {}
    for node, why in reasons.items():
        nodes.setdefault(why.replace(node, ""), []).append(node)
    return [(reasons[first], others) for first, *others in nodes.values()]
