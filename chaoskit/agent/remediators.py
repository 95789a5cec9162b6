"""
Who else acts on a sick node: the remediators that run here, and what a fault's signs would make each of them do.

A fault that looks like broken hardware is treated as such by whoever watches: a job is requeued, a node drained, a machine
sent back. `found` recognises them by their processes and files, and asks none of them but Slurm for its timeouts;
`reactions` is a table, each of its rows with where it comes from. Standard library only, Python 3.8.
"""

import os
import re
import subprocess
from typing import Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Tuple

from chaoskit.agent.contract import Refusal, Sign
from chaoskit.agent.host import Host

NOTHING, MARKS, REQUEUES, DRAINS, REBOOTS, REPLACES = "nothing", "marks it", "requeues the job", "drains it", "reboots it", "replaces it"
DOES = (NOTHING, MARKS, REQUEUES, DRAINS, REBOOTS, REPLACES)
"""What a remediator does with the node, from the mildest to the worst."""

SCONTROL_WITHIN = 3.0
"""Seconds that Slurm's controller has to tell its settings; then its file is read."""
LONGEST_FILE = 1 << 20
"""Bytes of a configuration file that are read."""

SLURM_CONF = (
    *("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/opt/slurm/etc/slurm.conf", "/usr/local/etc/slurm.conf"),
    *("/run/slurm/conf/slurm.conf", "/var/spool/slurmd/conf-cache/slurm.conf", "/var/spool/slurm/d/conf-cache/slurm.conf"),
)
SLURM_SETTINGS = {
    "SlurmdTimeout": "300",
    "HealthCheckProgram": "",
    "HealthCheckInterval": "0",
    "ResumeProgram": "",
    "ResumeTimeout": "60",
    "UnkillableStepTimeout": "60",
    "UnkillableStepProgram": "",
    "ReturnToService": "0",
    "MessageTimeout": "10",
}
"""What of Slurm's settings decides what it does, and what it takes for those that its file does not name (slurm.conf(5))."""

KUBELET_NOTE = "a managed cluster's node repair may replace a node that stays NotReady, after about ten minutes"


class Remediator(NamedTuple):
    """One that runs here: its name, what it was recognised by, and the settings that decide what it does."""

    name: str
    seen: str
    settings: Mapping[str, str] = {}


class Reaction(NamedTuple):
    """What a remediator would do with this node about a sign, in which words, and what brings it back afterwards."""

    remediator: str
    does: str
    says: str
    clear: str = ""


# -- who runs here -------------------------------------------------------------------------------------------------

PROCESSES: Dict[str, Tuple[str, ...]] = {
    "slurm": ("slurmd",),
    "nvsentinel": ("nic-health-monitor", "gpu-health-monitor", "syslog-health-monitor", "platform-connectors"),
    "gpud": ("gpud",),
    "dcgm": ("nv-hostengine", "dcgm-exporter"),
    "kubelet": ("kubelet", "k3s-agent", "rke2-agent"),
    "node-problem-detector": ("node-problem-detector",),
    "hyperpod": ("health-monitoring-agent", "HealthMonitoringAgent", "sagemaker-hyperpod-agent"),
    "parallelcluster": ("computemgtd",),
    "healthagent": ("healthagent",),
    "cloud agent": ("waagent", "google_guest_agent", "amazon-ssm-agent"),
    "watchdog": ("watchdog",),
}
"""Remediator -> the programs that it runs on a node."""

INTERPRETERS = re.compile(r"(python|perl|ruby|node|bash|sh)[0-9.]*\Z")


def found(host: Host, root: str = "/") -> List[Remediator]:
    """Return the remediators that run on this node; `root` is where its /proc, /etc and /sys are looked for."""
    running = dict(programs(root))
    every = []
    for name, known in PROCESSES.items():
        here = [program for program in known if program in running]
        if here:
            seen = ", ".join("{} (process {})".format(program, running[program]) for program in here)
            every.append(Remediator(name, seen, SETTINGS.get(name, _none)(host, root)))
    return [*every, *_configured(every, root)]


