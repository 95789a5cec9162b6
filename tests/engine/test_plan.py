"""Planning: what is chosen, what is refused with its position, what is warned of, and what can never happen."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaoskit.engine.plan import plan
from chaoskit.engine.targets import how_many
from chaoskit.errors import InputError
from chaoskit.model.experiment import Expect
from chaoskit.model.load import experiment_from, inventory_from, load_experiment, load_inventory, parse_source

ROOT = Path(__file__).parents[2]

SITE = """
name: site
nodes:
  n[1-4]: {group: workers, gpus: 8, rails: [{netdev: eth1, plane: A}, {netdev: eth2, plane: B}]}
  spare1: {group: spares, like: workers}
  store1: {group: storage}
protected: [store1]
allow: lab
trainings:
  default: {launcher: attach, log: /log, checkpoints: {every: 25}}
  other: {launcher: attach, log: /log, nodes: "n[2-4]", rendezvous: n3}
"""


def site(text=SITE, **changes):
    for old, new in changes.items():
        text = text.replace(f"\n{old}:", f"\n# {old}:") + f"{old}: {new}\n"
    return inventory_from(parse_source(text.encode(), "site.yaml"))


def experiment(*method, **keys):
    lines = ["title: t", "method:", *(f"  - {{{entry}}}" for entry in method), *(f"{key}: {value}" for key, value in keys.items())]
    return experiment_from(parse_source("\n".join(lines).encode(), "e.yaml"))


KILL = "fault: rank_kill, target: {group: workers}"
FLAP = "fault: link_flap, target: {group: workers, pick: all}, with: {plane: B, down: 20s}, together: true"
ALL = "{nodes: all}"


def refusals(loaded, inventory=None):
    with pytest.raises(InputError) as caught:
        plan(loaded, inventory or site())

    assert caught.value.exit_code == 2
    return str(caught.value)


def test_the_plan_of_plane_loss():
    made = plan(load_experiment(ROOT / "experiments" / "plane_loss.yaml"), load_inventory(ROOT / "inventories" / "staging-example.yaml"))
    (flap,) = made.planned

    assert flap.targets == tuple(f"gpu{number:03}" for number in range(1, 17)) == made.touched
    assert (flap.number, flap.fault, flap.detail) == (1, "link_flap", "link_flap plane B")
    assert (flap.after, flap.together, flap.one_shot, flap.duration) == (5.0, True, False, 20.0)
    assert flap.params == {"rail": None, "plane": "B", "down": 20.0, "up": 5.0, "times": 1}
    assert (made.name, made.seed, made.training_name, made.lease, made.watch) == ("plane_loss", 7, "default", 30.0, 60.0)
    assert (made.spec.band, made.spec.for_, made.spec.checkpoint_every, made.spec.gpus, made.spec.price_per_gpu_hour) == (
        0.15,
        5.0,
        25,
        128,
        2.4,
    )
    assert (made.warnings, made.empty) == ((), "")


@pytest.mark.parametrize("name", ["rank_kill", "node_kill"])
def test_a_kill_takes_one_node_but_never_that_of_the_rendezvous(name):
    loaded, inventory = (
        load_experiment(ROOT / "experiments" / f"{name}.yaml"),
        load_inventory(ROOT / "inventories" / "staging-example.yaml"),
    )
    taken = {plan(loaded, inventory, seed).touched for seed in range(200)}

    assert {len(touched) for touched in taken} == {1}
    assert ("gpu001",) not in taken
    assert len(taken) == 15


def test_the_plan_reads_as_who_when_what_and_undo(golden):
    inventory = load_inventory(ROOT / "inventories" / "staging-example.yaml")
    plans = [plan(load_experiment(ROOT / "experiments" / f"{name}.yaml"), inventory) for name in ("plane_loss", "rank_kill", "node_kill")]

    golden("plan.txt", "\n\n".join("\n".join(made.describe()) for made in plans) + "\n")


def test_what_the_training_must_feel_is_planned_and_said():
    made = plan(
        experiment("fault: link_flap, target: {nodes: n2}, with: {rail: 1, down: 5s}, expect: {step_time: 1.5, within: 20%}"), site()
    )

    assert made.planned[0].expect == Expect(1.5, 0.2)
    assert "   expect: step time 1.5 ±20% times the baseline's while it is applied" in made.describe()


def test_the_seed_of_the_command_line_wins():
    loaded = experiment(KILL, seed=3)

    assert plan(loaded, site()).seed == 3
    assert plan(loaded, site(), 8).seed == 8
    assert len({plan(loaded, site(), seed).touched for seed in range(30)}) > 1


def test_a_seed_means_the_same_nodes_for_ever():
    """A verdict names its seed, and the rerun must take the same nodes: this may change only with a new major version."""
    assert [plan(experiment(KILL), site(), seed).touched for seed in range(6)] == [("n2",), ("n4",), ("n2",), ("n2",), ("n2",), ("n4",)]


@pytest.mark.parametrize(
    ("quantity", "of", "count"), [("all", 7, 7), (3, 7, 3), (0.5, 7, 3), (0.01, 7, 1), (1.0, 7, 7), (0.29, 100, 29), (0.07, 100, 7)]
)
def test_a_share_is_rounded_down_but_at_least_one(quantity, of, count):
    assert how_many(quantity, of) == count


def test_avoid_takes_names_ranges_and_the_stated_rendezvous():
    loaded = experiment('fault: rank_kill, target: {group: workers, avoid: [rendezvous, "n[1-2]"]}', training="other")

    assert {plan(loaded, site(), seed).touched for seed in range(30)} == {("n4",)}


def test_nobody_left_to_choose_is_no_bad_input():
    made = plan(experiment('fault: rank_kill, target: {group: workers, avoid: ["n[1-4]"]}'), site())

    assert made.touched == ()
    assert made.empty == "rank_kill has no target: every node of workers is avoided or protected"
    assert made.describe()[-1].startswith("inconclusive: ")


def test_a_group_that_this_site_does_not_have_is_no_bad_input_and_said_where_it_stands():
    made = plan(experiment("fault: rank_kill, target: {group: wrkers}"), site())

    assert made.touched == ()
    assert re.fullmatch(r"e\.yaml:3:\d+: no node of \w+ is in the group 'wrkers', did you mean workers\?", made.empty), made.empty


def test_a_protected_node_of_a_group_is_never_picked():
    inventory = site(protected="[n1, n2, n3]")

    assert {plan(experiment(KILL), inventory, seed).touched for seed in range(30)} == {("n4",)}


@pytest.mark.parametrize("target", ["{nodes: store1}", "{group: workers, pick: all}"])
def test_asking_for_a_protected_node_is_refused(target):
    said = refusals(experiment(f"fault: rank_kill, target: {target}", blast_radius=ALL), site(protected="[store1, n2]"))

    assert "must never be touched: the inventory protects it" in said
    assert said.startswith("e.yaml:3:")


def test_the_blast_radius_is_one_node_unless_said():
    said = refusals(experiment("fault: rank_kill, target: {group: workers, pick: 2}"))

    assert "2 nodes; the blast radius is 1" in said
    assert said.startswith("e.yaml:3:")
    assert plan(experiment("fault: rank_kill, target: {group: workers, pick: 2}", blast_radius="{nodes: 2}"), site()).touched


def test_a_share_as_blast_radius_counts_the_nodes_to_choose_from():
    loaded = experiment("fault: rank_kill, target: {group: workers, pick: 2}", blast_radius="{nodes: 25%}")

    assert refusals(loaded).startswith("e.yaml:4:23: blast_radius: n")
    assert "the blast radius is 25% of 4, which is 1" in refusals(loaded)
    assert plan(experiment("fault: rank_kill, target: {group: workers, pick: 2}", blast_radius="{nodes: 50%}"), site()).touched


def test_the_blast_radius_is_that_of_the_whole_experiment():
    said = refusals(experiment("fault: rank_kill, target: {nodes: n1}", "fault: rank_kill, target: {nodes: n2}, after: 10s"))

    assert "n[1-2] would be touched" in said
    assert said.startswith("e.yaml:4:")


def test_no_experiment_exceeds_the_sites_limit():
    said = refusals(experiment(FLAP, blast_radius=ALL), site(limits="{blast_radius: 3}"))

    assert "4 nodes would be touched; site allows 3" in said


def test_one_node_of_each_group_is_left_unless_all_is_said():
    said = refusals(experiment("fault: rank_kill, target: {group: workers, pick: 4}", blast_radius="{nodes: 4}"))

    assert "no node of the group 'workers' would be left untouched" in said
    assert plan(experiment("fault: rank_kill, target: {group: workers, pick: 4}", blast_radius=ALL), site()).touched == (
        "n1",
        "n2",
        "n3",
        "n4",
    )


@pytest.mark.parametrize(
    ("loaded", "path", "what"),
    [
        (
            experiment('fault: rank_kill, target: {nodes: "n[4-6]"}'),
            "method.0.target.nodes",
            "n5 is not a node of site (and 1 more)",
        ),
        (experiment("fault: rank_kill, target: {group: workers, avoid: [n9]}"), "method.0.target.avoid.0", "n9 is not a node"),
        (experiment(KILL, training="defualt"), "training", "did you mean default?"),
        (experiment("fault: rank_kill, target: {group: workers, pick: 9}"), "method.0.target.pick", "only 4 to choose from"),
        (
            experiment(FLAP.replace("B", "C"), blast_radius=ALL),
            "method.0.with.plane",
            "no rail of n[1-4] is in plane 'C', planes: A, B",
        ),
        (experiment("fault: link_flap, target: {nodes: n1}, with: {rail: 2}"), "method.0.with.rail", "the inventory gives 2"),
        (experiment(KILL, budgets="{lost_cost: 3}"), "budgets.lost_cost", "price_per_gpu_hour"),
    ],
    ids=["nodes", "avoid", "training", "pick", "plane", "rail", "price"],
)
def test_what_the_inventory_does_not_have_is_refused_where_it_stands(loaded, path, what):
    (said,) = [line for line in refusals(loaded).splitlines() if what in line]

    assert path in loaded.positions
    assert said.startswith(f"{loaded.at(path)}: {path}: ")


def test_every_refusal_is_told_at_once():
    loaded = experiment(
        "fault: rank_kill, target: {nodes: nowhere}",
        "fault: link_flap, target: {nodes: n1}, with: {plane: Z}",
        "fault: rank_kill, target: {nodes: store1}",
    )

    assert len(refusals(loaded).splitlines()) >= 3


def test_a_lease_without_room_for_a_lost_renewal_is_refused_in_the_inventory():
    assert refusals(experiment(KILL), site(lease="9s")).startswith("site.yaml:12:8: lease: 9s leaves no room")


@pytest.mark.parametrize(
    "second",
    [
        "fault: link_flap, target: {nodes: n2}, with: {rail: 1, down: 5s}, after: 10s",
        "fault: link_flap, target: {nodes: n2}, with: {plane: B, down: 5s}, after: 20s",
        "fault: node_kill, target: {nodes: n2}, after: 10s",
    ],
)
def test_overlapping_faults_on_one_resource_are_refused(second):
    said = refusals(experiment(FLAP, second, blast_radius=ALL))

    assert "overlaps link_flap plane B (injection 1) on n2" in said
    assert said.startswith("e.yaml:4:")


def test_the_order_in_the_file_does_not_matter_for_an_overlap():
    late = "fault: link_flap, target: {nodes: n2}, with: {plane: B, down: 5s}, after: 20s"

    assert "overlaps link_flap plane B (injection 1) on n2" in refusals(experiment(late, FLAP, blast_radius=ALL))


def test_nothing_is_injected_on_a_node_that_is_rebooting():
    assert "overlaps node_kill" in refusals(
        experiment("fault: node_kill, target: {nodes: n2}", "fault: rank_kill, target: {nodes: n2}, after: 1m")
    )


@pytest.mark.parametrize(
    "second",
    [
        "fault: link_flap, target: {nodes: n2}, with: {rail: 0, down: 5s}, after: 10s",
        "fault: link_flap, target: {nodes: n2}, with: {rail: 1, down: 5s}, after: 21s",
        "fault: rank_kill, target: {nodes: n2}, after: 10s",
    ],
)
def test_faults_on_other_resources_or_at_other_times_may_meet(second):
    assert len(plan(experiment(FLAP, second, blast_radius=ALL), site()).planned) == 2


def test_what_a_reboot_does_not_clear_must_be_allowed():
    careful = site(allow="file")

    assert "rank_kill cannot be undone, and site does not allow that" in refusals(experiment(KILL), careful)
    assert plan(experiment(FLAP, blast_radius=ALL), careful).touched
    assert plan(experiment(KILL), site(allow="file", limits="{lifetimes: [volatile, irreversible]}")).touched


def test_site_budgets_fill_what_the_experiment_does_not_state():
    limits = "{budgets: {restarts: 3, time_to_recover: 10m, settle_time: 5s}}"
    made = plan(experiment(KILL, budgets="{restarts: 1}"), site(limits=limits))

    assert (made.spec.budgets.restarts, made.spec.budgets.time_to_recover, made.watch) == (1, 600.0, 1200.0)
    assert made.spec.budgets.settle_time is None, "a kill has no end to settle from"


@pytest.mark.parametrize(
    ("loaded", "warning"),
    [
        (experiment(KILL), "no budgets"),
        (
            experiment(KILL, abort="{no_progress: 30s}", budgets="{time_to_recover: 1m}"),
            "abort after 30s without progress would fire before time_to_recover 1m",
        ),
        (experiment("fault: rank_kill, target: {nodes: n1}"), "n1 hosts the rendezvous"),
        (experiment("fault: rank_kill, target: {group: spares}", blast_radius=ALL), "spare1 does not train"),
    ],
    ids=["budgets", "abort", "rendezvous", "idle"],
)
def test_what_is_probably_not_meant_is_warned_of(loaded, warning):
    made = plan(loaded, site())

    assert any(warning in said for said in made.warnings)
    assert any(line.startswith("warning: ") and warning in line for line in made.describe())


def test_a_plan_of_a_good_experiment_warns_of_nothing():
    loaded = experiment(
        "fault: rank_kill, target: {group: workers, avoid: [rendezvous]}", abort="{no_progress: 2m}", budgets="{time_to_recover: 1m}"
    )

    assert plan(loaded, site()).warnings == ()


PICKS = st.one_of(st.just("all"), st.integers(1, 6), st.integers(1, 100).map(lambda percent: f"{percent}%"))
AVOID = st.lists(st.sampled_from(["rendezvous", "n1", "n[2-3]", "store1"]), max_size=2, unique=True)
TARGETS = st.one_of(
    st.builds("{{group: {}, pick: {}, avoid: {}}}".format, st.sampled_from(["workers", "spares", "storage"]), PICKS, AVOID.map(str)),
    st.builds(
        '{{nodes: "{}", pick: {}, avoid: {}}}'.format,
        st.sampled_from(["n1", "n[1-4]", "n[3-4],spare1", "n2,store1"]),
        PICKS,
        AVOID.map(str),
    ),
)
FAULTS = st.sampled_from(
    ["fault: rank_kill", "fault: node_kill", "fault: link_flap, with: {plane: A, down: 5s}", "fault: link_flap, with: {rail: 1, down: 9s}"]
)
METHODS = st.lists(st.builds("{}, target: {}, after: {}s".format, FAULTS, TARGETS, st.integers(0, 300)), min_size=1, max_size=4)
PROTECTED = st.lists(st.sampled_from(["store1", "n1", "n4", "spare1"]), max_size=3, unique=True)


@given(method=METHODS, radius=PICKS, protected=PROTECTED, seed=st.integers(), limit=st.integers(1, 6))
@settings(deadline=None, max_examples=200)
def test_no_plan_exceeds_its_blast_radius_or_touches_a_protected_node(method, radius, protected, seed, limit):
    loaded = experiment(*method, blast_radius=f"{{nodes: {radius}}}")
    inventory = site(protected=str(protected), limits=f"{{blast_radius: {limit}}}")
    try:
        made = plan(loaded, inventory, seed)
    except InputError as error:
        assert error.problems  # noqa: PT017 - a refusal is one of the two right answers
        return

    touched = {name for one in made.planned for name in one.targets}
    assert touched == set(made.touched)
    assert not touched & set(protected)
    assert len(touched) <= limit
    assert len(touched) <= how_many(loaded.experiment.blast_radius.nodes, len(inventory.nodes))
    assert radius == "all" or not any(
        {node.name for node in inventory.group(group)} <= touched for group in ("workers", "spares", "storage")
    )
    assert plan(experiment(*method, blast_radius=f"{{nodes: {radius}}}"), inventory, seed) == made
    assert bool(made.empty) == any(not one.targets for one in made.planned)
