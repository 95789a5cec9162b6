"""What guards a run, on the lab: the management link itself is cut, a program ends a run, a source goes silent, nobody is a target."""

import json
import os
import subprocess
import sys
import time

import pytest
from fair_watch import FairWatch

pytestmark = pytest.mark.cluster

ENTRY = [sys.executable, "-c", "from chaoskit.cli.main import entry; entry()"]
TRAINING = """\
  scripted: # a loop that says what a training says, without doing it, and that no network can stop
    launcher: command
    nodes: node2
    user: chaos
    start: [ssh, -F, {state}/ssh_config, node2, sh, {loop}]
    stop: [ssh, -F, {state}/ssh_config, node2, kill, "{{job}}"]
    log: {log}
    format: {{jsonl: {{step: step}}}}
"""
LOOP = """\
(n=0; while [ $n -lt 6000 ]; do n=$((n+1)); [ -e $1.mute ] || echo "{\\"step\\": $n}"; sleep 0.1; done) >$1 2>&1 </dev/null &
echo $!
"""
MANAGEMENT = "{netdev: mgmt0, plane: M}"
"""A third rail for node1: the link that we ourselves stand on."""


class Site:
    """A lab whose node1 has its management link in the inventory, and a training on node2."""

    def __init__(self, lab, folder):
        self.lab, self.folder = lab, folder
        self.loop, self.log = f"/var/tmp/guards-{os.getpid()}.sh", f"/var/tmp/guards-{os.getpid()}.log"
        assert lab.ssh("node2", "tee", self.loop, stdin=LOOP.replace("$1", self.log)).returncode == 0
        self.say_again()
        text = lab.inventory_path.read_text().replace("{netdev: rail1, plane: B}]", f"{{netdev: rail1, plane: B}}, {MANAGEMENT}]")
        self.inventory = folder / "inventory.yaml"
        self.inventory.write_text(text + TRAINING.format(state=lab.state_dir, loop=self.loop, log=self.log))

    def fall_silent(self):
        self.lab.ssh("node2", "touch", f"{self.log}.mute")

    def say_again(self):
        self.lab.ssh("node2", "rm", "-f", f"{self.log}.mute")

    def start(self, method, more=""):
        """Start a run of a method in a process of its own."""
        text = "title: t\ntraining: scripted\nsteady_state: {throughput: {within: 50%, for: 2s}}\nwatch: 20s\n"
        (self.folder / "guarded.yaml").write_text(f"{text}{more}\nmethod:\n  - {method}\n")
        argv = [*ENTRY, "run", "guarded.yaml", "-i", str(self.inventory)]
        return subprocess.Popen(argv, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def ended(self, process):
        """Return the exit code, the summary, and what was said."""
        said, _ = process.communicate(timeout=300)
        return process.returncode, json.loads((self.folder / "runs" / "latest" / "summary.json").read_text()), said

    def until(self, words, process):
        """Wait until the journal holds some words."""
        deadline = time.monotonic() + 120
        while not any(words in path.read_text() for path in (self.folder / "runs").glob("*/journal.jsonl")):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def state_of(self, link):
        return self.lab.ssh("node1", "cat", f"/sys/class/net/{link}/operstate").stdout.strip()


@pytest.fixture
def site(lab, tmp_path):
    made = Site(lab, tmp_path)
    yield made
    made.say_again()


def flap(seconds, allow="allow: [control_path]"):
    return f"{{fault: link_flap, target: {{nodes: node1}}, with: {{plane: M, down: {seconds}s}}, {allow}}}"


@pytest.mark.prove
@pytest.mark.row("L10", "L20")
def test_the_management_link_is_not_cut_unless_the_experiment_says_so(site):
    code, summary, said = site.ended(site.start(flap(8, allow="after: 0s")))

    assert (code, summary["outcome"]) == (3, "INCONCLUSIVE"), said
    assert "node1 link_flap: mgmt0 carries the SSH connection" in summary["reasons"][0]
    assert "up" == site.state_of("mgmt0")


@pytest.mark.prove
@pytest.mark.row("L10", "L12", "L18", "L47")
def test_a_management_link_that_is_down_for_less_than_the_lease_is_judged(site):
    """The node sets it up again by itself, and tells afterwards what happened; an idle link of ours proves nothing of the training."""
    code, summary, said = site.ended(site.start(flap(14)))

    [injection] = summary["injections"]
    assert (injection["present"]["holds"], injection["gone"]["holds"]) == (True, True), said
    assert summary["outcome"] in ("PASSED", "INCONCLUSIVE"), said
    assert code == {"PASSED": 0, "INCONCLUSIVE": 3}[summary["outcome"]]
    assert "up" == site.state_of("mgmt0")


@pytest.mark.prove
@pytest.mark.row("L10", "L12", "L18", "L47")
def test_a_management_link_that_is_down_for_longer_comes_back_at_the_leases_end(site):
    """Nobody can reach the node to mend it: it is back alone, and the run ends ABORTED and not hung."""
    watch = FairWatch()
    code, summary, said = site.ended(site.start(flap(600)))

    assert (code, summary["outcome"]) == (4, "ABORTED"), said
    assert "the lease ended before it was renewed" in summary["reasons"][0]
    assert summary["injections"][0]["gone"]["holds"] is True
    assert "up" == site.state_of("mgmt0")
    assert watch.took() < 240


@pytest.mark.prove
def test_a_program_that_says_no_ends_a_real_run(site):
    """It looks for a file, which comes while the fault is held: what is held is reverted at once."""
    more = f"abort: {{commands: [{{argv: [test, '!', -e, {site.folder}/burning], every: 1s, within: 20s}}]}}"
    process = site.start("{fault: link_flap, target: {nodes: node1}, with: {rail: 1, down: 10m}}", more)
    site.until('"kind":"witness"', process)
    assert "down" == site.state_of("rail1")
    (site.folder / "burning").touch()
    code, summary, said = site.ended(process)

    assert (code, summary["outcome"]) == (4, "ABORTED"), said
    assert f"the abort condition `test '!' -e {site.folder}/burning`: exit code 1" in summary["reasons"][0]
    assert summary["injections"][0]["gone"]["holds"] is True
    assert "up" == site.state_of("rail1")


@pytest.mark.prove
@pytest.mark.row("L14", "L27", "L28", "L50")
def test_a_source_that_goes_silent_never_passes(site):
    """The training goes on and nobody sees it: that is no proof of anything."""
    process = site.start("{fault: link_flap, target: {nodes: node1}, with: {rail: 1, down: 5s}}")
    site.until('"kind":"witness"', process)
    site.fall_silent()
    code, summary, said = site.ended(process)

    assert summary["outcome"] in ("INCONCLUSIVE", "FAILED"), said
    assert code in (1, 3)
    assert summary["injections"][0]["gone"]["holds"] is True


@pytest.mark.row("L19")
def test_no_targets_are_inconclusive_on_a_real_site(site):
    code, summary, said = site.ended(site.start("{fault: link_flap, target: {group: spares}, with: {rail: 1}}"))

    assert (code, summary["outcome"]) == (3, "INCONCLUSIVE"), said
    assert "is in the group 'spares'" in summary["reasons"][0]
