"""
Where each fault is tried for real. Run as a program inside namespaces of its own, by every Python that we support.

    unshare --net --pid --mount --fork --kill-child --mount-proc PYTHON bench.py NAME [SITUATION]

`benches/NAME.py` has what is its own: `bench()` returns a fault and a Bench, and `REFUSALS` has for each of `SITUATIONS`
either a function that makes it and returns (parameters, Host, words that the refusal must say), or a sentence: why this
fault cannot come into it. A bench that says `CGROUPS = ("cpu",)` runs in a fresh group of those controllers, which it sees as
the topmost one, as in a container. Standard library only, Python 3.8. Whatever it starts dies with its process namespace.
"""

import ctypes
import importlib
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time

from chaoskit.agent import marks
from chaoskit.agent.contract import Refusal
from chaoskit.errors import InputError
from chaoskit.faults import load
from chaoskit.testing import check_fault

RUN = "bench-run"
SITUATIONS = ("wrong parameters", "missing tools", "no rights", "in the way")
LEFT = "left without its ledger"
"""A situation of its own: what a fault leaves is found, and taken away where it is known as ours."""

TRAINER = """
import os, time
os.fork()  # a helper, as a data loader is: it inherits the rank
os.write(1, b".")
while True:
    sum(range(5000))
    time.sleep(0.001)
"""


def ip(*arguments, peer=None):
    """Run `ip` here, or in the network namespace of the process `peer`."""
    inside = ["nsenter", "--net", "--target", str(peer)] if peer else []
    subprocess.run([*inside, "ip", *" ".join(map(str, arguments)).split()], check=True, stdout=subprocess.DEVNULL)


def tc(arguments):
    """Run `tc` here."""
    subprocess.run(["tc", *arguments.split()], check=True)


def wait_until(holds, what):
    """Wait, with the patience that a loaded machine needs."""
    deadline = time.monotonic() + 30
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.01)


def shown(command):
    """Return what a program says."""
    return subprocess.run(command.split(), check=True, stdout=subprocess.PIPE).stdout.decode()


def wires(*names, ipv6=True):
    """
    Lay a cable for each name to a second network namespace, addressed 10.N.0.1 and 10.N.0.2; return its holder.

    With IPv6 the kernel takes up to three seconds, each time, to make its own addresses and to check them.
    """
    own = os.stat("/proc/thread-self/ns/net").st_ino
    holder = subprocess.Popen(["unshare", "--net", "sleep", "300"])
    wait_until(lambda: os.stat("/proc/{}/ns/net".format(holder.pid)).st_ino != own, "no second network namespace")
    if not ipv6:
        with open("/proc/sys/net/ipv6/conf/default/disable_ipv6", "w") as setting:
            setting.write("1")
    ip("link set lo up")
    for number, name in enumerate(names, start=1):
        ip("link add", name, "type veth peer name", name + "p", "netns", holder.pid)
        ip("addr add 10.{}.0.2/24 dev {}p".format(number, name), peer=holder.pid)
        ip("link set", name + "p", "up", peer=holder.pid)
        ip("addr add 10.{}.0.1/24 dev {}".format(number, name))
        ip("link set", name, "up")
    wait_until(lambda: not ipv6 or shown("ip -6 addr show scope link").count("inet6 fe80") == len(names), "no link-local addresses")
    return holder


# What changes by itself: the checks for duplicates, the signal's findings, and how much of a lifetime is left.
PASSING = re.compile(r" tentative| state \S+| linkdown| dead|refcnt \d+|(?<=lft )\d+sec|(?<=expires )\d+sec")


