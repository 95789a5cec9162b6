"""Hostile YAML: whatever stands in a file, the answer is a value or errors with line and column, in bounded time and memory."""

import re
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import check, tried

from chaoskit.errors import InputError
from chaoskit.model.hostlist import HostListError, expand
from chaoskit.model.load import experiment_from, inventory_from, load_experiment
from chaoskit.model.scalars import ScalarError, read_plain
from chaoskit.model.source import LONGEST_WORDS, MOST_PROBLEMS
from chaoskit.model.units import parse_duration, parse_pick, parse_share, parse_size
from chaoskit.model.yaml_source import LARGEST, parse_source

pytestmark = pytest.mark.row("S2")

CPU = 3.0
"""Seconds of processor time; far above what any of these takes (0.9), far below what a search without end takes."""


def many(form, count=60_000):
    return b"".join(form % number for number in range(count))


FILES = {
    "alias bomb": b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(b"%c: &%c [" % (c, c) + b"*%c," % (c - 1) * 9 + b"]\n" for c in b"bcdefghijk"),
    "self alias": b"a: &a [*a]\n",
    "anchors": many(b"a%d: &x 1\n"),
    "lists 10,000 deep": b"[" * 10_000,
    "mappings 10,000 deep": b"{a: " * 10_000,
    "dashes": b"- " * 400_000,
    "question marks": b"? " * 400_000,
    "100 MB": b"#" * (LARGEST + 1),  # as much as is ever read of it
    "duplicate keys": b"title: 1\n" * 100_000,
    "python tag": b"title: !!python/object/apply:os.system ['id']\n",
    "local tags": many(b"a%d: !x 1\n"),
    "merge keys": many(b"<<: {a%d: 1}\n"),
    "byte order mark": b"\xef\xbb\xbftitle: \xef\xbb\xbf\n",
    "tabs": b"a:\n" + b"\tb: 1\n" * 150_000,
    "UTF-16": "title: x\n".encode("utf-16"),
    "UTF-32": "title: x\n".encode("utf-32"),
    "binary": bytes(range(256)) * 3000,
    "control characters": b"\x01" * 900_000,
    "carriage returns": b"title: x\r\nmethod: on\r\n" * 9000,
    "not UTF-8": b"\xff" * 900_000,
    "half pairs": b"a: \xed\xa0\x80\n" * 90_000,
    "documents": b"---\n" * 200_000,
    "directives": b"%YAML 1.1\n" * 90_000,
    "unknown keys": many(b"k%06d: 1\n"),
    "a list of entries": b"method: [" + b"{fault: x}," * 80_000 + b"]\n",
    "a key of 900 kB": b"k" * 900_000 + b": 1\n",
    "a text of 900 kB": b"title: " + b"k" * 900_000 + b"\n",
    "a number of 900 kB": b"seed: " + b"1" * 900_000 + b"\n",
    "nearly a number": b"seed: " + b"1" * 900_000 + b"s\n",
    "nearly a time": b"seed: " + b"1:" * 400_000 + b"\n",
    "a duration of 900 kB": b"title: x\nmethod:\n - fault: link_flap\n   with: {down: " + b"9" * 900_000 + b"s}\n",
    "host ranges": b"name: x\nnodes:\n" + many(b'  "n%05d[1-99999]": {group: g}\n', 20_000),
    "like without end": b"name: x\nnodes:\n" + b"".join(b'  "n%05d": {like: n%05d}\n' % (n, n + 1) for n in range(20_000)),
    "unclosed quote": b'title: "' + b"x" * 900_000,
    "colons": b":" * 900_000,
}


@pytest.mark.parametrize("read", [experiment_from, inventory_from])
@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_is_refused_in_bounded_time(name, read):
    """Every problem has line and column, is a sentence and no megabyte, and no search has no end."""
    begun = time.process_time()
    with pytest.raises(InputError) as caught:
        read(parse_source(FILES[name], "e.yaml"))

    assert time.process_time() - begun < CPU
    assert 1 <= len(caught.value.problems) <= MOST_PROBLEMS
    for line in str(caught.value).splitlines():
        assert re.match(r"e\.yaml:[0-9]+:[0-9]+: ", line)
        assert len(line) < 3 * LONGEST_WORDS + 60


def test_no_hostile_file_takes_200_megabytes(tmp_path):
    """All of them in one process, one after another."""
    code = (
        "import resource, sys; sys.path[:0] = sys.argv[1:]\n"
        "import test_yaml_files as t\n"
        "from chaoskit.errors import InputError\n"
        "for data in t.FILES.values():\n"
        "    try: t.experiment_from(t.parse_source(data, 'e.yaml'))\n"
        "    except InputError: pass\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)\n"
    )
    here = [str(folder) for folder in (Path(__file__).parent, Path(__file__).parents[1] / "support")]
    done = subprocess.run([sys.executable, "-c", code, *here], capture_output=True, text=True, check=True)

    assert int(done.stdout) < 200


@pytest.mark.parametrize("size", [10 << 20, 100 << 20])
def test_of_a_huge_file_only_the_beginning_is_read(tmp_path, size):
    """10 MB, and 100 MB that take no disk."""
    path = tmp_path / "big.yaml"
    with path.open("wb") as file:
        file.truncate(size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    with pytest.raises(InputError, match=r"big\.yaml:1:1: the file is larger than 1 MB"):
        load_experiment(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000


@tried(40, 5000)
def test_quantities_and_host_lists_raise_their_own_errors_only(examples):
    """Fuzzed texts of the characters that these grammars are made of."""
    text = st.text("0123456789.-_:%[]/,exEINFinfao+ smhdkMGTiB\u0660\u00b2\n\t", max_size=24) | st.text(max_size=8)

    @given(text | st.integers() | st.floats() | st.none() | st.booleans())
    def holds(value):
        for reader in (parse_duration, parse_share, parse_size, parse_pick):
            try:
                reader(value)
            except ValueError:
                continue
        if isinstance(value, str):
            for reader, error in ((expand, HostListError), (read_plain, ScalarError)):
                try:
                    reader(value)
                except error:
                    continue

    check(holds, examples)
