"""
Lines that tell when they were altered: one JSON object a line, whose last member is a checksum of all before it.

Disks tear, lose, double and swap what was written; a record that still parses may then say what nobody ever wrote.
A file without any is read as it is. Standard library only, Python 3.8.
"""

import binascii
import errno
import json
import os
import re
from typing import Any, Iterable, Iterator, Mapping, Tuple, Union

SEAL = re.compile(rb',"sum":"([0-9a-f]{8})"\}\Z')

BLANK = b" \r\t"
ZEROS = b"\0" + BLANK


class ChangedError(ValueError):
    """A line is not what was written, or stands where nothing was written."""


def seal(record: Mapping[str, Any], *, allow_nan: bool = False) -> bytes:
    """Return a record, which has at least one member, as a line with its checksum. Raises ValueError, TypeError: it is no JSON."""
    body = json.dumps(record, allow_nan=allow_nan, separators=(",", ":")).encode()[:-1]
    return body + b',"sum":"%08x"}\n' % binascii.crc32(body)


def unseal(line: bytes) -> Any:
    """Return what a line says, without its checksum. Raises ValueError: it is no JSON, or was altered; RecursionError."""
    found = SEAL.search(line)
    if found is None:
        return json.loads(line.decode("utf-8"))
    body = line[: found.start()]
    if binascii.crc32(body) != int(found.group(1), 16):
        raise ChangedError("it was altered since it was written: its checksum does not fit")
    return json.loads(body.decode("utf-8") + "}")


def records(lines: Iterable[bytes]) -> Iterator[Tuple[int, Union[Any, Exception]]]:
    """
    Yield the number of each line that is not blank, and what it says or the error by which it cannot be read.

    Zeros around a record, as a power cut leaves them, a line that repeats the one before, and one without a checksum where
    any other line has one, are told as errors; the record between zeros is yielded too.
    """
    stripped = [raw.strip(BLANK) for raw in lines]
    sealed = any(SEAL.search(line.strip(ZEROS)) for line in stripped)
    before = b""
    for number, line in enumerate(stripped, 1):
        if not line:
            continue
        body = line.strip(ZEROS)
        if body != line:
            yield number, ChangedError("zeros, as a power cut leaves them")
        if not body:
            continue
        if body == before:
            yield number, ChangedError("it repeats the line before")
            continue
        before = body
        try:
            said: Union[Any, Exception] = unseal(body)
        except (ValueError, RecursionError) as error:
            said = error
        else:
            if sealed and not SEAL.search(body):
                said = ChangedError("it has no checksum, and others here have")
        yield number, said


def write(fd: int, line: bytes) -> None:
    """
    Append a line in one write, after a newline should an earlier one have been torn: its rest must not swallow this record.

    Args:
        fd: A file open for reading and appending.
        line: The line, with its newline.

    Raises:
        OSError: The disk did not take all of it.
    """
    size = os.fstat(fd).st_size
    if size and os.pread(fd, 1, size - 1) != b"\n":
        line = b"\n" + line
    written = os.write(fd, line)
    if written != len(line):
        raise OSError(errno.ENOSPC, "No space left on device, {} of {} bytes written".format(written, len(line)))
