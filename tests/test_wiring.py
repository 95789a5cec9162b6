"""From an experiment file to a run directory, on a simulated cluster."""

import fcntl
import json
import zipfile
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from simulated import SimClock, SimFleet, SimTraining
from simulated_site import Site

from chaoskit import wiring
from chaoskit.errors import AbortedError, InputError, RefusedError, UnreachableError
from chaoskit.judge.verdict import Outcome
from chaoskit.model.load import load_experiment, load_inventory

ROOT = Path(__file__).parents[1]
INVENTORY = """\
name: small
nodes: {"node[1-4]": {group: workers, gpus: 1, rails: [{netdev: rail0, plane: A}, {netdev: rail1, plane: B}]}}
trainings: {default: {launcher: attach, log: /var/log/train.log}}
"""


@pytest.fixture
def order(tmp_path):
    """Return an order of our plane_loss at a small site, its runs below a temporary directory."""
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    loaded = load_experiment(ROOT / "experiments" / "plane_loss.yaml")
    return wiring.Order(loaded, load_inventory(tmp_path / "inventory.yaml"), seed=3, out=tmp_path / "runs")


def quiet(_info):
    return nullcontext(lambda _event: None)


def failing(error):
    @contextmanager
    def open_fleet(_inventory):
        raise error
        yield

    return wiring.Reach(open_fleet)


def told(result):
    """Return what the files of a run say: outcome and exit code of the summary, and the JUnit suite."""
    summary = json.loads((result.run_dir / "summary.json").read_text())
    return summary["outcome"], summary["exit_code"], ET.parse(result.run_dir / "junit.xml").getroot().find("testsuite")


def files(order):
    """Return what the files of the one run say: the summary, and the JUnit file."""
    run_dir = order.out / "latest"
    return json.loads((run_dir / "summary.json").read_text()), ET.parse(run_dir / "junit.xml").getroot()


@pytest.mark.row("L37")
def test_a_site_that_cannot_be_used_still_leaves_a_junit_file(order):
    """Set-up failed: the run is inconclusive (3), with one error that says why, and a summary that agrees."""
    result = wiring.run_order(order, quiet, failing(RefusedError("node3: no connection")))

    outcome, code, suite = told(result)
    assert (Outcome.INCONCLUSIVE, 3) == (outcome, code) == (result.verdict.outcome, result.verdict.outcome.exit_code)
    assert ["run"] == [case.get("name") for case in suite.findall("testcase") if case.find("error") is not None]
    assert "node3: no connection" in suite.find("testcase/error").get("message")
    assert [] == suite.findall("testcase/failure")


def test_a_signal_during_set_up_is_an_abort(order):
    """What a signal ended is ABORTED (4), not inconclusive."""
    result = wiring.run_order(order, quiet, failing(AbortedError("ended by SIGTERM")))

    assert ("ABORTED", 4) == told(result)[:2]


@pytest.mark.parametrize(
    ("error", "outcome", "says"),
    [
        (ZeroDivisionError("a defect"), "INCONCLUSIVE", "ended by ZeroDivisionError: a defect"),
        (KeyboardInterrupt(), "ABORTED", "aborted: ended by KeyboardInterrupt"),
    ],
)
def test_what_is_no_error_of_ours_goes_on_and_its_run_says_so(order, error, outcome, says):
    """Before there was a session: a directory without a verdict would look like a run that lives."""
    with pytest.raises(type(error)):
        wiring.run_order(order, quiet, failing(error))

    summary, _ = files(order)
    assert (outcome, says) == (summary["outcome"], summary["reasons"][0])


@pytest.mark.parametrize(
    ("error", "outcome", "says"),
    [
        (pytest.fail.Exception("Timeout >60.0s"), "INCONCLUSIVE", "ended by Failed: Timeout >60.0s"),
        (KeyboardInterrupt(), "ABORTED", "aborted: ended by KeyboardInterrupt"),
    ],
)
def test_what_ends_a_run_that_was_well_so_far_keeps_its_files_from_saying_passed(order, error, outcome, says):
    """As a time limit of pytest does, or Ctrl-C where no signal is heard: summary and JUnit agree with what is raised."""
    ended = []

    def listen(event):
        ended.extend([event] if event.kind == "ended" else [])
        if ended and (event.kind, event.says) == ("phase", "steady"):
            raise error

    with pytest.raises(type(error)):
        wiring.run_order(order, lambda _info: nullcontext(listen), Site().reach)

    summary, suite = files(order)
    assert (outcome, says) == (summary["outcome"], summary["reasons"][0])
    assert ["run"] == [case.get("name") for case in suite.iter("testcase") if case.find("error") is not None]


def test_a_gap_that_is_found_while_the_run_goes_on_keeps_the_run(order):
    """The address of a protected node is looked up when a fault is prepared: by then there is a journal."""

    def site(_name):
        raise InputError("the address of the protected node login cannot be found")

    simulated = Site()

    def open_fleet(inventory):
        fleet = simulated.reach.open_fleet(inventory)
        fleet.enter_result.site = site
        return fleet

    result = wiring.run_order(order, quiet, replace(simulated.reach, open_fleet=open_fleet))

    assert (Outcome.INCONCLUSIVE, "the address of the protected node login cannot be found") == (
        result.verdict.outcome,
        result.verdict.reasons[0],
    )


def test_bad_input_leaves_no_run_behind(order):
    """An experiment that does not fit its inventory is bad input: no run began."""
    with pytest.raises(InputError):
        wiring.run_order(order, quiet, failing(InputError("no such training")))

    assert [] == list((order.out).iterdir())


