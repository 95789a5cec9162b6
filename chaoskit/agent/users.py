"""Becoming a user for good: groups first, then group, then user. Standard library only, Python 3.8."""

import os
import pwd
from typing import Dict, Optional

from chaoskit.errors import RefusedError


def find(user: Optional[str]) -> "pwd.struct_passwd":
    """Return a user's account; ours when None. Raises RefusedError."""
    if user is None:
        return pwd.getpwuid(os.geteuid())
    try:
        return pwd.getpwnam(user)
    except KeyError as error:
        raise RefusedError("user {!r} does not exist on this node".format(user)) from error


def become(user: Optional[str]) -> None:
    """Drop to a user (None: stay who we are) with all of its groups, so that there is no way back. Raises OSError, KeyError."""
    if user is None:
        return
    account = pwd.getpwnam(user)
    if account.pw_uid == os.geteuid():
        return
    os.setgroups(os.getgrouplist(user, account.pw_gid))
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)


def environment(user: Optional[str]) -> Dict[str, str]:
    """Return what a login would set for a user."""
    account = find(user)
    return {
        "HOME": account.pw_dir,
        "USER": account.pw_name,
        "LOGNAME": account.pw_name,
        "SHELL": account.pw_shell or "/bin/sh",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    }
