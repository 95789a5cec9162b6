"""The plan and what is derived from it, without a lab."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaoskit.errors import InputError
from chaoskit.lab import bundle, network
from chaoskit.lab.inventory import TRAININGS, inventory_text, known_hosts_text, ssh_config_text
from chaoskit.lab.plan import LAST_INDEX, LabPlan, check_request
from chaoskit.lab.rootfs import hosts
from chaoskit.lab.status import NodeStatus, summarise
from chaoskit.model.load import load_inventory
from chaoskit.training.formats import KNOWN

SHIPPED = Path(__file__).parents[2] / "inventories" / "lab.yaml"

plans = st.builds(
    LabPlan,
    name=st.sampled_from(["lab", "test-1"]),
    index=st.integers(0, LAST_INDEX),
    workers=st.integers(2, 16),
    rail_mbit=st.integers(1, 10_000),
)


@given(plans)
def test_a_plan_survives_json(plan):
    assert LabPlan.from_json(plan.to_json()) == plan


@given(plans)
def test_no_two_links_share_an_address_or_a_hardware_address(plan):
    links = [(node, link) for node in plan.nodes for link in node.links]

    assert len({plan.address(*link) for link in links}) == len(links)
    assert len({plan.mac(*link) for link in links}) == len(links)
    assert plan.host_address not in {plan.address(*link) for link in links}


@given(plans)
def test_names_of_links_fit_the_kernel(plan):
    names = [network.port(node, link) for node in plan.nodes for link in node.links]

    assert max(map(len, [*names, plan.host_link])) <= 15


@given(plans)
def test_each_node_has_a_way_to_each_peer_over_both_rails_in_every_table(plan):
    first = plan.nodes[0]
    lines = network.node_batch(plan, first, 1).splitlines()

    for peer in plan.nodes[1:-1]:
        for table in ("main", 101, 102):
            ways = [line for line in lines if f"route add {plan.address(peer, 'fab0')}/32" in line and f"table {table} " in line]
            assert sorted(line.split(" dev ")[1][:5] for line in ways) == ["rail0", "rail1"]


def test_each_table_prefers_its_own_rail():
    plan = LabPlan("lab", 0, 2, 100)
    lines = network.node_batch(plan, plan.nodes[0], 1).splitlines()

    preferred = {line.split("table ")[1].split()[0]: line.split(" dev ")[1][:5] for line in lines if line.endswith("metric 10")}

    assert {"main": "rail0", "101": "rail0", "102": "rail1"} == preferred


@given(st.integers(0, (1 << 41) - 1))
def test_a_node_never_has_a_right_that_its_machine_lacks(bounding):
    numbers = {f"CAP_{name}": number for name, number in bundle.CAPABILITY_NUMBERS.items()}

    assert all(bounding >> numbers[name] & 1 for name in bundle.allowed(bounding))


def test_a_node_never_has_a_right_that_reaches_its_host():
    reach = {
        "SYS_ADMIN",
        "SYS_MODULE",
        "SYS_TIME",
        "SYS_RAWIO",
        "SYS_RESOURCE",
        "MAC_ADMIN",
        "MAC_OVERRIDE",
        "MKNOD",
        "DAC_READ_SEARCH",
        "BPF",
        "PERFMON",
        "SYSLOG",
        "SYS_PTRACE_HOST",
    }

    assert not reach & set(bundle.RIGHTS)
    assert set(bundle.RIGHTS) == set(bundle.CAPABILITY_NUMBERS)


def test_the_shipped_inventory_is_the_one_of_the_default_lab():
    """`lab up` and the repository say the same; rewrite inventories/lab.yaml when this fails."""
    schema = "../chaoskit/model/inventory.schema.json"

    assert SHIPPED.read_text() == inventory_text(LabPlan("lab", 0, 4, 100), schema)


def test_the_shipped_inventory_loads():
    inventory = load_inventory(SHIPPED)

    assert [node.name for node in inventory.group("workers")] == ["node1", "node2", "node3", "node4"]
    assert [node.name for node in inventory.nodes.values() if node.protected] == ["store1"]
    assert set(inventory.file.trainings) == set(TRAININGS)
    assert {training.format for training in inventory.file.trainings.values()} <= set(KNOWN)


@given(plans)
def test_every_node_is_reached_by_its_name(plan):
    config, known, names = ssh_config_text(plan), known_hosts_text(plan, {node.name: "ssh-ed25519 KEY" for node in plan.nodes}), hosts(plan)

    for node in plan.nodes:
        address = plan.address(node, "mgmt0")
        assert f"Host {node.name}\n  HostName {address}\n" in config
        assert f"{node.name},{address} ssh-ed25519 KEY\n" in known
        assert f"{address} {node.name}\n" in names


@pytest.mark.parametrize(("name", "workers", "rail"), [("../x", 4, 100), ("lab", 1, 100), ("lab", 17, 100), ("lab", 4, 0), ("", 4, 100)])
def test_an_impossible_request_is_refused(name, workers, rail):
    with pytest.raises(InputError):
        check_request(name, workers, rail)


@pytest.mark.parametrize(
    ("states", "supervised", "expected"),
    [
        (("up", "up"), True, "up"),
        (("up", "down"), True, "half-up"),
        (("up", "booting", "down"), True, "booting"),
        (("up", "up"), False, "broken"),
    ],
)
def test_a_lab_is_up_only_when_all_its_nodes_are(states, supervised, expected):
    nodes = tuple(NodeStatus(f"node{index}", state) for index, state in enumerate(states))

    assert summarise(nodes, supervised=supervised) == expected
