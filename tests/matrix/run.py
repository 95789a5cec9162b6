"""
The crash matrix: `run.py --lab NAME [--nodes N] [--sample N --seed S] [--brief] [--faults A,B] [--courses A,B] [--again RESULTS]`.

Records which points undisturbed runs pass, makes the cases from them, plays them on all nodes of a lab at once, and tells
in a table what was tried and what became of it. Exits 1 when a case failed, or when a transition is in no recording.
"""

import argparse
import json
import queue
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import cases as matrix
from controller import params_of

from chaoskit.faults import discover, load

HERE = Path(__file__).parent
MISSED_SHARE = 0.01
"""Of all cases, those that may not come to their point: which of two is first to a transition is not always as it was recorded."""
BRIEF = ("rank_hang", "rank_slow", "link_flap")
"""Faults whose cases are soon over."""


class Fleet:
    """The workers of some nodes, each with one case at a time. `results` are in the order in which they came."""

    def __init__(self, lab, nodes, folder, log):
        self.results, self.endings = [], []
        self._queue = queue.Queue()
        self._told, self._log = time.monotonic(), log
        self._threads = []
        for node in nodes:
            argv = [sys.executable, str(HERE / "worker.py"), lab, node, str(folder)]
            process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            thread = threading.Thread(target=self._feed, args=(process,))
            thread.start()
            self._threads.append(thread)

    def play(self, cases):
        """Play cases, and return their results."""
        before = len(self.results)
        for case in cases:
            self._queue.put(case)
        self._queue.join()
        return self.results[before:]

    def close(self):
        """Let the workers take away what they brought."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _feed(self, process):
        while (case := self._queue.get()) is not None:
            if process.poll() is None:
                process.stdin.write(json.dumps(case) + "\n")
                process.stdin.flush()
            line = process.stdout.readline()
            result = json.loads(line) if line else {**case, "failed": ["the worker ended"], "points": [], "reached": True, "missed": []}
            self.results.append(result)
            if self._log:
                with Path(self._log).open("a") as log:
                    log.write(json.dumps(result) + "\n")
            self._tell(result)
            self._queue.task_done()
        self._queue.task_done()
        process.stdin.close()
        self.endings += [json.loads(line) for line in process.stdout]
        process.wait()

    def _tell(self, result):
        if result["failed"]:
            print(f"FAILED {words(result)}: {str(result['failed'])[:400]}", flush=True)
        if time.monotonic() - self._told > 30:
            self._told = time.monotonic()
            print(f"  {len(self.results)} played, {self._queue.qsize()} to go", flush=True)


PARTS = ("fault", "course", "role", "point", "nth", "victim", "how")
"""What makes a case."""


def earlier(path):
    """Return the recordings of a file of results, as (fault, course) -> points, and the cases that passed there."""
    results = [json.loads(line) for line in Path(path).read_text().splitlines()]
    good = [result for result in results if not result["failed"]]
    found = {
        (result["fault"], result["course"]): matrix.points_of([tuple(point) for point in result["points"]])
        for result in good
        if "role" not in result
    }
    return found, {tuple(result[part] for part in PARTS) for result in good if "role" in result and result["reached"]}


def chance(seed):
    """Return chance that comes again with the same seed."""
    return random.Random(seed)  # noqa: S311 - nothing is to be kept secret


def words(case):
    """Return a case in words."""
    if "role" not in case:
        return f"{case['fault']} {case['course']} (recording)"
    return f"{case['fault']} {case['course']}: {case['victim']} {case['how']} at {case['role']} {case['point']}#{case['nth']}"


def recordings(faults, courses, seed, *, brief):
    """Return the recordings to make; in brief, each course of a fault that holds once, and with another one's natural end."""
    first = next((name for name, kind in faults.items() if kind.needs_training and _held(name)), None)
    made = [(fault, course) for fault in faults for course in matrix.courses_of(held=_held(fault), whole=fault == first)]
    if brief:
        short = chance(seed).choice(BRIEF)
        made = [(short, course) for course in ("told", "orphan", "debt", "lied")] + [("link_flap", "told"), ("link_flap", "natural")]
    chosen = [one for one in dict.fromkeys(made) if not courses or one[1] in courses]
    return [{"id": number, "fault": fault, "course": course} for number, (fault, course) in enumerate(chosen)]


def _held(fault):
    return bool(load(fault, params_of(fault, "told", "node1")).holds())


def record(fleet, wanted):
    """Return (fault, course) -> points, from undisturbed runs."""
    found = {}
    for result in fleet.play(wanted):
        points = [tuple(point) for point in result["points"]]
        result["failed"] += [f"not in its order: {what}" for what in matrix.disordered(points)]
        found[result["fault"], result["course"]] = matrix.points_of(points)
    return found


def sampled(every, number, seed):
    """Return the cases in an order in which the first ones have each victim, way, role and ledger's transition as far as it goes."""
    drawn, draw = [], chance(seed)
    rest = sorted(every, key=lambda case: draw.random())
    wanted = {trait: weight for case in rest for trait, weight in _traits(case).items()}
    while wanted and len(drawn) < number:
        best = max(rest, key=lambda case: sum(wanted.get(trait, 0) for trait in _traits(case)))
        wanted = {trait: weight for trait, weight in wanted.items() if trait not in _traits(best)}
        rest.remove(best)
        drawn.append(best)
    return drawn + rest


