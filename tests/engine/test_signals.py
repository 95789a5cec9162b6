"""Signals that end a run: when they raise, and when they wait."""

import os
import pty
import signal
import subprocess
import sys

import pytest

from chaoskit.engine.signals import Gate, Whose
from chaoskit.errors import AbortedError


@pytest.mark.row("R11")
def test_a_signal_that_strikes_code_that_is_not_ours_waits_for_ours():
    """Between the phases of a test it is pytest's code that would be torn: the signal is raised when ours goes on."""
    gate = Gate()
    gate.whose = Whose.OTHERS
    gate.handle(signal.SIGTERM, None)

    with pytest.raises(AbortedError, match="ended by SIGTERM"):
        gate.raise_pending()
    with pytest.raises(AbortedError, match="ended by SIGTERM"):  # a test may have caught the first
        gate.raise_pending()


@pytest.mark.parametrize("whose", [Whose.TESTS, Whose.OTHERS])
def test_code_that_is_not_ours_can_always_be_interrupted(whose, capfd):
    """A test that caught the first error, and a fixture that hangs, end by the second signal; our reverts do not."""
    gate = Gate()
    gate.heard = "SIGTERM"
    gate.whose = whose
    with pytest.raises(KeyboardInterrupt, match="SIGINT"):
        gate.handle(signal.SIGINT, None)
    with gate.ours():
        gate.handle(signal.SIGINT, None)

    assert "SIGINT: the run is ending already" in capfd.readouterr().err
    assert whose is gate.whose


@pytest.mark.row("R11")
def test_a_signal_during_the_reverts_is_known_afterwards():
    """It ends no run any more; whoever would begin the next one asks for it."""
    gate = Gate()
    gate.closed = True
    gate.handle(signal.SIGTERM, None)

    assert "SIGTERM" == gate.heard


@pytest.mark.row("R11")
def test_the_first_signal_raises_and_the_second_is_told(capfd):
    """The reverts that the first one leads to are not interrupted."""
    gate = Gate()
    with pytest.raises(AbortedError, match="ended by SIGINT"):
        gate.handle(signal.SIGINT, None)
    gate.handle(signal.SIGINT, None)

    assert "SIGINT: the run is ending already" in capfd.readouterr().err


WATCHED = """
import sys, threading
from concurrent.futures import Future
from types import SimpleNamespace
from chaoskit.engine.events import Event
from chaoskit.engine.gather import gather
from chaoskit.engine.signals import ending_signals
from chaoskit.errors import AbortedError
from chaoskit.report.live import watching

with ending_signals() as gate, watching(SimpleNamespace(name="x", title="t"), sys.stdout) as listen:
    try:
        listen(Event(0.0, "stage", "holding"))
        gather({"n1": Future()}, 60.0)
    except AbortedError:
        gate.closed = True
    listen(Event(1.0, "stage", "reverting"))
    slow = Future()
    threading.Timer(5.0, slow.set_result, (1,)).start()
    gather({"n1": slow}, 60.0)
    listen(Event(2.0, "ended", "it is back"))
"""


@pytest.mark.row("R11", "L36")
def test_a_second_signal_is_answered_while_the_reverts_go_on():
    """On a terminal, below a panel: who hears nothing for seconds strikes again, and harder."""
    ours, theirs = pty.openpty()
    screen = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    run = subprocess.Popen([sys.executable, "-c", WATCHED], stdin=theirs, stdout=theirs, stderr=theirs, env=screen)
    os.close(theirs)
    shown = b""

    def read_until(words):
        nonlocal shown
        while words not in shown:
            shown += os.read(ours, 65536)

    try:
        for awaited in (b"holding", b"stage     reverting"):
            read_until(awaited)
            run.send_signal(signal.SIGINT)
        read_until(b"the run is ending already, and nothing cuts its reverts short")
        assert b"it is back" not in shown, "the answer came when it was over"
        read_until(b"it is back")
    finally:
        run.kill()
        run.wait()
        os.close(ours)
