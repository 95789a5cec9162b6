"""Whole runs on the lab, as a user starts them: real sshd, real links, real kills, a real torch training."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import ground_truth
import pytest

pytestmark = pytest.mark.cluster

TOP = Path(__file__).parents[2]
WORKERS = ("node1", "node2", "node3", "node4")
LINE_DELAY = 0.05
"""How much earlier than its line a step may have ended: what chaoskit allows for (`chaoskit.training.stamps`)."""


@dataclass(frozen=True)
class Run:
    """What one `chaoskit run` left: its exit code, what it printed, and its artefacts."""

    code: int
    said: str
    folder: Path

    @property
    def summary(self):
        return json.loads((self.folder / "summary.json").read_text())

    @property
    def junit(self):
        return ET.parse(self.folder / "junit.xml").getroot()

    @property
    def last_line(self):
        return self.said.strip().splitlines()[-1]

    def interval(self, name):
        figure = self.summary["quantities"][name]
        return figure["lo"], figure["hi"]


def chaoskit(*args):
    done = subprocess.run(
        [sys.executable, "-c", "from chaoskit.cli.main import entry; entry()", *map(str, args)],
        check=False,
        capture_output=True,
        text=True,
        cwd=TOP,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def run(lab, tmp_path):
    """Return a function that runs an experiment (a path, or text) at the lab, or at a changed copy of its inventory."""

    def run(experiment, change=lambda text: text):
        if isinstance(experiment, str):
            path = tmp_path / "experiment.yaml"
            path.write_text(experiment)
            experiment = path
        inventory = tmp_path / "inventory.yaml"
        inventory.write_text(change(lab.inventory_path.read_text()))
        code, said = chaoskit("run", experiment, "--inventory", inventory, "--out", tmp_path / "runs")
        return Run(code, said, (tmp_path / "runs" / "latest").resolve())

    return run


def shipped(name, **budgets):
    """Return a shipped experiment's text, with other budgets when some are given."""
    text = (TOP / "experiments" / f"{name}.yaml").read_text()
    return re.sub(r"(?s)budgets:.*", f"budgets: {json.dumps(budgets)}\n", text) if budgets else text


@pytest.mark.row("L13", "L38")
@pytest.mark.prove
def test_losing_a_plane_halves_the_pace_and_restarts_nothing(run):
    done = run(TOP / "experiments" / "plane_loss.yaml")
    summary = done.summary

    assert (done.code, summary["outcome"]) == (0, "PASSED"), done.said
    assert done.last_line.startswith("PASSED")
    low, high = done.interval("throughput_during")
    assert 0.40 <= (low + high) / 2 <= 0.65
    assert done.interval("restarts") == (0, 0)
    assert done.interval("settle_time")[1] < 10
    [injection] = summary["injections"]
    assert [injection[fact]["holds"] for fact in ("present", "exposed", "gone")] == [True, True, True]
    assert injection["felt"] is True


@pytest.mark.row("L13", "L26")
@pytest.mark.prove
def test_losing_a_plane_that_the_training_does_not_use_is_void(run):
    done = run("training: rail_a\n" + shipped("plane_loss"))

    assert (done.code, done.summary["outcome"]) == (3, "INCONCLUSIVE"), done.said
    assert "void" in done.said
    assert done.last_line.startswith("INCONCLUSIVE")


def judged_exactly(lab, done):
    """Compare a rank_kill with the trainer's own stamps; return the width of the widest time and one step's time."""
    [victim] = done.summary["injections"][0]["targets"]
    truth = ground_truth.notes(lab, WORKERS, done.folder.name)
    before, after = ground_truth.t0_stamps(lab, victim, done.folder.name)
    reloaded = [note for note in truth if note.event == "loaded" and note.rank == 0][1]
    steps = [note for note in truth if note.event == "step" and note.rank == 0]
    highest = max(note.step for note in steps if note.t < reloaded.t)
    resumed = next(note for note in steps if note.t > reloaded.t)
    recovered = next(note for note in steps if note.t > reloaded.t and note.step > highest)

    assert done.interval("lost_steps") == (ground_truth.lost_steps(truth),) * 2
    widths = []
    for name, note in (("time_to_resume", resumed), ("time_to_recover", recovered)):
        low, high = done.interval(name)
        assert low <= note.t - after, name
        assert note.t - before <= high, name
        widths.append(high - low)
    return max(widths), done.summary["baseline"]["pace"]


