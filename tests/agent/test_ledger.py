"""The ledger: whatever part of it survives, it says rightly what is owed."""

import contextlib
import dataclasses
import json
import os
import stat
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaoskit.agent.ledger import Entry, Ledger, entry_name, file_name, fold
from chaoskit.errors import ProtocolError, RefusedError

UNDO = {"content": "whole"}


def planned(holds=((0.0, 1.0),), entry="run/1/n1"):
    return Entry(
        entry=entry, run="run", fault="toy", params={}, undo=UNDO, site={"node": "n1"}, holds=[list(span) for span in holds], boot_id="b"
    )


def history(holds, failures=0):
    """Return the records of a whole life, and after each whether something is owed."""
    one_shot = not holds
    moves = [({"state": "planned", **{k: v for k, v in planned(holds).to_json().items() if k not in ("state", "open", "damage")}}, False)]
    moves.append(({"state": "armed", "lease": 30.0}, True))
    for span in range(max(1, len(holds))):
        moves.append(({"state": "injecting", "span": span, "ends": 40.0}, not one_shot))
        moves.append(({"state": "injected", "span": span, "t0": [10.0 + span, 10.1 + span]}, not one_shot))
        if not one_shot:
            moves.append(({"state": "reverting", "boottime": 40.0}, True))
        if span + 1 < len(holds):
            moves.append(({"state": "released", "span": span, "t1": [11.0, 11.1]}, True))
    moves += [({"state": "failed", "t1": [12.0, 12.1], "says": "not yet"}, not one_shot)] * failures
    moves.append(({"state": "reverted", "t1": [20.0, 20.1], "says": "back"}, False))
    return [(json.dumps({"v": 1, "boottime": 1.0 + at, **record}).encode(), owed) for at, (record, owed) in enumerate(moves)]


lives = st.builds(history, st.sampled_from([(), ((0.0, 1.0),), ((0.0, 1.0), (2.0, 3.0), (4.0, 5.0))]), st.integers(0, 2))


@pytest.mark.row("R4", "R5")
@given(lives, st.data())
def test_any_prefix_of_a_ledger_yields_the_right_debt(life, data):
    """However many lines reached the disk, and wherever the next one was torn."""
    kept = data.draw(st.integers(0, len(life)))
    torn = life[kept][0][: data.draw(st.integers(0, len(life[kept][0]) - 1))] if kept < len(life) else b""

    entry = fold([line for line, _ in life[:kept]] + [torn])

    if kept == 0:
        assert entry is None
    else:
        assert entry.open == life[kept - 1][1]
        assert entry.undo == UNDO
        assert len(entry.damage) == (1 if torn else 0)


@pytest.mark.row("R5")
@given(lives, st.data())
def test_garbage_between_lines_hides_nothing(life, data):
    """Bytes that are no record are reported and skipped."""
    lines = [line for line, _ in life]
    garbage = st.binary(max_size=60).filter(lambda line: b"\n" not in line)
    for _ in range(data.draw(st.integers(1, 4))):
        lines.insert(
            data.draw(st.integers(0, len(lines))), data.draw(garbage | st.just(b"\0" * 512) | st.just(b'{"v":2,"state":"reverted"}'))
        )

    entry = fold(lines)
    assert (entry.state, entry.undo, entry.open) == ("reverted", UNDO, False)


@pytest.mark.row("R5")
@given(st.lists(st.binary(max_size=80), max_size=6))
def test_no_bytes_make_the_reader_fail(lines):
    """Reading never raises."""
    fold(lines)


def test_the_first_start_and_the_last_end_are_the_entrys_stamps():
    """t0 is the first span's, t1 the last revert's."""
    entry = fold([line for line, _ in history(((0.0, 1.0), (2.0, 3.0), (4.0, 5.0)))])

    assert (entry.t0, entry.t1) == ((10.0, 10.1), (20.0, 20.1))


def test_a_stamp_from_before_the_call_is_bettered_by_the_one_around_it():
    """A fault that takes the agent away leaves the first; if the agent lived, the second counts."""
    lines = [line for line, _ in history(())[:2]]
    lines.append(b'{"v":1,"state":"injecting","t0":[10.0,10.0]}')
    assert fold(lines).t0 == (10.0, 10.0)

    lines.append(b'{"v":1,"state":"injected","t0":[10.0,10.5]}')
    assert fold(lines).t0 == (10.0, 10.5)


