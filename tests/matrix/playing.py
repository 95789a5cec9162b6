"""
One case, played: somebody is stopped at its point, and who is left mends the node.

Nothing of it is judged by what the product says of itself but where that is the promise (`audit` names the debt); the node
is read from outside.
"""

import json
import os
import signal
import sys
import time
import traceback
from contextlib import suppress

import controller
from node import read_points

from chaoskit.cli.main import main as command_line
from chaoskit.fleet import fleet

LOOK_EVERY = 0.2
"""Seconds between snapshots."""
STAYS, GOES_ON = 0.3, 1.5
"""Seconds that a node must be as it was before its case is judged: in general, and where a server goes on that waited for its go."""
AFTER = 2.0
"""Seconds after the lease's end by which the node must be as it was: the promise is one; R1 grants two."""
CONTROLLER_WITHIN = 12.0
"""Seconds after the stop that a controller that lives may take to its own end before it is ended; that is counted."""
HIT_WITHIN, RECORDED_WITHIN = 60.0, 120.0
"""Seconds for a point to be reached, and for an undisturbed run: generous, for a machine that is busy with other things."""


class MissedError(Exception):
    """The case did not come to its point."""


def pay(site, bundle, runs, verbs, out):
    """Run verbs of the command line in this process, and end with the exit code of the last."""
    fd = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for target in (1, 2):
        os.dup2(fd, target)
    fleet.build = lambda **_: bundle
    code = 70
    try:
        for verb in verbs:
            code = command_line([verb, "--inventory", str(site), "--runs", str(runs)])
    except BaseException:  # noqa: BLE001 - the border of a process
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code or 0)