def net_snapshot():
    """Return what `ip` and `tc` show of this network namespace: a list of IPv4 routes in order, the rest as sets of lines."""
    seen = {}
    for argv in (
        "ip -4 -d route show table all",
        "ip -6 -d route show table all",
        "ip -o -d addr show",
        "ip -o -d link show",
        "ip rule show",
        "ip -6 rule show",
        "ip neigh show nud permanent",
        "ip neigh show nud noarp",
        "ip neigh show proxy",
        "tc qdisc show",
    ):
        lines = [" ".join(PASSING.sub("", line).split()) for line in shown(argv).splitlines()]
        # The kernel makes neighbours of multicast groups as it needs them.
        lines = [line for line in lines if " lladdr 33:33:" not in line and " lladdr 01:00:5e:" not in line]
        seen[argv] = lines if "-4" in argv else sorted(lines)
    return seen


def settle():
    """Wait until no address is under duplicate detection, so that a snapshot holds still."""
    wait_until(lambda: "tentative" not in shown("ip -6 addr"), "addresses stayed tentative")


def trainer(rank, local_rank, run=RUN):
    """Start a process that is a rank, with a helper of its own, and wait until both run."""
    env = {"RANK": str(rank), "LOCAL_RANK": str(local_rank), "TORCHELASTIC_RUN_ID": run, "PATH": os.environ["PATH"]}
    started = subprocess.Popen([sys.executable, "-c", TRAINER], env=env, stdout=subprocess.PIPE)
    if started.stdout.read(2) != b"..":
        raise RuntimeError("the trainer died")
    return started


def processes():
    """Return the living processes by what `ps` shows, `ps` itself left out."""
    return [line for line in shown("ps -eo pid,ppid,lstart,args").splitlines() if " ps -eo" not in line and "defunct" not in line]


CLONE_NEWNS, CLONE_NEWCGROUP = 0x00020000, 0x02000000


def controller_mount(controller):
    """Return the mount of a controller, v1 or v2, as (mount point, type, what `mount -o` needs)."""
    with open("/proc/self/mountinfo") as file:
        mounts = [(line.split()[4], line.rpartition(" - ")[2].split()) for line in file]
    for point, (kind, _, options) in mounts:
        if kind == "cgroup" and controller in options.split(","):
            return point, kind, ",".join(option for option in options.split(",") if option != "rw")
    for point, (kind, _, _) in mounts:
        if kind == "cgroup2" and controller in text(os.path.join(point, "cgroup.controllers")).split():
            return point, kind, ""
    raise RuntimeError("no hierarchy here has the controller {}".format(controller))


def text(path):
    """Return what stands in a file."""
    with open(path) as file:
        return file.read()


def put(path, words):
    """Write into a file of a group; the kernel wants it in one piece."""
    with open(path, "w") as file:
        file.write(words)


def in_fresh_groups(controllers, job):
    """
    Run `job` in a child that stands in fresh groups and sees them as the topmost ones; return its exit status.

    The groups are made below those of this process and removed with everything in them.
    """
    name = "chaoskit-bench-{}".format(os.urandom(4).hex())
    places = [controller_mount(controller) for controller in controllers]
    groups = [os.path.join(point, name) for point, _, _ in places]
    for group in groups:
        os.mkdir(group)
    child = os.fork()
    if child == 0:
        for group in groups:
            put(os.path.join(group, "cgroup.procs"), "0")
        if ctypes.CDLL(None).unshare(CLONE_NEWNS | CLONE_NEWCGROUP) != 0:
            raise OSError("unshare --mount --cgroup")
        for point, kind, options in places:
            subprocess.run(["umount", point], check=True)
            subprocess.run(["mount", "-t", kind, *(["-o", options] if options else []), "cgroup", point], check=True)
            own_hierarchies.append(point)
        job()
        sys.stdout.flush()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    for group in groups:
        wait_until(lambda group=group: emptied(group), "{} is not empty".format(group))
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1


def emptied(group):
    """Kill what stands in a group and those below it, and remove them; say whether that is done."""
    for folder, _, _ in os.walk(group, topdown=False):
        try:
            for pid in text(os.path.join(folder, "cgroup.procs")).split():
                os.kill(int(pid), signal.SIGKILL)
            os.rmdir(folder)
        except OSError:
            return False  # somebody is still leaving
    return True


