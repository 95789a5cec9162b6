import os
import subprocess
import sys
import tempfile

import pytest

from chaoskit.agent.contract import Rail, Refusal, Site, TrainingFacts
from chaoskit.agent.host import Host
from chaoskit.errors import InputError
from chaoskit.faults import load
from chaoskit.faults.node_kill import NodeKill


class RebootableHost(Host):
    """A node whose boot and machine ids are in the test's hands."""

    boot, machine = "one", "m-1"

    def boot_id(self):
        return self.boot

    def machine_id(self):
        return self.machine


@pytest.fixture
def host(wires):
    return RebootableHost(Site("node7", rails=(Rail(0, "ra"), Rail(1, "rb"), Rail(2, rdma="mlx5_0")), mounts=("/proc",)))


@pytest.mark.row("L23")
def test_gone_wants_the_links_back(host, bench):
    """A node that answers, with a rail still down, is not back."""
    undo = NodeKill().prepare(host)
    host.boot = "two"
    bench.ip("link set rb down")

    evidence = NodeKill().gone(host, undo)
    assert (evidence.holds, evidence.says) == (False, "rb is not up")

    bench.ip("link set rb up")
    assert NodeKill().gone(host, undo).says == "back with 1 mounts and 2 links"


def test_a_link_that_was_down_before_is_not_waited_for(host, bench):
    bench.ip("link set rb down")

    assert NodeKill().prepare(host)["links"] == ["ra"]


def test_gone_wants_the_mounts_back_of_their_type(host):
    """An empty folder where the file server was is not the mount."""
    undo = NodeKill().prepare(host)

    assert NodeKill().gone(host, {**undo, "mounts": {"/proc": "nfs4", "/no such": "nfs4"}}).says == (
        "/proc (nfs4) is not mounted; /no such (nfs4) is not mounted"
    )


def test_another_machine_under_the_name_is_not_the_node(host):
    undo = NodeKill().prepare(host)
    host.machine = "m-2"

    assert NodeKill().gone(host, undo).says == "this is another machine: m-2"


def test_a_node_that_never_rebooted_owes_nothing(host):
    undo = NodeKill().prepare(host)

    assert NodeKill().gone(host, undo).says == "nothing to undo: the node did not reboot"
    assert not NodeKill().witness(host, undo).holds


@pytest.mark.row("L13", "L32")
def test_a_new_boot_id_is_the_witness(host):
    undo = NodeKill().prepare(host)
    host.boot = "two"

    assert NodeKill().witness(host, undo).readings == {"before": "one", "now": "two"}
    assert NodeKill().witness(host, undo).holds


def test_a_mount_that_is_absent_before_is_refused():
    with pytest.raises(Refusal, match="/ckpt-of-no-one is not mounted now, so its return would prove nothing"):
        NodeKill().prepare(Host(Site("node7", mounts=("/ckpt-of-no-one",))))


def test_only_a_training_that_runs_here_is_exposed():
    """Also without a run id, by the training's user; with neither, nobody can say."""
    sleeper = subprocess.Popen(["sleep", "60"], env={"TORCHELASTIC_RUN_ID": "idle-run"})
    worker = subprocess.Popen(["sh", "-c", "while :; do :; done"], env={"TORCHELASTIC_RUN_ID": "busy-run"}, user="nobody", cwd="/")
    try:
        holds = {
            facts: NodeKill().exposed(Host(Site("node7", training=facts)), {}).holds
            for facts in (
                TrainingFacts("busy-run"),
                TrainingFacts("idle-run"),
                TrainingFacts("no-such-run"),
                TrainingFacts(user="nobody"),
                TrainingFacts(user="daemon"),
                TrainingFacts(),
            )
        }
    finally:
        for process in (sleeper, worker):
            process.kill()
            process.wait()

    assert list(holds.values()) == [True, False, False, True, False, False]


def in_container(isolated, code):
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(
            "from chaoskit.agent.contract import Site\nfrom chaoskit.agent.host import Host\nfrom chaoskit.faults import load\n" + code
        )
        script.flush()
        return isolated(sys.executable, script.name)


def test_sysrq_is_refused_inside_a_container(isolated):
    """It would reboot the machine below, with all its neighbours; prepare and inject both refuse."""
    code = """
for verb in ("prepare", "inject"):
    try:
        getattr(load("node_kill", {"how": "sysrq"}), verb)(*[Host(Site("node7")), {}][: 1 if verb == "prepare" else 2])
    except Exception as error:
        print(error)
"""

    done = in_container(isolated, code)

    refused = "node7 node_kill: sysrq inside a container would reboot the machine that hosts it (use `how: reboot`)\n"
    assert (done.stdout, done.stderr) == (refused * 2, "")


def test_an_agent_that_may_not_reboot_is_refused(isolated):
    """Before any harm: half a reboot is none."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write("from chaoskit.agent.contract import Site\nfrom chaoskit.agent.host import Host\nfrom chaoskit.faults import load\n")
        script.write("load('node_kill', {}).prepare(Host(Site('node7')))\n")
        script.flush()
        done = isolated("setpriv", "--bounding-set=-sys_boot", "--inh-caps=-sys_boot", sys.executable, script.name)

    assert "node7: the agent lacks the capability CAP_SYS_BOOT (run the agent as root" in done.stderr


def test_an_unknown_way_is_refused():
    with pytest.raises(InputError, match="how must be reboot or sysrq, not 'power'"):
        load("node_kill", {"how": "power"})


def test_these_tests_cannot_reboot_the_machine():
    """The bench reboots only as the first process of a namespace that it made for that."""
    bench = os.path.join(os.path.dirname(__file__), "bench.py")

    done = subprocess.run([sys.executable, bench, "node_kill"], check=False, capture_output=True, text=True, timeout=30)

    assert done.returncode == 1
    assert "run this inside a process namespace" in done.stderr
