"""Experiments and inventories out of thin air, as their authors would write them: most are sound, some must be refused."""

import json
from itertools import chain

from hypothesis import strategies as st

from chaoskit.model.load import experiment_from, inventory_from, parse_source

GROUPS = ("workers", "spares", "storage")
FAULTS = (
    ("rank_kill", {}),
    ("node_kill", {}),
    ("link_flap", {"plane": "A", "down": "5s"}),
    ("link_flap", {"plane": "B", "down": "40s"}),
    ("link_flap", {"rail": 0, "down": "2s", "up": "3s", "times": 3}),
    ("link_flap", {"rail": 1, "down": "9s"}),
)
PICKS = st.one_of(st.sampled_from([1, 1, 2, 3, "all"]), st.integers(1, 100).map("{}%".format))
RADII = st.one_of(st.sampled_from(["all", "all", "all", 2, 4]), st.integers(1, 100).map("{}%".format))


def site_file(groups, protected, limit, lifetimes, rendezvous):
    """Return an inventory as its file says it: each group's names, which nodes are protected, the site's limits."""
    rails = [{"netdev": "eth1", "plane": "A"}, {"netdev": "eth2", "plane": "B"}]
    nodes = {name: {"group": group, "gpus": 8, "rails": rails} for group, names in groups.items() for name in names}
    limits = {"lifetimes": lifetimes, **({} if limit is None else {"blast_radius": limit})}
    training = {"launcher": "attach", "log": "/log", "checkpoints": {"every": 25}, "rendezvous": rendezvous}
    return {"name": "site", "nodes": nodes, "protected": protected, "limits": limits, "trainings": {"default": training}}


@st.composite
def sites(draw):
    """Some workers, perhaps spares and storage; at times a node is protected."""
    sizes = (draw(st.sampled_from([4, 3, 6, 8, 1])), draw(st.sampled_from([2, 0, 3])), draw(st.sampled_from([2, 0, 1])))
    groups = {group: [f"{group[0]}{number}" for number in range(1, size + 1)] for group, size in zip(GROUPS, sizes, strict=True) if size}
    names = list(chain.from_iterable(groups.values()))
    protected = draw(st.sampled_from([[], names[1:2], names[1:3], names[-1:], []]))
    lifetimes = draw(st.sampled_from([["volatile", "irreversible"]] * 5 + [["volatile"]]))
    limit = draw(st.sampled_from([None, None, None, 1, 4]))
    return site_file(groups, protected, limit, lifetimes, draw(st.sampled_from(groups["workers"])))


@st.composite
def targets(draw, names):
    """A group or some nodes by name, how many of them, and whom to avoid."""
    avoid = draw(st.just([]) | st.lists(st.sampled_from(["rendezvous", *names]), max_size=2, unique=True))
    rest = {"pick": draw(PICKS), **({"avoid": avoid} if avoid else {})}
    if draw(st.sampled_from([True, True, False])):
        return {"group": draw(st.sampled_from(["workers", *GROUPS])), **rest}
    return {"nodes": ",".join(draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True))), **rest}


AFTER = st.sampled_from(["130s", "0s", "5s", "30s", "300s", "1m"])
"""Within, just beyond and far from the two minutes that a reboot takes a node away for."""
GENTLE = st.builds(lambda pick: {"group": "workers", "pick": pick, "avoid": ["rendezvous"]}, st.sampled_from([1, 2, "40%"]))
"""Targets as a careful author states them, so that many of the plans are not refused."""


@st.composite
def methods(draw, whom):
    """One to four injections at any time within some minutes."""
    method = []
    for _ in range(draw(st.integers(1, 4))):
        fault, parameters = draw(st.sampled_from(FAULTS))
        entry = {"fault": fault, "target": draw(whom), "after": draw(AFTER), "together": draw(st.booleans())}
        if parameters:
            entry |= {"with": parameters, "expect": {"step_time": draw(st.integers(10, 40)) / 10}}
        method.append(entry)
    return method


@st.composite
def experiments(draw, site):
    """An experiment for this site."""
    gentle = draw(st.booleans())
    method = draw(methods(GENTLE if gentle else targets(list(site["nodes"]))))
    made = {"title": "t", "method": method, "seed": draw(st.integers(0, 2**31))}
    if gentle or draw(st.booleans()):
        made["blast_radius"] = {"nodes": "all" if gentle else draw(RADII)}
    return made


def loaded(file):
    """Read an experiment that is JSON, which is YAML too."""
    return experiment_from(parse_source(json.dumps(file, indent=1).encode(), "e.yaml"))


def site(file):
    """Read an inventory likewise."""
    return inventory_from(parse_source(json.dumps(file, indent=1).encode(), "site.yaml"))
