"""What the commands do and print, beside errors."""

import fcntl
import json
import random
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from simulated import Kill, SimClock, SimFleet, SimNode, SimTraining, Slow
from simulated_plan import info_of, injection_of, plan_of

from chaoskit.engine.audit import Ground, audit
from chaoskit.engine.heal import heal
from chaoskit.engine.journal import NAME
from chaoskit.engine.run import run_experiment
from chaoskit.model.experiment import Budgets, Position
from tests.engine.test_journal_damage import mangled

UNREACHABLE = """\
name: nowhere
ssh: {user: chaos, port: 9, known_hosts: [known_hosts]}
nodes: {"node[1-4]": {group: workers, gpus: 1, address: "127.0.0.{index}", rails: [{netdev: rail0, plane: A}, {netdev: rail1, plane: B}]}}
trainings: {default: {launcher: attach, log: /var/log/train.log}}
"""
FAULT = Slow(hold=8.0)


@pytest.fixture
def finished(workdir):
    """Return a function that leaves the directory of a simulated run, judged by these budgets, and returns its name."""

    def make(budgets: Budgets, name: str = "2026-11-30T170150-sim") -> Path:
        run_dir = workdir / "runs" / name
        run_dir.mkdir(parents=True)
        clock = SimClock()
        nodes = {node: SimNode(node, clock, {"slow": Slow, "kill": Kill}) for node in ("n1", "n2", "n3")}
        plan = plan_of(injection_of(FAULT, ("n2",)), budgets=budgets)
        info = info_of(clock, name, positions={"budgets.settle_time": Position("x.yaml", 9, 3)})
        run_experiment(plan, info, SimFleet(nodes), SimTraining(clock, nodes), run_dir=run_dir, clock=clock)
        return run_dir

    return make


def test_plan_says_who_when_what_and_by_which_budgets(chaoskit):
    """The plan names targets, moments, lengths, budgets and abort conditions."""
    code, out, _ = chaoskit("plan", "experiments/plane_loss.yaml", "-i", "staging-example")

    assert 0 == code
    assert "link_flap plane B on gpu[001-016] (16 nodes), all at one instant, held 20s" in out
    assert "undo: by the node itself when the hold ends" in out
    assert "throughput_during at least 40%" in out
    assert "no step for 2m" in out


def test_several_files_are_planned_at_once(chaoskit, workdir):
    """As `run` takes them; one that touches nobody makes the exit code 3, and the last line names it."""
    (workdir / "nobody.yaml").write_text("title: t\nmethod: [{fault: rank_kill, target: {group: nobody, pick: 1}}]\n")
    files = ("experiments/plane_loss.yaml", "experiments/rank_kill.yaml")

    code, out, _ = chaoskit("plan", *files, "-i", "staging-example")
    assert 0 == code
    assert "-- plane_loss" in out
    assert "-- rank_kill" in out
    code, out, _ = chaoskit("plan", "nobody.yaml", *files, "-i", "staging-example")
    assert 3 == code
    assert out.splitlines()[-1].startswith("INCONCLUSIVE: nobody: nobody.yaml:2:")


def test_a_plan_that_touches_nobody_ends_with_the_word_of_its_code(chaoskit, workdir):
    """Zero targets prove nothing: exit 3, and the last line says it as a run would."""
    (workdir / "nobody.yaml").write_text("title: t\nmethod: [{fault: rank_kill, target: {group: nobody, pick: 1}}]\n")

    code, out, _ = chaoskit("plan", "nobody.yaml", "-i", "staging-example")

    assert 3 == code
    assert out.splitlines()[-1].startswith("INCONCLUSIVE: nobody: nobody.yaml:2:")


def test_the_same_seed_chooses_the_same_nodes(chaoskit):
    """`--seed` replaces the experiment's, and decides alone."""
    picked = {seed: chaoskit("plan", "experiments/rank_kill.yaml", "-i", "staging-example", "--seed", seed)[1] for seed in range(8)}

    assert picked[3] == chaoskit("plan", "experiments/rank_kill.yaml", "-i", "staging-example", "--seed", "3")[1]
    assert 1 < len({next(line for line in out.splitlines() if line.startswith("1. ")) for out in picked.values()})


