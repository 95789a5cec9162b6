"""What a look is: from what it is asked to what it saw. Standard library only, Python 3.8."""

from typing import Any, Callable, FrozenSet, Iterator, Mapping, NamedTuple, Optional

from chaoskit.agent.host import Host
from chaoskit.agent.paths import Paths

OK, NOTE, UNKNOWN, DEFECT = "ok", "note", "unknown", "defect"
STATES = (OK, NOTE, UNKNOWN, DEFECT)
"""Well; worth knowing, but nothing to mend; could not be found out; to be mended."""


class Seen(NamedTuple):
    """What a look saw: a state, one sentence, what to do about it, and the readings that another look needs."""

    state: str
    says: str
    do: str = ""
    readings: Mapping[str, Any] = {}


class Ask(NamedTuple):
    """Who looks where: the node, the agent's roots, the SSH account's user ids, and the user that this child became (None: root)."""

    host: Host
    paths: Paths
    accounts: FrozenSet[int]
    user: Optional[str]


Args = Mapping[str, Any]
Look = Callable[[Ask, Args], Iterator[Seen]]