def _configured(running: List[Remediator], root: str) -> Iterator[Remediator]:
    """Yield those that are no process, but a line in somebody's settings."""
    slurm = next((one for one in running if one.name == "slurm"), None)
    program = slurm.settings["HealthCheckProgram"] if slurm else ""
    if slurm and program:
        yield Remediator("nhc", "HealthCheckProgram {} of Slurm".format(program), {"interval": slurm.settings["HealthCheckInterval"]})
    elif os.path.exists(_below(root, "/etc/nhc/nhc.conf")):
        yield Remediator("nhc", "/etc/nhc/nhc.conf", {"interval": ""})
    runtime = _runtime_watchdog(root)
    if runtime:
        yield Remediator("systemd watchdog", "RuntimeWatchdogSec={}".format(runtime), {"seconds": runtime})


def programs(root: str) -> Iterator[Tuple[str, int]]:
    """Yield the name and the pid of every program that runs, scripts by their own name and not their interpreter's."""
    folder = _below(root, "/proc")
    for pid in sorted((int(name) for name in os.listdir(folder) if name.isdigit()), reverse=True):
        argv = _read(os.path.join(folder, str(pid), "cmdline")).split("\0")
        names = [os.path.basename(word) for word in argv[:2] if word]
        if names and INTERPRETERS.match(names[0]):
            names = names[1:]
        for name in names[:1]:
            yield name, pid


def _none(_: Host, __: str) -> Mapping[str, str]:
    return {}


def _slurm(host: Host, root: str) -> Mapping[str, str]:
    said = _scontrol(host) if root == "/" else ""
    if not said:
        said = next((text for text in (_read(_below(root, path)) for path in SLURM_CONF) if text), "")
    return slurm_settings(said)


def _scontrol(host: Host) -> str:
    """Return what Slurm's controller says of its settings; empty when it does not, in time."""
    try:
        done = host.run(["scontrol", "show", "config"], SCONTROL_WITHIN)
    except (Refusal, OSError, subprocess.TimeoutExpired):
        return ""
    return done.out if done.status == 0 else ""


def slurm_settings(text: str) -> Dict[str, str]:
    """Return Slurm's settings from its file, or from what `scontrol show config` prints: seconds and names, without their units."""
    known = {name.lower(): name for name in SLURM_SETTINGS}
    settings = dict(SLURM_SETTINGS)
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        name = known.get(key.strip().lower())
        if equals and name:
            first = (value.split("#")[0].split() or [""])[0]
            settings[name] = "" if first in ("(null)", "(none)") else first
    return settings


def _nvsentinel(_: Host, root: str) -> Mapping[str, str]:
    try:
        devices = sorted(os.listdir(_below(root, "/sys/class/infiniband")))
    except OSError:
        devices = []
    return {"rdma": ",".join(devices)}


def _watchdog(_: Host, root: str) -> Mapping[str, str]:
    lines = _read(_below(root, "/etc/watchdog.conf")).splitlines()
    watched = [" ".join(line.split()) for line in lines if re.match(r"\s*(ping|interface|file|max-load-1)\s*=", line)]
    return {"watches": "; ".join(watched)}


def _runtime_watchdog(root: str) -> str:
    """Return how long systemd's PID 1 may hang until the hardware resets the machine; empty when it may for ever."""
    drop = _below(root, "/etc/systemd/system.conf.d")
    files = [_below(root, "/etc/systemd/system.conf")]
    files += [os.path.join(drop, name) for name in sorted(os.listdir(drop)) if name.endswith(".conf")] if os.path.isdir(drop) else []
    value = ""
    for text in map(_read, files):
        for match in re.finditer(r"^\s*RuntimeWatchdogSec\s*=\s*(\S*)", text, re.MULTILINE):
            value = match.group(1)
    return "" if value in ("0", "off", "infinity") else value


SETTINGS: Dict[str, Callable[[Host, str], Mapping[str, str]]] = {"slurm": _slurm, "nvsentinel": _nvsentinel, "watchdog": _watchdog}


def _below(root: str, path: str) -> str:
    return os.path.join(root, path.lstrip("/"))


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(LONGEST_FILE)
    except OSError:
        return ""


# -- what they would do --------------------------------------------------------------------------------------------

