"""The doctor on a simulated site: each defect at its node, none hidden by another, and nothing unknown taken for well."""

from concurrent.futures import Future
from threading import Timer

import pytest
from simulated import SimAgent, SimClock, SimEntry, SimFleet, SimNode, Slow, done, failed

from chaoskit.agent.contract import Needs, Site
from chaoskit.engine import doctor_canary
from chaoskit.engine.doctor import WAY, diagnose
from chaoskit.engine.doctor_canary import kinds_for
from chaoskit.engine.doctor_clocks import clock_findings
from chaoskit.engine.doctor_orders import Checkup, parts_for, standing
from chaoskit.engine.plan import plan
from chaoskit.errors import AgentError, DeadlineError, HostKeyError, InputError, NodeError, PrivilegeError, UnreachableError
from chaoskit.model.interval import Interval
from chaoskit.model.load import experiment_from, inventory_from, parse_source
from chaoskit.model.wire import Finding, Prepared

SITE = """
name: site
ssh: {user: chaos}
nodes:
  n[1-3]: {group: workers, gpus: 8, rails: [{netdev: eth1, plane: A}, {netdev: eth2, plane: B}]}
  store1: {group: storage}
protected: [store1]
limits: {lifetimes: [volatile, irreversible]}
allow: file
trainings:
  default:
    launcher: torchrun
    argv: [train.py]
    user: trainer
    python: /opt/venv/bin/python
    log: "/logs/{run}.log"
    checkpoints: {dir: "/ckpt/{run}"}
  other: {launcher: attach, log: /shared/other.log, log_nodes: n1, nodes: "n[2-3]", checkpoints: {dir: /shared/ckpt}}
"""

FLAP = "title: t\nmethod:\n  - {fault: link_flap, target: {group: workers, pick: 1}, with: {plane: B}}\n"
KILL = "title: t\nmethod:\n  - {fault: rank_kill, target: {group: workers, pick: 1}}\n"


class Patient(SimAgent):
    """A connected agent that can be examined."""

    def examine(self, site, parts):
        asked = [check for part in parts for check in part["checks"]]
        if self.node.mute:
            return failed(DeadlineError("no answer within 35 s", node=self.name))
        if asked == ["peers"]:
            return self._ask(lambda: tuple(map(self.echo, parts[0]["checks"]["peers"]["echoes"])))
        return self._ask(lambda: tuple(self.node.seen.get(check, Finding(check, "ok", "well")) for check in asked))

    def echo(self, order):
        self.node.pings.append((order["netdev"], order["to"]))
        why = "no answer to 3 echo requests" if order["to"] in self.node.deaf else ""
        return Finding("peers", "note" if why else "ok", why, readings={"netdev": order["netdev"], "answered": not why})

    def wall_offset(self):
        return self._ask(lambda: self.node.offset)

    def prepare(self, run, entry, fault, params, site):
        if fault == "canary":
            self.node.canaries.append(params["kinds"])
            self.node.entries[entry] = SimEntry(Slow())
            return self._ask(lambda: Prepared({"kinds": params["kinds"]}, ()), "canary")
        self.node.prepared.append((entry, site.training.checkpoints))
        if self.node.refuses:
            error = AgentError(f"{self.name} {fault}: {self.node.refuses}", node=self.name, fault=fault, hint="mend it", kind="Refusal")
            return failed(error)
        return done(None)

    def arm(self, entry, lease):
        armed = super().arm(entry, lease)
        if self.node.arms == "unheard":
            return failed(DeadlineError("no answer within 60 s", node=self.name))
        if self.node.arms == "late":
            armed, answer = Future(), armed
            Timer(0.8, lambda: armed.set_result(answer.result())).start()
        return armed

    def forget(self, entry):
        return self._ask(lambda: self.node.entries.pop(entry) and None)


class Ward(SimFleet):
    """The site's nodes, some of which cannot be reached for a stated reason."""

    def __init__(self, inventory) -> None:
        super().__init__({name: SimNode(name, SimClock(), {"slow": Slow}) for name in inventory.nodes})
        self.errors, self.glimpsed = {}, {}
        for node in self.nodes.values():
            node.seen, node.offset, node.mute, node.prepared = {}, Interval.at(0.001, 0.001), False, []
            node.pings, node.deaf, node.canaries, node.arms = [], set(), [], "at once"

    def glimpse(self, name, checks):
        self.glimpsed[name] = sorted(checks)
        return done((Finding("rails", "defect", "eth2 is down", "ip link set eth2 up"), Finding("disk", "ok", "")))

    def reconnect(self, name):
        return failed(self.errors[name]) if name in self.errors else done(Patient(self.nodes[name]))


