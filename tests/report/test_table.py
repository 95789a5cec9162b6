"""The table that a person reads at the end."""

import io
from dataclasses import replace

import pytest

from chaoskit.judge.verdict import BudgetResult, BudgetState, Disruption, Outcome, Phase, Quantity
from chaoskit.model.interval import Interval
from chaoskit.report import table
from chaoskit.report.sanitise import ESCAPES


class Terminal(io.StringIO):
    """A text file that says it is a terminal."""

    def isatty(self):
        return True


def shown(result):
    return table.plain([*table.verdict_table(result), table.artefacts(result), table.closing(result)])


def test_each_outcome_reads_as_agreed(example, golden):
    """The plain table of each way to end is the one that a person once read and approved."""
    name, result = example

    golden(f"table-{name}.txt", shown(result))


def test_the_last_line_is_the_verdict(example):
    """The last line starts with the word of the exit code, and the heading ends with the same."""
    _, result = example
    lines = shown(result).splitlines()

    assert lines[-1].startswith(f"{result.verdict.outcome}: ")
    assert lines[0].endswith(str(result.verdict.outcome))


def test_what_did_not_pass_says_how_to_run_it_again(example):
    """Every outcome but PASSED prints its rerun line."""
    _, result = example

    asked = "rerun              chaoskit run experiments/" in shown(result)

    assert asked is (result.verdict.outcome is not Outcome.PASSED)
    if asked:
        assert "--seed 7" in shown(result)


def test_of_several_faults_each_felt_step_time_says_whose_it_is(results):
    """With two injections a remark names the fault."""
    base = results["stated"]
    kill = replace(base.verdict.injections[0], fault="rank_kill", detail="rank_kill")
    two = replace(base, verdict=replace(base.verdict, injections=(base.verdict.injections[0], kill)))
    (row,) = [line for line in shown(two).splitlines() if line.startswith("  step time")]

    assert row.split() == ["step", "time", "1.52", "±0.03", "times", "stated", "1.5", "±15", "%", "ok", "(link_flap)"]


def test_a_summary_of_several_runs_ends_with_the_worst(results, golden):
    """The summary names every run and closes with the worst outcome and who was not green."""
    several = [results["passed"], results["failed"], results["void"]]

    golden("summary.txt", table.plain([*table.summary_table(several), table.summary_closing(several)]))


def test_a_summary_of_green_runs_is_green(results):
    """Several passed runs close with PASSED and their number."""
    rows = table.summary_closing([results["passed"], results["passed"]])

    assert "PASSED: 2 of 2 passed" == rows.text


@pytest.mark.parametrize("no_colour", [False, True])
def test_a_terminal_gets_colour_unless_it_is_refused(results, monkeypatch, no_colour):
    """On a terminal the outcome is coloured; NO_COLOR turns colours off; the words stay the same."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1") if no_colour else monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()

    table.show([table.closing(results["failed"])], terminal)

    assert ("\x1b[1;31m" in terminal.getvalue()) is not no_colour
    assert "FAILED: rank_kill: time_to_steady 41.2 s, at most 30 s" in terminal.getvalue()


def test_foreign_text_cannot_speak_to_the_terminal(results):
    """Escapes and CI commands that a node printed do not reach the terminal, and brackets are not markup."""
    terminal = Terminal()

    table.show(table.verdict_table(results["failed"]), terminal)

    assert "[ [ATTACHMENT|/etc/shadow]]" in terminal.getvalue()
    assert "\x1b[31m" not in terminal.getvalue()


@pytest.mark.parametrize("columns", [80, 120])
def test_a_table_is_as_wide_as_the_terminal(results, monkeypatch, columns):
    """No line is broken by the terminal itself, but for what one copies; a wide one gets the usual width."""
    monkeypatch.setenv("COLUMNS", str(columns))
    terminal = Terminal()

    table.show([*table.verdict_table(results["void"]), table.artefacts(results["void"])], terminal)

    table.show(table.summary_table([results["void"]]), terminal)

    lines = ESCAPES.sub("", terminal.getvalue()).splitlines()
    assert "INCONCLUSIVE" in lines[0]
    assert min(columns, 100) == max(len(line) for line in lines if "rerun" not in line)


def test_phases_stand_where_a_moment_ends_one(results):
    """A run that was ended in the middle of a fault has one phase up to its end, which is the lost time once more."""
    base = results["aborted"]
    cut, sign = Phase("end of the watch", 10.0, 13.0, 2, 2.8), Phase("detect", 9.5, 10.0, 0, 0.5)

    assert "phases" not in shown(replace(base, verdict=replace(base.verdict, ledger=(cut,))))
    told = shown(replace(base, verdict=replace(base.verdict, ledger=(sign, cut))))
    assert "  phases             detect 0.5 + end of the watch 3.0 = 3.5 s, 3.3 s of it lost\n" in told


def test_a_disruption_is_told_once(results):
    """Two stalls with the same remark are one row, and the remark is no reason a second time."""
    says = "the observer did not see enough to say whether the training stood still"
    stalls = (Disruption(Interval.at(1.0), "stall", {}, 0, says), Disruption(Interval.at(2.0), "stall", {}, 0, says))
    base = results["failed"]
    told = shown(replace(base, verdict=replace(base.verdict, disruptions=stalls, reasons=(*base.verdict.reasons, says))))

    assert 1 == told.count(says)
    assert f"  stall              {says}\n" in told


@pytest.mark.parametrize(
    ("changes", "closing"),
    [
        ({}, "4 of 4 budgets met"),
        (
            {"absorbed": True, "reasons": ("absorbed: the training's throughput never left the band",)},
            "4 of 4 budgets met; the fault was absorbed",
        ),
        ({"reasons": ("the observer did not see enough",)}, "4 of 4 budgets met"),
        ({"budgets": ()}, "the training recovered; no budget was given"),
    ],
)
def test_a_green_closing_says_what_was_met(results, changes, closing):
    """What stands after PASSED is why it passed, and never a remark that reads like a doubt."""
    base = results["passed"]

    assert f"PASSED: plane_loss: {closing}" == table.closing(replace(base, verdict=replace(base.verdict, **changes))).text


def test_a_green_closing_of_a_python_test_speaks_of_the_test(results):
    """Its assertions are what was judged, and pytest has judged them."""
    base = results["passed"]
    test = replace(base, info=replace(base.info, file="t.py::test_x"), verdict=replace(base.verdict, budgets=()))

    assert "PASSED: plane_loss: the training recovered; what the test states holds" == table.closing(test).text


def test_columns_do_not_touch_nor_shift(results):
    """A long limit widens its column for every row."""
    short, *_ = results["passed"].verdict.budgets
    long = BudgetResult("lost_gpu_hours", "at most", 64.0, Quantity("lost_gpu_hours", None, "GPU-h"), BudgetState.UNDECIDED, "")
    judged = replace(results["passed"].verdict, budgets=(short, long))

    rows = [line for line in shown(replace(results["passed"], verdict=judged)).splitlines() if "at most" in line]

    assert rows[0].index("ok") == rows[1].index("undecided")
    assert "at most 64 GPU-h  undecided" in rows[1]
