"""Following a log: every whole line once, with the span in which it was written, whatever happens to the file."""

import os
import pwd
import signal
import time

import pytest
from fair_watch import FairWatch
from hypothesis import given, settings
from hypothesis import strategies as st

from chaoskit.agent import tail
from chaoskit.agent.tail import Follower, NotAFileError


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log"


def read(follower, at=1.0):
    """Poll until nothing more comes."""
    lines = []
    while True:
        chunk = follower.poll(at)
        if chunk is None:
            return lines
        lines += chunk.lines


def add(path, text):
    with open(path, "ab") as file:
        file.write(text)


def test_only_what_is_new_unless_all_is_wanted(log):
    """`whole` decides about what stood there before."""
    add(log, b"old\n")
    new, whole = Follower(str(log), False, 0.0), Follower(str(log), True, 0.0)
    add(log, b"new\n")

    assert (read(new), read(whole)) == (["new"], ["old", "new"])


def test_a_line_carries_the_span_in_which_it_was_completed(log):
    """From the last look that reached the end of the file to this one; a half line is held until its end comes."""
    follower = Follower(str(log), True, 1.0)
    assert follower.poll(2.0) is None
    add(log, b"half")
    assert follower.poll(3.0) is None
    add(log, b" and half\nnext")
    chunk = follower.poll(4.0)

    assert (chunk.lines, chunk.since, chunk.dropped) == (["half and half"], 3.0, 0)
    assert chunk.at >= time.monotonic() - 1.0


def test_what_stood_there_before_was_written_at_some_time_since_boot(log):
    """Nothing is claimed about when."""
    add(log, b"old\n")
    assert Follower(str(log), True, 9.0).poll(9.0).since == 0.0


def test_progress_bars_are_lines(log):
    """A carriage return ends a line, with or without a newline."""
    follower = Follower(str(log), True, 0.0)
    add(log, b"\r 1%\r 2%\r\n 3%\n\n 4%")

    assert read(follower) == [" 1%", " 2%", " 3%"]


def test_a_file_that_comes_later_is_read_from_its_start(log):
    """Absence is no error."""
    follower = Follower(str(log), False, 0.0)
    assert read(follower) == []
    follower.poll(1.5)
    add(log, b"first\n")
    chunk = follower.poll(2.0)
    assert (chunk.lines, chunk.since) == (["first"], 1.5)


def test_rotation_loses_nothing(log):
    """The old file is read to its end before the new one is begun."""
    follower = Follower(str(log), True, 0.0)
    add(log, b"1\n")
    assert read(follower) == ["1"]
    add(log, b"2\n")
    log.rename(log.with_suffix(".1"))
    assert read(follower) == ["2"]
    add(log.with_suffix(".1"), b"3\n")
    assert read(follower) == ["3"]
    add(log, b"4\n")
    assert read(follower) + read(follower) == ["4"]


def test_truncation_begins_again(log):
    """What comes after is new from the start, and the half line before is none of it."""
    follower = Follower(str(log), True, 0.0)
    add(log, b"1\nhalf of a long line")
    read(follower)
    log.write_bytes(b"2\n")

    assert read(follower) == ["2"]


