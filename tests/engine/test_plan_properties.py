"""Generated experiments on generated sites: what no plan may ever do, whatever was written."""

from itertools import combinations

from generated import experiments, loaded, methods, site, site_file, sites
from hypothesis import given
from hypothesis import strategies as st
from properties import check, tried

from chaoskit.agent.contract import duration_of
from chaoskit.engine.plan import plan
from chaoskit.engine.targets import how_many
from chaoskit.errors import InputError
from chaoskit.model.hostlist import expand
from chaoskit.model.units import parse_duration


def planned(file, experiment, seed=None):
    """Return the plan, or what was refused as lines."""
    try:
        return plan(loaded(experiment), site(file), seed)
    except InputError as error:
        return str(error).splitlines()


def made(file, experiment, seed=None):
    """Return the plan; None when it was refused, which must have been said with its place."""
    found = planned(file, experiment, seed)
    if isinstance(found, list):
        assert found
        assert all(line.split(":")[0] in ("e.yaml", "site.yaml") and line.split(":")[1].isdigit() for line in found)
        return None
    return found


def allowed(file, target):
    """Return the nodes that a target may touch, reckoned from the files themselves."""
    group, rendezvous = target.get("group"), file["trainings"]["default"]["rendezvous"]
    named = expand(target["nodes"]) if group is None else [name for name, node in file["nodes"].items() if node["group"] == group]
    avoided = {rendezvous if name == "rendezvous" else name for name in target.get("avoid", ())}
    return set(named) - avoided - set(file["protected"])


def radius_of(file, experiment):
    """Return the most nodes that may be touched: what the experiment says of those it could choose from, and the site's limit."""
    every = [entry["target"] for entry in experiment["method"]]
    pool = {name for target in every for name in file["nodes"] if name in allowed({**file, "protected": []}, {**target, "avoid": []})}
    stated = experiment.get("blast_radius", {"nodes": 1})["nodes"]
    share = int(stated[:-1]) / 100 if isinstance(stated, str) and stated != "all" else stated
    return min(how_many(share, max(len(pool), 1)), file["limits"].get("blast_radius", 99))


LASTS = {"rank_kill": 0, "node_kill": 120, "5s": 5, "40s": 40, "2s": 12, "9s": 9}
"""Seconds from T0 for which a fault of `generated.FAULTS` has its resource: a reboot takes two minutes, three flaps 2 + 3 + 2 + 3 + 2 s."""


def clash(one, other):
    """Say whether two entries of a method want one resource at one time; both ends of a span count."""
    start, other_start = (parse_duration(entry["after"]) for entry in (one, other))
    meet = start <= other_start + lasts(other) and other_start <= start + lasts(one)
    same_node = set(one["target"]["nodes"].split(",")) & set(other["target"]["nodes"].split(","))
    faults = (one["fault"], other["fault"])
    return bool(meet and same_node and ("node_kill" in faults or (faults[0] == faults[1] and rail_of(one) == rail_of(other))))


def lasts(entry):
    return LASTS[entry.get("with", {}).get("down", entry["fault"])]


def rail_of(entry):
    """Return the rail that an entry takes: plane A is rail 0 and plane B rail 1; None when it takes none."""
    chosen = entry.get("with", {})
    return chosen.get("rail", {"A": 0, "B": 1}.get(chosen.get("plane")))


@tried(150, 1500)
def test_a_plan_touches_only_what_it_may_and_pairs_every_fault_with_its_undo(examples):
    """Every target is allowed and the radius kept; what is held has an end and an undo, what is not says that it has none."""

    @given(data=st.data())
    def holds(data):
        file = data.draw(sites())
        experiment = data.draw(experiments(file))
        found = made(file, experiment)
        if found is None:
            return
        touched = {name for one in found.planned for name in one.targets}
        assert touched == set(found.touched)
        assert not touched & set(file["protected"])
        assert len(touched) <= radius_of(file, experiment)
        for one, entry in zip(found.planned, experiment["method"], strict=True):
            assert set(one.targets) <= allowed(file, entry["target"])
            assert len(one.targets) == len(set(one.targets))
            assert one.one_shot == (one.fault in ("rank_kill", "node_kill"))
            assert one.duration == duration_of(one.instance)
            assert (one.duration > 0) is not one.one_shot
            assert not one.one_shot or "irreversible" in file["limits"]["lifetimes"]
            undo = one.describe(found.lease)[1]
            assert undo.startswith("   undo: none, a kill cannot be undone" if one.one_shot else "   undo: by the node itself")
            assert (one.expect is None) == one.one_shot
        assert bool(found.empty) == any(not one.targets for one in found.planned)

    check(holds, examples)