def test_the_inventory_comes_from_the_environment(chaoskit, monkeypatch):
    """CI sets the site once."""
    monkeypatch.setenv("CHAOSKIT_INVENTORY", "inventories/staging-example.yaml")

    code, out, _ = chaoskit("plan", "experiments/plane_loss.yaml")

    assert 0 == code
    assert "staging-example" in out


def test_faults_shows_parameters_with_units_and_defaults(chaoskit):
    """A fault's page is its own documentation."""
    assert "link_flap" in chaoskit("faults")[1]

    _, out, _ = chaoskit("faults", "link_flap")

    assert "down: duration, such as 20s; default 10s" in out
    assert "How long the links stay down, each time." in out


@pytest.mark.parametrize("kind", ["experiment", "inventory"])
def test_schema_prints_json(chaoskit, kind):
    """Editors and CI get a JSON Schema."""
    _, out, _ = chaoskit("schema", kind)

    assert "https://json-schema.org/draft/2020-12/schema" == json.loads(out)["$schema"]


@pytest.mark.row("L16")
def test_report_judges_a_run_again_and_exits_with_its_code(chaoskit, finished):
    """From the journal alone come table, JUnit and summary; the exit code is the verdict's, and so is the last line."""
    run_dir = finished(Budgets(settle_time=30.0))

    code, out, _ = chaoskit("report", "2026-11-30T170150-sim")

    assert 0 == code
    assert out.splitlines()[-1].startswith("PASSED: sim: ")
    assert "PASSED" == json.loads((run_dir / "summary.json").read_text())["outcome"]
    assert "0" == ET.parse(run_dir / "junit.xml").getroot().get("failures")


def test_report_of_the_latest_run_names_that_run(chaoskit, finished):
    """`latest` is another run tomorrow; what is printed stays true."""
    run_dir = finished(Budgets(settle_time=30.0))
    (run_dir.parent / "latest").symlink_to(run_dir.name)

    assert "runs/2026-11-30T170150-sim/  " in chaoskit("report", "latest")[1]
    assert "runs/2026-11-30T170150-sim/  " in chaoskit("report", "runs/latest")[1]


@pytest.mark.row("R5", "L46")
def test_a_killed_run_whose_node_healed_itself_is_no_leak_once_heal_has_said_so(chaoskit, finished):
    """Until then nobody knows: LEAKED. The lease did what it is for, so afterwards the run is cut short, and nothing more."""
    run_dir = finished(Budgets(settle_time=30.0))
    lines = (run_dir / NAME).read_bytes().splitlines(keepends=True)
    injected = next(number for number, line in enumerate(lines) if b'"kind":"injected"' in line)
    (run_dir / NAME).write_bytes(b"".join(lines[: injected + 1]))
    assert 5 == chaoskit("report", str(run_dir))[0]
    node = SimNode("n2", SimClock(), {"slow": Slow})
    agent = SimFleet({"n2": node}).connect(["n2"])["n2"]
    for do in (agent.prepare(run_dir.name, f"{run_dir.name}/0/n2", "slow", {}, None), agent.arm(f"{run_dir.name}/0/n2", 1.0)):
        do.result()
    agent.inject(f"{run_dir.name}/0/n2", None)
    agent.revert(f"{run_dir.name}/0/n2")
    node.closed_by = "the lease's end"

    ground = Ground(("n2",), "sim", run_dir.parent)
    assert [note for _, note in audit(SimFleet({"n2": node}), ground).notes if "the node healed itself (the lease's end)" in note]
    healed = heal(SimFleet({"n2": node}), ground)
    assert ([(one.entry, one.healed) for one in healed.results], healed.exit_code) == ([(f"{run_dir.name}/0/n2", True)], 0)
    assert heal(SimFleet({"n2": node}), ground).results == ()
    code, out, _ = chaoskit("report", str(run_dir))
    assert 3 == code
    assert "the node healed itself (the lease's end)" in out
    assert "LEAKED" not in out


