"""Whatever became of a journal's bytes: what is whole is read, the rest is named by its line, and `chaoskit report` works."""

import os
import random
import shutil
import subprocess
import sys

import pytest

from chaoskit.engine.journal import NAME, Journal, JournalError, read
from chaoskit.engine.remembered import headless, remembered
from chaoskit.engine.replay import read_run
from chaoskit.errors import InputError

pytestmark = pytest.mark.row("R4", "R5")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A journal with one record of each kind that carries something."""
    made = tmp_path_factory.mktemp("run")
    book = Journal(made)
    for number, (kind, fields) in enumerate(RECORDS):
        book.append(kind, float(number), fields)
    book.close()
    return made


UNDO = {"entry": "r/0/n1", "number": 0, "node": "n1", "fault": "link_flap", "params": {}, "undo": {"carrier": 1}, "boot_id": "b"}
SEEN = {"entry": "r/0/n1", "evidence": {"holds": True, "says": "down", "readings": {}}, "what": ""}
RECORDS = (
    ("connected", {"nodes": {"n1": "b"}, "notes": []}),
    ("baseline", {"start": 0.0, "end": 2.0}),
    ("observed", {"samples": [[0.1 * step, 0.1 * step + 0.01, step, "s"] for step in range(20)]}),
    ("planned", UNDO),
    ("armed", {"entry": "r/0/n1"}),
    ("injected", {"entry": "r/0/n1", "t0": [3.0, 3.1]}),
    ("witness", SEEN),
    ("ended", {**SEEN, "t1": [5.0, 5.1]}),
    ("verdict", {"outcome": "PASSED", "reasons": []}),
)


def test_every_prefix_is_an_earlier_state(run_dir, tmp_path):
    """At whatever byte the power went: the records before it, all of them, and no other."""
    raw = (run_dir / NAME).read_bytes()
    whole = read(run_dir).records
    for cut in range(len(raw) + 1):
        (tmp_path / NAME).write_bytes(raw[:cut])
        got = read(tmp_path)
        complete = raw[: cut + 1].count(b"\n") if raw[cut : cut + 1] == b"\n" else raw[:cut].count(b"\n")
        assert got.records == whole[:complete]
        assert len(got.notes) == (1 if raw[:cut].rpartition(b"\n")[2] and raw[cut : cut + 1] != b"\n" else 0)


def test_swapped_blocks_never_say_what_nobody_wrote(run_dir, tmp_path):
    """Each pair of 512-byte blocks: every record that is read is one that was written."""
    raw = (run_dir / NAME).read_bytes()
    whole = read(run_dir).records
    blocks = [raw[at : at + 512] for at in range(0, len(raw), 512)]
    for one in range(len(blocks)):
        for other in range(one):
            swapped = list(blocks)
            swapped[one], swapped[other] = swapped[other], swapped[one]
            (tmp_path / NAME).write_bytes(b"".join(swapped))
            assert all(record in whole for record in read(tmp_path).records)


def mangled(raw, chance):
    """Return the bytes after some of what disks and two writers do."""
    data = bytearray(raw)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        what = chance.randrange(7)
        if what == 0:
            del data[at:]
        elif what == 1:
            data[at:at] = bytes(chance.randrange(256) for _ in range(chance.randint(1, 40)))
        elif what == 2:
            data += b"\0" * chance.randint(1, 600)
        elif what == 3 and data:
            data[min(at, len(data) - 1)] ^= 1 << chance.randrange(8)
        elif what == 4:
            end = chance.randint(at, min(len(data), at + 600))
            data[at:at] = data[at:end]
        elif what == 5:
            del data[at : at + chance.randint(1, 600)]
        else:
            lines = bytes(data).split(b"\n")
            lines.insert(chance.randrange(len(lines)), chance.choice(lines))
            data = bytearray(b"\n".join(lines))
    return bytes(data)


@pytest.mark.parametrize("seeds", [pytest.param(range(400), id="400"), pytest.param(range(10_000), id="10000", marks=pytest.mark.prove)])
def test_damaged_bytes_are_named_and_the_rest_is_kept(run_dir, tmp_path, seeds):
    """Flips, cuts, doublings, holes, zeros, strangers' bytes: nothing is raised, and nothing is believed that was not written."""
    raw, whole = (run_dir / NAME).read_bytes(), read(run_dir).records
    for seed in seeds:
        (tmp_path / NAME).write_bytes(mangled(raw, random.Random(seed)))  # noqa: S311 - seeds, no secrets
        got = read(tmp_path)
        assert not [record for record in got.records if record not in whole], seed
        assert all(note.startswith(f"{tmp_path / NAME}:") for note in got.notes), seed


