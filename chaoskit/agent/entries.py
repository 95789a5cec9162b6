"""
One entry on this node: a thread that prepares, arms, injects at T0, ends each span on time and reverts, in that order.

Everything that changes an entry runs on its own thread, so that the server's loop never waits and two entries never
wait for each other; what only reads (witness, gone, exposed) runs beside it and can never make an act late. The thread
sleeps on its queue until shortly before the next act and stays able to revert all along.
Standard library only, Python 3.8.
"""

import functools
import math
import sys
import threading
import time
import traceback
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional

from chaoskit.agent.agenda import Act, agenda
from chaoskit.agent.contract import Evidence, Fault, Refusal
from chaoskit.agent.host import Host
from chaoskit.agent.ledger import Entry, Ledger
from chaoskit.agent.registry import Registry
from chaoskit.agent.reverting import PAUSES, Reverted, as_json, close, host_of, read_gone, record, revert
from chaoskit.agent.wakeup import Wakeup
from chaoskit.errors import AgentError, RefusedError

SPIN = 0.0002
"""Seconds before an act from which the thread no longer sleeps; where nodes share processors (the lab), it keeps others from theirs."""

LEAD = 0.02
"""Seconds before an act at which the thread leaves its queue, so that what must be read first is read by then on every node."""

REST = 0.003
"""Seconds after a timed harm until it is written down: where nodes share processors, now is the T0 of the others too."""

DEFER = 0.1
"""Seconds that the answer to a timed injection waits, so that no node's answer delays another's act."""

LATE = 1.0
"""Seconds after T0 at which an injection is refused rather than done out of step."""

SELDOM = 300.0
"""Seconds between tries to revert what was not back after all of the `PAUSES`: what mends it may come after hours."""

AGAIN = "its server, once more"
"""Who closed an entry whose first revert had failed."""

IDLE = 2.0
"""Seconds until a thread without anything to do ends."""


class Reply:
    """Where an answer goes. This one drops it; the server's sends it to the connection that asked."""

    def ok(self, data: Dict[str, Any], delay: float = 0.0) -> None:
        """Answer, `delay` seconds from now."""

    def error(self, error: BaseException) -> None:
        """Answer with an error."""


