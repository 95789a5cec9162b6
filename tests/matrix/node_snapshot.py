"""
A lab node as a fault must leave it, read from outside by other means than the product's own.

`ip`, `tc` and `nft` in the node's network namespace; the rest from the kernel's files, seen from the machine that the node
runs on. What the agent itself keeps (its ledger, its socket, its own processes and their groups) is left out, and so is
what changes by itself: counters, lifetimes, what a link finds out about its signal.
"""

import json
import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path

from chaoskit.lab import cgroups
from chaoskit.lab.plan import STATE_ROOT

SHOWN = """
exec 2>&1
ip -o -d link show; echo @addresses; ip -o -d addr show; echo @routes; ip -4 -d route show table all
echo @routes6; ip -6 -d route show table all; echo @rules; ip rule show; ip -6 rule show
echo @neighbours; for nud in "nud permanent" "nud noarp" proxy; do ip neigh show $nud | grep -v " dev lo "; done
echo @qdiscs; tc qdisc show; for dev in $(ip -br link | sed "s/[@ ].*//"); do tc class show dev $dev; tc filter show dev $dev; done
echo @nftables; nft list ruleset
"""
PASSING = re.compile(
    r" tentative|@if\d+"
    r"| state \S+| linkdown| dead|refcnt \d+|(?<=lft )\d+sec|(?<=expires )\d+sec|,?(LOWER_UP|NO-CARRIER)| \w+_timer +[\d.]+"
)
MULTICAST = (" lladdr 33:33:", " lladdr 01:00:5e:")
SETTINGS = re.compile(
    r"cpu\.(cfs_\w+_us|shares|max|weight)|blkio\.throttle\.(read|write)_\w+_device|io\.max|freezer\.state|cgroup\.(freeze|subtree_control)"
)
IN_MEMORY = ("tmp", "dev/shm", "run")
OWN = re.compile(r"^(run/(chaoskit|sudo)|home/[^/]+|var/lib/(chaoskit(-matrix)?|sudo)|var/log)(/|$)|^run/chaoskit-gpu/(meter|clients|lock)")
"""Where the agent keeps its own, and the account, sudo and the syslog theirs."""
AGENT = re.compile(r"chaoskit-(agent|fuse)-")
LIMITS = ("limits", "oom_score_adj")


def snapshot(lab, node, init):
    """Return what is so on a node, by subject; `init` is the pid of its process 1, seen from here."""
    seen = network(init)
    seen["processes"], members = processes(init)
    seen["cgroups"] = groups(lab, node, members)
    seen["mounts"] = [" ".join(line.split()[3:]) for line in Path(f"/proc/{init}/mountinfo").read_text().splitlines()]
    seen["mounts"] = sorted(re.sub(r"(shared|master):\d+ ", "", line) for line in seen["mounts"])
    seen["files"] = files(lab, node, init)
    seen["gpus"] = gpus(Path(f"/proc/{init}/root/run/chaoskit-gpu"))
    return seen


def network(init):
    """Return what `ip`, `tc` and `nft` show: IPv4 routes in their order, the rest sorted."""
    shown = subprocess.run(
        ["nsenter", f"--net=/proc/{init}/ns/net", "sh", "-c", SHOWN], stdout=subprocess.PIPE, text=True, check=False
    ).stdout
    seen, subject = {}, "links"
    for raw in shown.splitlines():
        if raw.startswith("@"):
            subject = raw[1:]
        elif not any(word in raw for word in MULTICAST):
            seen.setdefault(subject, []).append(" ".join(PASSING.sub("", raw).split()))
    return {name: lines if name in ("routes", "nftables", "qdiscs") else sorted(lines) for name, lines in seen.items()}