class Visit:
    """A site, and what a doctor says of it."""

    def __init__(self, text=SITE) -> None:
        self.inventory = inventory_from(parse_source(text.encode(), "site.yaml"))
        self.ward = Ward(self.inventory)

    def __call__(self, *experiments, runs=None, canary=True):
        loaded = [experiment_from(parse_source(text.encode(), "e.yaml")) for text in experiments]
        checkup = Checkup(
            self.inventory, {"link_flap": Needs(("ip",), ("NET_ADMIN",))}, tuple(plan(one, self.inventory) for one in loaded), canary=canary
        )
        found = diagnose(self.ward, checkup, runs)
        assert [] == [one for one in found.found("unknown") if not one.do], "what nobody knows comes with a next step, in every test here"
        return found


@pytest.fixture
def visit():
    return Visit()


def bad(found):
    """Every finding that is not well, as (node, check, state)."""
    return {(name, one.check, one.state) for name, findings in found.nodes.items() for one in findings if one.state != "ok"}


def says_of(found, node, check):
    return [one.says for one in found.nodes[node] if one.check == check and one.state != "ok"]


def at_step(error, step, *also):
    error.step, error.also = step, also
    return error


def test_a_site_that_is_well_is_ready_and_every_check_was_made(visit):
    found = visit()

    assert (bad(found), found.exit_code, found.whole) == (set(), 0, ())
    checks = [one.check for one in found.nodes["n2"]]
    looked = ["clock", "disk", "rails", "gpus", "alike", "consent", "jobs", "tools", "remediators", "training", "training"]
    assert sorted([*WAY, *looked, "leftovers", "canary"]) == sorted(checks)


def test_what_keeps_an_agent_from_staying_awake_is_told_here_and_by_no_run(visit):
    """A container without the capability says so once, to whoever prepares the site."""
    visit.ward.nodes["n2"].frailties = ("the OOM killer may pick the agent: Permission denied",)
    found = visit()

    [note] = [one for one in found.nodes["n2"] if one.state == "note"]
    assert ("agent", "the OOM killer may pick the agent: Permission denied") == (note.check, note.says)
    assert "CAP_SYS_RESOURCE" in note.do
    assert found.exit_code == 0


def test_a_protected_node_is_only_looked_at(visit):
    """No fault comes to it: its jobs, its consent and its tools are nobody's business."""
    assert [*WAY, "clock", "disk", "leftovers"] == [one.check for one in visit().nodes["store1"]]


@pytest.mark.parametrize("step", WAY)
def test_the_first_step_that_fails_is_the_defect_what_came_before_is_well_and_the_rest_unknown(visit, step):
    visit.ward.errors["n1"] = at_step(NodeError("it fails", node="n1", hint="mend it"), step)
    found = visit()
    states = {one.check: one.state for one in found.nodes["n1"]}
    index = WAY.index(step)

    assert [states[name] for name in WAY] == ["ok"] * index + ["defect"] + ["unknown"] * (len(WAY) - index - 1)
    assert {states[check] for check in ("clock", "gpus", "jobs", "tools", "training", "leftovers")} == {"unknown"}
    assert states["rails"] == ("defect" if step == "sudo" else "unknown")
    assert {name for name, _, _ in bad(found)} == {"n1"}
    assert found.exit_code == 3


def test_a_node_that_refuses_sudo_is_looked_at_for_what_needs_no_root(visit):
    """The account looks at its own training only: it cannot become the one that trains."""
    visit.ward.errors["n2"] = at_step(PrivilegeError("`sudo -n` is refused", node="n2"), "sudo")
    found = visit()

    assert {check for name, check, state in bad(found) if state == "defect"} == {"sudo", "rails"}
    assert {"gpus", "jobs", "training", "leftovers"} <= {check for name, check, state in bad(found) if state == "unknown"}
    assert visit.ward.glimpsed == {"n2": ["alike", "consent", "disk", "gpus", "jobs", "rails", "remediators", "tools", "training"]}


