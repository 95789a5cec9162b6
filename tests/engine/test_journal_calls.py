"""Each call by which a run writes its journal fails in turn, by the kernel's own answer: once, or from then on."""

import json
import os
import random
import shutil
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from chaoskit.engine.journal import NAME, read
from chaoskit.errors import InputError

pytestmark = [
    pytest.mark.row("R3"),
    pytest.mark.skipif(shutil.which("strace") is None, reason="no strace on this machine"),
]

ROOT = Path(__file__).parents[2]
ERRORS = ("ENOSPC", "EIO")

RUN = """
import json, sys
from pathlib import Path
from simulated_cluster import Cluster, injection
from chaoskit.engine.journal import JournalError

cluster = Cluster(Path(sys.argv[1]))
try:
    result = cluster.run(injection(targets=("n1", "n2")))
    said = {"outcome": result.verdict.outcome.value, "says": " ".join((*result.verdict.reasons, *result.notes))}
except JournalError as error:
    said = {"outcome": None, "says": str(error)}
entries = {name: entry for node in cluster.nodes.values() for name, entry in node.entries.items()}
said["began"] = [name for name, entry in entries.items() if entry.t0 is not None]
print(json.dumps({**said, "owed": cluster.owed}))
"""


def run(folder, *options):
    """Run an experiment on the simulated cluster under strace; return what it says and how many calls failed."""
    run_dir, log = folder / "run", folder / "trace"
    run_dir.mkdir()
    argv = ["strace", "-f", "-qq", "-o", log, "-P", run_dir / NAME, "-P", run_dir, *options, sys.executable, "-c", RUN, run_dir]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'support'}"}
    done = subprocess.run(argv, env=environment, cwd=folder, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), log.read_text().count("(INJECTED)")


def recorded(run_dir, kind):
    """Return the records of a kind that the journal holds, by their entry; none where there is no journal."""
    try:
        return {record.get("entry"): record for record in read(run_dir).records if record["kind"] == kind}
    except InputError:
        return {}


def strike(folder, call, error, number, *, for_ever):
    """Play a run while calls fail, and hold it against the promise; return how many calls failed."""
    folder.mkdir()
    said, struck = run(folder, "-e", f"inject={call}:error={error}:when={number}{'+' if for_ever else ''}")
    how = (call, error, number, for_ever, said)
    assert said["owed"] == [], how  # a revert waits for no journal
    planned, ended = (recorded(folder / "run", kind) for kind in ("planned", "ended"))
    assert all(planned[entry]["undo"] == {"was": "fast"} for entry in said["began"]), how
    if struck:  # and a verdict that was reached stands, whatever becomes of what is written after it
        assert said["outcome"] != "PASSED" or set(ended) == set(said["began"]) != set(), how
        assert os.strerror(28 if error == "ENOSPC" else 5) in said["says"], how
    return struck


def test_a_drawn_sample_never_harms_without_an_undo_and_always_reverts(tmp_path):
    """Four of all: before the harm, while it is held, and near the end."""
    ways = [("openat", "EIO", 1, False), ("openat", "ENOSPC", 2, True)]
    ways += [("fsync", error, number, for_ever) for error in ERRORS for number in range(1, 15) for for_ever in (False, True)]
    ways += [("write", error, number, for_ever) for error in ERRORS for number in range(1, 150) for for_ever in (False, True)]
    for place, (call, error, number, for_ever) in enumerate(random.Random(7).sample(ways, 4)):  # noqa: S311 - a sample, and no secret
        assert strike(tmp_path / f"{place}", call, error, number, for_ever=for_ever)


@pytest.mark.prove
@pytest.mark.parametrize("for_ever", [False, True], ids=["once", "for_ever"])
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("call", ["openat", "fsync"])
def test_every_call_never_harms_without_an_undo_and_always_reverts(tmp_path, call, error, for_ever):
    """Until there is no call of that number any more."""
    struck = next(number for number in count(1) if not strike(tmp_path / f"{number}", call, error, number, for_ever=for_ever)) - 1
    assert struck >= {"openat": 2, "fsync": 10}[call]
    print(f"{call} {error}: {struck} calls failed in turn")


@pytest.mark.prove
def test_every_write_never_harms_without_an_undo_and_always_reverts(tmp_path):
    """Most are observations, a hundred and more; each fails in one of the four ways, in turn."""
    ways = [(error, for_ever) for error in ERRORS for for_ever in (False, True)]
    for number in count(1):
        error, for_ever = ways[number % 4]
        if not strike(tmp_path / f"{number}", "write", error, number, for_ever=for_ever):
            break
    assert number > 100
    print(f"write: {number - 1} calls failed in turn")
