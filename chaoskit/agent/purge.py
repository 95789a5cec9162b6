"""
Purge: the agent leaves this node, with its folders, its boot unit and its processes of every version. Only when nothing is owed.

Standard library only, Python 3.8.
"""

import os
import shutil
import signal
import time
from typing import List

from chaoskit.agent import account, boot, cgroups, hold, kin, spawn
from chaoskit.agent.contract import Refusal, Site
from chaoskit.agent.host import Host
from chaoskit.agent.node import Node

ENDS_WITHIN = 5.0
"""Seconds from SIGKILL until a process of ours that is still there counts as one that the kernel holds."""


def purge(node: Node, site: Site) -> List[str]:
    """
    Remove everything of ours but this very server, which ends when its last connection is closed; return what was removed.

    Raises:
        Refusal: Something is owed, or may be; or a training that we started still runs.
    """
    with node.ledger.resources_lock():  # whoever arms meanwhile waits, and then finds no ledger to write to: before any harm
        _refuse(node, site)
        removed = _end_kin(node)
        removed += _boot_unit(node)
        for root in (node.paths.run, node.paths.state):
            removed += _tree(root)
        cgroups.sweep()
        node.leaving = True  # last: a purge that fails half way leaves a server that works
    Host(site).syslog("chaoskit: purged: {}".format(", ".join(removed)))
    return removed


def _refuse(node: Node, site: Site) -> None:
    told = account.audit(node)
    owed = [one["entry"] for one in (*told["debts"], *told["unreadable"])] + [slot.entry.entry for slot in node.open_slots()]
    if owed:
        raise Refusal("still owed: {}".format(", ".join(dict.fromkeys(owed))), where=site.node, hint="run `chaoskit heal` first")
    seen = account.find_strays(node, site)
    left = [one["says"] for one in seen["strays"] if one["ours"] and not one.get("held")] + seen["unread"]
    if left:
        raise Refusal("not clean: {}".format("; ".join(left)), where=site.node, hint="run `chaoskit heal` first")
    held = hold.holder(node.paths)
    if held is not None:
        raise Refusal(str(held), where=site.node, hint="wait for that run to end, or `chaoskit stop` it")
    running = spawn.running()
    if running:
        raise Refusal("a training that we started still runs: {}".format(", ".join(running)), where=site.node, hint="end it first")


def _end_kin(node: Node) -> List[str]:
    """End the other servers and fuses with our roots, fuses first: they would only watch the servers die."""
    others = [one for one in kin.everyone() if one.process != node.me and one.state == node.paths.state]
    for one in sorted(others, key=lambda one: one.verb):
        one.process.kill(signal.SIGKILL)
    until = time.monotonic() + ENDS_WITHIN
    while any(one.process.alive() for one in others):
        if time.monotonic() > until:
            left = ", ".join(str(one) for one in others if one.process.alive())
            raise Refusal("the kernel does not let go of {}".format(left), hint="what holds it, such as a dead disk, must be mended first")
        time.sleep(0.01)
    return [str(one) for one in others]


def _boot_unit(node: Node) -> List[str]:
    unit = node.ledger.unit
    there = unit is not None and unit.there
    boot.match(node.ledger)
    return [unit.path] if unit is not None and there and not unit.there else []


def _tree(root: str) -> List[str]:
    """Remove a folder of ours with all that is in it; where it is a mount point, only what is in it. Follows no links."""
    if not os.path.isdir(root) or os.path.islink(root):
        return []
    for entry in list(os.scandir(root)):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
    try:
        os.rmdir(root)
    except OSError:
        return ["what was in {}".format(root)]
    return [root]
