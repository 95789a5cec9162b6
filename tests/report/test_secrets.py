"""A secret that a training prints stands in nothing that we write; a harmless value of the same training does."""

import json

import pytest

from chaoskit.engine.journal import NAME, Journal
from chaoskit.engine.recorder import Recorder
from chaoskit.judge.timeline import Interval, Mark, MarkKind, Observed
from chaoskit.model import secrets
from chaoskit.report import sanitise

pytestmark = pytest.mark.row("S13")

CANARY = 'canary-"7f\\3é'


@pytest.fixture(autouse=True)
def _hidden():
    before = set(secrets._hidden)
    secrets.hide({"WANDB_API_KEY": CANARY, "OMP_NUM_THREADS": "harmless-value", "MONKEY": "a monkey is none", "HF_TOKEN": "short"})
    yield
    secrets._hidden.clear()
    secrets._hidden.update(before)


class Clock:
    def now(self):
        return 1.0


def test_the_journal_has_no_secret_and_reads_the_same_without_it(tmp_path):
    journal = Journal(tmp_path)
    recorder = Recorder(journal, Clock(), lambda _: None)
    mark = Mark(Interval.at(1.0), MarkKind.DETECT, 0, None, "n1", f"login with {CANARY} and harmless-value failed")
    recorder.observe(Observed(marks=(mark,)), 1.0)
    recorder.record("trouble", {"why": f"{CANARY}{CANARY}"})
    journal.close()
    text = (tmp_path / NAME).read_text()

    for form in (CANARY, json.dumps(CANARY)[1:-1], json.dumps(CANARY, ensure_ascii=False)[1:-1]):
        assert form not in text
    assert "login with [hidden] and harmless-value failed" in text
    assert "[hidden][hidden]" == recorder.state.trouble


def test_where_nothing_is_hidden_nothing_is_changed():
    secrets._hidden.clear()
    told = {"a": [CANARY, 1, None]}

    assert secrets.redacted_json(told) is told


@pytest.mark.parametrize("clean", [sanitise.text, sanitise.line])
def test_no_report_and_no_terminal_has_it(clean):
    assert "a [hidden] b a monkey is none short" == clean(f"a {CANARY} b a monkey is none short")


def test_it_is_found_as_json_writes_it():
    assert '{"a": "[hidden]"}' == secrets.redacted(json.dumps({"a": CANARY}))