SETTINGS = ("cgroup.procs", "cgroup.type", "cgroup.subtree_control", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.max", "io.max")
own_hierarchies = []
"""Where the groups are our own; those of the machine have others in them, and are no part of a snapshot."""


def group_snapshot():
    """Return each group of our own, with its members and what it may use of the CPU and of disks."""
    seen = {}
    for point in own_hierarchies:
        for folder, _, files in os.walk(point):
            names = [name for name in files if name in SETTINGS or name.startswith("blkio.throttle.write_bps")]
            seen[folder] = {name: text(os.path.join(folder, name)) for name in sorted(names)}
    return seen


def drop_rights():
    """Give up every capability, for good: still uid 0, as in a container that was given none."""
    header, nothing = struct.pack("Ii", 0x20080522, 0), bytes(24)  # _LINUX_CAPABILITY_VERSION_3, this process
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.capset(header, nothing) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def refused(name, module, situation):
    """Make a situation, see that the fault refuses it before it has changed anything, and return what it said."""
    params, host, words = module.REFUSALS[situation]()
    before = (net_snapshot(), processes(), group_snapshot())
    try:
        load(name, params).prepare(host)
    except (Refusal, InputError) as error:
        said = error
    else:
        raise AssertionError("not refused")
    if (net_snapshot(), processes(), group_snapshot()) != before:
        raise AssertionError("the refusal changed something")
    missing = [word for word in words if word not in str(said)]
    if missing or not (said.hint or isinstance(said, InputError)):
        raise AssertionError("it must say {} and what to do: {}".format(missing, said))
    return said


def left_without_ledger(fault, bench):
    """Do the harm and lose the undo: `strays` must find it, and `sweep` must take away all that is ours, and nothing else."""
    kind, host = type(fault), bench.host
    undo = fault.prepare(host)
    if not fault.holds():
        assert not kind.strays(host), "a harm that is over leaves nothing"
        return "nothing to find"
    before, others = bench.snapshot(), list(kind.strays(host))
    assert not any(stray.ours for stray in others), others
    fault.inject(host, undo)
    try:
        found = [stray for stray in kind.strays(host) if stray not in others]
        assert found, "nothing was found"
        strange = [stray for stray in found if stray.resource not in fault.resource(undo)]
        assert not strange, "no entry of this fault would explain {}".format(strange)
        for stray in found * 2:  # twice, as an interrupted heal is tried again
            if stray.ours:
                kind.sweep(host, stray)
        if all(stray.ours for stray in found):
            assert bench.snapshot() == before, "not as it was"
    finally:
        fault.revert(host, undo)
    assert [stray for stray in kind.strays(host) if stray not in others] == []
    return "found: {}".format("; ".join("{} ({})".format(stray.says, "ours" if stray.ours else stray.do) for stray in found))


def main(name, situation=None):
    """Try every duty of a fault, or one of its refusals."""
    sys.modules["bench"] = sys.modules["__main__"]
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "benches"))
    module = importlib.import_module(name)
    marks.FOLDER = tempfile.mkdtemp()
    controllers = getattr(module, "CGROUPS", ())
    if controllers:
        sys.exit(in_fresh_groups(controllers, lambda: try_out(name, module, situation)))
    try_out(name, module, situation)


def try_out(name, module, situation):
    """Try every duty, or make one situation, and say how it went."""
    if situation is None:
        check_fault(*module.bench())
        print("every duty kept")
    elif situation == LEFT:
        print(left_without_ledger(*module.bench()))
    elif isinstance(module.REFUSALS[situation], str):
        print("cannot be: {}".format(module.REFUSALS[situation]))
    else:
        print("refused: {}".format(refused(name, module, situation)))


if __name__ == "__main__":
    main(*sys.argv[1:])
