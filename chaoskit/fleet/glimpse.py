"""A look at a node by the SSH account alone, where nobody lets us become root: one short command, no server, no socket."""

import json
from collections.abc import Mapping
from typing import Any

from chaoskit.agent.contract import Site
from chaoskit.agent.examine import Part, answers
from chaoskit.agent.looks import ROOTLESS
from chaoskit.agent.paths import Paths
from chaoskit.fleet.answers import findings
from chaoskit.fleet.connection import Connection, Facts
from chaoskit.model.wire import Finding

WITHIN = 25.0
"""Seconds for all looks."""

# Constant; the interpreter, the agent's file and the order come in as arguments.
_LOOK = """printf %s "$3" | "$1" -I -S "$2" examine"""


def look(connection: Connection, facts: Facts, path: str, site: Site, checks: Mapping[str, Mapping[str, Any]]) -> tuple[Finding, ...]:
    """
    Return what those of the checks find that need no root; the others are left out.

    Args:
        connection: An open connection.
        facts: What the probe found.
        path: The agent's file on the node.
        site: What the inventory says of the node.
        checks: Check -> its arguments.

    Raises:
        UnreachableError: The connection broke, or the command took too long.
    """
    part = Part(None, {name: args for name, args in checks.items() if name in ROOTLESS})
    order = {"site": site.to_json(), "paths": list(Paths()), "user": None, "accounts": [facts.uid], "checks": dict(part.checks)}
    said = connection.ask(["sh", "-c", _LOOK, "sh", facts.python, path, json.dumps(order)], timeout=WITHIN)
    return findings({"findings": list(answers(part, said.encode()))})