class Case:
    """
    One case: a run is stopped at its point, and who is left mends the node.

    Args:
        worker: The node's.
        case: `id`, `fault`, `course`, `role`, `point`, `nth`, `victim`, `how`; without a role the points are recorded.
        run_dir: Gets the journal.
    """

    def __init__(self, worker, case, run_dir):
        self.worker, self.node, self.run_dir = worker, worker.node, run_dir
        self.case = {**case, "node": worker.node.name}
        self.record = "role" not in case
        self.child = 0
        self.state = "runs"
        self.hit_at = None
        self.harmed_at = None
        self.deadline = None
        self.stalled = 0.0
        self.rests_since = None
        self.failed = []
        self.notes = []
        self.boots = 0

    @property
    def far(self):
        """Whether the point is the controller's own."""
        return self.case.get("role") == "controller"

    @property
    def alone(self):
        """Whether nobody on the node is left who must mend it."""
        course, victim = self.case["course"], self.case.get("victim")
        return victim == "both" or (course, victim) == ("orphan", "fuse") or (course == "debt" and victim is not None)

    def play(self):
        """Play it; returns what is to be told of it."""
        self.run_dir.mkdir()
        self._order()
        if self.case["course"] == "debt":
            self._leave_a_debt()
        else:
            site, bundle, space = self.worker.site, self.worker.bundle, self.node.namespace
            self.child = self.worker.fork(lambda: controller.main(site, bundle, space, self.case, self.run_dir))
        self._watch()
        self._wake()
        if self.alone and not self.record:
            self._settle_debt()
        self._judge()
        return {
            "failed": self.failed,
            "late": None if self.harmed_at is None or self.deadline is None else self.harmed_at - self.deadline,
            "points": [*self.node.found(), *read_points(self.run_dir / "points")] if self.record else [],
            "healed": self.alone and not self.record,
            "notes": self.notes,
            "stalled": self.stalled,
        }

    def _order(self):
        order = {"id": self.case["id"], "lie": self.case["course"] == "lied", "record": self.record}
        if not self.record and not self.far:
            order = {**self.case, **order}
        self.case["record"] = self.record
        self.node.order(order, busy=self.case["fault"] == "rank_slow")

    def _leave_a_debt(self):
        """Play the controller's part undisturbed, then have `heal` be the one that is stopped."""
        first = {**self.case, "role": None, "record": False}
        order = json.loads((self.node.folder / "order").read_text())
        self.node.order({"id": f"{self.case['id']}-before", "lie": False, "record": False}, busy=self.case["fault"] == "rank_slow")
        site, bundle, space = self.worker.site, self.worker.bundle, self.node.namespace
        os.waitpid(self.worker.fork(lambda: controller.main(site, bundle, space, first, self.run_dir)), 0)
        (self.run_dir / "points").unlink(missing_ok=True)
        time.sleep(0.1)
        self.node.order(order, busy=self.case["fault"] == "rank_slow")
        out, case = self.run_dir / "healer", self.case

        def heal():
            controller.report_heal(case, self.run_dir, space)
            pay(site, bundle, self.run_dir.parent, ("heal",), out)

        self.child = self.worker.fork(heal)

    def end(self):
        """Have nobody of it go on."""
        if self.child and self.state != "over":
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(self.child, signal.SIGKILL)
                os.waitpid(self.child, 0)
            self.state = "over"

    # -- while it goes on ----------------------------------------------------------------------------------------------

    def _watch(self):
        """Look on until the controller is over and the node as it was, or that is overdue."""
        looked, began = 0.0, time.monotonic()
        clean = False
        while True:
            now = time.monotonic()
            self._mind_the_child()
            self._mind_the_hit(now - began)
            if now - looked >= LOOK_EVERY:
                clean = self._look()
                looked = time.monotonic()
            if self._over(clean):
                return
            slept = time.monotonic()
            time.sleep(0.005)
            self.stalled = max(self.stalled, time.monotonic() - slept - 0.005)

    def _mind_the_child(self):
        if self.state in ("runs", "stopped"):
            pid, status = os.waitpid(self.child, os.WNOHANG | os.WUNTRACED)
            if pid:
                self.state = "stopped" if os.WIFSTOPPED(status) else "over"

    def _mind_the_hit(self, passed):
        if self.hit_at is not None:
            return
        hit = self.node.hit() or (json.loads((self.run_dir / "hit").read_text()) if (self.run_dir / "hit").exists() else None)
        if hit is not None and hit["id"] == self.case["id"]:
            self.hit_at = hit["boottime"]
            if self.case["victim"] in ("controller", "both") and not self.far:
                stopped = (self.case["victim"], self.case["how"]) == ("controller", "STOP")
                self._end_child(signal.SIGSTOP if stopped else signal.SIGKILL)
                (self.node.folder / "go").touch()
                self.hit_at = time.clock_gettime(time.CLOCK_BOOTTIME)  # whoever waited for this goes on only now
        elif not self.record and (passed > HIT_WITHIN or (self.state == "over" and self.case.get("role") != "fuse" and passed > 8.0)):
            raise MissedError(f"the point was not reached; the controller {self.state}")
        elif self.record and passed > RECORDED_WITHIN:
            owed = [(entry.entry, entry.state) for entry in self.node.owed()]
            raise MissedError(f"the recording does not end: the controller {self.state}, {self.node.residue()[:4]}, {owed}")

    def _end_child(self, number):
        if self.state == "runs":
            with suppress(ProcessLookupError):
                os.kill(self.child, number)
            if number == signal.SIGKILL:
                os.waitpid(self.child, 0)
                self.state = "over"

    def _look(self):
        """Take a snapshot; says whether the node is as it was."""
        if self.node.rebooted():
            self.boots += 1
            self.node.come_back()
        try:
            return self._compare()
        except OSError:
            return False  # it is going down just now

    def _compare(self):
        deadline = self.node.lease(self.run_dir.name)
        self.deadline = deadline if deadline is not None else self.deadline
        before = time.clock_gettime(time.CLOCK_BOOTTIME)
        clean = not self.node.residue()
        if not clean:
            self.harmed_at = before
        return clean

    def _over(self, clean):
        if not self.record and self.hit_at is None:
            return False
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        if self.alone and not self.record:
            return now > self.hit_at + 0.2 and self.state != "runs"  # a healer that was stopped is woken to go on
        rest = self._rests(clean)
        if self.state == "runs" and not self.record:
            silent = self.case["victim"] == "channel" and self.case["how"] == "SILENCE"
            long = now > self.hit_at + CONTROLLER_WITHIN
            if (rest and silent and now > self.hit_at + 1.0) or long:
                if long:
                    self.notes.append("the controller did not end by itself in time")
                self._end_child(signal.SIGKILL)
            return False
        if self.state == "runs":
            return False
        due = max(self.deadline or 0.0, self.hit_at or now) + AFTER + self.stalled
        return rest or now > due

    def _rests(self, clean):
        """Whether the node is as it was, owes nothing and stays so: a server that waited at the point goes on, and may arm only now."""
        now = time.monotonic()
        if not clean or self.node.owed():
            self.rests_since = None
        elif self.rests_since is None:
            self.rests_since = now
        waited = not self.record and not self.far and self.case["victim"] == "controller"
        return self.rests_since is not None and now - self.rests_since >= (GOES_ON if waited else STAYS)

    def _wake(self):
        """A controller that slept over everything must find out, and do no more harm."""
        if self.state != "stopped":
            return
        os.kill(self.child, signal.SIGCONT)
        until = time.monotonic() + CONTROLLER_WITHIN
        while time.monotonic() < until and self.state != "over":
            pid, _ = os.waitpid(self.child, os.WNOHANG)
            self.state = "over" if pid else self.state
            time.sleep(0.02)
        if self.state != "over":
            os.kill(self.child, signal.SIGKILL)
            os.waitpid(self.child, 0)
            self.state = "over"
        while not self._over(self._look()):
            time.sleep(LOOK_EVERY)

    def _settle_debt(self):
        """Nobody is left: `audit` must name what is owed, and `heal` must pay it."""
        if self.node.rebooted():
            self.boots += 1
            self.node.come_back()
        owed, harmed = [entry.entry for entry in self.node.owed()], self._left()
        code, said = self.worker.cli(self.run_dir.parent, "audit")
        # A server that a dead healer had asked goes on: what it has paid meanwhile is not owed.
        still = {entry.entry for entry in self.node.owed()}
        owed, harmed = [name for name in owed if name in still], harmed and self._left()
        if harmed and code != 5:
            self.failed.append(f"harmed, and audit exits {code}: {harmed[:3]}; it said {said[-600:]}")
        if owed and (code != 5 or any(name not in said for name in owed)):
            self.failed.append(f"{owed} owed, and audit exits {code}: {said[-600:]}")
        healed, said = self.worker.cli(self.run_dir.parent, "heal")
        again, more = self.worker.cli(self.run_dir.parent, "heal", "audit")
        if (healed, again) != (0, 0):
            self.failed.append(f"heal exits {healed}, a second one and audit {again}: {said[-600:]} {more[-300:]}")
        if owed:
            self.notes.append("healed")

    def _left(self):
        """Return what is not as it was; a node that goes down only now comes back first."""
        for _ in range(2):
            if self.node.rebooted():
                self.boots += 1
                self.node.come_back()
            with suppress(OSError):
                return self.node.residue()
            time.sleep(LOOK_EVERY)
        return self.node.residue()

    def _judge(self):
        """The node is as it was, nothing is owed, and what strikes once struck once at the most."""
        until = time.monotonic() + (2.0 if self.alone else 0.0)
        while (left := self._left()) and time.monotonic() < until:
            time.sleep(0.2)
        if left:
            self.failed.append(f"not as it was: {left[:6]}")
        if owed := self.node.owed():
            self.failed.append(f"still owed: {[(entry.entry, entry.state) for entry in owed]}")
        if self.record and self.case["course"] not in ("away", "orphan", "debt") and not (self.run_dir / "outcome").exists():
            self.failed.append("the undisturbed controller did not come to its verdict")
        strikes = self.boots if self.case["fault"] == "node_kill" else self.node.ends()
        if strikes > (self.case["fault"] in ("node_kill", "rank_kill")):
            self.failed.append(f"{self.case['fault']} struck {strikes} times")
