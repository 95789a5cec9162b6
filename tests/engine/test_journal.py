"""The journal: on disk before harm, readable after any crash."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaoskit.engine.journal import NAME, Journal, JournalError, is_live, read
from chaoskit.errors import InputError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(fields=st.lists(st.dictionaries(st.text().filter(lambda key: key not in ("v", "at", "kind")), JSON, max_size=4), max_size=5))
def test_what_was_appended_is_read_back(tmp_path_factory, fields):
    run_dir = tmp_path_factory.mktemp("run")
    log = Journal(run_dir)
    records = [log.append("armed", float(at), value) for at, value in enumerate(fields)]
    log.close()

    assert list(read(run_dir).records) == records
    assert read(run_dir).notes == ()


@pytest.mark.row("R5")
@given(cut=st.integers(0, 200), garbage=st.binary(max_size=60))
def test_any_torn_tail_leaves_the_whole_lines_before_it(tmp_path_factory, cut, garbage):
    run_dir = tmp_path_factory.mktemp("run")
    log = Journal(run_dir)
    for at in range(4):
        log.append("armed", float(at), {"entry": f"r/0/n{at}"})
    log.close()
    raw = (run_dir / NAME).read_bytes()
    (run_dir / NAME).write_bytes(raw[: min(cut, len(raw))] + garbage)
    whole = raw[: min(cut, len(raw))].count(b"\n")

    assert [record["at"] for record in read(run_dir).records][:whole] == [float(at) for at in range(whole)]


@pytest.mark.row("R3")
def test_a_full_disk_is_an_error_before_harm():
    log = Journal.__new__(Journal)
    log.path, log._fd = NAME, os.open("/dev/full", os.O_WRONLY)

    with pytest.raises(JournalError, match="No space left"):
        log.append("armed", 0.0, {})


def test_an_existing_journal_is_never_overwritten(tmp_path):
    Journal(tmp_path).close()

    with pytest.raises(JournalError, match="File exists"):
        Journal(tmp_path)


@pytest.mark.row("S14")
def test_it_is_for_its_owner_only(tmp_path):
    before = os.umask(0)
    try:
        Journal(tmp_path).close()
    finally:
        os.umask(before)

    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600


def test_a_missing_journal_is_an_input_error_that_names_the_path(tmp_path):
    with pytest.raises(InputError, match=r"journal\.jsonl"):
        read(tmp_path)


def test_a_run_lives_as_long_as_somebody_holds_its_journal(tmp_path):
    """`chaoskit stop` asks; whoever only adds to it afterwards, as `heal` does, is no controller."""
    assert not is_live(tmp_path)
    log = Journal(tmp_path)
    assert is_live(tmp_path)
    log.close()
    later = Journal(tmp_path, new=False)
    assert not is_live(tmp_path)
    later.close()


def test_what_is_json_and_no_record_is_named_with_its_line(tmp_path):
    """Another version's, one without a kind, one whose moment no clock has counted."""
    wrong = ('{"v":2,"at":1.0,"kind":"armed"}', "[]", '{"v":1,"at":1e300,"kind":"armed"}', '{"v":1,"at":1.0}')
    (tmp_path / NAME).write_text("\n".join(['{"v":1,"at":1.0,"kind":"armed"}', *wrong]))
    got = read(tmp_path)

    assert [record["kind"] for record in got.records] == ["armed"]
    assert [note.partition(f"{NAME}:")[2] for note in got.notes] == [
        "2: schema version 2, this chaoskit reads 1; the line is skipped",
        *(f"{number}: not a record of a journal; the line is skipped" for number in (3, 4, 5)),
    ]
