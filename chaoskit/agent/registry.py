"""
Which faults this agent carries: whatever `chaoskit.faults` discovers, third parties' modules beside ours, and the canary.

The faults stand above the agent, so they are looked up by name at run time. Standard library only, Python 3.8.
"""

import importlib
from typing import Any, Dict, List, Mapping

from chaoskit.agent.canary import NAME, Canary
from chaoskit.agent.contract import Fault
from chaoskit.errors import InputError, RefusedError


class Registry:
    """The faults of this agent, all imported when it is made, so that nothing is left to import once something is broken."""

    def __init__(self) -> None:
        self._faults: Any = importlib.import_module("chaoskit.faults")
        self._kinds: Dict[str, Any] = self._faults.discover()

    def names(self) -> List[str]:
        """Return the names of all faults."""
        return sorted(self._kinds)

    def kinds(self) -> Dict[str, Any]:
        """Return the class of each fault by its name, the canary's too, which stands in no experiment and can leave things as well."""
        return {**self._kinds, NAME: Canary}

    def make(self, name: str, params: Mapping[str, Any]) -> Fault:
        """Return the fault `name` with these parameters. Raises RefusedError: no such fault, or it does not take them."""
        if name == NAME:
            return Canary(kinds=tuple(params.get("kinds") or ()))
        try:
            fault: Fault = self._faults.load(name, params)
        except InputError as error:
            raise RefusedError(error.what, hint=error.hint) from error
        return fault
