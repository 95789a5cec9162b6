"""What a plan may touch: counts and shares, overall and by group, of the experiment and of the site; and what may cut us off."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaoskit.engine.plan import plan
from chaoskit.engine.targets import how_many
from chaoskit.errors import InputError
from chaoskit.model.load import experiment_from, inventory_from, parse_source

SITE = """
name: site
nodes:
  n[1-8]: {group: workers, rails: [{netdev: eth1, plane: A}, {netdev: eth2, plane: B}]}
  s[1-2]: {group: spares, like: workers}
allow: lab
trainings: {default: {launcher: attach, log: /log}}
"""


def site(**more):
    text = SITE + "".join(f"{key}: {value}\n" for key, value in more.items())
    return inventory_from(parse_source(text.encode(), "site.yaml"))


def experiment(*method, **keys):
    lines = ["title: t", "method:", *(f"  - {{{entry}}}" for entry in method), *(f"{key}: {value}" for key, value in keys.items())]
    return experiment_from(parse_source("\n".join(lines).encode(), "e.yaml"))


def kill(pick, group="workers"):
    return f"fault: rank_kill, target: {{group: {group}, pick: {pick}}}"


def refusals(loaded, inventory):
    with pytest.raises(InputError) as caught:
        plan(loaded, inventory)
    assert caught.value.exit_code == 2
    return str(caught.value)


RADII = {
    "a count of a group": (kill(3), "{nodes: 5, per_group: {workers: 2}}", {}, "e.yaml:4:47: blast_radius.per_group.workers: n"),
    "a share of a group": (kill(3), "{nodes: 5, per_group: {workers: 25%}}", {}, "the experiment allows 25% of 8, which is 2"),
    "a site's count of a group": (
        kill(3),
        "{nodes: all}",
        {"per_group": "{workers: 2}"},
        "site allows 2, the limit stands in the inventory",
    ),
    "a site's share of a group": (kill(3), "{nodes: all}", {"per_group": "{workers: 25%}"}, "site allows 25% of 8, which is 2"),
    "a site's count": (kill(3), "{nodes: all}", {"blast_radius": 2}, "3 nodes would be touched; site allows 2"),
    "a site's share": (kill(3), "{nodes: all}", {"blast_radius": "20%"}, "3 nodes would be touched; site allows 20% of 10, which is 2"),
    "a group that is not there": (
        kill(1),
        "{per_group: {worker: 1}}",
        {},
        "no node of site is in the group 'worker', did you mean workers?",
    ),
    "a whole group": (
        kill(2, "spares"),
        "{nodes: 2, per_group: {workers: all}}",
        {},
        "no node of the group 'spares' would be left untouched",
    ),
}


@pytest.mark.parametrize("name", RADII)
def test_what_exceeds_a_limit_is_refused_with_the_limit(name):
    method, radius, limits, words = RADII[name]
    inventory = site(limits="{" + ", ".join(f"{key}: {value}" for key, value in limits.items()) + "}")

    assert words in refusals(experiment(method, blast_radius=radius), inventory)


def test_what_keeps_every_limit_is_planned():
    inventory = site(limits="{blast_radius: 30%, per_group: {workers: 2, spares: all}}")
    loaded = experiment(kill(2), kill(1, "spares"), blast_radius="{nodes: 3, per_group: {workers: 25%}}")

    assert 3 == len(plan(loaded, inventory).touched)


def test_a_group_may_be_touched_whole_where_that_is_said_of_it():
    assert 2 == len(plan(experiment(kill(2, "spares"), blast_radius="{nodes: 2, per_group: {spares: all}}"), site()).touched)


def test_a_limit_counts_each_node_once_over_the_whole_experiment():
    """Two faults on one node are one node; on two they are two."""
    flap = "fault: link_flap, target: {nodes: %s}, with: {rail: 0, down: 5s}, after: %s"
    radius = "{nodes: 9, per_group: {workers: 1}}"

    assert 1 == len(plan(experiment(flap % ("n1", "0s"), flap % ("n1", "60s"), blast_radius=radius), site()).touched)
    assert "n[1-2] of the group 'workers'" in refusals(experiment(flap % ("n1", "0s"), flap % ("n2", "60s"), blast_radius=radius), site())


QUANTITY = st.one_of(st.integers(1, 9), st.integers(1, 100).map("{}%".format), st.just("all"))


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from(["workers", "spares"]), QUANTITY), min_size=1, max_size=3), QUANTITY, QUANTITY, QUANTITY, QUANTITY
)
def test_no_plan_exceeds_any_of_the_limits(method, own, own_group, site_all, site_group):
    """Refused, or within all four."""
    inventory = site(limits=f"{{blast_radius: {site_all}, per_group: {{workers: {site_group}}}}}")
    flaps = [
        f"fault: link_flap, target: {{group: {group}, pick: {pick}}}, with: {{rail: 0, down: 5s}}, after: {60 * at}s"
        for at, (group, pick) in enumerate(method)
    ]
    loaded = experiment(*flaps, blast_radius=f"{{nodes: {own}, per_group: {{workers: {own_group}}}}}")
    try:
        touched = plan(loaded, inventory).touched
    except InputError:
        return
    workers = [name for name in touched if name.startswith("n")]
    radius, limits = loaded.experiment.blast_radius, inventory.file.limits
    assert len(touched) <= how_many(radius.nodes, 10)
    assert len(touched) <= how_many(limits.blast_radius, 10)
    assert len(workers) <= how_many(radius.per_group["workers"], 8)
    assert len(workers) <= how_many(limits.per_group["workers"], 8)


# -- what may cut us off, and what may end a run -------------------------------------------------------------------

CUT = "fault: link_flap, target: {group: workers, pick: 1}, with: {rail: 0, down: %s}, allow: [control_path]"


def test_what_may_cut_us_off_is_said_and_reaches_the_node():
    made = plan(experiment(CUT % "20s"), site())

    assert ("control_path",) == made.planned[0].allow
    assert "   allowed: it may cut off its own targets, which then mend it alone" in made.describe()
    assert () == plan(experiment(kill(1)), site()).planned[0].allow


def test_a_cut_that_outlasts_the_lease_is_warned_of():
    assert any("the run is then aborted" in line for line in plan(experiment(CUT % "30s"), site()).warnings)
    assert not any("aborted" in line for line in plan(experiment(CUT % "29s"), site()).warnings)


def test_the_sites_prometheus_is_asked_where_a_query_names_none():
    abort = "{queries: [{query: up, below: 1}, {query: up, url: 'http://b:1', token_env: MINE}]}"
    made = plan(experiment(kill(1), abort=abort), site(prometheus="{url: 'http://a:9090', token_env: OURS}"))

    assert [("http://a:9090", "OURS"), ("http://b:1", "MINE")] == [(query.url, query.token_env) for query in made.abort.queries]
    assert "e.yaml:4:19: abort.queries.0: nobody says where Prometheus is: site has none" in refusals(
        experiment(kill(1), abort=abort), site()
    )


def test_every_abort_condition_is_said():
    abort = (
        "{throughput: {below: 20%, for: 30s}, commands: [{argv: [./check, a b]}], queries: [{query: temp, above: 90, url: 'http://a:1'}]}"
    )
    [line] = [line for line in plan(experiment(kill(1), abort=abort), site()).describe() if line.startswith("abort: ")]

    assert line == (
        "abort: throughput below 20% for 30s or `./check 'a b'` exits with other than 0, asked every 10s"
        " or temp is above 90, asked every 15s"
    )
