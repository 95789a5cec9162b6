"""
Marks: what a fault writes down beside a harm that bears no tag of ours, such as a stopped process or a GPU's power limit.

A ledger may be lost; by its mark the harm is still known as ours, and the mark's undo says what stood there before. Marks
lie in memory and are gone with the boot, as these harms are. Standard library only, Python 3.8.
"""

import json
import os
from contextlib import suppress
from typing import List, NamedTuple, Optional

from chaoskit.agent.contract import Undo
from chaoskit.agent.paths import private_directory, write_atomically

FOLDER = "/run/chaoskit/marks"


class Mark(NamedTuple):
    """A mark: its file, and the undo in it (None: it cannot be read)."""

    path: str
    undo: Optional[Undo]


def path_of(fault: str, key: str) -> str:
    """Return the file of a mark; `key` tells it from the fault's others, and may hold no slash."""
    return "{}/{}-{}".format(FOLDER, fault, key.replace("/", "_"))


def put(path: str, undo: Undo) -> None:
    """Write a mark, before the harm. Raises OSError, PrivilegeError."""
    private_directory(os.path.dirname(path))
    write_atomically(path, json.dumps(undo).encode())


def drop(path: str) -> None:
    """Remove a mark, after the harm's end; harmless when it is gone. Raises OSError."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def standing(fault: str) -> List[Mark]:
    """Return the marks of a fault."""
    try:
        names = sorted(os.listdir(FOLDER))
    except FileNotFoundError:
        return []
    paths = [os.path.join(FOLDER, name) for name in names if name.startswith(fault + "-") and not _unfinished(name)]
    return [Mark(path, read(path)) for path in paths]


def _unfinished(name: str) -> bool:
    """Whether it is what `write_atomically` had not renamed yet: then no harm has begun."""
    *_, pid, random = name.rsplit(".", 2) if name.count(".") >= 2 else ("", "", "")
    return pid.isdigit() and len(random) == 8


def read(path: str) -> Optional[Undo]:
    """Return the undo in a mark; None when it cannot be read."""
    try:
        with open(path, "rb") as file:
            undo = json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return None
    return undo if isinstance(undo, dict) else None
