"""
Ending a live run from elsewhere: a file `STOP` in its run directory, which the engine's loop looks for at every turn.

What stands in the file becomes the reason. The run then ends as after any abort: it reverts, judges, and writes its
verdict. Nobody needs chaoskit for it: `touch runs/latest/STOP` does the same.
"""

import os
import time
from pathlib import Path

from chaoskit.engine.journal import is_live
from chaoskit.engine.replay import read_run, state_of
from chaoskit.engine.result import RunResult
from chaoskit.errors import DeadlineError, InputError, RefusedError

NAME = "STOP"
LONGEST = 300
"""Characters of the file that become the reason."""
ASK_EVERY = 0.2
"""Seconds between looks at the journal."""
GRACE = 3.0
"""Seconds without a living controller until it is given up: a file system without locks shows none, and the run may end all the same."""
HEAL = "nodes heal themselves when their lease ends: `chaoskit audit` tells, `chaoskit heal` mends what is left"


def why_stopped(run_dir: Path) -> str:
    """Return why the run was asked to end; empty when nobody asked."""
    path = run_dir / NAME
    if not path.exists():
        return ""
    try:
        # Nobody's pipe may hold up the loop that renews the leases.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), encoding="utf-8", errors="replace") as file:
            words = " ".join(file.read(LONGEST).split())
    except OSError:
        words = ""  # somebody asked, whatever it says
    return words or f"stopped by a file {NAME} in the run directory"


def stop(run_dir: Path, reason: str, within: float) -> RunResult:
    """
    Ask a live run to end, and wait until it has.

    Args:
        run_dir: The run's directory.
        reason: What its verdict shall say.
        within: Seconds to wait at most; the run ends also when nobody waits for it.

    Raises:
        InputError: There is no such run, or it has ended already.
        RefusedError: Its controller is dead.
        DeadlineError: It has not ended yet.
        OSError: We may not write there.
    """
    judged = state_of(run_dir)[0].judged
    if judged and not is_live(run_dir):
        raise InputError("the run has ended already", where=str(run_dir), hint=f"`chaoskit report {run_dir}` shows its verdict")
    asked = False
    if not judged:  # otherwise its controller is ending the training, which is waited for
        asked = _ask(run_dir / NAME, reason)
    until = time.monotonic() + within
    alone = time.monotonic() + GRACE
    while is_live(run_dir) or not state_of(run_dir)[0].judged:
        now = time.monotonic()
        if is_live(run_dir):
            alone = now + GRACE
        if now > alone:
            if asked:
                (run_dir / NAME).unlink(missing_ok=True)  # nobody will ever read it
            raise RefusedError("the run's controller is dead, so nobody is left to end it", where=str(run_dir), hint=HEAL)
        if now > until:
            raise DeadlineError(_late(run_dir, within))
        time.sleep(ASK_EVERY)
    return read_run(run_dir)


def _ask(path: Path, reason: str) -> bool:
    """Write the file whole or not at all, unless it is there: who asked first is the reason. Return whether we did."""
    fresh = path.with_name(f".{NAME}-{os.getpid()}")
    with fresh.open("x", encoding="utf-8") as file:
        file.write(f"{reason}\n")
    try:
        if path.exists():
            return False
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    return True


def _late(run_dir: Path, within: float) -> str:
    judged = state_of(run_dir)[0].judged
    at = "its verdict is written, and it is ending the training" if judged else "it is reverting, or waiting for a node"
    return f"{run_dir}: the run was asked to end, and has not after {within:g} s: {at}; ask again to wait on"