class Slot:
    """
    An entry that this server works on.

    Args:
        entry: The entry as planned.
        fault, host: What it does, and where.
        ledger: Where it stands.
        enough_lease: Raises RefusedError when too little lease remains at a boottime.

    `busy` is true while the thread is at something, so that nobody calls it hanging or not hanging by mistake; `unwritten`
    while its end is proven and the disk has not taken that line.
    """

    def __init__(self, entry: Entry, fault: Fault, host: Host, ledger: Ledger, enough_lease: Callable[[str, float], None]) -> None:
        self.entry = entry
        self.fault = fault
        self.host = host
        self.result: Optional[Reverted] = None
        self._ledger = ledger
        self._enough_lease = enough_lease
        self._acts: List[Act] = []
        self._injecting: Optional[Reply] = None
        self._timed = False
        self._finishing: List[Reply] = []
        self._jobs: Deque[Callable[[], None]] = deque()
        self._wakeup: Optional[Wakeup] = None
        self._gate = threading.Lock()
        self._failures = 0
        self._again_at = math.inf
        self.busy = False
        self.unwritten = False

    @property
    def open(self) -> bool:
        """True while this entry owes a revert, as far as this server knows."""
        return self.entry.open and (self.result is None or not self.result.evidence.holds)

    @property
    def over(self) -> bool:
        """True once it is closed, proven, and nothing works on it: the ledger says all that is left to say."""
        return self.entry.state == "reverted" and not self.open and not self.unwritten and self._wakeup is None

    # -- the thread ------------------------------------------------------------------------------------------------

    def post(self, job: Callable[[], None]) -> None:
        """Run `job` on the entry's thread, after those posted before."""
        with self._gate:
            self._jobs.append(job)
            if self._wakeup is None:
                self._wakeup = Wakeup()
                threading.Thread(target=self._work, args=(self._wakeup,), name=self.entry.entry, daemon=True).start()
            self._wakeup.set()

    def ask(self, reply: Reply, job: Callable[[], Optional[Dict[str, Any]]]) -> None:
        """Run `job` on the entry's thread and answer with what it returns (None: it answers later) or raises."""
        self.post(lambda: _answer(reply, job))

    def _work(self, wakeup: Wakeup) -> None:
        while True:
            due = self._acts[0].at - LEAD - time.monotonic() if self._acts else IDLE
            self.busy = due <= 0 or bool(self._jobs)
            if due <= 0:
                self._guarded(functools.partial(self._act, self._acts.pop(0)))
            elif self._jobs:
                self._guarded(self._jobs.popleft())
            elif not wakeup.wait(due) and not self._acts and self._ended(wakeup):
                return

    def _guarded(self, job: Callable[[], None]) -> None:
        """Run a job; whatever it raises, this thread stays there for the revert that is still owed."""
        try:
            job()
        except BaseException:  # noqa: BLE001 - a third party's code may even say SystemExit
            print("entry {}:".format(self.entry.entry), file=sys.stderr)
            traceback.print_exc()

    def _ended(self, wakeup: Wakeup) -> bool:
        with self._gate:
            if self._jobs or self.open:
                return False  # an armed entry keeps its thread warm for T0
            wakeup.close()
            self._wakeup = None
            return True

    # -- what the verbs ask ----------------------------------------------------------------------------------------

    def inject(self, at: Optional[float], reply: Reply) -> None:
        """Begin: at `at` (mono) or now. The answer comes after the first effect. Raises RefusedError before any harm."""
        if self.entry.state != "armed" or self._injecting is not None:
            raise RefusedError("entry {} is {}, not armed: an entry is injected once".format(self.entry.entry, self.entry.state))
        now = self.host.monotonic()
        t0 = now if at is None else at
        if t0 > now + 3600 or now - t0 > LATE:
            raise RefusedError("T0 is {:+.3f} s from now on this node".format(t0 - now), hint="the clocks are mapped wrongly, or too late")
        self._enough_lease(self.entry.run, self.host.boottime() + t0 - now)
        if not self.fault.takes_agent_away:
            self._note_injecting(0, ends=self._ends(t0))
        self._injecting, self._timed = reply, at is not None
        self._acts = agenda(self.entry.holds, t0)

    def _ends(self, t0: float) -> Optional[float]:
        """Return the boottime of the last span's end, for a T0 on the monotonic clock."""
        if self.entry.one_shot:
            return None
        return self.host.boottime() - self.host.monotonic() + t0 + self.entry.holds[-1][1]

    def finish(self, reply: Reply) -> None:
        """Answer once the last span is reverted."""
        if self.result is not None:
            reply.ok(self.result.to_json())
        elif self.entry.one_shot and self.entry.state == "injected":
            reply.ok(self.read_one_shot().to_json())
        elif self.entry.state == "planned":
            raise RefusedError("entry {} is not armed, so nothing will end".format(self.entry.entry))
        else:
            self._finishing.append(reply)

    def read_one_shot(self) -> Reverted:
        """A one-shot fault has nothing to undo: say whether what must be back is back."""
        now = self.host.monotonic()
        return Reverted(now, now, as_json(self.fault.gone(self.host, self.entry.undo)))

    def revert(self, who: str) -> Reverted:
        """Restore the captured state now and close the entry; the same answer again once it is closed."""
        if self.result is not None and self.result.evidence.holds:
            return self.result
        self._acts = []
        if self.entry.state == "planned":  # never armed: nothing can have happened, and there is no ledger line to close
            return self.read_one_shot()
        self._end(lambda: self._settle(who))
        if self.result is None:
            raise AgentError("the revert left no result")
        return self.result

    def try_again(self) -> None:
        """Post one more revert when an earlier one has failed and the pause after it is over."""
        if self.open and time.monotonic() >= self._again_at:
            self._again_at = math.inf
            self.post(lambda: self._end(self._once_more))

    def _end(self, how: Callable[[], Reverted]) -> None:
        try:
            with self._ledger.lock(self.entry.entry, must=False):
                self._finished(self._settled_elsewhere() or how())
        except BaseException:
            self._put_off()
            raise

    def _once_more(self) -> Reverted:
        record(self._ledger, self.entry.entry, "reverting", durable=False)  # even the look may hang: the fuse must know of it
        return self._found_back() or self._settle(AGAIN)

    def _found_back(self) -> Optional[Reverted]:
        before = self.result.before if self.result is not None else self.host.monotonic()
        evidence = read_gone(self.fault, self.host, self.entry.undo)
        if not evidence.holds:
            return None
        return self._close(Reverted(before, self.host.monotonic(), evidence), AGAIN, "")

    def _put_off(self) -> None:
        pause = PAUSES[self._failures] if self._failures < len(PAUSES) else SELDOM
        self._failures += 1
        self._again_at = time.monotonic() + pause

    def write_again(self) -> None:
        """Tell the ledger once more that it ended: what stays open there is listed as a debt, and its server is ended for it."""
        with self._ledger.lock(self.entry.entry, must=False):
            if self.result is not None and self.unwritten:
                self._close(self.result, "its server, once the disk took it", "")

    def witness(self) -> Dict[str, Any]:
        """Say whether the harm happened."""
        return {"evidence": as_json(self.fault.witness(self.host, self.entry.undo)).to_json()}

    def gone(self) -> Dict[str, Any]:
        """Say, by a fresh read, whether the captured state is back."""
        return {"evidence": as_json(self.fault.gone(self.host, self.entry.undo)).to_json()}

    def exposed(self) -> Dict[str, Any]:
        """Say whether the training used the resource just before."""
        return {"evidence": as_json(self.fault.exposed(self.host, self.entry.undo)).to_json()}

    # -- acts ------------------------------------------------------------------------------------------------------

    def _act(self, act: Act) -> None:
        try:
            with self._ledger.lock(self.entry.entry, must=act.harm):
                if act.harm:
                    self._harm(act)
                elif act.last:
                    self._finished(self._settled_elsewhere() or self._settle("the end of the fault", act.at))
                else:
                    self._release(act)
        except BaseException as error:  # noqa: BLE001 - a third party's code or a full disk: whatever it was, the way is back
            self._go_back(error)

    def _harm(self, act: Act) -> None:
        if self._settled_elsewhere() is not None:
            raise RefusedError("entry {} was healed by somebody else".format(self.entry.entry))
        if act.span:
            self._note_injecting(act.span, ends=self.entry.ends)
        _spin_until(act.at)
        if self._timed and act.span == 0 and time.monotonic() - act.at > LATE:
            raise RefusedError("T0 passed {:.3f} s ago: this node was held up".format(time.monotonic() - act.at))
        before = time.monotonic()
        if act.span == 0 and not self._timed:
            # Without a T0, the spans count from the harm itself and not from the request: the disk comes in between.
            act = act._replace(at=before)
            self._acts = agenda(self.entry.holds, before)[1:]
        if self.fault.takes_agent_away:
            self._note_injecting(0, ends=None, t0=(before, before))
        self.fault.inject(self.host, self.entry.undo)
        after = time.monotonic()
        if self._timed and act.span == 0:
            time.sleep(REST)
        self._injected(act, before, after)

    def _injected(self, act: Act, before: float, after: float) -> None:
        # The undo is durable since `injecting`: a disk that is full by now takes nothing away from the truth of the answer.
        ends = self._ends(act.at) if act.span == 0 else self.entry.ends
        note = record(self._ledger, self.entry.entry, "injected", t0=(before, after), span=act.span, ends=ends)
        if act.span == 0:
            self.entry = _moved(self.entry, state="injected", t0=(before, after))
            self.host.syslog("chaoskit {} {} injected for {}".format(self.entry.entry, self.entry.fault, self.entry.controller))
            self._answer_inject({"before": before, "after": after, "ended": self.entry.one_shot, "note": note})
        if self.entry.one_shot:
            self._finished_one_shot()

    def _release(self, act: Act) -> None:
        _spin_until(act.at)
        before = time.monotonic()
        self.fault.revert(self.host, self.entry.undo)
        record(self._ledger, self.entry.entry, "released", t1=(before, time.monotonic()), span=act.span)

    def _settle(self, who: str, at: float = 0.0) -> Reverted:
        note = record(self._ledger, self.entry.entry, "reverting", durable=False)
        _spin_until(at)
        result = revert(self.fault, self.host, self.entry.undo, self.entry.one_shot)
        return self._close(result, who, note)

    def _close(self, result: Reverted, who: str, note: str) -> Reverted:
        told = close(self._ledger, self.host, self.entry, result, who, note)
        self.unwritten = told.evidence.holds and self._settled_elsewhere() is None
        return told

    def _settled_elsewhere(self) -> Optional[Reverted]:
        """Return what a fuse, another agent or `heal` has already written, if one of them closed the entry."""
        written = self._ledger.read_if_it_can(self.entry.entry)
        return recorded(written) if written is not None else None

    def _go_back(self, error: BaseException) -> None:
        """An act failed half way: undo it at once, then say so."""
        injecting, self._injecting = self._injecting, None
        try:
            result = self.revert("a failed act")
        finally:
            if injecting is not None:
                injecting.error(error)
        if injecting is None and not result.evidence.holds:
            self.host.syslog("chaoskit {}: {!r}".format(self.entry.entry, error))

    def _note_injecting(self, span: int, **more: Any) -> None:
        self._ledger.append(self.entry.entry, "injecting", span=span, **more)
        self.entry = _moved(self.entry, state="injecting", ends=more["ends"])

    def _answer_inject(self, data: Dict[str, Any]) -> None:
        if self._injecting is not None:
            self._injecting.ok(data, delay=DEFER if self._timed and not self.fault.takes_agent_away else 0.0)
            self._injecting = None

    def _finished(self, result: Reverted) -> None:
        self.result = result
        if result.evidence.holds or self.entry.one_shot:
            self.entry = _moved(self.entry, state="reverted", t1=(result.before, result.after))
        else:
            self._put_off()
        if self._injecting is not None:
            self._injecting.error(RefusedError("entry {} was reverted before T0".format(self.entry.entry)))
            self._injecting = None
        for reply in self._finishing:
            reply.ok(result.to_json())
        self._finishing = []

    def _finished_one_shot(self) -> None:
        waiting, self._finishing = self._finishing, []
        for reply in waiting:
            _answer(reply, lambda: self.read_one_shot().to_json())


