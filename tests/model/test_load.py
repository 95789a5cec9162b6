"""Loading: shipped files are good, errors come all at once, and nothing but InputError ever comes out."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaoskit.agent.contract import duration_of
from chaoskit.errors import InputError
from chaoskit.model.load import experiment_from, inventory_from, load_experiment, load_inventory, parse_source

ROOT = Path(__file__).parents[2]
EXPERIMENTS = sorted((ROOT / "experiments").glob("*.yaml"))
INVENTORIES = sorted((ROOT / "inventories").glob("*.yaml"))


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_shipped_experiment_loads(path):
    loaded = load_experiment(path)

    assert loaded.name == path.stem
    assert len(loaded.faults) == len(loaded.experiment.method) > 0
    assert loaded.experiment.why.strip()


@pytest.mark.parametrize("path", INVENTORIES, ids=lambda path: path.stem)
def test_every_shipped_inventory_loads(path):
    assert load_inventory(path).nodes


def test_plane_loss_says_what_the_design_says():
    loaded = load_experiment(ROOT / "experiments" / "plane_loss.yaml")
    experiment, fault = loaded.experiment, loaded.faults[0]

    assert experiment.seed == 7
    assert experiment.method[0].target.pick == "all"
    assert experiment.method[0].together
    assert experiment.blast_radius.nodes == "all"
    assert duration_of(fault) == 20.0
    assert experiment.abort.no_progress == 120.0
    assert (experiment.budgets.restarts, experiment.budgets.lost_steps) == (0, 0)
    assert (experiment.budgets.throughput_during, experiment.budgets.settle_time) == (0.4, 10.0)
    assert experiment.steady_state.throughput.for_ == 5.0


def test_every_value_knows_its_line_and_a_missing_one_that_of_its_parent():
    path = ROOT / "experiments" / "plane_loss.yaml"
    loaded, lines = load_experiment(path), path.read_text(encoding="utf-8").splitlines()

    at = loaded.at("budgets.throughput_during")
    assert lines[at.line - 1][at.col - 1 :].startswith("40%")
    assert lines[loaded.at("budgets.boots").line - 1].startswith("budgets:")
    assert lines[loaded.at("nowhere.at.all").line - 1].startswith("title:")


def test_the_example_inventory_is_sixteen_nodes_of_eight_gpus_on_two_planes():
    inventory = load_inventory(ROOT / "inventories" / "staging-example.yaml")
    workers, spare = inventory.group("workers"), inventory.nodes["gpu017"]

    assert len(workers) == 16
    assert {node.gpus for node in workers} == {8}
    assert [rail.plane for rail in workers[0].rails] == ["A", "B"] * 4
    assert workers[4].address == "gpu005.staging.example"
    assert (spare.group, spare.gpus, spare.rails) == ("spares", 8, workers[0].rails)
    assert spare.address == "gpu017.staging.example"
    assert [node.name for node in inventory.nodes.values() if node.protected] == ["nfs1", "login1"]
    assert len(inventory.training_nodes(inventory.file.trainings["pretraining"])) == 8


def test_defaults_are_values_and_not_descriptions_of_fields():
    experiment = experiment_from(parse_source(b"title: t\nmethod: [{fault: rank_kill, target: {group: g}}]\n", "e.yaml")).experiment

    assert experiment.steady_state.throughput.for_ == 10.0
    assert experiment.method[0].with_ == {}


def test_like_takes_only_what_is_not_given():
    text = """
name: s
nodes:
  a[1-2]: {group: a, gpus: 8, gpu_clocks: 210-1410, rails: [{netdev: eth1}], python: /usr/bin/python3.9, address: fixed.example}
  b1: {group: b, like: a, gpus: 0, address: other.example}
  c1: {group: c, like: b, gpu_clocks: default}