Rule = Callable[[Mapping[str, str]], Reaction]
UNCORDON = "kubectl uncordon NODE"
RESUME = "scontrol update nodename=NODE state=resume"
SET_HEALTHY = "gpud set-healthy"


def _does(name: str, does: str, says: str, clear: str = "") -> Rule:
    return lambda _: Reaction(name, does, says, clear)


def _slurm_lost(settings: Mapping[str, str]) -> Reaction:
    says = "DOWN after SlurmdTimeout ({} s) without an answer, and then the job is requeued".format(settings["SlurmdTimeout"])
    if settings["ReturnToService"] != "2":
        says += "; after a reboot that it did not ask for it stays DOWN (ReturnToService={})".format(settings["ReturnToService"])
    if settings["ResumeProgram"]:
        says = "{}; ResumeProgram {} may give it another machine".format(says, settings["ResumeProgram"])
        return Reaction("slurm", REPLACES, says, RESUME)
    return Reaction("slurm", REQUEUES, says, RESUME)


def _slurm_stuck(settings: Mapping[str, str]) -> Reaction:
    says = "drained when a process of an ending step cannot be killed for UnkillableStepTimeout ({} s)"
    return Reaction("slurm", DRAINS, says.format(settings["UnkillableStepTimeout"]), RESUME)


def _nhc(what: str) -> Rule:
    def rule(settings: Mapping[str, str]) -> Reaction:
        interval = settings["interval"]
        when = "whenever it is started" if interval in ("", "0") else "every {} s".format(interval)
        return Reaction("nhc", DRAINS, "drained if it checks {}, which it does {}".format(what, when), RESUME)

    return rule


def _nvsentinel_link(settings: Mapping[str, str]) -> Reaction:
    if not settings["rdma"]:
        return Reaction("nvsentinel", NOTHING, "it watches RDMA devices only, and there is none here")
    says = "a port that goes down at run time, or any step of `link_downed`, is fatal to it: it asks for another machine (REPLACE_VM)"
    return Reaction("nvsentinel", REPLACES, says, "reset the counter, `perfquery -R`, and then {}".format(UNCORDON))


def _watchdog_link(settings: Mapping[str, str]) -> Reaction:
    if not re.search(r"\b(ping|interface) =", settings["watches"]):
        return Reaction("watchdog", NOTHING, "it watches no link")
    return Reaction("watchdog", REBOOTS, "reset when what it watches falls silent ({})".format(settings["watches"]))


