"""
The node's own word before any harm: it is the machine that the inventory means, it allows this, nobody else is on it.

Standard library only, Python 3.8.
"""

import os
import pwd
import re
from typing import FrozenSet, Iterator, List, NamedTuple, Optional, Set

from chaoskit.agent.allow import refuse_unless_allowed
from chaoskit.agent.contract import Refusal, Site
from chaoskit.agent.host import Host
from chaoskit.agent.identity import all_pids
from chaoskit.agent.paths import Paths

FIRST_USER = 1000
NOBODY = 65534

GPU_DEVICE = re.compile(r"/dev/(nvidia\d+|kfd|dri/renderD\d+)$")
JOB_CGROUP = re.compile(r"/(slurm[^/]*|job_?\d+)(/|$)")


class Stranger(NamedTuple):
    """A process of somebody else's job."""

    pid: int
    user: str
    why: str

    def __str__(self) -> str:
        return "pid {} of {} {}".format(self.pid, self.user, self.why)


def check_site(site: Site, host: Host, paths: Paths, accounts: FrozenSet[int], fault: str) -> None:
    """
    Refuse harm on the wrong machine, on one that does not allow it, and beside other users' jobs.

    Args:
        site: What the inventory says of this node.
        host: The node.
        paths: Where the allow file is looked for.
        accounts: User ids that may have processes here: the SSH account.
        fault: The fault's name.

    Raises:
        Refusal: With the reason.
    """
    check_machine(site, host)
    if site.require_allow_file:
        refuse_unless_allowed(paths.allow, fault, site.node)
    if site.shared:
        return
    others = strangers(accounts | user_ids(site.training.user))
    if others:
        raise Refusal(
            "other users' jobs are on this node: {}".format("; ".join(str(one) for one in others[:3])),
            where=site.node,
            hint="drain the node, or say `shared: accept` in the inventory",
        )


def check_machine(site: Site, host: Host) -> None:
    """Refuse when this is not the machine that the inventory means (or meant, when the debt was made). Raises Refusal."""
    if site.machine_id is not None and site.machine_id != host.machine_id():
        raise Refusal(
            "this machine's id is {}, the inventory means {}".format(host.machine_id() or "missing", site.machine_id),
            where=site.node,
            hint="correct the inventory's machine_id or the host's address",
        )


def user_ids(user: Optional[str]) -> FrozenSet[int]:
    """Return the id of a user, as a set; empty when there is none of that name."""
    try:
        return frozenset([pwd.getpwnam(user).pw_uid]) if user else frozenset()
    except KeyError:
        return frozenset()


def strangers(ours: FrozenSet[int]) -> List[Stranger]:
    """Return the processes of other people that hold a GPU or belong to a batch job."""
    found = []
    for pid in all_pids():
        uid = _uid(pid)
        if uid is None or uid < FIRST_USER or uid == NOBODY or uid in ours:
            continue
        why = _job(pid) or _gpu(pid)
        if why:
            found.append(Stranger(pid, user_name(uid), why))
    return found


def other_users(ours: FrozenSet[int]) -> Set[str]:
    """Return the names of other people who have processes here."""
    uids = {_uid(pid) for pid in all_pids()}
    return {user_name(uid) for uid in uids if uid is not None and uid >= FIRST_USER and uid != NOBODY and uid not in ours}


def user_name(uid: int) -> str:
    """Return a user's name, or the number when it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return "uid {}".format(uid)


def _uid(pid: int) -> Optional[int]:
    try:
        return os.stat("/proc/{}".format(pid)).st_uid
    except OSError:
        return None


def _job(pid: int) -> str:
    try:
        with open("/proc/{}/cgroup".format(pid), encoding="utf-8", errors="replace") as file:
            found = JOB_CGROUP.search(file.read())
    except OSError:
        return ""
    return "in {}".format(found.group(1)) if found else ""


def _gpu(pid: int) -> str:
    for target in _open_files(pid):
        if GPU_DEVICE.match(target):
            return "holds {}".format(target)
    return ""


def _open_files(pid: int) -> Iterator[str]:
    directory = "/proc/{}/fd".format(pid)
    try:
        names = os.listdir(directory)
    except OSError:
        return
    for name in names:
        try:
            yield os.readlink(os.path.join(directory, name))
        except OSError:
            continue