def processes(init):
    """Return the living processes but for the agent's and the SSH sessions', with limits and whether they are held; and pid -> name."""
    namespace, found, parents = os.readlink(f"/proc/{init}/ns/pid"), {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            if os.readlink(path / "ns/pid") != namespace:
                continue
            argv = (path / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")
            # How many are just logging in, a silenced session of ours among them, is no trace of a fault.
            argv = re.sub(r"\[listener\] \d+ of", "[listener] N of", re.sub(r"/dev/fd/\d+", "/dev/fd/N", argv))
            state, ppid = (path / "stat").read_text().rpartition(")")[2].split()[:2]
            parents[int(path.name)] = int(ppid)
            if argv and state != "Z":
                held = "held" if state in "Tt" else "runs"
                limits = [(path / name).read_text() for name in LIMITS]
                found[int(path.name)] = (
                    argv,
                    held,
                    os.sched_getscheduler(int(path.name)),
                    sorted(os.sched_getaffinity(int(path.name))),
                    *limits,
                )
    sessions = {pid for pid, (argv, *_) in found.items() if argv.startswith("sshd: ") and "listener" not in argv}

    def of_session(pid):
        while pid in parents:
            if pid in sessions:
                return True
            pid = parents[pid]
        return False

    kept = {pid: seen for pid, seen in found.items() if ".pyz " not in seen[0] and not of_session(pid)}
    return sorted(kept.values()), {pid: seen[0].rpartition("/")[2] for pid, seen in kept.items()}


def groups(lab, node, members):
    """Return the node's control groups with their settings and members, but for those that the agent stands in."""
    seen = {}
    for top in cgroups.folders(lab, node):
        for folder, _, names in os.walk(top):
            if AGENT.search(folder):
                continue
            with suppress(OSError):
                inside = (Path(folder) / "cgroup.procs").read_text().split()
                settings = {name: (Path(folder) / name).read_text() for name in sorted(names) if SETTINGS.fullmatch(name)}
                name = re.sub(r"(gpu\d+)-\d+", r"\1-N", folder)
                seen[name] = (settings, sorted(members[int(pid)] for pid in inside if int(pid) in members))
    return seen


def files(lab, node, init):
    """Return the files that a node has changed on its disk, those in its memory, and those that its training has on its storage."""
    tops = [(STATE_ROOT / lab / "nodes" / node / "upper", "")]
    tops += [(Path(f"/proc/{init}/root"), name) for name in IN_MEMORY]
    store = json.loads((STATE_ROOT / lab / "nodes" / "store1" / "status.json").read_text())["pid"]
    tops += [(Path(f"/proc/{store}/root/srv/chaoskit-lab"), f"ckpt/{node}")]
    seen = {}
    for root, top in tops:
        for folder, names, leaves in os.walk(root / top):
            inside = "" if Path(folder) == root else os.path.relpath(folder, root) + "/"
            names[:] = [name for name in names if not OWN.search(inside + name)]
            for name in (*names, *leaves):
                with suppress(OSError):
                    found = os.lstat(os.path.join(folder, name))
                    if not OWN.search(inside + name):
                        seen[inside + name] = (oct(found.st_mode), found.st_uid, found.st_size if name in leaves else 0)
    return seen


def gpus(folder):
    """Return what is set on each simulated GPU."""
    return {path.name: sorted(path.read_text().splitlines()) for path in folder.glob("gpu[0-9]*") if path.suffix != ".new"}


def differences(before, now):
    """Return what differs, in words: one line a thing that is there no more, or is new."""
    found = []
    for subject in sorted({*before, *now}):
        was, has = before.get(subject, []), now.get(subject, [])
        if was == has:
            continue
        if isinstance(was, dict) or isinstance(has, dict):
            was, has = [f"{key}: {value}" for key, value in dict(was).items()], [f"{key}: {value}" for key, value in dict(has).items()]
        gone, new = (
            [line for line in map(str, was) if line not in map(str, has)],
            [line for line in map(str, has) if line not in map(str, was)],
        )
        told = sorted([(line, "-") for line in gone] + [(line, "+") for line in new])  # what was and what is of one thing together
        found += [f"{subject}: {sign} {line}" for line, sign in told]
        if not gone and not new:
            found.append(f"{subject}: in another order, or another number of them")
    return found
