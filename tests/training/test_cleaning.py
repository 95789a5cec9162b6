"""Raw log text becomes plain lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaoskit.training.cleaning import LINE_CAP, clean


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("step 5 loss 4.1 batch 32", [("", "step 5 loss 4.1 batch 32")]),
        ("\x1b[32mstep: 20\x1b[39m  loss: 11.8\x1b[0m", [("", "step: 20  loss: 11.8")]),
        (" 1%| 1/9 [00:01<\r 2%| 2/9 [00:02<\r", [("", " 1%| 1/9 [00:01<"), ("", " 2%| 2/9 [00:02<")]),
        ("0:  iteration 25/ 100 | x", [("0", " iteration 25/ 100 | x")]),
        ("[default7]: iteration 5/ 9 |", [("default7", "iteration 5/ 9 |")]),
        ("[rank3]:[E1218 ProcessGroupNCCL.cpp:629]", [("rank3", "[E1218 ProcessGroupNCCL.cpp:629]")]),
        ("(train_fn, pid=4711) step 5", [("train_fn, pid=4711", "step 5")]),
        ("ining-demo/0 [default0]:Training epoch 0", [("ining-demo/0 default0", "Training epoch 0")]),
        ("12: 34", [("", "12: 34")]),
        ("", []),
    ],
)
def test_colours_returns_and_prefixes_go(raw, expected):
    assert list(clean(raw)) == expected


@given(st.text())
def test_any_text_is_survived_and_none_is_longer_than_the_cap(raw):
    for _, text in clean(raw * 3):
        assert len(text) <= LINE_CAP
        assert "\r" not in text


def test_a_line_of_any_length_is_cut():
    [(_, text)] = clean("x" * (LINE_CAP + 5))
    assert len(text) == LINE_CAP
