"""
The site's word on this node: `/etc/chaoskit/allow`, by which root lets faults run here.

An empty file allows every fault. One that says anything allows only the faults that it names, one a line; `#` begins a
comment, and comments alone allow none: somebody has struck out what they had allowed. Whoever can write the file decides
what root does here, so that it counts only where nobody but root could have written it. Standard library only, Python 3.8.
"""

import os
import re
import stat
from typing import Callable, FrozenSet, Optional

from chaoskit.agent.contract import Refusal

LONGEST = 1 << 16
"""Bytes of the file that are read; more is no list of faults."""
FAULT = re.compile(r"[a-z][a-z0-9_]{0,99}\Z")


def refuse_unless_allowed(path: str, fault: str, where: str = "") -> None:
    """
    Refuse a fault that the site does not allow on this node.

    Args:
        path: The file.
        fault: The fault's name.
        where: The node, for the refusal.

    Raises:
        Refusal: It is not there, others than root could have written it, or it does not name this fault.
    """
    named = allowed(path, where)
    if named is not None and fault not in named:
        listed = ", ".join(sorted(named)) or "none"
        raise Refusal(
            "{} does not allow {} on this node; it allows {}".format(path, fault, listed),
            where=where,
            hint="add a line `{}` to it as root".format(fault)
            + ("" if named else "; comments alone allow none, and only a wholly empty file allows all"),
        )


def allowed(path: str, where: str = "") -> Optional[FrozenSet[str]]:
    """Return the faults that the site allows on this node; None for all of them. Raises Refusal."""
    folder = os.path.dirname(path)
    try:
        _refuse_others(os.lstat(folder), folder, stat.S_ISDIR, "directory", where)
        # Never through a link, and never waiting for the writer of a pipe.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Refusal(
            "{} does not exist, so this node does not allow faults".format(path), where=where, hint="as root: install -D /dev/null " + path
        ) from None
    except OSError as error:
        raise Refusal("{} cannot be read: {}".format(path, error.strerror), where=where, hint="it must be a file, and no link") from error
    try:
        _refuse_others(os.fstat(fd), path, stat.S_ISREG, "file", where)
        text = os.read(fd, LONGEST + 1)
    finally:
        os.close(fd)
    if len(text) > LONGEST:
        raise Refusal("{} is longer than {} bytes".format(path, LONGEST), where=where, hint="name one fault a line")
    return _named(text.decode("utf-8", "replace"), path, where) if text.strip() else None


def _refuse_others(found: os.stat_result, path: str, is_kind: Callable[[int], bool], kind: str, where: str) -> None:
    """Refuse what somebody else than root could have put there, or changed."""
    if not is_kind(found.st_mode):
        trouble = "is no {}".format(kind)
    elif found.st_uid != 0:
        trouble = "belongs to uid {}".format(found.st_uid)
    elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        trouble = "may be written by others (mode {:04o})".format(stat.S_IMODE(found.st_mode))
    else:
        return
    hint = "as root: chown root:root {0} && chmod go-w {0}".format(path)
    raise Refusal("{} {}, so that its word does not count".format(path, trouble), where=where, hint=hint)


def _named(text: str, path: str, where: str) -> FrozenSet[str]:
    names = set()
    for number, line in enumerate(text.splitlines(), 1):
        name = line.partition("#")[0].strip()
        if name and not FAULT.match(name):
            what = "{}:{}: {!r} is no fault's name".format(path, number, name[:40])
            raise Refusal(what, where=where, hint="one name a line, as in `chaoskit faults`")
        names.add(name)
    return frozenset(names - {""})
