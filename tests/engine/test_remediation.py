"""Before and after a fault, on a simulated cluster: who would act on it is said and may refuse it, and what stayed is told last."""

import json
from dataclasses import dataclass, replace

import pytest
from simulated import SimClock, SimFleet, SimNode, SimTraining, Slow
from simulated_plan import info_of, injection_of, plan_of

from chaoskit.agent.contract import Sign
from chaoskit.engine import journal
from chaoskit.engine.dry import dry_run
from chaoskit.engine.replay import read_run
from chaoskit.engine.run import run_experiment
from chaoskit.errors import RefusedError
from chaoskit.judge.verdict import Outcome
from chaoskit.model.wire import Finding
from chaoskit.report import junit, summary, table

pytestmark = pytest.mark.row("L42", "L25")


@dataclass(frozen=True)
class Flap(Slow):
    """Slow, and like a link that fails to whoever watches."""

    signs = (Sign.LINK_DOWN,)


REPLACES = Finding(
    "remediators", "note", "for slow, nvsentinel replaces it: a port is fatal to it", "", {"fault": "slow", "does": "replaces it"}
)
DRAINS = Finding("remediators", "note", "for slow, nhc drains it: it checks links", "", {"fault": "slow", "does": "drains it"})


def flap(*, allow=()):
    return replace(injection_of(Flap(hold=5.0), ("n2",), allow=allow), fault="slow", detail="slow")


class Site:
    def __init__(self, tmp_path):
        self.clock = SimClock()
        self.nodes = {name: SimNode(name, self.clock, {"slow": Slow}) for name in ("n1", "n2")}
        self.fleet = SimFleet(self.nodes)
        self.run_dir = tmp_path
        self.events = []
        self.carrier_changes = 4
        self.nodes["n2"].findings = {"residue": self.shown}

    def shown(self, args):
        kernel = {"seq": 7, "lines": [] if args["since"] is None else [[8, 3, "mlx5_core: link down"]], "lost": 0, "cut": 0, "why": ""}
        counters = {"nic/rail0/carrier_changes": self.carrier_changes}
        self.carrier_changes += 2
        return (Finding("residue", "ok", "", "", {"boot_id": "b", "counters": counters, "kernel": kernel, "states": {}}),)

    def run(self, one):
        training = SimTraining(self.clock, self.nodes)
        given = {"run_dir": self.run_dir, "clock": self.clock, "listener": self.events.append}
        return run_experiment(plan_of(one, gpus=2), info_of(self.clock, gpus=2), self.fleet, training, **given)


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def test_a_fault_that_would_cost_a_machine_is_refused_before_anything_starts(site):
    """Nothing is prepared, and the reason names node and remediator and what to do."""
    site.nodes["n2"].findings["remediators"] = (REPLACES,)
    result = site.run(flap())

    assert Outcome.INCONCLUSIVE is result.verdict.outcome
    assert "n2: for slow, nvsentinel replaces it" in result.verdict.reasons[0]
    assert "allow: [replacement]" in result.verdict.reasons[0]
    assert {} == site.nodes["n2"].entries


def test_it_begins_where_the_experiment_gives_the_machine_up(site):
    site.nodes["n2"].findings["remediators"] = (REPLACES,)

    assert Outcome.PASSED is site.run(flap(allow=("replacement",))).verdict.outcome


def test_what_costs_less_than_a_machine_is_said_before_the_fault(site):
    site.nodes["n2"].findings["remediators"] = (DRAINS,)
    result = site.run(flap())

    kinds = [event.kind for event in site.events]
    (said,) = [event.says for event in site.events if "nhc" in event.says]
    assert "n2: for slow, nhc drains it: it checks links" == said
    assert kinds.index("note") < kinds.index("injected")
    assert Outcome.PASSED is result.verdict.outcome


def test_a_dry_run_says_and_refuses_the_same(site):
    site.nodes["n2"].findings["remediators"] = (DRAINS,)
    dry_run(plan_of(flap(), gpus=2), site.fleet, ("n1", "n2"), run_id="r", listener=site.events.append)
    assert any("nhc drains it" in event.says for event in site.events)

    site.nodes["n2"].findings["remediators"] = (REPLACES,)
    with pytest.raises(RefusedError, match="would replace hardware: n2: for slow, nvsentinel"):
        dry_run(plan_of(flap(), gpus=2), site.fleet, ("n1", "n2"), run_id="r")


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_a_dry_run_tells_of_a_node_that_falls_silent_once(site, node):
    """Every later question would fail as well, and be told as one more cause."""

    def lost(_):
        site.nodes[node].cut_until = float("inf")
        return ()

    site.nodes["n2"].findings["tools"] = lost
    with pytest.raises(RefusedError, match=rf"^{node}: connection lost$"):
        dry_run(plan_of(flap(), gpus=2), site.fleet, ("n1", "n2"), run_id="r", listener=site.events.append)

    assert [] == [event.says for event in site.events if event.kind == "note"]


def test_what_stayed_is_told_after_the_verdict_and_by_every_report(site, tmp_path):
    """The journal has it behind the verdict, and `chaoskit report` shows it as the run did."""
    result = site.run(flap())
    kinds = [record["kind"] for record in journal.read(site.run_dir).records]

    assert kinds.index("verdict") < kinds.index("residue")
    assert ["carrier_changes of rail0 +2", "mlx5_core: link down"] == [one.says for one in result.residue]
    assert result.residue == read_run(site.run_dir).residue
    assert ["n2", "n2"] == [one["node"] for one in summary.document(result)["residue"]]
    text = table.plain(table.verdict_table(result))
    assert "left behind        n2: carrier_changes of rail0 +2" in text
    assert "carrier_changes of rail0 +2" in junit.document(result).tostring().decode()
    assert Outcome.PASSED is result.verdict.outcome


@pytest.mark.parametrize("broken", [(), (Finding("residue", "unknown", "no answer within 25 s"),)])
def test_a_look_that_fails_changes_no_verdict(site, broken):
    site.nodes["n2"].findings["residue"] = broken
    result = site.run(flap())

    assert Outcome.PASSED is result.verdict.outcome
    assert ["unknown"] == [one.kind for one in result.residue]


def test_a_journal_without_residue_is_read_as_ever(site):
    """As one of an earlier version, or of a controller that died right after the verdict."""
    site.run(flap())
    path = site.run_dir / journal.NAME
    lines = [line for line in path.read_text().splitlines() if json.loads(line)["kind"] != "residue"]
    path.write_text("\n".join(lines) + "\n")

    assert (True, ()) == (read_run(site.run_dir).complete, replace(read_run(site.run_dir)).residue)