def _traits(case):
    """Return what a case would show, and how much that matters: the states of the ledger before all."""
    label = case["point"].partition(":")[0]
    return {
        ("label", case["role"], label): 3 if case["role"] != "controller" and label in (*matrix.STATES, *matrix.MARKS) else 1,
        ("victim", case["victim"], case["how"]): 2,
        ("fault", case["fault"]): 1,
        ("course", case["course"]): 1,
    }


def spread(chosen, seed):
    """Have the cases of a brief sample strike with other faults than the one that was recorded, where the point is everybody's."""
    draw = chance(seed)
    own = (*matrix.STATES, *matrix.MARKS, *matrix.KINDS, "lease")
    return [
        {**case, "fault": draw.choice(BRIEF)}
        if case["course"] == "told" and case["nth"] == 1 and case["point"].partition(":")[0] in own
        else case
        for case in chosen
    ]


def table(results, faults):
    """Return what was tried and what became of it, by fault and victim."""
    tried, bad, healed = Counter(), Counter(), Counter()
    for result in results:
        key = result["fault"], result["victim"]
        tried[key] += result["reached"]
        bad[key] += bool(result["failed"])
        healed[key] += "healed" in result["notes"] if "notes" in result else 0
    lines = [f"{'points tried':<16}" + "".join(f"{victim:>18}" for victim in (*matrix.VICTIMS, "all"))]
    for fault in (*faults, "all"):
        cells = []
        for victim in (*matrix.VICTIMS, "all"):
            keys = [key for key in tried if fault in ("all", key[0]) and victim in ("all", key[1])]
            count, failed, paid = (sum(of[key] for key in keys) for of in (tried, bad, healed))
            cells.append(f"{count}" + (f" ({paid} healed)" if paid else "") + (f" {failed} BAD" if failed else ""))
        lines.append(f"{fault:<16}" + "".join(f"{cell:>18}" for cell in cells))
    return lines


def lateness(results):
    """Return how long after the lease's end nodes were last seen harmed, where they were."""
    late = sorted(result["late"] for result in results if result.get("late") is not None and not result.get("healed"))
    beyond = sum(value > 1.0 for value in late)
    if not late:
        return "no node was seen harmed"
    return f"last seen harmed after the lease's end: {late[len(late) // 2]:+.2f} s (median), {late[-1]:+.2f} s (worst), {beyond} beyond 1 s"


def main():
    """Play the matrix, or a sample; returns the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lab", required=True)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--faults", default="")
    parser.add_argument("--courses", default="")
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--brief", action="store_true")
    parser.add_argument("--results")
    parser.add_argument("--again", help="results of an earlier time: what passed there is not played, and nothing is recorded")
    options = parser.parse_args()
    faults = {name: kind for name, kind in sorted(discover().items()) if not options.faults or name in options.faults.split(",")}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        fleet = Fleet(options.lab, [f"node{number}" for number in range(1, options.nodes + 1)], folder, options.results)
        try:
            if options.again:
                found, passed = earlier(options.again)
            else:
                wanted = recordings(faults, list(filter(None, options.courses.split(","))), options.seed, brief=options.brief)
                found, passed = record(fleet, wanted), set()
            lacking = [] if options.faults or options.courses or options.brief else matrix.unreached(found)
            every = [case for case in matrix.cases(found) if tuple(case[part] for part in PARTS) not in passed]
            if options.sample is not None:
                every = sampled(every, options.sample, options.seed)
            chosen = every[: options.sample]
            if options.brief:
                chosen = spread(chosen, options.seed)
            chance(options.seed).shuffle(chosen)
            print(
                f"{len(found)} recordings in {time.monotonic() - began:.0f} s; {len(chosen)} of {len(every)} cases, seed {options.seed}",
                flush=True,
            )
            results = fleet.play([{"id": 1000 + number, **case} for number, case in enumerate(chosen)])
            # Others instead of those that do not come again: a sample is as large as it says.
            played = len(chosen)
            while options.sample is not None and (short := options.sample - sum(result["reached"] for result in results)) > 0:
                more = every[played : played + short]
                if not more:
                    break
                results += fleet.play([{"id": 1000 + played + number, **case} for number, case in enumerate(more)])
                played += len(more)
        finally:
            fleet.close()
    print("\n".join(table(results, faults)))
    print(lateness(results))
    bad = [result for result in fleet.results if result["failed"]]
    owing = [ending for ending in fleet.endings if ending["last_audit"] != 0]
    for ending in owing:
        print(f"FAILED {ending['node']}: the last audit exits {ending['last_audit']}: {ending['said']}")
    for what in lacking:
        print(f"FAILED no case reaches the {what}")
    astray = [result for result in results if not result["reached"]]
    for result in astray:
        print(f"missed {words(result)}: {result['missed'][-1]}")
    reached = len(results) - len(astray)
    if reached < (options.sample if options.sample is not None else len(results) - MISSED_SHARE * (len(results) + len(passed))):
        print(f"FAILED {len(astray)} cases did not come to their point")
        lacking.append("points that were missed")
    counts = f"{reached} cases, {len(astray)} more missed, {len(bad)} failed"
    print(f"{counts}, {time.monotonic() - began:.0f} s, seed {options.seed}")
    return 1 if bad or owing or lacking else 0


if __name__ == "__main__":
    sys.exit(main())