TABLE: Dict[str, Dict[Sign, Rule]] = {
    # slurm.conf(5): SlurmdTimeout, ReturnToService, UnkillableStepTimeout, ResumeProgram.
    "slurm": {Sign.NODE_LOST: _slurm_lost, Sign.STORAGE_SLOW: _slurm_stuck},
    # LBNL's Node Health Check: check_hw_ib, check_hw_eth, check_fs_mount and df; AzHPC's scripts for it: clocks, flaps, XIDs.
    "nhc": {
        Sign.LINK_DOWN: _nhc("links, or how often they flapped"),
        Sign.NODE_LOST: _nhc("anything that is late after a boot: slurmd does not register before it is content"),
        Sign.GPU_SLOW: _nhc("GPU clocks or power; AzHPC's check also resets application clocks"),
        Sign.STORAGE_SLOW: _nhc("mounts"),
        Sign.PROCESS_KILLED: _nhc("the kernel's log for XIDs, which the killing of a GPU's client may leave"),
    },
    # NVSentinel, docs/nic-health-monitor.md (layers 1 to 3), docs/gpu-health-monitor.md, docs/fault-remediation.md.
    "nvsentinel": {
        Sign.LINK_DOWN: _nvsentinel_link,
        Sign.NODE_LOST: _does("nvsentinel", DRAINS, "cordoned, and drained, once its monitors are silent or see the GPUs gone", UNCORDON),
        Sign.GPU_SLOW: _does("nvsentinel", MARKS, "DCGM's watches of power and clocks raise an event, not a fatal one", UNCORDON),
        Sign.PROCESS_KILLED: _does("nvsentinel", MARKS, "an XID in the kernel's log, if the kill leaves one, raises an event", UNCORDON),
    },
    # gpud: its components infiniband, nvidia-xid, nvidia-hw-slowdown, nfs and os; what it saw stays until it is told (issue 1072).
    "gpud": {
        Sign.LINK_DOWN: _does("gpud", MARKS, "unhealthy for a flap of an InfiniBand port, until it is told otherwise", SET_HEALTHY),
        Sign.NODE_LOST: _does("gpud", MARKS, "it notes the reboot, and takes it for a repair that was tried"),
        Sign.GPU_SLOW: _does("gpud", MARKS, "degraded, if the GPU reports a slowdown by its hardware", SET_HEALTHY),
        Sign.PROCESS_KILLED: _does("gpud", MARKS, "unhealthy, if the kill leaves an XID in the kernel's log", SET_HEALTHY),
        Sign.STORAGE_SLOW: _does("gpud", MARKS, "unhealthy, where it watches this mount", SET_HEALTHY),
    },
    # DCGM, user guide, policies: only who registered is told; dcgm-exporter shows figures, and acts on nothing.
    "dcgm": {Sign.GPU_SLOW: _does("dcgm", MARKS, "whoever registered a policy on power or clocks is told (`dcgmi policy --get`)")},
    # Kubernetes, node controller and taints: NotReady after 40 to 50 s, pods evicted after tolerationSeconds, 300 s.
    "kubelet": {
        Sign.NODE_LOST: _does(
            "kubelet", DRAINS, "NotReady after about 50 s, its pods are evicted after 300 s; {}".format(KUBELET_NOTE), UNCORDON
        )
    },
    # node-problem-detector, config/kernel-monitor.json: KernelDeadlock, a condition that lasts until it is started anew.
    "node-problem-detector": {
        Sign.STORAGE_SLOW: _does(
            "node-problem-detector",
            MARKS,
            "KernelDeadlock for a task that is blocked for 120 s, until it is started anew; a drainer acts on that",
            "restart node-problem-detector, then {}".format(UNCORDON),
        )
    },
    # SageMaker HyperPod, resilience: UnschedulablePendingReplacement and -PendingReboot, carried out where NodeRecovery is Automatic.
    "hyperpod": {
        Sign.LINK_DOWN: _does("hyperpod", REPLACES, "a network device that fails makes it replace the instance, with automatic recovery"),
        Sign.NODE_LOST: _does("hyperpod", REPLACES, "an instance that is lost is rebooted or replaced, with automatic recovery"),
        Sign.PROCESS_KILLED: _does("hyperpod", REBOOTS, "an XID, if the kill leaves one, makes it reboot or replace the instance"),
    },
    # AWS ParallelCluster: clustermgtd terminates the instances of nodes that are DOWN or fail EC2's checks, and starts others.
    "parallelcluster": {
        Sign.NODE_LOST: _does("parallelcluster", REPLACES, "clustermgtd terminates the instance of a node that is DOWN, and starts another")
    },
    # Azure CycleCloud healthagent: background checks of GPUs, links and mounts; Slurm drains what they call unhealthy.
    "healthagent": {
        Sign.LINK_DOWN: _does("healthagent", DRAINS, "its checks in the background call the node unhealthy, and Slurm drains it", RESUME),
        Sign.GPU_SLOW: _does("healthagent", DRAINS, "its checks in the background may call the node unhealthy", RESUME),
    },
    "cloud agent": {},
    # watchdog.conf(5).
    "watchdog": {Sign.LINK_DOWN: _watchdog_link},
    # systemd-system.conf(5): resets when PID 1 itself hangs, which none of these signs means.
    "systemd watchdog": {},
}
"""Remediator -> sign -> what it does; a sign that is not here means nothing to it, as far as is known."""


def reactions(signs: Iterable[Sign], here: Iterable[Remediator]) -> List[Reaction]:
    """Return what each remediator would do about these signs, the worst first; what means nothing to one is left out."""
    wanted = list(signs)
    every = [TABLE[one.name][sign](one.settings) for one in here for sign in wanted if sign in TABLE[one.name]]
    told = [reaction for reaction in every if reaction.does != NOTHING]
    return sorted(told, key=lambda reaction: -DOES.index(reaction.does))