def from_ledger(entry: Entry, ledger: Ledger, registry: Registry) -> Slot:
    """Return a slot for an entry that no server works on any more: to witness, to read and to revert, never to inject."""
    slot = Slot(entry, registry.make(entry.fault, entry.params), host_of(entry), ledger, _no_lease)
    slot.result = recorded(entry)
    return slot


def recorded(entry: Entry) -> Optional[Reverted]:
    """Return the result that closed an entry, as the ledger tells it; None while it is open."""
    if entry.state != "reverted":
        return None
    before, after = entry.t1 or (0.0, 0.0)  # ended by a reboot: at the beginning of this boot's clock
    return Reverted(before, after, Evidence.from_json(entry.evidence or {"holds": True, "says": entry.says}), entry.says)


def _no_lease(run: str, at: float) -> None:
    raise Refusal("run {} has no lease on this server, at {} or any time".format(run, at))


def _moved(entry: Entry, **changes: Any) -> Entry:
    return Entry(**{**entry.__dict__, **changes})


def _spin_until(at: float) -> None:
    rest = at - SPIN - time.monotonic()
    if rest > 0:
        time.sleep(rest)
    while time.monotonic() < at:
        pass


def _answer(reply: Reply, job: Callable[[], Optional[Dict[str, Any]]]) -> None:
    try:
        data = job()
    except BaseException as error:  # noqa: BLE001 - the border of the wire: the error becomes the answer
        reply.error(error)
        return
    if data is not None:
        reply.ok(data)