def test_of_two_things_wrong_at_one_moment_both_are_told(visit):
    sudo = at_step(PrivilegeError("`sudo -n` is refused", node="n1", hint="put into sudoers: ..."), "sudo")
    visit.ward.errors["n1"] = at_step(NodeError("Python 3.6 is older than 3.8", node="n1", hint="install one"), "python", sudo)
    found = visit()

    assert {check for name, check, state in bad(found) if state == "defect"} == {"python", "sudo"}
    assert [one.do for one in found.found("defect")] == ["install one", "put into sudoers: ..."]


def test_many_defects_at_once_are_all_told_each_at_its_node(visit):
    """One bad node never hides another."""
    visit.ward.errors["n1"] = at_step(HostKeyError("the host key changed", node="n1"), "host key")
    visit.ward.errors["store1"] = UnreachableError("no connection", node="store1")
    n2, n3 = visit.ward.nodes["n2"], visit.ward.nodes["n3"]
    n2.seen["rails"] = Finding("rails", "defect", "eth2 has no signal", "check its cable")
    n2.seen["gpus"] = Finding("gpus", "unknown", "no answer within 25 s")
    n2.offset = Interval.at(5.2, 0.01)
    n3.mute = True

    found = visit()
    defects = {(name, check) for name, check, state in bad(found) if state == "defect"}

    assert defects == {("n1", "host key"), ("store1", "reach"), ("n2", "rails"), ("n2", "clock")}
    assert {("n2", "gpus", "unknown"), ("n3", "rails", "unknown"), ("n3", "disk", "unknown")} <= bad(found)
    assert found.exit_code == 3


def test_a_leftover_decides_the_exit_code_and_says_who_pays_it(visit):
    agent = visit.ward.reconnect("n2").result()
    SimAgent.prepare(agent, "old", "old/1/n2", "slow", {}, None)
    agent.arm("old/1/n2", 1e9)
    visit.ward.errors["n1"] = at_step(NodeError("it fails", node="n1"), "agent")
    found = visit()

    assert [(one.says, one.do) for one in found.owed] == [("old/1/n2: slow: armed, never proven gone", "`chaoskit heal` pays it")]
    assert found.exit_code == 5


def test_a_node_that_cannot_say_what_it_owes_is_unknown(visit):
    visit.ward.nodes["n3"].cut_until = float("inf")
    found = visit()

    assert ("n3", "leftovers", "unknown") in bad(found)
    assert found.exit_code == 3


def test_an_experiments_faults_are_prepared_on_their_targets_and_nothing_is_injected(visit):
    found = visit(FLAP)
    prepared = {name: node.prepared for name, node in visit.ward.nodes.items() if node.prepared}
    (target,) = prepared

    assert prepared[target] == [(f"doctor/1001/{target}", "/ckpt/")]
    assert ("prepare", "ok") in {(one.check, one.state) for one in found.nodes[target]}
    assert all(not node.entries for node in visit.ward.nodes.values())


def test_a_refusal_is_a_defect_with_the_nodes_words(visit):
    for node in visit.ward.nodes.values():
        node.refuses = "eth2 has 802.1Q stacked on it"
    found = visit(FLAP)

    assert [(one.check, one.says, one.do) for one in found.found("defect")] == [
        ("prepare", "link_flap plane B: eth2 has 802.1Q stacked on it", "mend it")
    ]


def test_nothing_is_tried_on_a_node_that_is_not_well(visit):
    for node in visit.ward.nodes.values():
        node.seen["rails"] = Finding("rails", "defect", "eth2 is down")
    found = visit(FLAP)

    assert [one.says for one in found.found("unknown") if one.check == "prepare"] == [
        "link_flap plane B: not tried before the rest is mended"
    ]
    assert all(not node.prepared for node in visit.ward.nodes.values())


def test_a_fault_that_looks_for_the_trainings_processes_is_told_and_not_tried(visit):
    found = visit(KILL)

    assert [(one.state, one.says) for one in found.whole if one.check == "prepare"] == [
        ("note", "e: rank_kill can be tried only once the training is up")
    ]
    assert found.exit_code == 0


