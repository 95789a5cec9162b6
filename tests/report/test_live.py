"""A run while it happens."""

import io
import os
import pty

import pytest

from chaoskit.engine.events import Event
from chaoskit.report import live
from chaoskit.report.sanitise import ESCAPES

from_the_engine = [
    Event(0.1, "stage", "connecting to 4 nodes"),
    Event(0.9, "connected", "4 nodes"),
    *(Event(1 + step / 10, "sample", f"step {step}", {"step": step}) for step in range(101)),
    Event(11.0, "steady", "10.00 steps/s over 100 steps", {"pace": 0.1, "band": 0.1}),
    Event(11.5, "injected", "link_flap plane B on node1", {"entry": "r/0/node1", "node": "node1"}),
    Event(11.6, "witness", "node1: \x1b]0;owned\x07carrier changed [bold]twice", {"entry": "r/0/node1", "holds": True}),
    Event(11.7, "phase", "held"),
    Event(12.2, "phase", "held"),
    *(Event(11.5 + step / 5, "sample", f"step {100 + step}", {"step": 100 + step}) for step in range(1, 31)),
    Event(17.6, "renewed", "", {}),
    Event(19.6, "phase", "recovering"),
]
ended = Event(20.0, "ended", "node1: carrier, addresses and routes are back", {"entry": "r/0/node1", "node": "node1", "gone": True})


class Terminal(io.StringIO):
    """A text file that says it is a terminal."""

    def isatty(self):
        return True


def status_after(events):
    status = live.Status()
    for event in events:
        status.apply(event)
    return status


@pytest.mark.row("L45")
def test_the_status_follows_the_training():
    """The rate is that of the last seconds, and is shown as a share of the baseline too."""
    status = status_after(from_the_engine[:-2])

    assert "step 130, 5.0 steps/s, 50 % of baseline" == status.training
    assert "held" == status.phase


def test_a_stalled_training_has_no_rate():
    """Five seconds without a step are no steps a second, whatever came before."""
    status = status_after([*from_the_engine[:-2], Event(30.0, "phase", "held")])

    assert "step 130, 0.0 steps/s, 0 % of baseline" == status.training


def test_the_first_step_of_a_life_has_no_rate_yet():
    """One step is no pace: a training that has just come back does not read as one that stands still."""
    status = status_after([*from_the_engine[:-2], Event(30.0, "sample", "", {"step": 101})])

    assert "step 101" == status.training


@pytest.mark.row("L45")
def test_what_is_owed_is_shown_until_it_is_proven_gone():
    """An entry stays listed from its arming on; only a proof takes it off."""
    status = status_after(from_the_engine)
    assert "1 owed, leases renewed 2 s ago: link_flap plane B on node1" == status.lease

    status.apply(Event(19.9, "ended", "node1: still down", {"entry": "r/0/node1", "gone": False}))
    assert status.open

    status.apply(ended)
    assert "nothing owed" == status.lease


def test_a_plane_on_many_nodes_is_one_thing_that_is_owed():
    """The line of a panel is short; 64 nodes are a range."""
    events = [Event(1.0, "injected", f"link_flap plane B on n{n}", {"entry": f"r/0/n{n}", "node": f"n{n}"}) for n in range(1, 65)]

    assert "64 owed: link_flap plane B on n[1-64]" == status_after(events).lease
    said = Event(1.0, "injected", "node_kill: n1 answers no more, as it should be", {"entry": "r/0/n1", "node": "n1"})
    assert "1 owed: node_kill: n1 answers no more, as it should be" == status_after([said]).lease


def test_a_step_that_falls_back_starts_the_rate_anew():
    """A restart from a checkpoint never shows a negative rate."""
    status = status_after(Event(at, "sample", "", {"step": step}) for at, step in ((1.0, 50), (1.5, 51), (2.0, 41), (2.5, 42)))

    assert 2.0 == status.rate


def test_plain_lines_say_each_thing_once(results, golden):
    """Without a terminal there is a line an event, few for steps and phases, and nothing that a terminal would obey."""
    out = io.StringIO()

    with live.watching(results["passed"].info, out) as listener:
        for event in [*from_the_engine, ended]:
            listener(event)

    golden("live.txt", out.getvalue())