@given(lives)
def test_an_entry_survives_json(life):
    """What audit sends is what heal takes."""
    entry = fold([line for line, _ in life])

    assert Entry.from_json(json.loads(json.dumps(entry.to_json()))) == entry


@pytest.mark.row("S4")
@pytest.mark.parametrize(
    "name", ["", "a", "a/b", "a/b/c/d", "../1/n", "a/../b", "a/./b", "/a/b", "a//b", "a/b/c\n", "a,b/1/n", "a/1/n\0", "é/1/n"]
)
def test_names_that_could_be_paths_are_refused(name):
    """RUN/NUMBER/NODE of letters, digits, dot, dash, underscore; nothing that a file system could read otherwise."""
    with pytest.raises(ProtocolError):
        entry_name(name)


part = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
names = st.tuples(part, part, part).map("/".join)


@given(names, names)
def test_two_names_never_share_a_file(one, other):
    """The encoding is one to one and stays in its directory."""
    assert (file_name(one) == file_name(other)) == (one == other)
    assert "/" not in file_name(one)


@pytest.fixture
def ledger(tmp_path):
    return Ledger(str(tmp_path / "ledger"))


@pytest.mark.row("S14")
def test_the_ledger_is_roots_alone(ledger):
    """Directory 0700, file 0600, whatever the umask."""
    old = os.umask(0)
    try:
        ledger.plan(planned())
    finally:
        os.umask(old)

    assert stat.S_IMODE(os.stat(ledger.directory).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(ledger.path("run/1/n1")).st_mode) == 0o600


def test_an_entry_is_planned_once(ledger):
    """The second plan of one name is refused and changes nothing."""
    ledger.plan(planned())
    with pytest.raises(RefusedError, match="stands in the ledger already"):
        ledger.plan(planned())


