"""Examining a node through a real agent: each look's words on real processes, folders and links, under every Python."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from chaoskit.agent import cgroups
from chaoskit.agent.contract import Rail, Site
from chaoskit.agent.examine import Examination, Part, answers, examine
from chaoskit.agent.kernel import FEATURES, Kernel
from chaoskit.agent.paths import Paths

pytestmark = pytest.mark.alone

NOBODY = "nobody"

JOB = """
import os, sys
for root in sys.argv[2:]:
    try:
        os.makedirs(root + "/slurm/job_" + sys.argv[1], exist_ok=True)
        open(root + "/slurm/job_" + sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
    except OSError:
        pass
os.setgid(4243); os.setuid(4243)
print("up", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def job():
    """A process of another user in a Slurm job's cgroup."""
    roots = [root for root in cgroups.roots() if not os.path.exists(os.path.join(root, "cpuset.cpus"))]
    argv = [sys.executable, "-c", JOB, f"examined-{os.getpid()}", *roots]
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "up\n"
    yield child
    child.communicate()
    for root in roots:
        cgroups.remove_tree(os.path.join(root, "slurm"))


def look(agent, check, args=None, user=None, site=None):
    """Return what one check saw: (state, says, do) of each finding."""
    part = {"user": user, "checks": {check: args or {}}}
    answer = agent.connect().ask("examine", site=(site or Site("n1")).to_json(), parts=[part])
    assert {one["check"] for one in answer["findings"]} == {check}
    return [(one["state"], one["says"], one["do"]) for one in answer["findings"]]


def test_several_checks_of_several_accounts_are_answered_at_once(any_agent):
    parts = [
        {"user": None, "checks": {"disk": {}, "tools": {"faults": {}, "state": "note"}}},
        {"user": NOBODY, "checks": {"training": {"trainings": []}}},
    ]
    found = any_agent.connect().ask("examine", site={"node": "n1"}, parts=parts)["findings"]

    assert {(one["check"], one["state"]) for one in found} == {("disk", "ok"), ("tools", "ok"), ("training", "ok")}


def test_an_unknown_check_is_refused_with_those_that_there_are(shared_agent):
    with pytest.raises(RuntimeError, match=r"check 'horoscope' is not known.*this agent has: .*rails"):
        look(shared_agent, "horoscope")


def test_the_allow_file(any_agent):
    [(state, says, do)] = look(any_agent, "consent")
    assert (state, "does not exist" in says, "install -D /dev/null" in do) == ("defect", True, True)

    (any_agent.root / "etc").mkdir()
    (any_agent.root / "etc" / "allow").touch()
    assert look(any_agent, "consent", {"faults": ["rank_kill"], "state": "defect"})[0][0] == "ok"

    (any_agent.root / "etc" / "allow").write_text("rank_kill\nlink_flap\n")
    for state in ("defect", "note"):
        found = look(any_agent, "consent", {"faults": ["link_flap", "node_kill"], "state": state})
        assert (found[0][0], "does not allow node_kill" in found[0][1], len(found)) == (state, True, 2)
    assert [one[0] for one in look(any_agent, "consent", {"faults": ["link_flap"], "state": "defect"})] == ["ok"]


def test_another_users_job_is_named(any_agent, job):
    [(state, says, do), *_] = look(any_agent, "jobs", {"users": []})

    assert state == "defect"
    assert f"pid {job.pid} of uid 4243 in " in says
    assert "drain it" in do


def test_programs_and_rights_that_a_fault_lacks_are_told_as_was_asked(any_agent):
    needs = {
        "fine": {"binaries": ["sh"], "capabilities": ["KILL"]},
        "poor": {"binaries": ["sh", "no-such-program"], "capabilities": []},
    }
    for state in ("defect", "note"):
        found = look(any_agent, "tools", {"faults": needs, "state": state})

        assert found == [
            (state, "poor needs no-such-program, which is not installed", "install it on the node"),
            ("ok", "programs, rights and kernel features are there for fine", ""),
        ]


@pytest.mark.row("L48")
def test_a_feature_that_the_kernel_lacks_is_said_and_of_alternatives_one_will_do(any_agent):
    """Elsewhere a fault without its module silently has no effect."""
    lacking = [name for name in ("a_module_of_nobody", *FEATURES) if Kernel().find(name).state != "there"]
    had = next(name for name in FEATURES if name not in lacking)
    needs = {"binaries": [], "capabilities": []}
    faults = {
        "either": {**needs, "features": [lacking[-1:], [had]]},
        **{name: {**needs, "features": [[had, name]]} for name in lacking},
    }
    for state, unsure in (("defect", "unknown"), ("note", "note")):
        found = dict(one[1::-1] for one in look(any_agent, "tools", {"faults": faults, "state": state}))

        assert found.pop("programs, rights and kernel features are there for either") == "ok"
        for says, how in found.items():
            name = says.split()[0]
            sure = Kernel().find(name).state == "missing"
            assert says.startswith(f"{name} needs {name} of the kernel{': ' if sure else ', and whether that is there is not known: '}")
            assert how == (state if sure else unsure)
        assert len(found) == len(lacking)


def test_a_missing_right_is_told(archive, tmp_path):
    order = {
        "site": Site("n1").to_json(),
        "paths": [str(tmp_path)] * 3,
        "user": None,
        "accounts": [],
        "checks": {"tools": {"faults": {"flap": {"binaries": [], "capabilities": ["NET_ADMIN"]}}, "state": "defect"}},
    }
    bare = [shutil.which("setpriv"), "--bounding-set", "-net_admin", "--inh-caps", "-net_admin", sys.executable]
    done = subprocess.run([*bare, "-I", "-S", archive.path, "examine"], input=json.dumps(order).encode(), capture_output=True, check=True)

    [one] = json.loads(done.stdout)["seen"]
    assert (one["state"], one["says"]) == ("defect", "flap needs CAP_NET_ADMIN, which the agent lacks")


# -- what a training stands on, as its user ------------------------------------------------------------------------


def training(agent, user=NOBODY, python="", folders=(), names=("default",)):
    what = {"python": python, "folders": [list(folder) for folder in folders]}
    return look(agent, "training", {"trainings": [{"name": name, **what} for name in names]}, user)


@pytest.fixture
def open_folder():
    """Return a folder that everybody may enter; pytest's own are closed."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_folders_are_looked_at_by_the_account_that_trains(any_agent, open_folder):
    """Root may write everywhere, and the training may not."""
    for name, mode in (("good", 0o777), ("closed", 0o755)):
        (open_folder / name).mkdir()
        (open_folder / name).chmod(mode)
    good, closed, missing = (str(open_folder / name) for name in ("good", "closed", "missing"))

    found = training(any_agent, folders=[("log", good, True), ("checkpoints", closed, False)], names=("default", "other"))
    assert [one[:2] for one in found] == [("ok", "trainings default, other: all is there for nobody")]
    found = training(any_agent, folders=[("log", missing, False), ("checkpoints", closed, True)])
    assert [one[:2] for one in found] == [
        ("defect", f"training default: the folder of its log, {missing}, is not there for nobody"),
        ("defect", f"training default: nobody may not write in the folder of its checkpoints, {closed}"),
    ]


def script(folder, text, mode=0o755):
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("text", "mode", "state", "says"),
    [
        ("exit 0", 0o755, "ok", "all is there for nobody"),
        ("exit 3", 0o755, "defect", "has no torch"),
        ("echo 'no such library' >&2; exit 1", 0o755, "defect", "ends with status 1: no such library"),
        ("exit 0", 0o700, "defect", "is no program that nobody can run"),
    ],
)
def test_a_python_is_tried_by_the_account_that_trains(shared_agent, open_folder, text, mode, state, says):
    [(found, said, do)] = training(shared_agent, python=script(open_folder, text, mode))

    assert (found, says in said, bool(do)) == (state, True, state == "defect"), said


def test_an_account_that_the_node_does_not_know_is_unknown(shared_agent):
    [(state, says, _)] = training(shared_agent, user="no-such-user")

    assert state == "unknown"
    assert "cannot become the user no-such-user" in says


# -- rails ---------------------------------------------------------------------------------------------------------

RAILS = """
ip link add ra type veth peer name pa; ip link add rb type veth peer name pb; ip link add rc type veth peer name pc
for each in ra pa rb rc pc; do ip link set $each up; done
ip address add 10.9.0.1/24 dev rc
ip tuntap add rt mode tun
ip link set rc up
"""


def test_each_rail_says_what_is_wrong_with_it(archive, tmp_path):
    """In a network namespace: one is well, one has no signal, one is down, one leads to us, one is none, one is a tunnel."""
    names = ("ra", "rb", "pb", "rc", "gone", "rt")
    site = Site("n1", rails=tuple(Rail(index, name, plane="A") for index, name in enumerate(names)), control_addresses=("10.9.0.1",))
    order = {"site": site.to_json(), "paths": [str(tmp_path)] * 3, "user": None, "accounts": [], "checks": {"rails": {}}}
    inside = ["unshare", "--net", "sh", "-ec", f'{RAILS}\nexec "$0" "$@"', sys.executable, "-I", "-S", str(archive.path), "examine"]
    done = subprocess.run(inside, input=json.dumps(order).encode(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    found = {one["says"]: one["state"] for one in json.loads(done.stdout)["seen"]}

    assert found == {
        "rb (rail 1, plane A) has no signal": "defect",
        "pb (rail 2, plane A) is down": "defect",
        "rc (rail 3, plane A) carries the SSH connection, so no fault may touch it": "defect",
        "gone (rail 4, plane A) is not on this node": "defect",
        "rt (rail 5, plane A) is neither an Ethernet nor an InfiniBand device (type 65534)": "defect",
        "rt (rail 5, plane A) is down": "defect",
        "ra (rail 0, plane A) up": "ok",
    }


PEERS = """
ip link add ra type veth peer name pa
unshare --net sleep 60 & other=$!
tries=0
until [ "$(readlink /proc/$other/ns/net)" != "$(readlink /proc/self/ns/net)" ] || [ $tries -gt 99 ]; do
    tries=$((tries+1)); sleep 0.05
done
ip link set pa netns $other
nsenter --net --target $other sh -ec 'ip address add 10.9.1.2/24 dev pa; ip link set pa up'
ip address add 10.9.1.1/24 dev ra; ip link set ra up
"$0" "$@"
kill $other
"""


def test_another_node_is_asked_over_one_rail(archive, tmp_path, python):
    echoes = [{"netdev": "ra", "to": "10.9.1.2"}, {"netdev": "ra", "to": "10.9.1.77"}, {"netdev": "rz", "to": "10.9.1.2"}]
    order = {"site": {"node": "n1"}, "paths": [str(tmp_path)] * 3, "user": None, "accounts": [], "checks": {"peers": {"echoes": echoes}}}
    inside = ["unshare", "--net", "sh", "-ec", PEERS, python, "-I", "-S", str(archive.path), "examine"]
    done = subprocess.run(inside, input=json.dumps(order).encode(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)["seen"]

    assert [(one["readings"]["answered"], one["says"]) for one in seen] == [
        (True, ""),
        (False, "no answer to 3 echo requests"),
        (False, "No such device"),
    ]


def test_an_rdma_device_that_is_not_there_is_told(shared_agent):
    [(state, says, _)] = look(shared_agent, "rails", site=Site("n1", rails=(Rail(0, None, "mlx5_77"),)))

    assert (state, says) == ("defect", "RDMA device mlx5_77 of rail 0 is not on this node")


# -- what hangs, breaks or lies ------------------------------------------------------------------------------------


def test_a_check_without_an_answer_in_time_is_unknown(archive, tmp_path):
    asked = Examination(Site("n1"), [Part(None, {"disk": {}, "rails": {}})], frozenset())
    found = examine(str(archive.path), Paths(*[str(tmp_path)] * 3), asked, within=0.0)

    assert [(one["check"], one["state"]) for one in found] == [("disk", "unknown"), ("rails", "unknown")]
    assert "something hangs there" in found[0]["says"]


def test_one_look_that_breaks_is_unknown_and_costs_no_other(shared_agent):
    part = {"user": None, "checks": {"gpus": {}, "tools": {}, "disk": {}}}
    found = shared_agent.connect().ask("examine", site={"node": "n1"}, parts=[part])["findings"]
    states = {one["check"]: (one["state"], one["says"]) for one in found}

    assert states["tools"] == ("unknown", "the check broke: KeyError: 'faults'")
    assert states["disk"][0] == "ok"


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b'{"check":"disk","seen":[{"state":"splendid","says":"","do":""}]}',
        b'{"check":"disk","seen":[7]}',
        b'{"check":"disk","seen":[{"state":"ok"}]}',
        b'{"check":"rails","seen":[{"state":"ok","says":"lies about another","do":""}]}',
        b'{"check":"disk","seen":[{"state":"ok","says":"torn',
    ],
)
def test_a_child_that_writes_anything_else_leaves_its_check_unknown(line):
    """It may be the training's user who wrote that."""
    assert [one["state"] for one in answers(Part("trainer", {"disk": {}}), line)] == ["unknown"]


def test_a_childs_words_are_bounded():
    seen = [{"state": "ok", "says": "x" * 9000, "do": ""}] * 500
    found = list(answers(Part(None, {"disk": {}}), json.dumps({"check": "disk", "seen": seen}).encode()))

    assert (len(found), max(len(one["says"]) for one in found)) == (100, 2000)
