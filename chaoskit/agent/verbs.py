"""
What the agent can be asked: one function a verb, from the typed fields of a request to its answer.

Verbs that only look at memory answer on the loop; those of an entry run on the entry's thread; the rest on a thread of
their own. The table in `protocol` says what each means. Standard library only, Python 3.8.
"""

import os
import platform
import sys
import threading
import time
from typing import Any, Callable, Dict, FrozenSet, List, NamedTuple, Optional

import chaoskit
from chaoskit.agent import account
from chaoskit.agent import hold as holding
from chaoskit.agent import purge as purging
from chaoskit.agent import spawn as spawning
from chaoskit.agent.canary import NAME as CANARY
from chaoskit.agent.checks import other_users, strangers
from chaoskit.agent.contract import Site
from chaoskit.agent.entries import Reply, Slot
from chaoskit.agent.examine import Examination, Part
from chaoskit.agent.examine import examine as look_at
from chaoskit.agent.lease import forget_lease
from chaoskit.agent.ledger import Entry, entry_name
from chaoskit.agent.mounts import on_tmpfs
from chaoskit.agent.node import Node
from chaoskit.agent.paths import checked_part
from chaoskit.agent.protocol import Message, need
from chaoskit.errors import ProtocolError, RefusedError


class Request(NamedTuple):
    """
    One request.

    `accounts` are the user ids that may have processes here (the SSH account), `notes` sentences about the server itself, and
    `frailties` those about what would keep it from staying alive and awake.
    """

    node: Node
    message: Message
    reply: Reply
    accounts: FrozenSet[int]
    notes: List[str]
    frailties: List[str]

    def slot(self) -> Slot:
        """Return the slot of the entry that is asked about. Raises ProtocolError, RefusedError."""
        return self.node.slot(need(self.message, "entry", str))

    def part(self, name: str) -> str:
        """Return a field that is a name. Raises ProtocolError."""
        return checked_part(need(self.message, name, str))


Verb = Callable[[Request], None]


def _offload(reply: Reply, job: Callable[[], Dict[str, Any]]) -> None:
    def run() -> None:
        try:
            data = job()
        except Exception as error:  # noqa: BLE001 - the border of the wire: the error becomes the answer
            reply.error(error)
            return
        reply.ok(data)

    threading.Thread(target=run, name="verb", daemon=True).start()


def hello(ask: Request) -> None:
    """Say who this agent and this node are, and have a fuse ready: starting one at the arming would disturb the training."""
    ask.node.guard.nudge(lambda error: print("fuse: {}".format(error), file=sys.stderr, flush=True))
    _offload(ask.reply, lambda: _hello(ask))


def _hello(ask: Request) -> Dict[str, Any]:
    return {
        "agent": ask.node.agent,
        "version": getattr(chaoskit, "__version__", ""),
        "boot_id": ask.node.boot_id,
        "machine_id": ask.node.host.machine_id(),
        "hostname": os.uname().nodename,
        "python": platform.python_version(),
        "uid": os.geteuid(),
        "mono": time.monotonic(),
        "wall": time.time(),
        "faults": ask.node.registry.names(),
        "notes": [*ask.notes, *_notes(ask)],
        "frailties": ask.frailties,
    }


def _notes(ask: Request) -> List[str]:
    notes = []
    users = sorted(other_users(ask.accounts))
    if users:
        notes.append("other users' processes: {}".format(", ".join(users[:5])))
    notes += ["another user's job: {}".format(one) for one in strangers(ask.accounts)[:3]]
    if on_tmpfs(ask.node.paths.ledger):
        notes.append("{} is in memory: the ledger will not survive a reboot".format(ask.node.paths.ledger))
    return notes


def clock(ask: Request) -> None:
    """Read the clocks."""
    ask.reply.ok({"mono": time.monotonic(), "wall": time.time()})


def prepare(ask: Request) -> None:
    """Capture the prior state; nothing is changed."""
    name = entry_name(need(ask.message, "entry", str))
    run = ask.part("run")
    if name.split("/")[0] != run:
        raise ProtocolError("entry {!r} is not of run {!r}".format(name, run))
    entry = Entry(
        entry=name,
        run=run,
        fault=need(ask.message, "fault", str),
        params=need(ask.message, "params", dict, {}),
        undo={},
        site=need(ask.message, "site", dict),
    )
    ask.node.prepare(entry, ask.accounts, ask.reply)


def arm(ask: Request) -> None:
    """Make the undo durable and start the lease."""
    slot = ask.slot()
    length, controller = need(ask.message, "lease", float), need(ask.message, "controller", str, "")
    slot.ask(ask.reply, lambda: ask.node.arm(slot, length, controller))


def inject(ask: Request) -> None:
    """Inject at a moment of this node's clock, or now; answers after the first effect."""
    slot = ask.slot()
    at: Optional[float] = None if ask.message.get("at") is None else need(ask.message, "at", float)
    slot.ask(ask.reply, lambda: slot.inject(at, ask.reply))


def finish(ask: Request) -> None:
    """Answer once the node itself has ended the fault."""
    slot = ask.slot()
    slot.ask(ask.reply, lambda: slot.finish(ask.reply))


def renew(ask: Request) -> None:
    """Renew a run's lease."""
    ask.reply.ok(ask.node.renew(ask.part("run"), need(ask.message, "lease", float)))


def witness(ask: Request) -> None:
    """Say whether the harm happened."""
    _offload(ask.reply, ask.slot().witness)


