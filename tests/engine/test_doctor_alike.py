"""The odd one out: whoever differs from the most of its group is named with what it has and what they have, and nobody else."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaoskit.engine.doctor_alike import NONE, alike_findings, compare, facts_in
from chaoskit.model.wire import Finding


def group(**nodes):
    """Return the facts of nodes, all told by one look."""
    return {name: {"alike": facts} for name, facts in nodes.items()}


def says(found):
    nodes, whole = found
    return {name: [(one.state, one.says) for one in findings] for name, findings in nodes.items()}, [(one.state, one.says) for one in whole]


def test_who_differs_is_named_with_what_most_have_and_the_others_are_well():
    facts = group(n1={"driver": "560"}, n2={"driver": "560"}, n3={"driver": "550"})

    assert says(alike_findings("workers", facts)) == (
        {
            "n1": [("ok", "like the other nodes of workers")],
            "n2": [("ok", "like the other nodes of workers")],
            "n3": [("defect", "driver is 550, and 560 on 2 of 3 in workers")],
        },
        [],
    )


def test_what_a_node_does_not_have_is_a_difference_and_a_look_that_was_not_made_is_none():
    """A kernel module that one node lacks is named; a node whose GPUs could not be read says nothing of its driver."""
    facts = {
        "n1": {"alike": {"module nvidia_peermem": "loaded"}, "gpus": {"driver": "560"}},
        "n2": {"alike": {"module nvidia_peermem": "loaded"}, "gpus": {"driver": "560"}},
        "n3": {"alike": {}},
    }
    nodes, whole = says(alike_findings("workers", facts))

    assert nodes["n3"] == [("defect", "module nvidia_peermem is none, and loaded on 2 of 3 in workers")]
    assert whole == []


def test_what_cannot_be_told_just_now_is_compared_with_nobodys():
    """The speed of a link without a signal: that it has none is told of the rail."""
    facts = group(n1={"speed": "400"}, n2={"speed": "400"}, n3={"speed": "?"})

    assert {name: [state for state, _ in found] for name, found in says(alike_findings("workers", facts))[0].items()} == {
        "n1": ["ok"],
        "n2": ["ok"],
        "n3": ["ok"],
    }
    assert alike_findings("workers", group(n1={"speed": "?"}, n2={"speed": "?"}))[1] == []


def test_without_a_majority_nobody_is_odd_and_it_is_said_of_the_group():
    nodes, whole = says(
        alike_findings("workers", group(n1={"kernel": "6.1"}, n2={"kernel": "6.8"}, n3={"kernel": "6.8"}, n4={"kernel": "6.1"}))
    )

    assert whole == [("defect", "kernel differs within workers, and no value has a majority: 6.1 on n[1,4]; 6.8 on n[2-3]")]
    assert {state for found in nodes.values() for state, _ in found} == {"ok"}


def test_many_settings_of_one_kind_are_one_sentence():
    usual = {"sysctl vm.swappiness": "1", "sysctl kernel.panic": "10", "rail 0 MTU": "9000"}
    odd = {"sysctl vm.swappiness": "60", "sysctl kernel.panic": "0", "rail 0 MTU": "1500"}
    nodes, _ = says(alike_findings("workers", group(n1=usual, n2=usual, n3=odd)))

    assert [one.count(" on 2 of 3 ") for _, one in nodes["n3"]] == [1, 2]


def test_what_spoils_no_run_is_only_worth_knowing():
    nodes, _ = says(alike_findings("workers", group(n1={"python": "3.11"}, n2={"python": "3.11"}, n3={"python": "3.9"})))

    assert [state for state, _ in nodes["n3"]] == ["note"]


def test_one_node_alone_is_like_nobody():
    assert says(alike_findings("workers", group(n1={"kernel": "6.1"}))) == ({"n1": []}, [])


values = st.sampled_from(["a", "b", "c"])
tables = st.dictionaries(
    st.sampled_from([f"n{number}" for number in range(9)]),
    st.dictionaries(st.sampled_from(["alike", "gpus"]), st.dictionaries(st.sampled_from(["x", "y"]), values)),
)


@given(tables)
def test_named_is_exactly_who_is_not_of_the_majority(facts):
    """For any table: each difference is told once, of the right node, and a fact without a majority of no node."""
    odd, split = compare(facts)
    told = {(one.node, one.name, one.value) for one in odd}
    expected, undecided = set(), []
    for look in ("alike", "gpus"):
        members = {node: looks[look] for node, looks in facts.items() if look in looks}
        for name in {name for has in members.values() for name in has}:
            has = {node: each.get(name, NONE) for node, each in members.items()}
            usual = [value for value, count in Counter(has.values()).items() if 2 * count > len(has)]
            if usual:
                expected |= {(node, name, value) for node, value in has.items() if value != usual[0]}
            else:
                undecided.append((name, sorted(node for nodes in [has] for node in nodes)))

    assert expected == told
    assert len(told) <= len(odd)
    assert sorted(undecided) == sorted((one.name, sorted(node for nodes in one.values.values() for node in nodes)) for one in split)
    assert all(2 * one.majority > one.among and one.value != one.usual for one in odd)


@pytest.mark.parametrize("lies", [None, 7, ["driver"], {"driver": 7, "kernel": None}, {"driver": {"a": "b"}}])
def test_a_node_that_tells_no_facts_but_something_else_is_left_out(lies):
    assert {
        name: value for told in facts_in([Finding("alike", "ok", "", readings={"facts": lies})]).values() for name, value in told.items()
    } == {}


def test_what_a_node_tells_is_bounded():
    told = facts_in([Finding("alike", "ok", "", readings={"facts": {f"fact {number}" + "x" * 900: "y" * 9000 for number in range(900)}})])

    assert (len(told["alike"]), max(map(len, told["alike"])), {len(value) for value in told["alike"].values()}) == (500, 300, {300})
