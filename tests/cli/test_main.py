"""Errors and exit codes of the command line."""

import os
import re
import subprocess
import sys

import click
import pytest

from chaoskit.cli.main import EXIT_DEFECT, chaoskit_command, main
from chaoskit.errors import EXIT_ABORTED, EXIT_BAD_INPUT, AbortedError, LeakedError, RefusedError, UnreachableError
from chaoskit.lab.plan import STATE_ROOT

BROKEN = """\
title: A broken experiment
method:
  - fault: link_flop
    target: {group: workers}
    after: 5
budgets: {lost_step: 0}
"""


def test_help_names_every_command_and_the_exit_codes(chaoskit):
    """`--help` is the map."""
    code, out, _ = chaoskit("--help")

    assert 0 == code
    for command in ("lab", "faults", "plan", "run", "heal", "audit", "report", "schema"):
        assert re.search(rf"^  {command} ", out, re.MULTILINE)
    assert "0 passed, 1 failed, 2 bad input, 3 inconclusive, 4 aborted, 5 leaked" in out
    assert "..." not in out.partition("Commands:")[2]
    assert all(len(line) <= 90 for line in out.splitlines())


def test_every_problem_of_a_file_stands_on_its_own_line(chaoskit, workdir):
    """Nonsense YAML: exit 2, every error positioned, no traceback."""
    (workdir / "broken.yaml").write_text(BROKEN)

    code, _, err = chaoskit("run", "broken.yaml", "-i", "staging-example")

    lines = err.splitlines()
    assert EXIT_BAD_INPUT == code
    assert 3 <= len([line for line in lines if re.match(r"broken\.yaml:\d+:\d+: ", line)])
    assert "Traceback" not in err
    assert not (workdir / "runs").exists()


def test_the_problems_of_all_files_are_told_at_once(chaoskit, workdir):
    """Two broken experiments and a missing inventory are three things to mend, not three attempts."""
    (workdir / "one.yaml").write_text(BROKEN)
    (workdir / "two.yaml").write_text("title: {")

    code, _, err = chaoskit("run", "one.yaml", "two.yaml", "-i", "nowhere")

    assert EXIT_BAD_INPUT == code
    assert "one.yaml:3:" in err
    assert "two.yaml:" in err
    assert "nowhere" in err
    assert re.fullmatch(r"\d+ problems", err.splitlines()[-1])
    assert 1 == err.count(" problems\n")


@pytest.mark.row("L16")
@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["run"], "Missing argument 'FILE...'"),
        (["plan", "missing.yaml", "-i", "staging-example"], "missing.yaml: cannot read the file"),
        (["plan", "experiments/plane_loss.yaml", "-i", "nowhere"], "inventories/ has: "),
        (["plan", "experiments/plane_loss.yaml", "-i", "inventories"], "'inventories' is a directory (name one YAML file in it)"),
        (
            ["audit", "-i", str(STATE_ROOT / "away" / "inventory.yaml")],
            "the lab 'away' is not up (`chaoskit lab up --name away` starts it)",
        ),
        (["report", "nothing"], "there is no run 'nothing'"),
        (["faults", "link_flop"], "did you mean link_flap?"),
        (["schema", "nonsense"], "'nonsense' is not one of"),
    ],
)
def test_bad_input_is_exit_2_with_what_to_do(chaoskit, argv, told):
    """What the user typed and cannot be used never looks like a verdict."""
    code, _, err = chaoskit(*argv)

    assert EXIT_BAD_INPUT == code
    assert told in err


@pytest.fixture
def raising():
    """Return a function that adds a command which raises this; it is removed again."""

    def add(error):
        @click.command("raise")
        def command():
            raise error

        chaoskit_command.add_command(command)

    yield add
    chaoskit_command.commands.pop("raise", None)


@pytest.mark.row("L16")
@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (RefusedError("would cut the control path"), 3, "would cut the control path"),
        (UnreachableError("no connection", node="node3"), 3, "node3: no connection"),
        (AbortedError("ended by SIGTERM"), EXIT_ABORTED, "ended by SIGTERM"),
        (LeakedError("rail1 is still down", where="node2"), 5, "node2: rail1 is still down"),
        (UnreachableError("\x1b]0;owned\x07no connection", node="node3"), 3, "node3: no connection"),
        (ExceptionGroup("two", [RefusedError("first"), LeakedError("second")]), 5, "first\nsecond"),
        (KeyboardInterrupt(), EXIT_ABORTED, "aborted"),
        (PermissionError(13, "Permission denied", "/x/agent.pyz"), 3, "cannot use '/x/agent.pyz': Permission denied"),
        (OSError(28, "No space left on device", "/x/agent.pyz"), 3, "cannot use '/x/agent.pyz': No space left on device"),
    ],
)
def test_our_errors_are_a_sentence_and_a_code(raising, capsys, error, code, told):
    """What a person must read comes without a traceback, harmless, and with its own exit code."""
    raising(error)

    got = main(["raise"])

    err = capsys.readouterr().err
    assert code == got
    assert told in err
    assert "Traceback" not in err
    assert "\x1b" not in err


@pytest.mark.parametrize("error", [ZeroDivisionError("a defect"), FileNotFoundError(2, "a defect", "/x"), PermissionError("a defect")])
def test_a_defect_is_no_verdict(raising, capsys, error):
    """An error of ours is shown whole, under a code that none of the outcomes has."""
    raising(error)

    code = main(["raise"])

    assert EXIT_DEFECT == code
    assert code not in range(6)
    told = capsys.readouterr().err
    assert "Traceback" in told
    assert f"{type(error).__name__}: " in told
    assert "a defect" in told


def test_a_reader_that_goes_away_is_no_traceback(workdir):
    """`chaoskit schema experiment | true` ends quietly."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", "from chaoskit.cli.main import entry; entry()", "schema", "experiment"]

    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, cwd=workdir)
    os.close(writer)

    assert "" == done.stderr


UNPRIVILEGED = """
import os, sys
import chaoskit.lab.control  # while we still may read everything
from chaoskit.cli.main import main
os.seteuid(65534)
sys.exit(main(["lab", "down", "--name", "nobody-s"]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="dropping root needs root")
def test_only_root_removes_a_lab(workdir):
    """Without root nothing of it is touched, and the hint says what to do."""
    done = subprocess.run([sys.executable, "-c", UNPRIVILEGED], capture_output=True, text=True, check=False, cwd=workdir)

    assert (3, "lab nobody-s: to remove a lab needs root, as to start it did (run it with sudo)\n") == (done.returncode, done.stderr)
