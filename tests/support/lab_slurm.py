"""A real Slurm inside a lab: slurmctld on store1, slurmd on each worker, munge on all; and the staging example's training for it."""

import secrets
import shlex
import shutil
import threading
import time
from contextlib import contextmanager

import yaml

from chaoskit.lab.requirements import SYSTEM_PATH
from chaoskit.lab.rootfs import ACCOUNT, EXPORT, MOUNT, TOOLS

PROGRAMS = {"munged": "munge", "sbatch": "slurm-client", "slurmctld": "slurmctld", "slurmd": "slurmd"}
"""Program -> Debian package."""

CONF = """\
ClusterName=lab
SlurmctldHost=store1
SlurmUser=root
AuthType=auth/munge
AuthInfo=cred_expire=10
StateSaveLocation=/var/lib/slurm-lab/state
SlurmdSpoolDir=/var/lib/slurm-lab/spool
SlurmctldPidFile=/run/slurm-lab/slurmctld.pid
SlurmdPidFile=/run/slurm-lab/slurmd.pid
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/linear
SlurmdTimeout=20
KillWait=2
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1,sched_interval=1
PropagateResourceLimits=NONE
NodeName={nodes} CPUs=1 RealMemory=1000
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE
"""
"""
A requeued job waits for as long as a credential lives (AuthInfo; 2 minutes unless said). That must be longer than KillWait:
without cgroups the old attempt's srun outlives it for so long, and then ends the step of that number, which is the new one's.
"""

PREPARE = """
set -eu
install -d -m 755 /run/munge /run/slurm-lab /var/lib/slurm-lab /var/lib/slurm-lab/state /var/lib/slurm-lab/spool
install -d -m 755 /etc/slurm
umask 077
printf %s {key} >/run/slurm-lab/munge.key
umask 022
printf %s {conf} >/etc/slurm/slurm.conf
munged --key-file=/run/slurm-lab/munge.key --seed-file=/run/slurm-lab/munge.seed --log-file=/var/log/munged.log \\
    --pid-file=/run/munge/munged.pid
setsid -f {daemon} </dev/null >/dev/null 2>&1
"""
END = """
for file in /run/slurm-lab/slurmctld.pid /run/slurm-lab/slurmd.pid /run/munge/munged.pid; do
    if [ -s $file ]; then kill "$(cat $file)" || true; fi
done
rm -rf /run/slurm-lab /var/lib/slurm-lab /etc/slurm/slurm.conf
"""
WITHIN = 60
"""Seconds until what is awaited has gone wrong."""


def missing():
    """Return a sentence on what the machine lacks; empty when it has all."""
    absent = sorted(package for program, package in PROGRAMS.items() if shutil.which(program, path=SYSTEM_PATH) is None)
    return f"no Slurm here: apt-get install {' '.join(absent)}" if absent else ""


class LabSlurm:
    """Slurm on the nodes of a lab, from `up` to `down`."""

    def __init__(self, lab):
        self.lab = lab
        self.workers = [node.name for node in lab.plan.nodes if node.group == "workers"]
        self.key = secrets.token_hex(64)

    def up(self):
        """Start every daemon, copy the job script and the trainer to the shared file system, and wait until all nodes are idle."""
        self.start("store1")
        for name in self.workers:
            self.start(name)
        self.run("store1", f"install -d -o {ACCOUNT} {EXPORT}/chaoskit {EXPORT}/chaoskit/logs", root=True)
        self.until_idle()

    def start(self, name):
        """Start a node's daemons, as its init would at each boot."""
        daemon = "slurmctld" if name == "store1" else f"slurmd -N {name}"
        conf = CONF.format(nodes=",".join(self.workers))
        self.run(name, PREPARE.format(key=shlex.quote(self.key), conf=shlex.quote(conf), daemon=daemon), root=True)

    @contextmanager
    def at_every_boot(self):
        """Meanwhile a worker that has rebooted gets its daemons again, as its init would start them."""
        over = threading.Event()

        def care():
            while not over.wait(0.5):
                for name in self.workers:
                    # 1: there is no such folder since the boot; 255: there is no node
                    if self.lab.ssh(name, "test -d /run/slurm-lab").returncode == 1:
                        self.start(name)

        thread = threading.Thread(target=care)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(WITHIN)

    def put(self, name, text):
        """Write a file into the folder that stands for /shared/chaoskit."""
        self.run("store1", f"cat >{EXPORT}/chaoskit/{name}", stdin=text)

    def run(self, node, text, *, root=False, stdin=""):
        """Run shell text on a node and return what it printed."""
        shell = f"{'sudo ' if root else ''}sh -c {shlex.quote(text)}"
        done = self.lab.ssh(node, shell, stdin=stdin)
        assert 0 == done.returncode, f"{node}: {text}\n{done.stdout}{done.stderr}"
        return done.stdout

    def until_idle(self):
        """Wait until no job is left and every node takes one."""
        give_up = time.monotonic() + WITHIN
        while (states := self.run("store1", "squeue --noheader --format=%T; sinfo --noheader --Node --format=%T")) != "idle\n" * len(
            self.workers
        ):
            assert time.monotonic() < give_up, states
            time.sleep(0.2)

    def down(self):
        """End every daemon and remove what `up` has made but the shared folder."""
        for name in (*self.workers, "store1"):
            self.run(name, END, root=True)

    def inventory(self, example, **changes):
        """
        Return the lab's inventory with the staging example's `default` training, moved to this lab.

        Args:
            example: The example's text.
            changes: Further environment of the job.
        """
        site = yaml.safe_load(self.lab.inventory_path.read_text())
        training = yaml.safe_load(example)["trainings"]["default"]
        env = {
            "CHAOSKIT_SHARED": f"{MOUNT}/chaoskit",
            "CHAOSKIT_PYTHON": f"{TOOLS}/bin/python",
            "GLOO_SOCKET_IFNAME": "fab0",
            "OMP_NUM_THREADS": "1",
        } | changes
        small = ["--batch=4", "--sequence=16", "--width=128", "--layers=2", "--vocabulary=128"]
        ssh = ["ssh", "-F", str(self.lab.state_dir / "ssh_config"), "store1"]
        moved = [self._moved(word) for word in training["start"] if not word.startswith("--gpus-per-node")]
        training |= {
            "user": ACCOUNT,
            "start": [*ssh, "env", *(f"{name}={value}" for name, value in env.items()), *moved, *small],
            "stop": [*ssh, *training["stop"]],
            "nodes_command": [*ssh, *training["nodes_command"]],
            "state_command": [*ssh, *training["state_command"]],
            "checkpoints": {"dir": f"{MOUNT}/chaoskit/ckpt/{{run}}", "every": 25},
        }
        site["trainings"] = {"default": training}
        return yaml.safe_dump(site)

    def _moved(self, word):
        count = len(self.workers)
        for old, new in (
            ("gpu[001-016]", f"node[1-{count}]"),
            ("--nodes=16", f"--nodes={count}"),
            ("--output=/shared", f"--output={MOUNT}"),
            ("/shared", EXPORT),  # the script, which sbatch reads where it runs: on store1
        ):
            word = word.replace(old, new)
        return word
