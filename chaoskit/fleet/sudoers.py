"""
The lines of sudoers that an account needs, and not one command more.

Two commands go through sudo on a node: a probe that does nothing, and the loader, which takes over the agent's file when
its hash is right and runs it. Both are written out whole, with the account, the interpreter, the file and the hash: what
the agent carries, faults of third parties included, is what that hash stands for. Another release is another line.
"""

import re

from chaoskit.agent.bundle import Bundle
from chaoskit.fleet.connection import Facts
from chaoskit.fleet.push import FOLDER, agent_command, file_name

FILE = "/etc/sudoers.d/chaoskit"
PROBE = ("-I", "-S", "-c", "pass")
"""What the interpreter is asked to do to see whether sudo lets us: nothing."""

_SPECIAL = re.compile(r"([\\,:=*?\[\]!#])")
"""Characters that mean something in a command of sudoers, and stand for themselves behind a backslash."""
_PLAIN_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\$?", re.ASCII)


def lines(user: str, facts: Facts, bundle: Bundle) -> tuple[str, ...]:
    """
    Return the lines for one account on one node.

    Args:
        user: The account that logs in.
        facts: What the probe found there.
        bundle: The agent that will be pushed.
    """
    who = user if _PLAIN_USER.fullmatch(user) else f"#{facts.uid}"
    pushed = f"{facts.home}/{FOLDER}/{file_name(bundle)}"
    commands = ((facts.python, *PROBE), agent_command(pushed, facts, bundle))
    allowed = ", ".join(" ".join(map(_escaped, words)) for words in commands)
    return (f"Defaults:{who} !requiretty", f"{who} ALL=(root) NOPASSWD:EXEC: {allowed}")


def _escaped(word: str) -> str:
    return _SPECIAL.sub(r"\\\1", word)
