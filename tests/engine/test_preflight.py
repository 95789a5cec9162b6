"""What a run looks at before the training starts: only targets are refused for, and with the doctor's own sentences."""

import pytest
from simulated import SimAgent, SimClock, SimFleet, SimNode, Slow

from chaoskit.agent.contract import Needs, Site
from chaoskit.engine.preflight import preflight
from chaoskit.errors import RefusedError
from chaoskit.model.wire import Finding


class Wanting(Slow):
    """A fault that needs something."""

    needs = Needs(binaries=("fio",), features=(("sch_netem",),))


class Planned:
    """One injection, as far as a preflight looks at it."""

    fault = "slow"
    instance = Wanting()

    def __init__(self, *targets):
        self.targets = targets


class Site3:
    """Three nodes that train, of which `asked` remembers what each was asked."""

    def __init__(self, **findings):
        self.nodes = {name: SimNode(name, SimClock(), {"slow": Slow}) for name in ("n1", "n2", "n3")}
        self.fleet, self.asked = SimFleet(self.nodes), {}
        for name, node in self.nodes.items():
            node.findings = findings.get(name, {})

    def __call__(self, *targets):
        site = self

        class Agent(SimAgent):
            def examine(self, where, parts):
                site.asked[self.name] = parts[0]["checks"]
                return super().examine(where, parts)

        return preflight(self.fleet, {name: Agent(node) for name, node in self.nodes.items()}, [Planned(*targets)], ("n1", "n2", "n3"))


def test_a_target_is_asked_for_what_its_faults_need_and_the_others_only_how_they_are():
    site = Site3()
    found = site("n2")

    assert {name: sorted(checks) for name, checks in site.asked.items()} == {
        "n1": ["alike"],
        "n2": ["alike", "disk", "tools"],
        "n3": ["alike"],
    }
    assert site.asked["n2"]["tools"] == {"faults": {"slow": Wanting.needs.to_json()}, "state": "defect"}
    assert (found.says, found.defects) == ((), ())
    found.refuse()


def test_consent_is_asked_for_where_the_site_wants_it(monkeypatch):
    site = Site3()
    monkeypatch.setattr(site.fleet, "site", lambda name: Site(name, require_allow_file=True), raising=False)
    site("n1")

    assert site.asked["n1"]["consent"] == {"faults": ["slow"], "state": "defect"}
    assert "consent" not in site.asked["n2"]


@pytest.mark.row("L9", "L48")
def test_what_a_target_lacks_is_refused_with_the_nodes_words_once_for_all_nodes():
    lack = {"tools": (Finding("tools", "defect", "slow needs sch_netem of the kernel: it was built without it", "boot another"),)}
    found = Site3(n1=lack, n2=lack)("n1", "n2")

    with pytest.raises(RefusedError) as refused:
        found.refuse()
    assert refused.value.what == "n[1-2]: slow needs sch_netem of the kernel: it was built without it"
    assert refused.value.hint == "boot another"


def test_what_nobody_knows_and_who_is_odd_is_a_remark_and_refuses_nothing():
    def told(mtu):
        return {"alike": (Finding("alike", "ok", "", readings={"facts": {"rail 0 MTU": mtu}}),)}

    site = Site3(
        n1=told("9000"), n2={**told("1500"), "tools": (Finding("tools", "unknown", "whether it is there is not known"),)}, n3=told("9000")
    )
    found = site("n2")

    assert found.says == (
        "n2: whether it is there is not known",
        "n2: rail 0 MTU is 1500, and 9000 on 2 of 3 in the training",
    )
    found.refuse()


def test_a_node_that_does_not_answer_is_a_remark():
    """Its faults are prepared later, and refused then."""
    site = Site3()
    site.nodes["n3"].cut_until = float("inf")
    found = site("n1")

    assert [says.split(":")[0] for says in found.says] == ["n3"]
    found.refuse()