def test_latest_points_at_the_last_run(order):
    """`runs/latest` is a link, and moves."""
    first = wiring.run_order(order, quiet, failing(RefusedError("one")))
    second = wiring.run_order(order, quiet, failing(RefusedError("two")))

    assert first.run_dir != second.run_dir
    assert second.run_dir.name == str((order.out / "latest").readlink())


def test_latest_points_at_a_run_from_its_beginning(order):
    """A controller that is killed in the middle leaves `latest` on its own run, and not on an older, green one."""
    wiring.run_order(order, quiet, failing(RefusedError("one")))
    seen = []

    class Watched(SimFleet):
        def connect(self, names):
            seen.append(str((order.out / "latest").readlink()))
            raise ExceptionGroup("connect", [UnreachableError("no connection", node=name) for name in names])

    result = wiring.run_order(order, quiet, wiring.Reach(lambda _: nullcontext(Watched({})), lambda *_: SimTraining(SimClock(), {})))

    assert [result.run_dir.name] == seen


def test_latest_stays_on_a_run_that_goes_on(order):
    """A second run that is refused beside it does not take its place: `chaoskit stop latest` would end nothing."""
    first = wiring.run_order(order, quiet, failing(RefusedError("one")))
    (first.run_dir / "journal.jsonl").touch()
    with (first.run_dir / "journal.jsonl").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        wiring.run_order(order, quiet, failing(RefusedError("two")))

        assert first.run_dir.name == str((order.out / "latest").readlink())


@pytest.mark.row("S5")
def test_a_file_called_latest_is_left_alone(order):
    """Only a link of ours is replaced."""
    order.out.mkdir()
    (order.out / "latest").write_text("mine")

    wiring.run_order(order, quiet, failing(RefusedError("one")))

    assert "mine" == (order.out / "latest").read_text()


@pytest.mark.row("S4")
@pytest.mark.parametrize("name", ["../../escape", "-rf", "a b\n", "x/y"])
def test_a_run_directory_stays_below_its_parent(tmp_path, name):
    """The experiment's name never leads anywhere else."""
    made = wiring.new_run_dir(tmp_path, name)

    assert tmp_path == made.parent
    assert made.resolve().parent == tmp_path.resolve()


def test_a_directory_that_cannot_be_made_says_so(tmp_path):
    """A file where the runs should lie is bad input, with what to do."""
    (tmp_path / "runs").write_text("")

    with pytest.raises(InputError, match="choose --out"):
        wiring.new_run_dir(tmp_path / "runs", "x")


@pytest.mark.row("R3", "L25")
def test_a_report_that_cannot_be_written_does_not_cost_the_verdict(order):
    """A full disk, or a run of somebody else's: the verdict stands, and what is missing is told beside it, with path and errno."""
    result = wiring.run_order(order, quiet, failing(RefusedError("one")))
    (result.run_dir / "junit.xml").unlink()
    (result.run_dir / "junit.xml").mkdir()

    again = wiring.reported(result)

    assert result.verdict == again.verdict
    assert (f"{result.run_dir}/junit.xml cannot be written: Is a directory (EISDIR); what stood there still does",) == again.unwritten
    assert [path.name for path in result.run_dir.iterdir() if path.name.startswith(".")] == [], "half a file is left"
    passed = replace(again, verdict=replace(again.verdict, outcome=Outcome.PASSED))
    assert (passed.exit_code, replace(passed, unwritten=()).exit_code) == (2, 0)


def test_the_head_says_who_trains(order):
    """The run's head has the site, the seed, the training's nodes and GPUs, and the budgets' positions."""
    info = wiring.run_order(order, quiet, failing(RefusedError("one"))).info

    assert ("plane_loss", "small", 3, 4, 4) == (info.name, info.inventory, info.seed, info.nodes, info.gpus)
    assert info.positions["budgets.restarts"].line > 1
    assert f"chaoskit run {order.experiment.path} --seed 3" in info.rerun


def test_a_budget_of_the_site_points_into_the_inventory(order, tmp_path):
    """An annotation lands where the limit is written, and the experiment's own word comes before the site's."""
    (tmp_path / "inventory.yaml").write_text(INVENTORY + "limits:\n  budgets:\n    restarts: 3\n    lost_gpu_hours: 64\n")
    strict = replace(order, inventory=load_inventory(tmp_path / "inventory.yaml"))

    positions = wiring.run_order(strict, quiet, failing(RefusedError("one"))).info.positions

    assert (str(tmp_path / "inventory.yaml"), 7) == (positions["budgets.lost_gpu_hours"].file, positions["budgets.lost_gpu_hours"].line)
    assert positions["budgets.restarts"].file.endswith("plane_loss.yaml")


def test_faults_of_other_packages_travel_to_the_nodes(tmp_path, order, monkeypatch):
    """What `chaoskit faults` lists and a plan names, the agent must have too."""
    (tmp_path / "elsewhere_fault.py").write_text(
        "from dataclasses import dataclass\n"
        "from chaoskit.agent.contract import Fault\n"
        "@dataclass(frozen=True)\n"
        "class Nothing(Fault):\n"
        '    """Do nothing."""\n'
    )
    info = tmp_path / "elsewhere_fault-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere-fault\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[chaoskit.faults]\nnothing = elsewhere_fault\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    with wiring.ssh_fleet(order.inventory):
        (bundle,) = (tmp_path / "cache" / "chaoskit").glob("*.pyz")
    assert "chaoskit/faults/nothing.py" in zipfile.ZipFile(bundle).namelist()
