"""
The exceptions of chaoskit, drawn as a tree.

    ChaosError                  something a person must read; carries the exit code of the CLI
    +-- InputError              what the user wrote cannot be used (exit 2); lists *all* problems
    +-- RefusedError            a fault, a node or the plan said no before any harm (exit 3)
    +-- NodeError               one node could not do what was asked (exit 3)
    |   +-- UnreachableError    no connection, or it was lost: the state there is unknown
    |   +-- HostKeyError        unknown, changed or revoked host key
    |   +-- PrivilegeError      sudo refused, or a right is missing
    |   +-- AgentError          the agent answered with an error
    |   +-- ProtocolError       what came back was not our protocol
    |   +-- DeadlineError       no answer in the time allowed: the state there is unknown
    +-- TrainingError           the training could not be started, found or watched (exit 3)
    +-- UndecidedError          what was measured leaves a comparison open (exit 3)
    +-- AbortedError            an abort condition or a signal ended the run (exit 4)
    +-- LeakedError             something could not be proven gone (exit 5)

This file travels to the nodes inside the agent: standard library only, Python 3.8.
"""

from typing import Optional, Sequence, Tuple

EXIT_PASSED = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INCONCLUSIVE = 3
EXIT_ABORTED = 4
EXIT_LEAKED = 5


class ChaosError(Exception):
    """
    Something a person must read: what happened, where, and what to do next.

    Args:
        what: One sentence: what was found and what was expected.
        where: The file position, or the node and the fault.
        hint: What to do next; empty when there is nothing to say.
    """

    exit_code = EXIT_INCONCLUSIVE

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = "{}: {}".format(self.where, self.what) if self.where else self.what
        return "{} ({})".format(text, self.hint) if self.hint else text


class Problem:
    """One error in something the user wrote, with its position (line and column count from 1)."""

    def __init__(self, file: str, line: int, col: int, where: str, what: str, hint: str = "") -> None:
        self.file = file
        self.line = line
        self.col = col
        self.where = where
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        path = "{}: ".format(self.where) if self.where else ""
        hint = ", {}".format(self.hint) if self.hint else ""
        return "{}:{}:{}: {}{}{}".format(self.file, self.line, self.col, path, self.what, hint)

    def __repr__(self) -> str:
        return "Problem({!r})".format(str(self))


class InputError(ChaosError):
    """What the user wrote cannot be used; `problems` lists everything found, in file order."""

    exit_code = EXIT_BAD_INPUT

    def __init__(self, what: str = "", *, where: str = "", hint: str = "", problems: Sequence[Problem] = ()) -> None:
        super().__init__(what or "{} problem(s)".format(len(problems)), where=where, hint=hint)
        self.problems: Tuple[Problem, ...] = tuple(problems)

    def __str__(self) -> str:
        if self.problems:
            return "\n".join(str(problem) for problem in self.problems)
        return super().__str__()


class RefusedError(ChaosError):
    """A fault, a node or the plan said no, before any harm was done."""


class NodeError(ChaosError):
    """
    One node could not do what was asked; `node` is its inventory name.

    On the way to a node's agent `step` says where it failed: reach, host key, login, python, sudo, agent or machine;
    `also` holds what else is wrong at that moment.
    """

    step: str = ""
    also: "Tuple[NodeError, ...]" = ()

    def __init__(self, what: str, *, node: str = "", fault: str = "", hint: str = "") -> None:
        super().__init__(what, where=" ".join(part for part in (node, fault) if part), hint=hint)
        self.node = node
        self.fault = fault


class UnreachableError(NodeError):
    """No connection to the node, or it was lost; what happened there since is unknown."""


class HostKeyError(NodeError):
    """The host key of the node is unknown, changed or revoked."""


class PrivilegeError(NodeError):
    """The account on the node lacks a right; the hint names the line that would grant it."""


class AgentError(NodeError):
    """The agent on the node answered with an error; `kind` is the class name it gave."""

    def __init__(self, what: str, *, node: str = "", fault: str = "", hint: str = "", kind: Optional[str] = None) -> None:
        super().__init__(what, node=node, fault=fault, hint=hint)
        self.kind = kind or "AgentError"

    @property
    def refused(self) -> bool:
        """Whether the agent said no, and so did nothing; any other error leaves open what it did."""
        return self.kind == "Refusal"


class ProtocolError(NodeError):
    """What came back from the node was not a line of our protocol."""


class DeadlineError(NodeError):
    """No answer in the time allowed; whether the request took effect is unknown."""


class TrainingError(ChaosError):
    """The training could not be started, found or watched."""


class UndecidedError(ChaosError):
    """What was measured leaves a comparison open: its limit lies inside the uncertainty, or nothing could be measured."""


class AbortedError(ChaosError):
    """An abort condition or a signal ended the run early."""

    exit_code = EXIT_ABORTED


class LeakedError(ChaosError):
    """Something could not be proven gone."""

    exit_code = EXIT_LEAKED