@pytest.mark.row("L16", "L29")
def test_a_killed_rank_is_judged_exactly_and_an_impossible_budget_fails(lab, run):
    done = run(shipped("rank_kill", time_to_resume="100ms", restarts=1))

    assert (done.code, done.summary["outcome"]) == (1, "FAILED"), done.said
    width, step = judged_exactly(lab, done)
    assert width < step + 0.1
    case = next(case for case in done.junit.iter("testcase") if case.get("name") == "time_to_resume")
    message = case.find("failure").get("message")
    assert re.fullmatch(r"time_to_resume \d+\.\d+ s( ±[\d.]+)?, at most 0\.1 s", message), message
    assert "chaoskit run" in done.said


@pytest.mark.row("L23")
@pytest.mark.prove
def test_a_training_that_dies_fails_with_the_time_that_was_watched(run):
    text = shipped("rank_kill", time_to_recover="20s", restarts=1)
    done = run(text + "watch: 20s\n", lambda inventory: inventory.replace("launcher: torchrun", "launcher: torchrun\n    max_restarts: 0"))

    assert (done.code, done.summary["outcome"]) == (1, "FAILED"), done.said
    assert re.search(r"time to recover\s+> \d", done.said)


@pytest.mark.row("L28", "L37")
def test_an_unreachable_node_is_inconclusive_and_leaves_a_junit_file(run):
    done = run(shipped("rank_kill"), lambda inventory: inventory.replace("  node2:\n", "  node2:\n    address: 127.0.0.1\n"))

    assert (done.code, done.summary["outcome"]) == (3, "INCONCLUSIVE"), done.said
    assert "node2" in done.junit.find(".//error").get("message")


@pytest.mark.row("L19", "L37")
def test_zero_targets_are_inconclusive_and_leave_a_junit_file(run):
    done = run(shipped("rank_kill").replace("avoid: [rendezvous]", "avoid: [node1, node2, node3, node4]"))

    assert (done.code, done.summary["outcome"]) == (3, "INCONCLUSIVE"), done.said
    assert len(list(done.junit.iter("error"))) == 1


def test_nonsense_is_bad_input_with_every_error_positioned(lab, tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text(
        "title: x\nseed: 012\nmethod:\n  - fault: link_flop\n    target: {group: workers}\n    after: 5\nbudgets: {lost_stepps: 1}\n"
    )
    code, said = chaoskit("run", path, "--inventory", lab.inventory_path)

    assert code == 2
    assert {int(line.split(":")[1]) for line in said.splitlines() if line.startswith(str(path))} == {2, 4, 6, 7}
    assert "did you mean" in said


@pytest.mark.row("L29")
@pytest.mark.prove
def test_ten_killed_ranks_are_judged_exactly(lab, run):
    """Lost steps ten of ten; true times inside the intervals; at least nine narrower than a step and 100 ms."""
    narrow = 0
    for seed in range(10):
        done = run(shipped("rank_kill").replace("seed: 7", f"seed: {seed}"))
        assert done.code in (0, 3), done.said
        width, step = judged_exactly(lab, done)
        narrow += width < step + 0.1

    assert narrow >= 9


@pytest.mark.prove
def test_a_killed_node_comes_back_into_the_training(run):
    done = run(TOP / "experiments" / "node_kill.yaml")

    assert (done.code, done.summary["outcome"]) == (0, "PASSED"), done.said
    assert done.interval("restarts") == (1, 1)