"""
    text = text.replace("a[1-2]", "a1")
    nodes = inventory_from(parse_source(text.encode(), "i.yaml")).nodes

    assert (nodes["b1"].gpus, nodes["b1"].python, nodes["b1"].rails) == (0, "/usr/bin/python3.9", nodes["a1"].rails)
    assert (nodes["c1"].gpus, nodes["c1"].python) == (0, "/usr/bin/python3.9")
    assert nodes["c1"].address is None
    assert [node.gpu_clocks for node in nodes.values()] == ["210-1410", "210-1410", "default"]


def test_like_in_a_circle_ends():
    text = b"name: s\nnodes:\n  a1: {group: a, like: b}\n  b1: {group: b, like: a}\n"

    with pytest.raises(InputError, match="no other group"):
        inventory_from(parse_source(text, "i.yaml"))


def test_addresses_take_the_node_and_its_place_in_the_range():
    nodes = inventory_from(parse_source(b'name: s\nnodes:\n  n[05-06]: {address: "10.0.0.{index}"}\n', "i.yaml")).nodes

    assert [node.address for node in nodes.values()] == ["10.0.0.1", "10.0.0.2"]


def test_a_job_that_says_where_it_runs_needs_no_group():
    text = "name: s\nnodes:\n  n1: {group: gpu}\ntrainings:\n  t: {launcher: command, start: [a], log: /l, nodes_command: [b]}\n"

    assert inventory_from(parse_source(text.encode(), "i.yaml")).file.trainings["t"].nodes_command == ("b",)
    with pytest.raises(InputError, match="no node is in the group 'workers'"):
        inventory_from(parse_source(text.replace(", nodes_command: [b]", "").encode(), "i.yaml"))


def test_the_model_loads_nothing_heavy():
    code = """
import sys
from chaoskit.model.load import load_experiment, load_inventory
load_experiment("experiments/plane_loss.yaml")
heavy = {"ClusterShell", "paramiko", "fabric", "torch", "rich", "numpy", "pytest", "pydantic"}
print(sorted({name.partition(".")[0] for name in sys.modules} & heavy))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


def test_a_large_inventory_loads():
    text = "name: s\nnodes:\n  n[00001-20000]: {group: workers, gpus: 8, rails: [{netdev: eth1, plane: A}]}\n"

    assert len(inventory_from(parse_source(text.encode(), "i.yaml")).nodes) == 20_000


WORDS = """
title why seed training steady_state throughput within for method fault target group nodes pick avoid with after together abort no_progress
blast_radius budgets lost_steps settle_time throughput_during watch link_flap rank_kill node_kill plane down rail times all rendezvous
name ssh user protected trainings launcher attach torchrun argv log format regex jsonl limits lease allow lab like gpus rails netdev address
workers n[1-3] n[1- {node} 5s 10% 150% 0 -1 3 1.5 true null on 1:30 -oX ''
"""
WORD = st.sampled_from(WORDS.split())


def _list(inner):
    return st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")


def _mapping(inner):
    return st.lists(st.tuples(WORD, inner), max_size=4).map(lambda pairs: "{" + ", ".join(f"{key}: {value}" for key, value in pairs) + "}")


VALUE = st.recursive(WORD, lambda inner: st.one_of(_list(inner), _mapping(inner)), max_leaves=12)
FILE = st.lists(st.tuples(WORD, VALUE), max_size=8).map(lambda pairs: "\n".join(f"{key}: {value}" for key, value in pairs).encode())


def refusals(read, data):
    """Return the problems of a file; none when it was read. Any other exception fails the test."""
    try:
        read(parse_source(data, "x.yaml"))
    except InputError as error:
        return error.problems or pytest.fail("refused without saying why")
    return ()


@pytest.mark.parametrize("read", [experiment_from, inventory_from])
@given(data=st.one_of(FILE, st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_any_file_is_read_or_refused_with_positions(read, data):
    places = [(problem.line, problem.col) for problem in refusals(read, data)]

    assert places == sorted(places)
    assert all(line >= 1 and col >= 1 for line, col in places)


GOOD = (ROOT / "experiments" / "plane_loss.yaml").read_text(encoding="utf-8")
SITE = (ROOT / "inventories" / "staging-example.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(("read", "good"), [(experiment_from, GOOD), (inventory_from, SITE)], ids=["experiment", "inventory"])
@settings(deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused_with_positions(read, good, data):
    """One stretch of a good file is replaced: most such files get past the YAML and into the checks behind it."""
    start = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(start, min(start + 12, len(good))))
    middle = data.draw(st.one_of(WORD, st.text(":-[]{}\"' \n\t0123456789abc%", max_size=5), st.text(max_size=3)))

    assert all(problem.line >= 1 and problem.col >= 1 for problem in refusals(read, (good[:start] + middle + good[end:]).encode()))