def test_a_gap_in_the_inventory_is_told_once_and_hides_nothing(visit):
    """Without the address of a protected node nobody knows what must not be cut off, so no fault is tried either."""

    def no_address(name):
        raise InputError("the address of the protected node store1 cannot be found", hint="write it into the inventory")

    visit.ward.site = no_address
    (target,) = plan(experiment_from(parse_source(FLAP.encode(), "e.yaml")), visit.inventory).touched
    other = next(name for name in ("n1", "n2") if name != target)
    visit.ward.nodes[other].seen["rails"] = Finding("rails", "defect", "eth2 has no signal", "check its cable")
    found = visit(FLAP)

    assert [(one.check, one.says) for one in found.found("defect")] == [
        ("rails", "eth2 has no signal"),
        ("inventory", "the address of the protected node store1 cannot be found"),
    ]
    unknown = {name: [one.says for one in found.nodes[name] if (one.check, one.state) == ("rails", "unknown")] for name in found.nodes}
    says = ["whether a rail carries the SSH connection is not known"]
    assert unknown == {"n1": says, "n2": says, "n3": says, "store1": []}
    assert all(not node.prepared for node in visit.ward.nodes.values())


def test_a_node_that_is_lost_meanwhile_is_unknown(visit):
    def lost(name):
        if name == "n1":
            raise UnreachableError("the node was never reached", node=name)
        return Site(name)

    visit.ward.site = lost
    assert {(name, state) for name, _, state in bad(visit())} == {("n1", "unknown")}


@pytest.mark.parametrize(
    ("rails", "state", "says"),
    [
        ("[{netdev: eth1}]", "note", "the inventory states no planes, so no fault can take one"),
        ("[{netdev: eth1, plane: A}, {netdev: eth2}]", "defect", "the inventory states no plane for rail 1 of n[1-3], but for others"),
    ],
)
def test_rails_without_a_plane(rails, state, says):
    visit = Visit(SITE.replace("[{netdev: eth1, plane: A}, {netdev: eth2, plane: B}]", rails))

    assert [(state, says)] == [(one.state, one.says) for one in visit().whole]


# -- planes --------------------------------------------------------------------------------------------------------


def with_addresses(visit, **more):
    """Give each worker's rails the addresses 10.1.0.N and 10.2.0.N."""
    for number in (1, 2, 3):
        addresses = {"eth1": [f"10.1.0.{number}"], "eth2": [f"10.2.0.{number}"], **more}
        visit.ward.nodes[f"n{number}"].seen["rails"] = Finding("rails", "ok", "up", readings={"addresses": addresses})


def deaf(visit, *addresses):
    for node in visit.ward.nodes.values():
        node.deaf |= set(addresses)


def test_each_rail_asks_the_same_rail_of_the_next_node(visit):
    with_addresses(visit)
    found = visit()

    assert {name: node.pings for name, node in visit.ward.nodes.items()} == {
        "n1": [("eth1", "10.1.0.2"), ("eth2", "10.2.0.2")],
        "n2": [("eth1", "10.1.0.3"), ("eth2", "10.2.0.3")],
        "n3": [("eth1", "10.1.0.1"), ("eth2", "10.2.0.1")],
        "store1": [],
    }
    assert (found.exit_code, [one.check for one in found.nodes["n1"]].count("peers")) == (0, 2)


def test_a_silent_rail_is_a_defect_where_others_of_its_plane_are_answered(visit):
    with_addresses(visit)
    deaf(visit, "10.2.0.3")
    found = visit(canary=False)

    assert {(name, check, state) for name, check, state in bad(found)} == {("n2", "peers", "defect")}
    [says] = says_of(found, "n2", "peers")
    assert says.startswith("eth2 (rail 1, plane B) is not answered by n3 (10.2.0.3), while others of the plane are: no answer")


def test_a_plane_on_which_nobody_answers_is_unknown(visit):
    """A fabric may drop echoes: silence alone proves nothing."""
    with_addresses(visit)
    deaf(visit, *(f"10.2.0.{number}" for number in (1, 2, 3)))
    found = visit()

    assert (bad(found), found.exit_code) == (set(), 3)
    assert [(one.state, "over plane B" in one.says) for one in found.whole] == [("unknown", True)]


@pytest.mark.parametrize("evil", ["$(reboot)", "localhost", "224.0.0.1", "127.0.0.1", 7, None, "::1"])
def test_no_node_can_make_another_ask_what_is_no_address(visit, evil):
    with_addresses(visit, eth1=[evil])
    visit()

    assert {netdev for node in visit.ward.nodes.values() for netdev, _ in node.pings} == {"eth2"}


# -- the odd one out -----------------------------------------------------------------------------------------------


