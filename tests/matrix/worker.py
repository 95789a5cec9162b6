"""
The cases of one node, one after the other: `worker.py LAB NODE FOLDER`; cases come as JSON lines on standard input.

Each result goes to standard output as a JSON line; `playing.py` is what a case is.
"""

import ctypes
import json
import os
import shutil
import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path

import points
from bundling import site_of, with_points
from node import Node
from playing import Case, MissedError, pay

from chaoskit.engine import leftovers  # noqa: F401 - once, before the forks, and not in each of them
from chaoskit.errors import EXIT_INCONCLUSIVE

ATTEMPTS = 3
"""How many times a case is tried that does not come to its point."""


class Worker:
    """
    One node's cases.

    Args:
        lab, name: The node.
        folder: Where runs and their journals lie meanwhile.
    """

    def __init__(self, lab, name, folder):
        self.node = Node(lab, name)
        self.folder = Path(folder)
        self.runs = self.folder / f"runs-{name}"
        self.runs.mkdir(parents=True, exist_ok=True)
        self.bundle = with_points(self.folder)
        self.site = site_of(lab, name, self.folder)

    def serve(self):
        """Play what is asked."""
        self.node.begin()
        for line in sys.stdin:
            case = json.loads(line)
            began = time.monotonic()
            result = self._play(case)
            result |= {"node": self.node.name, "took": time.monotonic() - began}
            print(json.dumps({**case, **result}), flush=True)
        code, said = self.cli(self.runs, "audit")
        print(json.dumps({"last_audit": code, "said": said, "node": self.node.name}), flush=True)
        self.node.end()

    def _play(self, case):
        """Play a case; one that does not come to its point is tried again, since who is first to a transition is not always the same."""
        missed = []
        for attempt in range(ATTEMPTS if "role" in case else 1):
            run_dir = self.runs / f"case-{case['id']}{f'-{attempt}' if attempt else ''}"
            result = self._attempt(case, run_dir)
            missed += result.pop("missed", [])
            if len(missed) <= attempt:
                break
        return {**result, "missed": missed, "reached": len(missed) < ATTEMPTS}

    def _attempt(self, case, run_dir):
        one = Case(self, case, run_dir)
        try:
            result = one.play()
        except MissedError as error:
            one.end()
            why = f"{error}; {last_of(run_dir / 'journal.jsonl')}"
            result = {"failed": [why], "points": []} if one.record else {"failed": [], "points": [], "missed": [why]}
        except Exception as error:  # noqa: BLE001 - the border of a case: the next one is played
            result = {"failed": [f"{type(error).__name__}: {error}"], "points": [], "trace": traceback.format_exc()}
        try:
            if result["failed"] or "missed" in result:
                result["evidence"] = self._evidence(run_dir)
                self._repair()
            self.node.clear()
        except Exception as error:  # noqa: BLE001 - the same
            result["failed"].append(f"afterwards {type(error).__name__}: {error}")
            result["trace"] = traceback.format_exc()
        shutil.rmtree(run_dir, ignore_errors=True)
        return result

    def _evidence(self, run_dir):
        """Return what tells of a failed case."""
        found = {}
        for path in (*run_dir.glob("*"), *(self.node.upper / "var/lib/chaoskit/ledger").glob("*.jsonl")):
            with suppress(OSError, UnicodeDecodeError):
                found[path.name] = path.read_text()[-3000:]
        for path in self.node.path("/run/chaoskit").glob("*/agent.log"):
            with suppress(OSError):
                found[path.name] = path.read_text()[-1500:]
        return found

    def _repair(self):
        """Have the node as it was for the next case, by a reboot if need be."""
        if self.node.rebooted():
            self.node.come_back()
        for verb in (b"fuse", b"serve"):
            for pid in points.agents(verb, self.node.namespace):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.cli(self.runs, "heal")
        if self.node.residue():
            os.system(f"nsenter --target {self.node.init} --all /usr/local/sbin/reboot -f")  # noqa: S605 - constants and a pid
            time.sleep(0.5)
            self.node.come_back()
            self.node.base = self.node.settled()

    def fork(self, what):
        """Run a function in a child; returns its pid."""
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            return pid
        try:
            end_with_parent()
            os.setsid()
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            what()
        finally:
            os._exit(71)

    def cli(self, runs, *verbs):
        """
        Run verbs of the command line against this node alone; returns the last one's exit code, and what all of them said.

        Whatever says that a node could not be wholly asked is asked again: on a busy machine a look at a GPU takes too long.
        """
        out = self.runs / "said"
        for _ in range(3):
            out.unlink(missing_ok=True)
            _, status = os.waitpid(self.fork(lambda: pay(self.site, self.bundle, runs, verbs, out)), 0)
            if (code := os.waitstatus_to_exitcode(status)) != EXIT_INCONCLUSIVE:
                break
        return code, out.read_text() if out.exists() else ""


def last_of(journal):
    """Return the last words of a journal that tell why a run went no further."""
    with suppress(OSError):
        for line in reversed(journal.read_text().splitlines()):
            with suppress(ValueError):
                record = json.loads(line)
                if why := record.get("why") or record.get("reasons"):
                    return f"{record['kind']}: {why}"
    return "its journal tells no reason"


def end_with_parent():
    """Be killed when whoever started us is: a case must not go on beside the next."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


if __name__ == "__main__":
    end_with_parent()
    Worker(*sys.argv[1:4]).serve()
