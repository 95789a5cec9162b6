"""What the engine tells whoever shows a run while it happens."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """
    One thing that happened, for a person who watches.

    `at` is seconds since the run began. `kind` is one of: stage, connected, note, steady, armed, injected, witness, ended,
    renewed, sample, mark, lost, back, abort, trouble, verdict, teardown. `says` is one plain sentence; `data` holds the figures.
    """

    at: float
    kind: str
    says: str
    data: Mapping[str, Any] = field(default_factory=dict)


Listener = Callable[[Event], None]