def test_a_journal_without_its_head_is_an_error_that_says_so(run_dir):
    """The report of a run whose first record was lost names the file."""
    with pytest.raises(InputError, match="no head record"):
        read_run(run_dir)


@pytest.mark.row("R5", "L2")
def test_what_a_journal_without_its_head_remembers_is_owed_and_its_loss_is_told(run_dir, tmp_path):
    """`audit` and `heal` pass over no journal because of its first line."""
    (tmp_path / "one").mkdir()
    kept = [line for line in (run_dir / NAME).read_bytes().splitlines(keepends=True) if b'"ended"' not in line]
    (tmp_path / "one" / NAME).write_bytes(b"\xff" * 40 + b"\n" + b"".join(kept))
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / NAME).write_bytes(b'{"v":1,"at":2.0,"ki')

    (owed,) = remembered(tmp_path, None)["n1"]
    assert (owed.debt["run"], owed.debt["undo"]) == ("r", {"carrier": 1})
    assert [(name, "lost its head" in says) for name, says in headless(tmp_path)] == [("one", True)]


@pytest.mark.row("R3")
def test_what_is_added_to_a_torn_journal_is_whole(tmp_path):
    """`heal` writes into the journal of a controller that died in the middle of a line: its record must not be swallowed."""
    book = Journal(tmp_path)
    book.append("armed", 1.0, {"entry": "r/0/n1"})
    book.close()
    with (tmp_path / NAME).open("ab") as file:
        file.write(b'{"v":1,"at":2.0,"ki')
    book = Journal(tmp_path, new=False)
    book.append("healed", 3.0, {"entry": "r/0/n1", "says": "whole"})
    book.close()

    got = read(tmp_path)
    assert [record["kind"] for record in got.records] == ["armed", "healed"]
    assert got.notes == (f"{tmp_path / NAME}:2: not a JSON record (torn by a crash?); the line is skipped",)


def fill(book):
    for at in range(1000):
        book.append("observed", float(at), {"samples": [[0.0, 0.0, step, "s"] for step in range(50)]})


@pytest.mark.row("R3")
def test_a_small_disk_takes_part_of_a_record_and_it_counts_as_none(tmp_path):
    """A short write is an error with path and errno; what is written when there is room again stands on its own line."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], check=True)
    try:
        book = Journal(tmp_path)
        with pytest.raises(JournalError, match=rf"{tmp_path}/{NAME}: .*No space left.*ENOSPC"):
            fill(book)
        before = len(read(tmp_path).records)
        os.truncate(tmp_path / NAME, (tmp_path / NAME).stat().st_size - 3000)
        book.append("verdict", 1.0, {"outcome": "PASSED", "reasons": []})
        book.close()
        got = read(tmp_path)
        assert got.records[-1]["kind"] == "verdict"
        assert before - 3 <= len(got.records) <= before + 1
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.row("R3")
@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace on this machine")
@pytest.mark.parametrize("call", ["openat", "write", "fsync"])
@pytest.mark.parametrize("error", ["ENOSPC", "EIO", "EROFS"])
def test_each_call_that_fails_is_an_error_before_harm(tmp_path, call, error):
    """By the kernel's own answer: nothing is returned as durable that was refused."""
    path = tmp_path / NAME
    program = (
        "import sys; from pathlib import Path; from chaoskit.engine.journal import Journal, JournalError\n"
        "try:\n    Journal(Path(sys.argv[1])).append('armed', 1.0, {'entry': 'r/0/n1'})\n"
        "except JournalError as error:\n    print(error); sys.exit(7)\n"
    )
    argv = ["strace", "-qq", "-o", os.devnull, "-P", str(path), "-e", f"inject={call}:error={error}"]
    done = subprocess.run([*argv, sys.executable, "-c", program, str(tmp_path)], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, error in done.stdout, str(path) in done.stdout) == (7, True, True), done.stderr