def with_facts(visit, name, **facts):
    visit.ward.nodes[name].seen["alike"] = Finding("alike", "ok", "", readings={"facts": facts})


def test_the_odd_one_out_of_a_group_is_named_and_its_faults_are_prepared_all_the_same(visit):
    for name in ("n1", "n2", "n3"):
        with_facts(visit, name, kernel="6.8" if name == "n2" else "6.1")
    found = visit(FLAP)

    assert says_of(found, "n2", "alike") == ["kernel is 6.8, and 6.1 on 2 of 3 in workers"]
    assert {(name, check, state) for name, check, state in bad(found)} == {("n2", "alike", "defect")}
    assert [one.says for one in found.nodes["n1"] if one.check == "alike"] == ["like the other nodes of workers"]
    assert (found.exit_code, len([node for node in visit.ward.nodes.values() if node.prepared])) == (3, 1)


def test_what_differs_without_a_majority_is_told_of_the_group(visit):
    for name in ("n1", "n2", "n3"):
        with_facts(visit, name, kernel=f"6.{name}")
    found = visit()

    assert [(one.check, one.state) for one in found.whole] == [("alike", "defect")]
    assert found.exit_code == 3


# -- the canary ----------------------------------------------------------------------------------------------------


def test_a_canary_goes_to_each_node_that_a_fault_may_come_to_and_leaves_no_entry(visit):
    found = visit()

    assert {name: node.canaries for name, node in visit.ward.nodes.items()} == {
        "n1": [["table"]],
        "n2": [["table"]],
        "n3": [["table"]],
        "store1": [],
    }
    assert all(not node.entries for node in visit.ward.nodes.values())
    assert [one.says for one in found.nodes["n1"] if one.check == "canary"] == [
        "armed under a lease and a fuse, done, seen and taken back: an empty table of the packet filter"
    ]


def test_no_canary_is_sent_when_it_shall_not_or_to_a_node_that_is_not_well(visit):
    visit.ward.nodes["n1"].seen["rails"] = Finding("rails", "defect", "eth2 has no signal")
    found = visit()
    assert says_of(found, "n1", "canary") == ["not sent before the rest is mended"]
    assert (visit.ward.nodes["n1"].canaries, len(visit.ward.nodes["n2"].canaries)) == ([], 1)

    assert all(one.check != "canary" for findings in visit(canary=False).nodes.values() for one in findings)
    assert len(visit.ward.nodes["n2"].canaries) == 1


def test_no_canary_is_sent_where_the_site_allows_only_some_faults_and_nobody_said_which_are_meant(visit):
    visit.ward.nodes["n1"].seen["consent"] = Finding("consent", "note", "/etc/chaoskit/allow does not allow link_flap")
    found = visit()

    assert (visit.ward.nodes["n1"].canaries, len(visit.ward.nodes["n2"].canaries), found.exit_code) == ([], 1, 0)


@pytest.mark.parametrize("step", ["canary", "arm", "inject", "witness"])
def test_a_canary_that_falls_is_a_defect_at_its_node_and_is_taken_back(visit, step):
    node = visit.ward.nodes["n2"]
    node.refuses, node.refuses_at = "no fuse could be started", step
    found = visit()

    assert {(name, check, state) for name, check, state in bad(found)} == {("n2", "canary", "defect")}
    assert "no fuse could be started" in says_of(found, "n2", "canary")[0]
    assert all(entry.state == "prepared" or not entry.harmed for entry in node.entries.values())
    assert found.exit_code == 3


def test_a_node_that_is_slow_to_arm_costs_no_other_its_lease(visit, monkeypatch):
    monkeypatch.setattr(doctor_canary, "EVERY", 0.2)
    visit.ward.nodes["n1"].arms = "late"

    assert bad(visit()) == set()
    assert visit.ward.nodes["n2"].renewals > 0


def test_a_canary_that_may_have_been_armed_is_taken_back(visit):
    node = visit.ward.nodes["n2"]
    node.arms = "unheard"

    assert {(name, check, state) for name, check, state in bad(visit())} == {("n2", "canary", "unknown")}
    assert node.entries == {}


def test_a_canary_that_nobody_sees_has_fallen(visit):
    visit.ward.nodes["n3"].witnessed = False

    assert {(name, check, state) for name, check, state in bad(visit())} == {("n3", "canary", "defect")}


