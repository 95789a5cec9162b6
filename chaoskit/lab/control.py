"""
Up, down, status and ssh of a lab: what the command line, the tests and the demo call.

`up` may be killed at any point, and so may everything in the lab: `down` removes whatever it finds, by the lab's name.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from chaoskit.errors import LeakedError, RefusedError
from chaoskit.lab import cgroups, namespaces, requirements, rootfs
from chaoskit.lab.plan import DEFAULT_NAME, DEFAULT_RAIL_MBIT, DEFAULT_WORKERS, LAST_INDEX, STATE_ROOT, LabPlan, check_request, host_link
from chaoskit.lab.requirements import program
from chaoskit.lab.status import LabStatus, read_status, summarise

UP_WITHIN = 60.0
"""Longest wait, in seconds, for all nodes."""


@dataclass(frozen=True)
class Lab:
    """A lab that is up: where its files lie, and a way to run things in it."""

    plan: LabPlan
    says: str = ""
    """What `up` did, in one sentence."""

    @property
    def name(self) -> str:
        """Its name."""
        return self.plan.name

    @property
    def state_dir(self) -> Path:
        """The folder of its files."""
        return self.plan.state_dir

    @property
    def inventory_path(self) -> Path:
        """Its inventory."""
        return self.state_dir / "inventory.yaml"

    def ssh(self, node: str, *argv: str, timeout: float = 30.0, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command line on a node by the system's ssh and return its output; like ssh, it joins `argv` by spaces."""
        return subprocess.run(
            [*ssh_argv(self.name, node), *argv], input=stdin, capture_output=True, text=True, timeout=timeout, check=False
        )

    def status(self) -> LabStatus:
        """Return what its nodes are doing."""
        return status(self.name)

    def fabric_pid(self) -> int:
        """Return the process in whose network namespace the switches stand. Raises RefusedError when it is dead."""
        pid = _supervisor(self.name)
        if pid is None:
            raise RefusedError("its supervisor is dead", where=f"lab {self.name}", hint="`chaoskit lab down` removes what is left")
        return pid


def up(*, name: str = DEFAULT_NAME, nodes: int = DEFAULT_WORKERS, rail_mbit: int = DEFAULT_RAIL_MBIT) -> Lab:
    """
    Make a lab, or find it up, or complete it when some of its nodes are down.

    Args:
        name: Its name; several labs may be up at once.
        nodes: Training nodes, 2 to 16; store1 comes on top.
        rail_mbit: Rate of each rail in Mbit/s, in both directions.

    Raises:
        InputError: The request is not possible.
        RefusedError: The machine lacks something, or the lab is up in another size.
        LeakedError: The remains of an earlier lab cannot be removed.
    """
    check_request(name, nodes, rail_mbit)
    requirements.check()
    with _lock():
        now = _look(name)
        if now.state == "broken":
            _remove(name)
        elif now.state != "absent":
            return _complete(_plan(name), now, nodes, rail_mbit)
        plan = LabPlan(name, _free_index(), nodes, rail_mbit)
        _make_state_dir(plan)
        _start_supervisor(plan)
        _await_up(plan, now)
    return Lab(plan, "it is up" if now.state == "absent" else "the remains of an earlier one were removed; it is up")


def down(name: str = DEFAULT_NAME) -> bool:
    """
    Remove a lab, in whatever state it is, and return whether there was anything.

    Raises:
        LeakedError: Something of it does not go away.
    """
    with _lock():
        return _remove(name)


def status(name: str = DEFAULT_NAME) -> LabStatus:
    """Return what a lab and its nodes are doing."""
    now = _look(name)
    if now.state == "broken" and _lock_is_held():
        return replace(now, state="booting")  # an `up` or `down` is at work, and has no supervisor yet or any more
    return now


def _look(name: str) -> LabStatus:
    folder = STATE_ROOT / name
    if not folder.exists():
        return LabStatus(name, "broken" if cgroups.folders(name) else "absent")
    if not (folder / "lab.json").exists():
        return LabStatus(name, "broken", state_dir=folder)
    try:
        plan = _plan(name)
    except FileNotFoundError:  # removed while we looked
        return LabStatus(name, "absent")
    nodes = tuple(read_status(plan, node) for node in plan.nodes)
    return LabStatus(name, summarise(nodes, supervised=_supervisor(name) is not None), nodes, folder)


