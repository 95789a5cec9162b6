"""
Processes as /proc shows them: who they are beyond reuse of a pid, which training they belong to, and a kill that cannot miss.

Standard library only, Python 3.8.
"""

import ctypes
import errno
import os
import pwd
import signal
from typing import Dict, List, NamedTuple, Optional

from chaoskit.agent.contract import Refusal, TrainingFacts

_PIDFD_SEND_SIGNAL, _PIDFD_OPEN = 424, 434  # the same numbers on every architecture since Linux 5.3
_PF_EXITING, _PF_SIGNALED = 0x4, 0x400

CAPABILITIES = {"KILL": 5, "NET_ADMIN": 12, "SYS_CHROOT": 18, "SYS_PTRACE": 19, "SYS_ADMIN": 21, "SYS_BOOT": 22}
"""Bit numbers of the capabilities that faults need (linux/capability.h)."""


class Process(NamedTuple):
    """A process. `pid` with `start_time` (clock ticks since boot) names it for ever; `cpu` is its time used, in ticks."""

    pid: int
    start_time: int
    ppid: int
    state: str
    flags: int
    cpu: int
    uid: int
    comm: str

    @property
    def dead(self) -> bool:
        """Whether it only waits to be reaped."""
        return self.state in "ZXx"

    @property
    def stopped(self) -> bool:
        """Whether a signal or a debugger holds it."""
        return self.state in "Tt"


def _slurp(path: str) -> Optional[bytes]:
    """Return a /proc file's bytes; None when the process is gone, or ended while it was read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None


def read(pid: int) -> Optional[Process]:
    """Return a process; None when there is none of that pid."""
    stat = _slurp("/proc/{}/stat".format(pid))
    status = _slurp("/proc/{}/status".format(pid)) if stat else None
    if not stat or not status:
        return None
    # The name may hold spaces and parentheses: the last one closes it.
    name, _, rest = stat.partition(b"(")[2].rpartition(b")")
    fields = rest.split()
    uid = next(int(line.split()[1]) for line in status.splitlines() if line.startswith(b"Uid:"))
    return Process(
        pid=pid,
        start_time=int(fields[19]),
        ppid=int(fields[1]),
        state=fields[0].decode(),
        flags=int(fields[6]),
        cpu=int(fields[11]) + int(fields[12]),
        uid=uid,
        comm=name.decode("utf-8", "replace"),
    )


def environ(pid: int) -> Dict[str, str]:
    """
    Return the environment that a process began with; empty when it is gone.

    Empty too when it is closed to us even with CAP_SYS_PTRACE, as for a process of an outer user namespace: no training's.
    """
    try:
        data = _slurp("/proc/{}/environ".format(pid)) or b""
    except PermissionError:
        data = b""
    pairs = (item.partition(b"=") for item in data.split(b"\0") if b"=" in item)
    return {key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, _, value in pairs}


def cgroup(pid: int) -> str:
    """Return a process's cgroup: the unified hierarchy's, else that of the first one named; empty when it is gone."""
    lines = [line.split(":", 2) for line in (_slurp("/proc/{}/cgroup".format(pid)) or b"").decode("utf-8", "replace").splitlines()]
    unified = [path for number, _, path in lines if number == "0"]
    return next(iter(unified), lines[0][2] if lines else "")


def owner(thread: int) -> int:
    """Return the pid of the process that a thread belongs to; 0 when it has ended."""
    lines = (_slurp("/proc/{}/status".format(thread)) or b"").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(b"Tgid:")), 0)


def switches(pid: int) -> int:
    """Return how often the threads of a process were switched, by waiting or by force; 0 when it is gone."""
    lines = [line for thread in _threads(pid) for line in (_slurp("/proc/{}/task/{}/status".format(pid, thread)) or b"").splitlines()]
    return sum(int(line.split()[1]) for line in lines if b"ctxt_switches" in line)


def everyone() -> List[Process]:
    """Return every process that this pid namespace shows."""
    found = (read(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [process for process in found if process is not None]


def of_training(training: TrainingFacts) -> List[Process]:
    """
    Return the living processes of a training on this node.

    By its run id in their environment (TORCHELASTIC_RUN_ID, or SLURM_JOB_ID); without a run id by its cgroup, else by
    its user. With none of the three nobody can say, and the list is empty.
    """
    if not (training.run_id or training.cgroup or training.user):
        return []
    uid = uid_of(training.user) if training.user and not (training.run_id or training.cgroup) else None
    return [process for process in everyone() if not process.dead and _belongs(process, training, uid)]


def _belongs(process: Process, training: TrainingFacts, uid: Optional[int]) -> bool:
    if training.run_id:
        return in_run(environ(process.pid), training.run_id)
    if training.cgroup:
        return within(cgroup(process.pid), training.cgroup)
    return process.uid == uid


def in_run(env: Dict[str, str], run_id: str) -> bool:
    """Whether an environment is that of a training's run."""
    return run_id in (env.get("TORCHELASTIC_RUN_ID"), env.get("SLURM_JOB_ID"))