def test_a_canary_that_is_not_taken_back_is_left_over(visit):
    node = visit.ward.nodes["n2"]
    node.undo = lambda entry: setattr(entry, "harmed", True)
    found = visit()

    assert {(name, check, state) for name, check, state in bad(found)} == {("n2", "leftovers", "defect")}
    assert (found.exit_code, len(node.entries)) == (5, 1)


@pytest.mark.parametrize(
    ("needs", "kinds"),
    [
        ((Needs(),), []),
        ((Needs(capabilities=("KILL", "SYS_PTRACE")), Needs(capabilities=("NET_ADMIN",))), ["table", "signal"]),
        ((Needs(features=(("cpu_quota",),)), Needs(gpus=True)), ["group", "power"]),
        ((Needs(features=(("cpu_quota",), ("sch_htb",))),), []),
    ],
)
def test_what_is_tried_follows_from_what_the_faults_need(needs, kinds):
    assert kinds == kinds_for(needs)


# -- what is asked -------------------------------------------------------------------------------------------------


def asked(inventory, name, *plans, **more):
    return parts_for(Checkup(inventory, {"link_flap": Needs(("ip",), ("NET_ADMIN",))}, plans, **more), name)


def test_what_a_training_stands_on_is_looked_at_by_the_account_that_trains(visit):
    """chaoskit's own launcher needs the Python and writes the log; of a training that is there only the folders count."""
    by_user = {part["user"]: part["checks"]["training"]["trainings"] for part in asked(visit.inventory, "n2")[1:]}

    assert by_user == {
        "trainer": [
            {"name": "default", "python": "/opt/venv/bin/python", "folders": [["checkpoints", "/ckpt", True], ["log", "/logs", True]]}
        ],
        "chaos": [{"name": "other", "python": "", "folders": [["checkpoints", "/shared/ckpt", False]]}],
    }
    assert ["log", "/shared", False] in asked(visit.inventory, "n1")[2]["checks"]["training"]["trainings"][0]["folders"]


def test_the_faults_that_were_named_must_be_possible_on_their_targets_and_others_are_only_told(visit):
    made = plan(experiment_from(parse_source(FLAP.encode(), "e.yaml")), visit.inventory)
    (target,) = made.touched
    named = {name: asked(visit.inventory, name, made)[0]["checks"].get("tools") for name in visit.inventory.nodes}

    assert named[target]["state"] == "defect"
    assert {name for name, tools in named.items() if tools} == {target}
    every = asked(visit.inventory, "n1")[0]["checks"]["tools"]
    assert every == {"faults": {"link_flap": Needs(("ip",), ("NET_ADMIN",)).to_json()}, "state": "note"}


@pytest.mark.parametrize(
    ("path", "fixed"),
    [("/ckpt/{run}", "/ckpt"), ("/a/{node}/b", "/a/n1/b"), ("/a/x-{job}/b", "/a"), ("/plain/dir", "/plain/dir"), ("/{run}", "/")],
)
def test_the_folder_that_stands_before_a_run(path, fixed):
    assert fixed == standing(path, "n1")


# -- clocks --------------------------------------------------------------------------------------------------------


def clocks(**offsets):
    return {name: one.state for name, one in clock_findings({name: Interval(*pair) for name, pair in offsets.items()}).items()}


def test_a_clock_that_is_off_is_named_in_either_direction_and_the_others_are_not():
    found = clock_findings(
        {"a": Interval.at(5.0, 0.01), "b": Interval.at(0.0, 0.01), "c": Interval.at(0.1, 0.01), "d": Interval.at(-3, 0.01)}
    )

    assert {name: one.state for name, one in found.items()} == {"a": "defect", "b": "ok", "c": "ok", "d": "defect"}
    assert "5.0 s ahead of the others'" in found["a"].says
    assert "3.0 s behind the others'" in found["d"].says
    assert "munge and Kerberos" in found["a"].do


def test_when_all_nodes_agree_it_is_our_clock_that_is_off():
    assert clocks(a=(7.9, 8.1), b=(7.9, 8.1), c=(7.9, 8.1)) == {"a": "ok", "b": "ok", "c": "ok", "": "defect"}


def test_of_two_clocks_ours_is_taken():
    assert clocks(a=(7.9, 8.1)) == {"a": "defect"}


def test_a_clock_that_could_not_be_read_closely_enough_is_unknown():
    assert clocks(a=(-2.0, 2.0), b=(0.0, 0.1)) == {"a": "unknown", "b": "ok"}
