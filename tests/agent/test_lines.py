"""Lines that tell when they were altered: what each of them is called, to the word, and what of a record is written."""

import errno
import json
import os
import resource

import pytest

from chaoskit.agent.lines import records, seal, unseal, write

ONE, TWO = seal({"a": 1})[:-1], seal({"a": 2})[:-1]
ZEROS = "zeros, as a power cut leaves them"
REPEATS = "it repeats the line before"
ALTERED = "it was altered since it was written: its checksum does not fit"
UNSEALED = "it has no checksum, and others here have"


def told(*lines):
    return [(number, str(said) if isinstance(said, Exception) else said) for number, said in records(lines)]


def test_a_record_is_one_short_line_with_its_checksum():
    """Without a blank, and the same on every machine."""
    assert seal({"a": 1, "b": "é"}) == b'{"a":1,"b":"\\u00e9","sum":"4cf46589"}\n'
    assert unseal(seal({"a": 1, "b": "é"})[:-1]) == {"a": 1, "b": "é"}


def test_a_ledger_takes_no_number_that_json_has_not_and_a_journal_does():
    """An agent of another make has to read the one; the other is read by Python alone."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        seal({"a": float("inf")})
    assert unseal(seal({"a": float("inf")}, allow_nan=True)[:-1]) == {"a": float("inf")}


@pytest.mark.row("R5")
def test_each_line_is_called_what_it_is():
    """A person reads it beside the line's number."""
    whole = (ONE, ONE, b"\0" + TWO, b"", b" \t", b"\0\0", ONE.replace(b"1", b"3"), b'{"a":4}')
    assert told(*whole) == [
        *((1, {"a": 1}), (2, REPEATS), (3, ZEROS), (3, {"a": 2})),
        *((6, ZEROS), (7, ALTERED), (8, UNSEALED)),
    ]


@pytest.mark.row("R5")
def test_what_stands_around_a_record_is_no_part_of_it_when_it_is_blank_and_else_alters_it():
    """Blanks, and no other white space: nobody of ours writes a form feed."""
    assert told(b" " + ONE + b"\t\r", b"\x0c" + TWO) == [(1, {"a": 1}), (2, ALTERED)]


@pytest.mark.row("R5")
def test_one_checksum_between_zeros_is_enough_to_ask_one_of_all():
    assert told(ONE + b"\0\0", b'{"a":4}') == [(1, ZEROS), (1, {"a": 1}), (2, UNSEALED)]


def test_a_file_without_any_checksum_is_read_as_it_is():
    """An older agent's."""
    assert told(b'{"a":1}', b'{"a":2}') == [(1, {"a": 1}), (2, {"a": 2})]


@pytest.mark.row("R3")
def test_a_write_that_falls_short_is_an_error_with_both_sizes(tmp_path):
    """The kernel's own short write: it takes what fits below a limit, as a disk takes what fits on it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    fd = os.open(tmp_path / "ledger", os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    line = json.dumps({"a": "x" * 190}).encode() + b"\n"
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OSError, match="No space left") as caught:
            write(fd, line)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        os.close(fd)
    said = (caught.value.errno, caught.value.strerror)
    assert said == (errno.ENOSPC, f"No space left on device, 100 of {len(line)} bytes written")