@pytest.mark.row("R5")
def test_a_record_after_a_torn_one_starts_on_its_own_line(ledger):
    """The rest of a torn write never swallows what comes next."""
    ledger.plan(planned())
    with open(ledger.path("run/1/n1"), "ab") as file:
        file.write(b'{"v":1,"sta')
    ledger.append("run/1/n1", "armed", lease=5.0)

    entry = ledger.read("run/1/n1")
    assert (entry.state, entry.lease, len(entry.damage)) == ("armed", 5.0, 1)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 KiB."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], check=True)
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.row("R3", "L6")
def test_a_full_disk_refuses_before_harm(small_disk):
    """A short write counts as none; what is owed is what stood there before."""
    ledger = Ledger(str(small_disk / "ledger"))
    ledger.plan(planned())
    filler = os.open(small_disk / "filler", os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        for _ in range(100):
            os.write(filler, b"x" * 4096)
    os.close(filler)

    with pytest.raises(RefusedError, match="cannot be written"):
        ledger.append("run/1/n1", "armed", lease=5.0, filler="x" * 8192)
    assert not ledger.read("run/1/n1").open

    os.unlink(small_disk / "filler")
    ledger.append("run/1/n1", "armed", lease=5.0)
    assert ledger.read("run/1/n1").open


@pytest.mark.row("R4", "L6")
def test_a_record_is_on_the_disk_before_append_returns(ledger, monkeypatch):
    """What a later harm relies on is fsynced, line by line; only a mark may wait for the next one."""
    synced = []
    monkeypatch.setattr("chaoskit.agent.ledger.os.fsync", lambda fd: synced.append(os.fstat(fd)[stat.ST_SIZE]))
    entry = ledger.plan(planned()).entry
    for state, more in (("armed", {"lease": 5.0}), ("injecting", {"ends": 9.0}), ("injected", {"t0": (1.0, 2.0)}), ("reverted", {})):
        ledger.append(entry, state, **more)
        assert synced[-1] == os.path.getsize(ledger.path(entry)), state
    ledger.append(entry, "reverting", durable=False)
    assert synced[-1] < os.path.getsize(ledger.path(entry))


@pytest.mark.row("R3")
def test_a_plan_that_the_disk_refuses_leaves_nothing_behind(small_disk):
    """Nothing was armed by it, so nobody has to wonder later what it owes, and the same name can be tried again."""
    ledger = Ledger(str(small_disk / "ledger"))
    big = dataclasses.replace(planned(), undo={"filler": "x" * 100_000})

    with pytest.raises(RefusedError, match="cannot be written"):
        ledger.plan(big)
    assert ledger.unreadable() == []
    ledger.plan(planned())


def test_closed_entries_are_pruned_after_a_month_and_open_ones_never(ledger, monkeypatch):
    """What is owed stays, however old; so do the newest, and what was closed within the month."""
    monkeypatch.setattr("chaoskit.agent.ledger.NEWEST", 1)
    for number in (1, 2, 3, 4):
        ledger.plan(planned(entry=f"run/{number}/n1"))
        ledger.append(f"run/{number}/n1", "armed", lease=1.0)
        if number != 2:
            ledger.append(f"run/{number}/n1", "reverted", t1=(1.0, 2.0))
        os.utime(ledger.path(f"run/{number}/n1"), (0, 2 * 86400 if number == 3 else 0))

    ledger.prune(now=31 * 86400.0)
    assert [entry.entry for entry in ledger.entries()] == ["run/2/n1", "run/3/n1", "run/4/n1"]


@pytest.mark.row("R8")
def test_a_wall_clock_that_jumped_forgets_nothing_of_late(ledger):
    """A century on, by a broken clock: what was closed just now is remembered, or a journal's old debt would be paid again."""
    ledger.plan(planned())
    ledger.append("run/1/n1", "armed", lease=1.0)
    ledger.append("run/1/n1", "reverted", t1=(1.0, 2.0))

    ledger.prune(now=4e9)
    assert ledger.read("run/1/n1").state == "reverted"


@pytest.mark.row("R7", "R8")
@given(st.lists(st.floats(-1e10, 1e10), min_size=2, max_size=6))
def test_the_order_of_entries_is_not_the_wall_clocks(tmp_path_factory, walls):
    """Newest first means what was planned last on this node, whatever the wall clock said at the time."""
    ledger = Ledger(str(tmp_path_factory.mktemp("node") / "ledger"))
    for number, wall in enumerate(walls):
        ledger.plan(dataclasses.replace(planned(entry=f"run/{number}/n1"), planned_at=wall))

    assert [entry.entry for entry in ledger.entries()] == [f"run/{number}/n1" for number in range(len(walls))]


@pytest.mark.row("R4", "R5")
def test_a_record_that_was_altered_is_not_believed(ledger):
    """It still parses, and says what nobody wrote: the undo of another moment, for one."""
    ledger.plan(planned())
    ledger.append("run/1/n1", "armed", lease=5.0)
    path = ledger.path("run/1/n1")
    with open(path, "rb") as file:
        whole = file.read()

    for old, new in ((b'"whole"', b'"woleh"'), (b'"lease":5.0', b'"lease":9.0')):
        assert old in whole
        with open(path, "wb") as file:
            file.write(whole.replace(old, new))
        entry = ledger.read("run/1/n1")
        assert entry is None or (entry.undo == UNDO and entry.lease == 0.0 and "line 2" in entry.damage[0])


@pytest.mark.row("R5")
def test_a_record_without_its_checksum_is_not_believed_where_others_have_one(ledger):
    """Whoever wrote that the debt was paid, it was no agent."""
    ledger.plan(planned())
    ledger.append("run/1/n1", "armed", lease=5.0)
    with open(ledger.path("run/1/n1"), "ab") as file:
        file.write(b'{"v":1,"state":"reverted","says":"paid"}\n')

    entry = ledger.read("run/1/n1")
    assert (entry.state, entry.open) == ("armed", True)
    assert entry.damage == ["line 3: it has no checksum, and others here have"]


@pytest.mark.row("R5")
def test_zeros_and_repeats_are_named_and_hide_nothing(ledger):
    """What a power cut leaves at the end, or before the next record; and a block that was written twice."""
    ledger.plan(planned())
    ledger.append("run/1/n1", "armed", lease=5.0)
    path = ledger.path("run/1/n1")
    with open(path, "rb") as file:
        armed = file.read().splitlines()[1]
    with open(path, "ab") as file:
        file.write(armed + b"\n" + b"\0" * 100)
    ledger.append("run/1/n1", "injected", t0=(1.0, 2.0))
    with open(path, "rb") as file:
        whole = file.read()
    with open(path, "wb") as file:
        file.write(whole.replace(b'{"t0"', b"\0" * 7 + b'{"t0"'))

    entry = ledger.read("run/1/n1")
    assert (entry.state, entry.lease) == ("injected", 5.0)
    assert [line.split(":")[0] for line in entry.damage] == ["line 3", "line 4", "line 5"]


@pytest.mark.row("R3")
def test_a_disk_that_became_read_only_still_tells_what_is_owed(tmp_path):
    """A server or a fuse that comes up then can pay; a new plan is refused, and no lock keeps anybody from paying."""
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(tmp_path)], check=True)
    try:
        ledger = Ledger(str(tmp_path / "state" / "ledger"))
        ledger.plan(planned())
        ledger.append("run/1/n1", "armed", lease=5.0)
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path)], check=True)

        again = Ledger(str(tmp_path / "state" / "ledger"))
        assert [entry.open for entry in again.entries()] == [True]
        with pytest.raises(RefusedError, match=r"Read-only file system.*ledger"):
            again.plan(planned(entry="run/2/n1"))
        with pytest.raises(RefusedError, match="Read-only"), again.resources_lock():
            pass
        with again.lock("run/1/n1", must=False):
            pass
        again.prune(now=4e9)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_ledger_that_cannot_be_made_is_a_refusal_that_names_it(tmp_path):
    """No file system takes a name so long."""
    with pytest.raises(RefusedError, match=r"/x+ cannot be written"):
        Ledger(str(tmp_path / ("x" * 300)))


