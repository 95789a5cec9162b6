"""A signal that comes too late for a run's verdict: nothing else begins, and the exit code and the last line say so."""

import os
import signal
import subprocess
import sys

import pytest
from simulated_site import INVENTORY, SITE

from chaoskit import wiring
from chaoskit.engine.session import Session

pytestmark = pytest.mark.row("R11")

YAML = """\
title: A kill is survived
method:
  - {fault: node_kill, target: {group: workers, pick: 1, avoid: [rendezvous]}}
budgets: {lost_steps: 12}
"""


@pytest.fixture
def run(chaoskit, workdir, monkeypatch):
    """Return a function that runs experiments at the simulated site, each of which gets SIGTERM at the given stage of its end."""
    (workdir / "site.yaml").write_text(INVENTORY)
    for name in ("first", "second"):
        (workdir / f"{name}.yaml").write_text(YAML)
    real = wiring.run_order
    monkeypatch.setattr(wiring, "run_order", lambda order, show: real(order, show, SITE.reach))

    def run(where, name, *files):
        ending = getattr(where, name)

        def struck(*given):
            os.kill(os.getpid(), signal.SIGTERM)
            return ending(*given)

        monkeypatch.setattr(where, name, struck)
        return chaoskit("run", *files, "-i", "site.yaml")

    return run


@pytest.mark.parametrize(("where", "name"), [(Session, "_write_verdict"), (Session, "_tear_down"), (wiring, "write_reports")])
def test_the_next_experiment_does_not_begin(run, workdir, where, name):
    """The first one's verdict stands, its reports are whole, and what was asked for is not called green."""
    code, out, _ = run(where, name, "first.yaml", "second.yaml")

    assert 4 == code, out
    assert "ABORTED: 1 of 2 did not pass: 1 not run" == out.splitlines()[-1]
    assert "second.yaml: not run, since SIGTERM came" in out
    assert [] == list(workdir.glob("runs/*-second"))
    assert ["junit.xml", "summary.json"] == sorted(path.name for path in workdir.glob("runs/*-first/*") if path.suffix in (".xml", ".json"))


def test_one_alone_keeps_its_verdict(run):
    code, out, _ = run(Session, "_write_verdict", "first.yaml")

    assert 0 == code, out
    assert out.splitlines()[-1].startswith("PASSED: first:")


ENDS_SLOWLY = """
import os, signal, threading, time
from chaoskit.cli import main as program

def strike():
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)

program.main = lambda: threading.Thread(target=strike).start() or 3
program.entry()
"""


def test_a_ctrl_c_while_the_interpreter_ends_changes_no_exit_code():
    """The verdict is told by then, and nobody waits for what still runs."""
    done = subprocess.run([sys.executable, "-c", ENDS_SLOWLY], capture_output=True, text=True, timeout=30, check=False)

    assert (3, "") == (done.returncode, done.stderr)