def test_what_is_no_regular_file_is_refused(tmp_path):
    """Neither a pipe, on which opening would hang, nor a folder."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(NotAFileError):
            Follower(str(path), True, 0.0)


def test_a_flood_is_cut_with_its_size_said(log):
    """A monstrous line is cut, a monstrous backlog is skipped; the bytes left out are counted."""
    follower = Follower(str(log), True, 0.0)
    add(log, b"x" * 200_000 + b"\nnext\n")
    chunks = []
    while len(chunks) < 4:
        chunks.append(follower.poll(1.0))
    chunks = [chunk for chunk in chunks if chunk is not None]
    assert [len(line) for chunk in chunks for line in chunk.lines] == [tail.LONGEST, 4]
    assert sum(chunk.dropped for chunk in chunks) == 200_000 - tail.LONGEST

    with open(log, "ab") as file:
        file.truncate(file.tell() + tail.BACKLOG + 1_000_000)
    add(log, b"\nlast\n")
    chunk = follower.poll(2.0)
    assert (chunk.lines, chunk.dropped > 1_000_000) == (["last"], True)


pieces = st.lists(st.text(st.sampled_from("ab\n"), max_size=8).map(str.encode), max_size=12)


@settings(deadline=None)
@given(pieces, st.data())
def test_every_whole_line_comes_once_however_it_is_written(tmp_path_factory, written, data):
    """Cuts of writing and of reading change nothing."""
    log = tmp_path_factory.mktemp("tail") / "log"
    follower, lines = Follower(str(log), True, 0.0), []
    for piece in written:
        add(log, piece)
        if data.draw(st.booleans()):
            lines += read(follower)
    lines += read(follower) + read(follower)
    follower.close()

    text = b"".join(written).decode()
    assert lines == [line for line in text[: text.rfind("\n") + 1].split("\n") if line]


def test_lines_and_beats_come_over_the_wire(any_agent, log):
    """Within a few hundredths of a second, with a beat each second in between; untail ends it."""
    channel = any_agent.connect()
    add(log, b"before\n")
    channel.ask("tail", stream="s", path=str(log), user=None, whole=True)
    first = channel.next_event("lines")
    assert (first["stream"], first["lines"], first["since"]) == ("s", ["before"], 0.0)

    watch = FairWatch()
    beats = [channel.next_event("beat")["at"] for _ in range(2)]
    assert 0.9 - watch.spared() < beats[1] - beats[0] < 1.5 + watch.spared()
    before = time.monotonic()
    add(log, b"step 1\nstep 2\n")
    event = channel.next_event("lines")
    assert event["lines"] == ["step 1", "step 2"]
    assert event["since"] <= time.monotonic()
    assert before - 0.1 - watch.spared() < event["since"] < event["at"] < before + 0.5 + watch.spared()

    channel.ask("untail", stream="s")
    channel.ask("tail", stream="s", path=str(log), user=None, whole=False)


def test_a_tail_is_the_trainings_user(agent, tmp_path):
    """It opens the file as that user: what the user may not read, the tail does not show."""
    nobody = pwd.getpwuid(65534).pw_name
    channel = agent.connect()
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    secret.chmod(0o600)
    channel.ask("tail", stream="s", path=str(secret), user=nobody, whole=True)

    assert "Permission denied" in channel.next_event("tail_end")["why"]
    channel.ask("tail", stream="t", path=str(tmp_path), user="no-such-user", whole=True)
    assert "no-such-user" in channel.next_event("tail_end")["why"]


def test_the_tail_ends_with_its_connection(agent, log, until):
    """Nobody reads it any more, so no child is left."""
    channel = agent.connect()
    log.touch()
    channel.ask("tail", stream="s", path=str(log), user=None, whole=False)
    channel.next_event("beat")
    (server,) = agent.pids("serve")

    def children():
        with open(f"/proc/{server}/task/{server}/children") as file:
            return [open(f"/proc/{pid}/cmdline", "rb").read().split(b"\0")[4:5] for pid in file.read().split()]

    assert children() == [[b"tail"]]
    channel.kill()
    until(lambda: children() == [])


def test_a_connection_that_ends_while_its_tail_speaks_ends_alone(agent, log):
    """Both are told to the server in one turn: what the ended one's child still says is nobody's, and the server goes on."""
    channel = agent.connect()
    log.touch()
    channel.ask("tail", stream="s", path=str(log), user=None, whole=False)
    channel.next_event("beat")

    server = agent.kill("serve", signal.SIGSTOP)
    channel.kill()
    add(log, b"a line\n")
    time.sleep(0.3)  # the child looks every 10 ms
    os.kill(server, signal.SIGCONT)

    assert agent.connect().ask("clock")["mono"] > 0
    assert agent.pids("serve") == [server]


def test_a_reader_that_does_not_keep_up_loses_nothing(agent, log):
    """The lines wait in their file, not in the server's memory."""
    channel = agent.connect()
    wanted = ["{:099d}".format(number) for number in range(60_000)]
    add(log, ("\n".join(wanted) + "\n").encode())
    channel.ask("tail", stream="s", path=str(log), user=None, whole=True)
    time.sleep(1.0)
    assert agent.connect().ask("clock")["mono"] > 0

    lines = []
    while len(lines) < len(wanted):
        event = channel.next_event("lines")
        assert "dropped" not in event
        lines += event["lines"]
    assert lines == wanted