@pytest.mark.row("R3")
def test_where_no_lock_can_be_had_nothing_is_armed_and_a_revert_goes_on(ledger):
    """A link stands where each lock should: it is not followed."""
    for name in ("resources.lock", "unit.lock", "run,1,n1.lock"):
        os.symlink("/dev/null", os.path.join(ledger.directory, name))
    for lock in (ledger.resources_lock, ledger.unit_lock, lambda: ledger.lock("run/1/n1", must=True)):
        with pytest.raises(RefusedError, match="cannot be written"), lock():
            pass
    gone_on = False
    with ledger.lock("run/1/n1", must=False):
        gone_on = True

    assert gone_on


def test_only_what_is_closed_is_forgotten(ledger):
    """A canary's entry, with its lock; once more is harmless; one that owes an undo stays."""
    ledger.plan(planned())
    ledger.append("run/1/n1", "armed", lease=30.0)
    with pytest.raises(RefusedError, match="it owes an undo"):
        ledger.forget("run/1/n1")

    ledger.append("run/1/n1", "reverted", says="back")
    with ledger.lock("run/1/n1", must=True), ledger.unit_lock():
        assert sorted(os.listdir(ledger.directory)) == ["run,1,n1.jsonl", "run,1,n1.lock", "unit.lock"]
    for _ in range(2):
        ledger.forget("run/1/n1")
    assert os.listdir(ledger.directory) == ["unit.lock"]


def test_an_entry_that_the_disk_does_not_let_go_is_told(ledger):
    """A folder stands where its lock should, which no file system unlinks."""
    ledger.plan(planned())
    os.mkdir(os.path.join(ledger.directory, "run,1,n1.lock"))

    with pytest.raises(RefusedError, match="cannot be written"):
        ledger.forget("run/1/n1")


def test_an_entry_whose_file_vanishes_while_it_is_looked_for_is_none(ledger):
    """Another agent has pruned it between the list and the look: a name that leads nowhere."""
    ledger.plan(planned())
    ledger.append("run/1/n1", "armed", lease=30.0)
    os.symlink("/nowhere", ledger.path("run/2/n1"))

    assert [entry.entry for entry in ledger.open_entries()] == ["run/1/n1"]