def test_a_closed_pipe_does_not_end_the_run(results):
    """`chaoskit run ... | head` stops showing, and goes on."""
    reader, writer = os.pipe()
    os.close(reader)

    # Unbuffered, so that nothing is left to flush when the file is closed.
    with io.TextIOWrapper(io.FileIO(writer, "w"), write_through=True) as pipe, live.watching(results["passed"].info, pipe) as listener:
        for event in from_the_engine:
            listener(event)


def test_a_terminal_gets_a_panel_and_a_log(results):
    """The log scrolls above a panel; foreign text is neither an escape nor markup."""
    terminal = Terminal()

    with live.watching(results["passed"].info, terminal) as listener:
        for event in [*from_the_engine, ended]:
            listener(event)

    shown = terminal.getvalue()
    assert "carrier changed [bold]twice" in shown
    assert "Losing one network plane must not stop training" in shown
    assert "owned" not in shown


@pytest.mark.row("R11")
def test_a_terminal_that_closes_ends_no_run(results):
    """Its window is closed, or the SSH connection to it is lost: neither telling nor leaving the panel fails."""
    person, program = pty.openpty()
    with open(program, "w", encoding="utf-8") as terminal:
        with live.watching(results["passed"].info, terminal) as listener:
            listener(from_the_engine[0])
            os.close(person)
            for event in from_the_engine[1:]:
                listener(event)
        with pytest.raises(OSError, match="Input/output error"):
            os.write(program, b"closed indeed")
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            os.dup2(nowhere.fileno(), program)  # what was never written ends there


def mark(at, kind, says="", node=""):
    return Event(at, "mark", f"{kind}: {says}" if says else kind, {"node": node})


def test_a_sign_of_the_training_says_where_and_is_quoted_without_its_prefix():
    """A log's line is cut to its words: no stamp, no path into a library."""
    torch = "I1130 20:49:52.123000 176 lib/python3.11/site-packages/torch/elastic/agent/api.py:715] [default] Starting worker group"

    assert "   21.4 s  mark      new process on node2: Starting worker group" == live.Log().line(mark(21.4, "new process", torch, "node2"))
    assert "   21.4 s  mark      old processes gone" == live.Log().line(mark(21.4, "old processes gone"))


def test_a_burst_of_like_signs_is_told_once():
    """A kill makes every rank of every node complain; one line says it, other kinds and later ones are told as ever."""
    log = live.Log()
    burst = [mark(10 + number / 2, "detect", f"failed rank {number}", f"node{number}") for number in range(12)]

    assert ["detect on node0: failed rank 0"] == [line.split("mark")[1].strip() for each in burst if (line := log.line(each))]
    assert log.line(mark(12.0, "new process"))
    assert log.line(mark(30.0, "detect", "failed rank 0"))


class Hands:
    """A clock that stands where it is put."""

    now = 100.0

    def __call__(self):
        return self.now


def test_time_goes_on_in_the_panel_while_nothing_happens(results):
    """A launcher can be silent for a minute: the seconds run, and a training without steps loses its rate."""
    clock = Hands()
    panel = live.Panel(results["passed"].info, clock)
    for event in from_the_engine:
        clock.now = 100.0 + event.at
        panel.apply(event)

    clock.now = 142.4
    shown = [row.plain for row in panel.__rich__().renderables]

    assert "  42 s          connecting to 4 nodes" == shown[1]
    assert "step 130, 0.0 steps/s" in shown[2]
    assert "leases renewed 25 s ago" in shown[3]


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_every_line_of_a_terminal_fits_it(results, monkeypatch, columns):
    """A long line of the log is cut at the edge instead of breaking the panel below it."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()

    with live.watching(results["passed"].info, terminal) as listener:
        listener(Event(1.0, "trouble", "no connection " * 30))

    lines = [line for line in ESCAPES.sub("", terminal.getvalue()).splitlines() if "no connection" in line]
    assert 1 == len(lines)
    assert len(lines[0]) <= columns