def names() -> tuple[str, ...]:
    """Return the names of all labs on this machine."""
    return tuple(sorted(path.name for path in STATE_ROOT.iterdir())) if STATE_ROOT.is_dir() else ()


def ssh_argv(name: str, node: str) -> list[str]:
    """Return the start of an ssh command line to a node. Raises RefusedError when the lab is not there, InputError for an unknown node."""
    if status(name).state == "absent":
        raise RefusedError("it is not up", where=f"lab {name}", hint="chaoskit lab up")
    return [program("ssh"), "-F", str(STATE_ROOT / name / "ssh_config"), "--", _plan(name).node(node).name]


def ssh(name: str, node: str, argv: Sequence[str] = ()) -> int:
    """Open a shell on a node, or run a command there, on the caller's terminal; return its exit status."""
    return subprocess.run([*ssh_argv(name, node), *argv], check=False).returncode


def _plan(name: str) -> LabPlan:
    return LabPlan.from_json(json.loads((STATE_ROOT / name / "lab.json").read_text(encoding="utf-8")))


def _supervisor(name: str) -> int | None:
    """Return the pid of the lab's supervisor while it lives; a pid that the kernel gave to another process is none."""
    try:
        pid = int((STATE_ROOT / name / "supervisor.pid").read_text(encoding="ascii"))
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if b"chaoskit.lab.supervisor" in words and name.encode() in words else None