@pytest.fixture
def goes_on(finished):
    """Return the directory of a run that is in the middle, its controller alive: this process has its journal's lock."""
    run_dir = finished(Budgets(settle_time=30.0), "2026-11-30T170000-live")
    lines = (run_dir / NAME).read_bytes().splitlines(keepends=True)
    (run_dir / NAME).write_bytes(b"".join(lines[:10]))
    with (run_dir / NAME).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield run_dir


def test_a_run_that_goes_on_has_no_verdict_and_no_reports(chaoskit, goes_on):
    """Its faults are held as they should be: exit 3, never LEAKED, and nothing is written beside the run that will write it."""
    code, out, err = chaoskit("report", str(goes_on))

    assert (3, "") == (code, out)
    assert "the run goes on, so there is no verdict yet" in err
    assert f"chaoskit stop runs/{goes_on.name}" in err.replace(f"{goes_on.parent.parent}/", "")
    assert [NAME] == [path.name for path in goes_on.iterdir()]


def test_stop_without_a_name_means_the_run_that_goes_on(chaoskit, goes_on, finished):
    """Whatever `latest` is; where several go on it asks which."""
    other = finished(Budgets(settle_time=30.0), "2026-11-30T180000-later")
    (other.parent / "latest").symlink_to(other.name)

    code, _, err = chaoskit("stop", "--within", "300ms")
    assert 3 == code
    assert f"{goes_on.name}: the run was asked to end" in err
    with (other / NAME).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        code, _, err = chaoskit("stop")
    assert 2 == code
    assert f"2 runs go on: {goes_on.name}, {other.name}" in err


def test_an_impossible_budget_fails_with_measured_and_limit(chaoskit, finished):
    """Exit 1, one JUnit failure at the budget's line, and the line that runs it again."""
    run_dir = finished(Budgets(time_to_steady=1.0, settle_time=30.0))

    code, out, _ = chaoskit("report", str(run_dir))

    assert 1 == code
    assert out.splitlines()[-1].startswith("FAILED: sim: ")
    assert "chaoskit run x.yaml --seed 1" in out
    failures = ET.parse(run_dir / "junit.xml").getroot().findall(".//failure")
    assert ["time_to_steady"] == [failure.get("type") for failure in failures]
    assert "at most 1 s" in failures[0].get("message")


@pytest.mark.row("L37")
@pytest.mark.parametrize("records", [2, 6, 10, 20])
def test_a_crashed_run_has_a_report(chaoskit, finished, records):
    """A journal that ends anywhere still gives a verdict, which is never green, and says that the controller died."""
    run_dir = finished(Budgets(settle_time=30.0))
    lines = (run_dir / NAME).read_bytes().splitlines(keepends=True)
    (run_dir / NAME).write_bytes(b"".join(lines[:records]) + b'{"torn')

    code, out, _ = chaoskit("report", str(run_dir))

    assert code in (1, 3, 5)
    assert "the controller died" in out
    assert "the line is skipped" in out
    assert (run_dir / "junit.xml").is_file()


@pytest.mark.row("R5", "L37")
@pytest.mark.parametrize("seeds", [pytest.param(range(8), id="8"), pytest.param(range(300), id="300", marks=pytest.mark.prove)])
def test_whatever_a_disk_did_to_a_journal_its_run_has_a_report(chaoskit, finished, seeds):
    """Flips, cuts, holes, zeros: an outcome as of any run, or, where the head is lost, one plain sentence; never a traceback."""
    run_dir = finished(Budgets(settle_time=30.0))
    raw = (run_dir / NAME).read_bytes()
    for seed in seeds:
        (run_dir / NAME).write_bytes(mangled(raw, random.Random(seed)))  # noqa: S311 - seeds, no secrets
        code, out, err = chaoskit("report", str(run_dir))
        assert (code in (0, 1, 3, 5) and "sim" in out) or (code == 2 and "no head record" in err), (seed, code, err)


