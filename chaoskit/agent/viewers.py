"""
As whom, and through whose mounts, a fault looks at the training's files: a process of the training, or its user from where we are.

Standard library only, Python 3.8.
"""

import os
import pwd
from typing import Any, Dict, Mapping, Optional, Sequence

from chaoskit.agent import procs, ranks, savetime
from chaoskit.agent.contract import TrainingFacts
from chaoskit.agent.procs import Process
from chaoskit.agent.savetime import Viewer


def of_training(training: TrainingFacts, running: Sequence[Process]) -> Viewer:
    """Return the view and user of the run's lowest rank here, else of any of its processes, else our own view as its user."""
    heads = ranks.heads(training.run_id) if training.run_id else []
    ordered = [head.process for head in sorted(heads, key=lambda head: head.rank)] + list(running)
    for process in ordered:
        try:
            return savetime.viewer_of(process.pid)
        except OSError:
            continue
    return ours(training.user)


def ours(user: Optional[str]) -> Viewer:
    """Return our own view, as this user; as ourselves without one."""
    if user is None:
        return savetime.viewer_of(os.getpid())._replace(pid=0)
    account = pwd.getpwuid(procs.uid_of(user))
    return Viewer(0, account.pw_uid, account.pw_gid, tuple(os.getgrouplist(user, account.pw_gid)))


def captured(viewer: Viewer) -> Dict[str, Any]:
    """Return a viewer as JSON, of which `now` makes one again."""
    process = procs.read(viewer.pid) if viewer.pid else None
    return {**viewer._asdict(), "groups": list(viewer.groups), "start_time": process.start_time if process is not None else 0}


def now(was: Mapping[str, Any], training: TrainingFacts) -> Viewer:
    """Return the captured view, or that of the training's present processes when the process is gone, with the captured user."""
    pid = was["pid"]
    process = procs.same(pid, was["start_time"]) if pid else None
    if pid and (process is None or process.dead):  # one that waits to be reaped has no view any more
        pid = of_training(training, procs.of_training(training)).pid
    return Viewer(pid, was["uid"], was["gid"], tuple(was["groups"]))