def gone(ask: Request) -> None:
    """Say whether the captured state is back."""
    _offload(ask.reply, ask.slot().gone)


def exposed(ask: Request) -> None:
    """Say whether the training used the resource just before."""
    _offload(ask.reply, ask.slot().exposed)


def revert(ask: Request) -> None:
    """Restore the captured state now."""
    slot = ask.slot()
    slot.ask(ask.reply, lambda: slot.revert("the controller").to_json())


def entries(ask: Request) -> None:
    """Read the ledger of a run: what became of each entry, without what only its revert needs, so that hundreds fit a line."""
    run = ask.part("run")
    _offload(ask.reply, lambda: {"entries": [_brief(entry.to_json()) for entry in ask.node.ledger.entries() if entry.run == run]})


def _brief(entry: Dict[str, Any]) -> Dict[str, Any]:
    return {name: value for name, value in entry.items() if name not in ("undo", "site", "evidence")}


def audit(ask: Request) -> None:
    """List every debt of any run, and what cannot be read."""
    _offload(ask.reply, lambda: account.audit(ask.node))


def heal(ask: Request) -> None:
    """Pay debts, of the ledger and of a journal."""
    names = None if ask.message.get("entries") is None else [entry_name(name) for name in need(ask.message, "entries", list)]
    journal = need(ask.message, "debts", list, [])
    if not all(isinstance(debt, dict) for debt in journal):
        raise ProtocolError("field 'debts': expected a list of objects")
    live = need(ask.message, "live", bool, False)
    _offload(ask.reply, lambda: {"results": account.heal(ask.node, names, journal, live=live)})


def strays(ask: Request) -> None:
    """List what stands here as a fault leaves it, and no entry of the ledger explains."""
    site = Site.from_json(need(ask.message, "site", dict))
    _offload(ask.reply, lambda: account.find_strays(ask.node, site))


def sweep(ask: Request) -> None:
    """Take away the strays that are ours."""
    site = Site.from_json(need(ask.message, "site", dict))
    _offload(ask.reply, lambda: account.sweep(ask.node, site))


def hold(ask: Request) -> None:
    """Take this node for a run, or renew its hold; say whose it is when it is another's."""
    run, controller = ask.part("run"), need(ask.message, "controller", str)
    length, instead_of = need(ask.message, "lease", float), need(ask.message, "instead_of", str, "")

    def job() -> Dict[str, Any]:
        other = holding.take(ask.node.paths, run, controller, length, instead_of)
        return {"held": None if other is None else other.to_json()}

    _offload(ask.reply, job)


def release(ask: Request) -> None:
    """Give this node back, if it is this run's."""
    run = ask.part("run")

    def job() -> Dict[str, Any]:
        holding.release(ask.node.paths, run)
        return {}

    _offload(ask.reply, job)


def purge(ask: Request) -> None:
    """Remove everything of ours from this node; this server ends with its last connection."""
    site = Site.from_json(need(ask.message, "site", dict))
    _offload(ask.reply, lambda: {"removed": purging.purge(ask.node, site)})


def examine(ask: Request) -> None:
    """Look at this node for what a person must mend before an experiment; nothing is changed."""
    parts = [Part.from_json(part) for part in need(ask.message, "parts", list)]
    asked = Examination(Site.from_json(need(ask.message, "site", dict)), parts, ask.accounts)
    _offload(ask.reply, lambda: {"findings": look_at(ask.node.archive, ask.node.paths, asked)})


def spawn(ask: Request) -> None:
    """Start a process of its own session and cgroup."""
    key = ask.part("key")
    user = None if ask.message.get("user") is None else need(ask.message, "user", str)
    argv, env = need(ask.message, "argv", list), need(ask.message, "env", dict, {})
    order = spawning.Order(argv, env, user, need(ask.message, "cwd", str, "/"), need(ask.message, "log", str)).checked()
    _offload(ask.reply, lambda: dict(spawning.spawn(ask.node.archive, ask.node.paths, key, order).to_json()))


def spawned(ask: Request) -> None:
    """Say what became of a process that was started under a key."""
    process = spawning.spawned(ask.node.paths, ask.part("key"))
    if process is None:
        raise RefusedError("nothing was started under key {!r} since this node came up".format(ask.message["key"]))
    ask.reply.ok({"alive": process.alive(), "pid": process.pid, "start_time": process.start_time})


def stop(ask: Request) -> None:
    """End what was started under a key."""
    key, grace = ask.part("key"), need(ask.message, "grace", float, 5.0)
    _offload(ask.reply, lambda: {"stopped": spawning.stop(ask.node.paths, key, min(grace, 600.0))})


def forget(ask: Request) -> None:
    """Remove the closed entry of a canary: of every other one the ledger tells for a month."""
    slot = ask.slot()
    if slot.entry.fault != CANARY:
        raise RefusedError("entry {} is no canary's".format(slot.entry.entry))

    def job() -> Dict[str, Any]:
        ask.node.guard.watch()  # the fuse must have read that it is closed: one whose file is gone it would pay from memory
        ask.node.ledger.forget(slot.entry.entry)
        forget_lease(ask.node.paths, slot.entry.run)
        return {}

    slot.ask(ask.reply, job)


VERBS: Dict[str, Verb] = {
    verb.__name__: verb
    for verb in (
        *(hello, clock, prepare, exposed, arm, inject, finish, renew, witness, gone, revert),
        *(entries, audit, heal, hold, release, strays, sweep, purge, forget, examine, spawn, spawned, stop),
    )
}