@tried(100, 1000)
def test_two_faults_are_never_on_one_resource_at_one_time_and_nothing_else_is_refused_for_it(examples):
    """A reboot takes all of its node; two link faults may meet on different rails only, two others only when they differ."""
    whom = st.sampled_from([{"nodes": "w1"}, {"nodes": "w2"}, {"nodes": "w1,w2", "pick": "all"}])
    file = site_file({"workers": ["w1", "w2", "w3", "w4"]}, [], None, ["volatile", "irreversible"], "w4")

    @given(method=methods(whom))
    def holds(method):
        clashes = [pair for pair in combinations(method, 2) if clash(*pair)]
        found = planned(file, {"title": "t", "method": method, "blast_radius": {"nodes": "all"}})

        assert isinstance(found, list) is bool(clashes)
        assert not clashes or sum("overlaps" in line for line in found) == len(clashes)

    check(holds, examples)


@tried(75, 600)
def test_equal_seeds_give_equal_plans_whatever_the_order_of_the_inventory(examples):
    """The same files and seed give the same plan. Nodes listed in another order give the same targets, or the same refusals' count."""

    @given(data=st.data())
    def holds(data):
        file = data.draw(sites())
        experiment, seed = data.draw(experiments(file)), data.draw(st.integers(0, 2**63))
        first = planned(file, experiment, seed)
        assert planned(file, experiment, seed) == first
        shuffled = data.draw(st.permutations(list(file["nodes"].items())))
        other = planned({**file, "nodes": dict(shuffled)}, experiment, seed)
        if isinstance(first, list):
            assert isinstance(other, list)
            assert len(other) == len(first)
            return
        assert [set(one.targets) for one in other.planned] == [set(one.targets) for one in first.planned]
        assert set(other.touched) == set(first.touched)
        assert (other.spec, other.watch, bool(other.empty)) == (first.spec, first.watch, bool(first.empty))

    check(holds, examples)


@tried(75, 600)
def test_nodes_of_another_group_change_no_choice(examples):
    """A site that grows by nodes that nobody asked for runs the same experiment on the same nodes."""

    @given(data=st.data())
    def holds(data):
        file = data.draw(sites())
        experiment = data.draw(experiments(file))
        first = made(file, experiment)
        more = {f"x{number}": {"group": "others", "gpus": 1} for number in range(data.draw(st.integers(1, 5)))}
        second = made({**file, "nodes": {**more, **file["nodes"]}}, experiment)
        assert (first is None) == (second is None)
        if first is not None:
            assert [one.targets for one in second.planned] == [one.targets for one in first.planned]
            assert second.spec == first.spec

    check(holds, examples)


@tried(60, 600)
def test_a_node_that_was_not_chosen_may_leave_without_changing_who_is(examples):
    """A number of nodes is chosen by rank: without one that was not among them the same ones are chosen."""

    @given(size=st.integers(3, 9), pick=st.integers(1, 2), seed=st.integers(0, 2**63), data=st.data())
    def holds(size, pick, seed, data):
        names = [f"w{number}" for number in range(1, size + 1)]
        experiment = {"title": "t", "method": [{"fault": "rank_kill", "target": {"group": "workers", "pick": pick}}]}
        experiment["blast_radius"] = {"nodes": pick}
        first = made(site_file({"workers": names}, [], None, ["irreversible"], names[0]), experiment, seed)
        gone = data.draw(st.sampled_from([name for name in names if name not in first.touched]))
        left = [name for name in names if name != gone]
        if len(left) > pick:
            assert made(site_file({"workers": left}, [], None, ["irreversible"], left[0]), experiment, seed).touched == first.touched

    check(holds, examples)
