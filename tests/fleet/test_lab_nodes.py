"""The fleet on the lab's nodes: an account with sudo, a clock and a boot id of its own on each, real reboots, real silence."""

import time
from pathlib import Path

import pytest
from fair_watch import FairWatch

from chaoskit.errors import NodeError, UnreachableError
from chaoskit.fleet.channel import SILENCE
from chaoskit.fleet.fleet import SshFleet
from chaoskit.model.load import load_inventory

pytestmark = pytest.mark.cluster

TOYS = {path.stem: path for path in (Path(__file__).parents[1] / "agent" / "toys").glob("toy_*.py")}


@pytest.fixture
def inventory(lab):
    return load_inventory(lab.inventory_path)


@pytest.fixture
def fleet(inventory):
    fleet = SshFleet(inventory, TOYS)
    yield fleet
    fleet.close()


@pytest.fixture
def workers(inventory):
    return [node.name for node in inventory.group("workers")]


def run_name():
    return f"fleet-{time.monotonic_ns()}"


def reach_again(fleet, name, within=60.0):
    end = time.monotonic() + within
    while time.monotonic() < end:
        try:
            return fleet.reconnect(name).result()
        except NodeError:
            time.sleep(0.2)
    raise AssertionError(f"{name} did not come back")


def begin(fleet, agent, run, fault, params):
    """Prepare and arm one entry; return its name."""
    entry = f"{run}/1/{agent.name}"
    agent.prepare(run, entry, fault, params, fleet.site(agent.name)).result()
    agent.arm(entry, 30.0).result()
    return entry


def make_file(lab, name, path):
    lab.ssh(name, "sh", "-c", f"'echo fine > {path}'")


def test_all_nodes_are_reached_with_ids_and_addresses_of_their_own(fleet, inventory):
    agents = fleet.connect(list(inventory.nodes))
    sites = {name: fleet.site(name) for name in agents}
    store = sites["store1"].control_addresses

    assert len({agent.boot_id for agent in agents.values()}) == len(agents)
    assert {name: agent.hello.machine_id for name, agent in agents.items()} == {
        name: node.machine_id for name, node in inventory.nodes.items()
    }
    assert all(agent.hello.uid == 0 for agent in agents.values())
    assert len({site.control_addresses for site in sites.values()}) == len(agents)
    assert all(set(store) < set(site.protected_addresses) for site in sites.values())
    assert sites["node1"].mounts == ("/ckpt",)


def test_each_node_has_a_clock_of_its_own_and_all_are_mapped_to_ours(fleet, workers):
    agents = fleet.connect(workers)
    now = time.monotonic()
    there = [agent.clock.to_node(now) for agent in agents.values()]

    assert min(abs(mono - now) for mono in there) > 1
    assert all(agent.clock.to_controller(mono).lo <= now + 0.001 for agent, mono in zip(agents.values(), there, strict=True))
    assert all(agent.clock.to_controller(mono).spread < 0.1 for agent, mono in zip(agents.values(), there, strict=True))


def test_one_t0_strikes_all_nodes_at_that_moment_of_our_clock(lab, fleet, workers):
    agents, run = fleet.connect(workers), run_name()
    for name in workers:
        make_file(lab, name, f"/tmp/{run}")
    entries = {name: begin(fleet, agent, run, "toy_file", {"path": f"/tmp/{run}", "down": 1.0}) for name, agent in agents.items()}
    watch, at = FairWatch(), time.monotonic() + 1.0
    futures = {name: agent.inject(entries[name], at) for name, agent in agents.items()}
    struck = {name: future.result() for name, future in futures.items()}
    ended = {name: agent.finish(entries[name]).result() for name, agent in agents.items()}

    for name in workers:
        assert struck[name].hi >= at
        assert struck[name].mid - at < 0.5 + watch.spared()  # a node's clock differs by far more
        assert ended[name].t1.hi >= at + 1.0
        assert ended[name].gone.holds


@pytest.mark.row("L32")
def test_a_rebooted_node_is_lost_and_comes_back_as_another_boot_with_its_old_stamps(lab, fleet):
    agent, run = fleet.connect(["node2"])["node2"], run_name()
    make_file(lab, "node2", f"/var/tmp/{run}")
    entry = begin(fleet, agent, run, "toy_shot", {"path": f"/var/tmp/{run}"})
    watch, t0 = FairWatch(), agent.inject(entry, None).result()
    old, waiting = agent.boot_id, agent.finish(f"{run}/1/none")
    with pytest.raises(NodeError):
        waiting.result()
    pending = agent.spawn("reboot", ["reboot", "-f"], {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, None, "/", f"/var/tmp/{run}.log")
    pending.exception(30)
    end = time.monotonic() + 30
    while agent.connected and time.monotonic() < end:
        time.sleep(0.05)
    lost = agent.renew(run, 30.0).exception(0)
    again = reach_again(fleet, "node2")
    [known] = [each for each in again.entries(run).result() if each.entry == entry]

    assert isinstance(lost, UnreachableError)
    assert again.boot_id != old
    assert abs(known.t0.mid - t0.mid) < 0.005 + watch.spared()
    assert again.clock is not agent.clock


@pytest.mark.row("R6", "L4", "L32")
@pytest.mark.prove
def test_a_node_that_falls_silent_is_lost_and_what_was_pending_is_unknown(fleet):
    """Its management link goes down for a while: no packet tells us, only the silence."""
    agent, run = fleet.connect(["node3"])["node3"], run_name()
    cut = "sleep 1; ip link set mgmt0 down; sleep 14; ip link set mgmt0 up"
    agent.spawn(run, ["sh", "-c", cut], {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, None, "/", f"/var/tmp/{run}.log").result()
    time.sleep(2.0)
    watch = FairWatch()
    looked, asked = agent.audit(), agent.renew(run, 30.0)
    error = asked.exception(SILENCE + 10)

    assert isinstance(error, UnreachableError)
    assert "whether it took effect is unknown" in str(error)
    assert str(looked.exception(1.0)).endswith(f"nothing was heard from the node for {SILENCE:g} s")
    assert watch.took() < SILENCE + 4
    assert not agent.connected
    assert reach_again(fleet, "node3").connected
