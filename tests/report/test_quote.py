"""What a training's log said, as our lines quote it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaoskit.report.quote import LONGEST, quote


@pytest.mark.parametrize(
    ("says", "quoted"),
    [
        (
            "I1130 20:49:52.802000 148 lib/torch/distributed/elastic/agent/server/api.py:715] [default] Starting worker group",
            "Starting worker group",
        ),
        (
            "E1130 21:53:42.717000 167 lib/torch/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 0",
            "failed (exitcode: -9) local_rank: 0",
        ),
        (
            "failed rank 0 after step 169: RuntimeError: [/__w/pytorch/gloo/transport/tcp/pair.cc:537] Read error [10.2.3.2]:50861",
            "failed rank 0 after step 169: RuntimeError: Read error [10.2.3.2]:50861",
        ),
        ("2026-11-30 21:53:42,717 - INFO - resuming from step 150", "resuming from step 150"),
        ("[2026-11-30T21:53:42.717Z] ERROR: lost contact", "lost contact"),
        ("loaded step 150", "loaded step 150"),
        ("srun: error: node2: task 1: Killed", "srun: error: node2: task 1: Killed"),
        ("", ""),
    ],
)
def test_a_quotation_is_the_words_without_the_prefix(says, quoted):
    """Stamps, levels and places in somebody's source say nothing to who watches a run."""
    assert quoted == quote(says)


def test_a_long_line_is_cut():
    """What is left out is shown to be."""
    assert "x" * (LONGEST - 3) + "..." == quote("x" * 500)


@given(st.text(max_size=400))
def test_any_text_becomes_one_harmless_short_line(says):
    """A node's log is data."""
    quoted = quote(says)

    assert len(quoted) <= LONGEST
    assert len(quoted.splitlines()) <= 1
    assert "\x1b" not in quoted
