"""Up and down: the lab comes as a whole, says when it is half there, and leaves nothing, whatever was killed when."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from fair_watch import until
from host_snapshot import snapshot

from chaoskit.errors import RefusedError
from chaoskit.lab import cgroups, control

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("can_have_lab")]

NAME = f"down-{os.getpid()}"


@pytest.fixture
def clean():
    """Return the machine's state before the lab; the lab is gone afterwards, whatever the test did."""
    yield snapshot(NAME)
    control.down(NAME)


def state_of(pid):
    try:
        return re.search(r"State:\s+(\w)", Path(f"/proc/{pid}/status").read_text())[1]
    except FileNotFoundError:
        return None


def test_down_leaves_nothing(clean, lab):
    """No difference in links, mounts, cgroups, processes and /proc/sys; and the other lab does not notice."""
    control.up(name=NAME, nodes=2)
    during = snapshot(NAME)
    assert control.down(NAME)

    assert snapshot(NAME) == clean
    assert all(during[what] != clean[what] for what in ("links", "mounts", "cgroups", "processes", "state"))
    assert lab.status().state == "up"


def test_down_leaves_nothing_after_everything_was_killed(clean):
    control.up(name=NAME, nodes=2)
    supervisor = control._supervisor(NAME)
    for pid in [supervisor, *cgroups.processes(NAME) - {supervisor}]:
        with suppress(ProcessLookupError):  # it went with its node
            os.kill(pid, signal.SIGKILL)
    until(lambda: control.status(NAME).state == "broken")

    control.down(NAME)

    assert snapshot(NAME) == clean


@pytest.mark.parametrize("after", [0.05, 0.15, 0.25, 0.4, 0.8])
def test_down_leaves_nothing_after_up_was_killed(clean, after):
    """kill -9 of `up` at any moment: what it had made goes."""
    process = subprocess.Popen([sys.executable, "-m", "chaoskit.lab", "up", "--name", NAME, "--nodes", "2"], stdout=subprocess.DEVNULL)
    time.sleep(after)
    process.kill()
    process.wait()

    control.down(NAME)

    assert snapshot(NAME) == clean


def test_a_node_weighs_as_much_as_a_process_of_the_machine():
    """On cgroup v1, where a whole lab would weigh as one process: the top weighs what all labs do together."""
    try:
        control.up(name=NAME, nodes=2)
        own = [int(file.read_text()) for folder in cgroups.folders(NAME) if (file := folder / "cpu.shares").exists()]
        top = [int(file.read_text()) for root in cgroups.hierarchies() if (file := root / cgroups.TOP / "cpu.shares").exists()]

        assert [3 * 1024 for _ in top] == own
        assert all(weight >= 3 * 1024 for weight in top)
    finally:
        control.down(NAME)


def test_down_of_nothing_is_fine():
    assert not control.down("never-was")


def test_up_twice_finds_it_up():
    """The second `up` changes nothing and says so; another size is refused."""
    try:
        control.up(name=NAME, nodes=2)
        before = control.status(NAME)

        assert control.up(name=NAME, nodes=2).says == "it was up already"
        assert control.status(NAME) == before
        with pytest.raises(RefusedError, match="up with 2 nodes, and 3 were asked for"):
            control.up(name=NAME, nodes=3)
    finally:
        control.down(NAME)


def test_up_completes_a_half_up_lab():
    """A node that was powered off stays down, `status` says half-up and which, and `up` boots it."""
    try:
        lab = control.up(name=NAME, nodes=2)
        lab.ssh("node2", "sudo", "poweroff")
        until(lambda: lab.status().state == "half-up")
        assert lab.status().down_nodes() == ("node2",)

        assert control.up(name=NAME, nodes=2).says == "it was half up; node2 booted"
        assert lab.status().state == "up"
        assert lab.ssh("node2", "hostname").stdout == "node2\n"
    finally:
        control.down(NAME)


def test_up_replaces_the_remains_of_a_dead_lab():
    """With its supervisor killed, a lab is broken: its networks are gone. `up` removes the rest and makes a new one."""
    try:
        control.up(name=NAME, nodes=2)
        os.kill(control._supervisor(NAME), signal.SIGKILL)
        until(lambda: control.status(NAME).state == "broken")

        assert "remains" in control.up(name=NAME, nodes=2).says
        assert control.status(NAME).state == "up"
    finally:
        control.down(NAME)


def test_a_test_session_that_is_terminated_leaves_no_lab():
    """The shared fixture takes its lab down on SIGTERM too."""
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(Path(__file__).with_name("test_lab_nodes.py"))]
    session = subprocess.Popen(
        argv, stdout=subprocess.DEVNULL, env={key: value for key, value in os.environ.items() if key != "CHAOSKIT_TEST_LAB"}
    )
    until(lambda: control.status(f"test-{session.pid}").state == "up", seconds=40)

    session.terminate()

    assert session.wait(timeout=40) == 143
    assert control.status(f"test-{session.pid}").state == "absent"


def test_a_killed_container_is_down_and_gone():
    """When somebody kills a node's runtime, the node does not run on behind the supervisor's back."""
    try:
        lab = control.up(name=NAME, nodes=2)
        node = next(status for status in lab.status().nodes if status.name == "node1")
        runtime = int(re.search(r"PPid:\s+(\d+)", Path(f"/proc/{node.pid}/status").read_text())[1])

        os.kill(runtime, signal.SIGKILL)

        until(lambda: lab.status().down_nodes() == ("node1",))
        assert state_of(node.pid) in (None, "Z")  # dead; the machine's own process 1 reaps it in its time
        assert control.up(name=NAME, nodes=2).says == "it was half up; node1 booted"
    finally:
        control.down(NAME)


@pytest.mark.prove
def test_sixteen_nodes():
    try:
        lab = control.up(name=NAME, nodes=16)

        assert [lab.ssh(node.name, "hostname").stdout.strip() for node in lab.plan.nodes] == [node.name for node in lab.plan.nodes]
    finally:
        control.down(NAME)
