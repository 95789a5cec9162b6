"""Standard error under a panel, on a real terminal."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

from chaoskit.report.sanitise import ESCAPES

SHOW = """
import os, sys, time
from datetime import UTC, datetime
from chaoskit.engine.events import Event
from chaoskit.engine.result import RunInfo
from chaoskit.report.live import watching

info = RunInfo("r", "plane_loss", "A title", "", "x.yaml", "lab", "lab.yaml", 1, 2, 2, datetime.now(UTC))
with watching(info, sys.stdout) as listener:
    listener(Event(1.0, "stage", "reverting"))
    time.sleep(0.3)
    os.write(2, b"SIGINT: reverting first\\n")
    time.sleep(0.3)
os.write(2, b"afterwards\\n")
"""


def seen_on_a_terminal(program: str) -> str:
    """Return all that a Python program writes to its terminal, escapes included."""
    terminal, far_end = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen([sys.executable, "-c", program], stdin=far_end, stdout=far_end, stderr=far_end, env=environment)
    os.close(far_end)
    seen = b""
    while True:
        try:
            seen += os.read(terminal, 4096)
        except OSError:  # what Linux answers once the last writer of a terminal is gone
            break
    os.close(terminal)
    assert 0 == process.wait(10), seen.decode()
    return seen.decode()


def test_a_line_on_standard_error_stands_above_the_panel():
    """The panel is taken away, the line is written, and the panel is drawn again: nothing is overwritten or left behind."""
    seen = seen_on_a_terminal(SHOW)

    before = seen[: seen.index("SIGINT: reverting first")]
    assert re.search(r"\x1b\[2K(?:\x1b\[[\d;]*m|\r)*\Z", before), before[-80:]
    assert "nothing owed" in ESCAPES.sub("", seen.partition("SIGINT")[2])


def test_standard_error_is_given_back():
    """What comes after the panel goes to the terminal as ever."""
    assert seen_on_a_terminal(SHOW).rstrip().endswith("afterwards")


def test_standard_error_that_is_a_file_is_left_alone(tmp_path):
    """`2> errors.log` gets every line, and keeps it."""
    errors = Path(tmp_path, "errors.log")
    program = f"import os; os.dup2(os.open({str(errors)!r}, os.O_CREAT | os.O_WRONLY), 2)\n{SHOW}"

    seen = seen_on_a_terminal(program)

    assert "SIGINT: reverting first\nafterwards\n" == errors.read_text()
    assert "SIGINT" not in seen