def within(path: str, prefix: str) -> bool:
    """Whether a cgroup is the prefix or stands below it."""
    return path == prefix or path.startswith(prefix.rstrip("/") + "/")


def uid_of(user: str) -> int:
    """Return a user's number. Raises Refusal when this node does not know it."""
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError as error:
        raise Refusal("this node has no user {}".format(user), hint="correct the training's `user` in the inventory") from error


def same(pid: int, start_time: int) -> Optional[Process]:
    """Return the process that this pid and start time name, dead or alive; None when it is gone or the pid was reused."""
    process = read(pid)
    return process if process is not None and process.start_time == start_time else None


def dying(pid: int, number: int) -> bool:
    """Whether a signal is on its way to a process, or the kernel takes it apart already."""
    # In this order: a signal that is no longer pending has left its mark in the flags read after that.
    status = (_slurp("/proc/{}/status".format(pid)) or b"").splitlines()
    pending = [int(line.split()[1], 16) for line in status if line.startswith((b"SigPnd:", b"ShdPnd:"))]
    process = read(pid)
    ending = process is None or process.dead or bool(process.flags & (_PF_EXITING | _PF_SIGNALED))
    return ending or any(mask >> (number - 1) & 1 for mask in pending)


def held(pid: int) -> List[str]:
    """
    Say what holds a process: the state of each stopped thread, and `pending` for a stop on its way; empty when it is free, or gone.

    A thread in the kernel, as one that waits for a disk, stops only when it comes back.
    """
    # In this order, as in `dying`: a stop that is no longer pending has stopped a thread by the time that is read.
    mask = 1 << (signal.SIGSTOP - 1)
    tasks = _threads(pid)
    files = ["/proc/{}/status".format(pid), *("/proc/{}/task/{}/status".format(pid, task) for task in tasks)]
    lines = [line for file in files for line in (_slurp(file) or b"").splitlines()]
    waiting = any(int(line.split()[1], 16) & mask for line in lines if line.startswith((b"SigPnd:", b"ShdPnd:")))
    return [state for state in states(pid) if state in "Tt"] + ["pending"] * waiting


def states(pid: int) -> List[str]:
    """Return the state of each living thread of a process; none when it is gone."""
    stats = (_slurp("/proc/{}/task/{}/stat".format(pid, task)) for task in _threads(pid))
    found = [stat.rpartition(b")")[2].split()[0].decode() for stat in stats if stat]
    return [state for state in found if state not in "ZXx"]


def tracer(pid: int) -> int:
    """Return the pid of the debugger that is attached to a process; 0 when there is none, or the process is gone."""
    lines = (_slurp("/proc/{}/status".format(pid)) or b"").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(b"TracerPid:")), 0)


def _threads(pid: int) -> List[str]:
    try:
        return os.listdir("/proc/{}/task".format(pid))
    except (FileNotFoundError, ProcessLookupError):
        return []


def send(pid: int, start_time: int, uid: Optional[int], number: int) -> bool:
    """
    Send a signal to exactly this process; return False when it is no longer there, or of another `uid` where one is given.

    The process is pinned by a pidfd before its identity is read again, so a reused pid cannot be hit. Where the kernel
    has no pidfd (before 5.3) the identity is read right before the kill.
    """
    handle = _syscall(_PIDFD_OPEN, pid, 0)
    try:
        process = same(pid, start_time)
        if process is None or process.dead or uid not in (None, process.uid):
            return False
        if handle is None:
            os.kill(pid, number)
        else:
            _syscall(_PIDFD_SEND_SIGNAL, handle, number, None, 0)
    except ProcessLookupError:
        return False
    finally:
        if handle is not None:
            os.close(handle)
    return True


def _syscall(number: int, *arguments: Optional[int]) -> Optional[int]:
    """Make a system call; None when there is no such process or no such call. Raises OSError for the rest."""
    libc = ctypes.CDLL(None, use_errno=True)
    result: int = libc.syscall(ctypes.c_long(number), *arguments)
    if result >= 0:
        return result
    error = ctypes.get_errno()
    if error in (errno.ENOSYS, errno.ESRCH):
        return None
    raise OSError(error, os.strerror(error))


def signal_number(name: str) -> int:
    """Return a signal's number by its name without SIG. Raises ValueError."""
    try:
        return int(signal.Signals["SIG" + name])
    except KeyError:
        raise ValueError("unknown signal {!r}".format(name)) from None


def require_capability(name: str, node: str) -> None:
    """Raise Refusal when this process lacks a capability (named without CAP_), so that no fault fails half way."""
    status = (_slurp("/proc/self/status") or b"").splitlines()
    mask = next(int(line.split()[1], 16) for line in status if line.startswith(b"CapEff:"))
    if not mask >> CAPABILITIES[name] & 1:
        hint = "run the agent as root (`become: sudo`), or grant the capability to the container"
        raise Refusal("the agent lacks the capability CAP_{}".format(name), where=node, hint=hint)