@contextmanager
def _lock(within: float = 90.0) -> Iterator[None]:
    """Hold the lock of all labs: a lock on their common folder, which nobody can leave behind."""
    end = time.monotonic() + within
    while True:
        STATE_ROOT.mkdir(mode=0o755, exist_ok=True)
        try:
            fd = os.open(STATE_ROOT, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        if _locked(fd, end):
            break
        os.close(fd)
    try:
        yield
    finally:
        with suppress(OSError):  # a lab is up
            STATE_ROOT.rmdir()
        os.close(fd)


def _locked(fd: int, end: float) -> bool:
    """Lock the folder behind `fd`; False when it was removed meanwhile and another one must be opened."""
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise RefusedError("another `lab up` or `lab down` is running", where="lab", hint="wait for it, or end it") from None
            time.sleep(0.02)
            continue
        return STATE_ROOT.exists() and os.fstat(fd).st_ino == STATE_ROOT.stat().st_ino


def _lock_is_held() -> bool:
    try:
        fd = os.open(STATE_ROOT, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _free_index() -> int:
    """Return the first block of addresses that no route of the host and no other lab uses."""
    import ipaddress  # noqa: PLC0415 - only `up` needs it

    routes = subprocess.run([program("ip"), "-json", "route", "show", "table", "all"], capture_output=True, check=True).stdout
    texts = {str(route.get("dst", "")) for route in json.loads(routes or b"[]")}
    used = [ipaddress.ip_network(text, strict=False) for text in texts if text[:1].isdigit() and ":" not in text]
    others = {_plan(other).index for other in names() if (STATE_ROOT / other / "lab.json").exists()}
    for index in range(LAST_INDEX + 1):
        block = ipaddress.ip_network(LabPlan("", index, 2, 1).block)
        if index not in others and not any(block.overlaps(net) for net in used if net.version == 4 and net.prefixlen):
            return index
    raise RefusedError("all blocks from 10.213.0.0/16 to 10.255.0.0/16 are routed already", where="lab up", hint="remove a route or a lab")


def _make_state_dir(plan: LabPlan) -> None:
    """Mount the state folder. No child process may write there before the supervisor: `down` could not find it."""
    plan.state_dir.mkdir(mode=0o700)
    namespaces.mount("chaoskit-lab", str(plan.state_dir), "tmpfs", namespaces.MS_NODEV, "mode=0700,size=75%,nr_inodes=0")
    fresh = plan.state_dir / "lab.json.new"
    fresh.write_text(json.dumps(plan.to_json()), encoding="utf-8")
    fresh.replace(plan.state_dir / "lab.json")


def _start_supervisor(plan: LabPlan) -> None:
    """Start the supervisor in the lab's cgroup; until it has the plan it does nothing, and without it it ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "chaoskit.lab.supervisor", plan.name],
        stdin=subprocess.PIPE,
        cwd=Path(__file__).resolve().parents[2],
        start_new_session=True,
    )
    cgroups.join(plan.name, "supervisor", process.pid)
    cgroups.weigh(plan.name, len(plan.nodes))
    process.communicate(f"{json.dumps(plan.to_json())}\n".encode())
    if process.returncode != 0:
        raise RefusedError(f"the supervisor ended with {process.returncode}", where=f"lab {plan.name}")


def _await_up(plan: LabPlan, before: LabStatus, within: float = UP_WITHIN) -> None:
    """Wait for all nodes. One that is down after a further boot than `before` has failed. Raises RefusedError."""
    boots = {node.name: node.boot for node in before.nodes} if before.state != "broken" else {}
    end = time.monotonic() + within
    failed = plan.state_dir / "supervisor.failed"
    hint = f"see {plan.state_dir / 'supervisor.log'}, then `chaoskit lab down`"
    while (now := _look(plan.name)).state != "up":
        if failed.exists():
            raise RefusedError(failed.read_text(encoding="utf-8"), where=f"lab {plan.name}", hint=hint)
        if time.monotonic() > end or any(node.state == "down" and node.boot > boots.get(node.name, 0) for node in now.nodes):
            reasons = "; ".join(f"{node.name} {node.state} {node.says}".rstrip() for node in now.nodes if node.state != "up")
            raise RefusedError(f"not all nodes came up: {reasons}", where=f"lab {plan.name}", hint=hint)
        time.sleep(0.01)


def _complete(plan: LabPlan, now: LabStatus, nodes: int, rail_mbit: int) -> Lab:
    """Find a lab up, or push the power button of its nodes that are down."""
    for has, wanted, what in ((plan.workers, nodes, "nodes"), (plan.rail_mbit, rail_mbit, "Mbit/s a rail")):
        if has != wanted:
            hint = "`chaoskit lab down` first, or another --name"
            raise RefusedError(f"it is up with {has} {what}, and {wanted} were asked for", where=f"lab {plan.name}", hint=hint)
    rootfs.write_tools(plan)
    if now.state == "up":
        return Lab(plan, "it was up already")
    absent = now.down_nodes()
    supervisor = _supervisor(plan.name)
    if supervisor is not None:
        os.kill(supervisor, signal.SIGUSR1)
    _await_up(plan, now)
    return Lab(plan, f"it was half up; {', '.join(absent)} booted")


def _remove(name: str) -> bool:
    folder = STATE_ROOT / name
    there = folder.exists() or bool(cgroups.folders(name))
    cgroups.kill(name)
    cgroups.remove(name)
    if (folder / "lab.json").exists():
        index = json.loads((folder / "lab.json").read_text(encoding="utf-8"))["index"]  # no more of it: another version may have written it
        _await_link_gone(name, host_link(index))
    while os.path.ismount(folder):
        _unmount(name, folder)
    if folder.exists():
        shutil.rmtree(folder)
    return there


def _unmount(name: str, folder: Path) -> None:
    try:
        namespaces.unmount(str(folder))
    except OSError as error:
        hint = "leave that folder, close its files, and try again"
        raise LeakedError(f"{folder} is in use: {error.strerror}", where=f"lab {name}", hint=hint) from error


def _await_link_gone(name: str, link: str, within: float = 10.0) -> None:
    """Wait for the kernel to remove the link of the dead supervisor's network namespace."""
    end = time.monotonic() + within
    while Path("/sys/class/net", link).exists():
        if time.monotonic() > end:
            raise LeakedError(f"network device {link} stays", where=f"lab {name}", hint=f"ip link delete {link}")
        time.sleep(0.01)
