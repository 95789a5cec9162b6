"""Ending a run from elsewhere: who may, who waits for what, and what is said when nobody is there to end it."""

import threading
import time

import pytest

from chaoskit.engine import stopping
from chaoskit.engine.journal import Journal
from chaoskit.engine.stopping import NAME, stop, why_stopped
from chaoskit.errors import DeadlineError, InputError, RefusedError

HEAD = {
    "run": "2026-old",
    "name": "old",
    "title": "",
    "why": "",
    "file": "old.yaml",
    "inventory": "site",
    "inventory_file": "site.yaml",
    "seed": 1,
    "nodes": 1,
    "gpus": 1,
    "started": "2026-11-30T12:00:00+00:00",
    "began": 0.0,
    "positions": {},
    "version": "",
    "spec": {"budgets": {}},
    "planned": [],
}


class Book(Journal):
    """A journal that a test may close before the fixture does."""

    closed = False

    def close(self):
        if not self.closed:
            self.closed = True
            super().close()


@pytest.fixture
def journal(tmp_path):
    """Return the journal of a run whose controller lives: this process."""
    book = Book(tmp_path)
    book.append("run", 5.0, HEAD)
    yield book
    book.close()


def obey(journal, run_dir, after=0.0):
    """Do what an engine does: see the file, end the run, let go of the journal."""
    while not (why := why_stopped(run_dir)):
        time.sleep(0.01)
    journal.append("aborted", 6.0, {"why": why})
    journal.append("verdict", 7.0, {"outcome": "ABORTED", "reasons": [why]})
    time.sleep(after)
    journal.close()


def test_nobody_asked(tmp_path):
    assert "" == why_stopped(tmp_path)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("the fabric team called\n", "the fabric team called"),
        ("two\nlines\n", "two lines"),
        ("", "stopped by a file STOP in the run directory"),
        ("x" * 5000, "x" * 300),
    ],
)
def test_what_stands_in_the_file_is_the_reason(tmp_path, content, why):
    (tmp_path / NAME).write_text(content)

    assert why == why_stopped(tmp_path)


def test_it_waits_until_the_controller_has_ended_and_returns_the_verdict(tmp_path, journal):
    """Also the teardown: the controller lets go of its journal after that."""
    engine = threading.Thread(target=obey, args=(journal, tmp_path, 0.5))
    engine.start()
    result = stop(tmp_path, "stopped by me", within=30.0)
    had_let_go = journal.closed
    engine.join()

    assert ("ABORTED", "aborted: stopped by me") == (str(result.verdict.outcome), result.verdict.reasons[0])
    assert had_let_go


def test_who_asked_first_is_the_reason(tmp_path, journal):
    (tmp_path / NAME).write_text("the first\n")
    engine = threading.Timer(1.0, obey, args=(journal, tmp_path))  # else the run may have ended before the second asks
    engine.start()

    assert "aborted: the first" == stop(tmp_path, "the second", within=30.0).verdict.reasons[0]
    engine.join()


def test_a_run_that_takes_longer_is_asked_all_the_same(tmp_path, journal):
    with pytest.raises(DeadlineError, match=r"has not after 0\.3 s: it is reverting"):
        stop(tmp_path, "stopped by me", within=0.3)
    assert "stopped by me" == why_stopped(tmp_path)


def test_a_dead_controller_is_said_and_what_to_do(tmp_path, journal, monkeypatch):
    monkeypatch.setattr(stopping, "GRACE", 0.3)
    journal.close()

    with pytest.raises(RefusedError, match=r"controller is dead.*chaoskit heal"):
        stop(tmp_path, "stopped by me", within=30.0)
    assert not (tmp_path / NAME).exists(), "nobody will ever read it"


def test_a_run_that_has_ended_is_left_as_it_is(tmp_path, journal):
    journal.append("verdict", 7.0, {})
    journal.close()

    with pytest.raises(InputError, match="has ended already"):
        stop(tmp_path, "stopped by me", within=30.0)
    assert not (tmp_path / NAME).exists()


def test_a_directory_without_a_run_is_bad_input(tmp_path):
    with pytest.raises(InputError, match="no journal to read"):
        stop(tmp_path, "stopped by me", within=30.0)


def test_who_asks_again_while_the_training_is_being_ended_waits_on(tmp_path, journal):
    """The verdict is written, and the controller lives: that is what the first, who gave up, was told to do."""
    journal.append("verdict", 7.0, {"outcome": "PASSED", "reasons": []})
    with pytest.raises(DeadlineError, match=r"its verdict is written.*ask again to wait on"):
        stop(tmp_path, "stopped by me", within=0.3)
    closing = threading.Timer(0.5, journal.close)
    closing.start()
    stop(tmp_path, "stopped by me", within=30.0)
    had_let_go = journal.closed
    closing.join()

    assert had_let_go
    assert not (tmp_path / NAME).exists()