@pytest.mark.row("L16", "L37")
def test_an_unreachable_site_is_exit_3_with_junit(chaoskit, workdir):
    """Nothing was proven: INCONCLUSIVE, exit 3, with a JUnit file, a summary and a journal."""
    (workdir / "nowhere.yaml").write_text(UNREACHABLE)
    (workdir / "known_hosts").write_text("")

    code, out, _ = chaoskit("run", "experiments/plane_loss.yaml", "-i", "nowhere.yaml")

    assert 3 == code
    assert out.splitlines()[-1].startswith("INCONCLUSIVE: plane_loss: node1: no connection")
    assert {"journal.jsonl", "junit.xml", "summary.json"} == {path.name for path in (workdir / "runs" / "latest").iterdir()}
    assert "1" == ET.parse(workdir / "runs" / "latest" / "junit.xml").getroot().get("errors")


@pytest.mark.parametrize("command", ["audit", "heal"])
def test_nodes_that_cannot_be_asked_are_unknown(chaoskit, workdir, command):
    """Unknown is not clean: exit 3, each node with its reason."""
    (workdir / "nowhere.yaml").write_text(UNREACHABLE)
    (workdir / "known_hosts").write_text("")

    code, out, _ = chaoskit(command, "-i", "nowhere.yaml")

    assert 3 == code
    assert "unknown    node2: no connection" in out
    assert "INCONCLUSIVE: nowhere: 4 of 4 nodes could not be asked" == out.splitlines()[-1]


@pytest.mark.parametrize("command", ["audit", "heal"])
def test_what_keeps_all_nodes_from_being_asked_is_told_once(chaoskit, workdir, command):
    """A site of hundreds of nodes behind one broken ssh_config is one thing to mend, and reads like it."""
    site = UNREACHABLE.replace("port: 9", "config: missing/ssh_config").replace('address: "127.0.0.{index}", ', "")
    (workdir / "nowhere.yaml").write_text(site)

    code, out, _ = chaoskit(command, "-i", "nowhere.yaml")

    told, last = out.splitlines()
    assert 3 == code
    assert told.startswith("  unknown    node1: ")
    assert told.endswith("(the same on node[2-4])")
    assert "INCONCLUSIVE: nowhere: 4 of 4 nodes could not be asked" == last


def test_a_dry_run_of_an_unreachable_site_is_exit_3(chaoskit, workdir):
    """`--dry` meets the obstacle that the run would meet, and leaves no run behind."""
    (workdir / "nowhere.yaml").write_text(UNREACHABLE)
    (workdir / "known_hosts").write_text("")

    code, out, err = chaoskit("run", "--dry", "experiments/plane_loss.yaml", "-i", "nowhere.yaml")

    assert 3 == code
    assert "node1: no connection" in err
    assert "INCONCLUSIVE: 1 of 1 dry runs met an obstacle: plane_loss" == out.splitlines()[-1]
    assert not (workdir / "runs").exists()


def test_experiments_that_do_not_fit_the_site_stop_everything_before_it_begins(chaoskit, workdir):
    """The second experiment needs what the site does not allow: told before the first one injects anything."""
    (workdir / "nowhere.yaml").write_text(UNREACHABLE)

    code, _, err = chaoskit("run", "experiments/plane_loss.yaml", "experiments/rank_kill.yaml", "-i", "nowhere.yaml")

    assert 2 == code
    assert "experiments/rank_kill.yaml:12:" in err
    assert not (workdir / "runs").exists()


def test_several_runs_end_with_a_summary_and_the_worst_code(chaoskit, workdir):
    """Each run has its verdict; the summary closes with the worst."""
    (workdir / "nowhere.yaml").write_text(UNREACHABLE)
    (workdir / "known_hosts").write_text("")
    (workdir / "experiments" / "again.yaml").write_text((workdir / "experiments" / "plane_loss.yaml").read_text())

    code, out, _ = chaoskit("run", "experiments/plane_loss.yaml", "experiments/again.yaml", "-i", "nowhere.yaml")

    assert 3 == code
    assert "INCONCLUSIVE: 2 of 2 did not pass: plane_loss INCONCLUSIVE, again INCONCLUSIVE" == out.splitlines()[-1]
    assert "\n2 of 2: again: Losing one network plane must not stop training\n" in out
