"""
The points at which a run can be stopped: between any two steps of the code's own transitions, found by running it.

This module travels to the nodes inside the matrix's own build of the agent, and the controller of a case loads it too.
It wraps what moves a ledger, a lease or a journal on, and the verbs that do and undo harm, and reports between their
steps; the steps are the calls themselves that leave something behind (a write, an fsync, a rename, a signal, a request to
the kernel), so that a new record, or a new step of an old one, is a new point without anybody naming it here.

At the point that an order names, whoever reaches it stops whom the order names. Standard library only, Python 3.8.
"""

import ctypes
import functools
import importlib
import json
import os
import signal
import socket
import struct
import threading
import time
from contextlib import contextmanager, suppress

from chaoskit.agent import ledger, netlink, node, registry, reverting
from chaoskit.agent.contract import Evidence

FOLDER = "/var/lib/chaoskit-matrix"
"""On a node, of orders and answers; on its disk, so that what was hit before a reboot is known after it."""

STEPS = ("open", "write", "fsync", "rename", "replace", "unlink", "link", "symlink", "mkdir", "rmdir", "truncate", "ftruncate", "kill")
"""Calls of `os` that leave something behind."""

GO_WITHIN = 5.0
"""Seconds that a point waits until somebody elsewhere was stopped."""

QUICK = {
    "chaoskit.agent.ranks": {"LOOK": 0.05},
    "chaoskit.faults.link_flap": {"LOOK": 0.05, "LOOKS": 1},
    "chaoskit.faults.node_kill": {"LOOK": 0.05},
    "chaoskit.faults.rank_slow": {"MEASURE": 0.3, "LOOK": 0.1, "LOOKS": 1, "THROTTLED_WITHIN": 0.3},
    "chaoskit.faults.storage_slow": {"PROBE_TIME": 0.25, "PROBES": 1, "WATCH": 0.1, "SHORTEST": 0.1},
    "chaoskit.agent.gpu_targets": {"EVERY": 0.01, "WITNESS_EVERY": 0.01},
}
"""Looks that only take time: a case is about what is owed, and not about how well it is proven."""

_real = {name: getattr(os, name) for name in (*STEPS, "read")}
_here = threading.local()


class Points:
    """
    Where this process is in its transitions.

    Args:
        role: Who it is: `server`, `fuse` or `controller`.
        order: Called at each point; returns the order that is in force, or None.
        fire: Called with the order at its point.
        log: File that each point is appended to while the points are being found; None: none.
    """

    def __init__(self, role, order, fire, log):
        self.role, self._order, self._fire, self._log = role, order, fire, log
        self._counts = {}
        self._gate = threading.Lock()

    def reach(self, name):
        """Note that a point is reached; may not return."""
        order = self._order()
        if order is None:
            return
        with self._gate:
            key = (order["id"], name)
            nth = self._counts[key] = self._counts.get(key, 0) + 1
        if order.get("record") and self._log is not None:
            fd = _real["open"](self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            _real["write"](fd, "{} {} {}\n".format(self.role, name, nth).encode())
            os.close(fd)
        if (self.role, name, nth) == (order.get("role"), order.get("point"), order.get("nth")):
            self._fire(order)

    @contextmanager
    def span(self, label):
        """Report what happens inside under a label; a span within one of the same label is part of it."""
        outer = getattr(_here, "label", None)
        if outer == label:
            yield
            return
        _here.label = label
        try:
            self.reach(label + ":before")
            yield
            self.reach(label + ":after")
        finally:
            _here.label = outer

    def step(self, name):
        """Report a step of the span that this thread is in."""
        label = getattr(_here, "label", None)
        if label is not None:
            self.reach("{}:{}".format(label, name))

    def wrap(self, owner, name, label):
        """Make a callable of `owner` a span; `label` returns its name from the arguments."""
        inner = getattr(owner, name)

        @functools.wraps(inner)
        def outer(*args, **kwargs):
            with self.span(label(*args, **kwargs)):
                return inner(*args, **kwargs)

        setattr(owner, name, outer)

    def wrap_steps(self):
        """Report the calls of `os` that leave something behind; an `open` does only where it creates."""
        for name in STEPS:
            setattr(os, name, self._stepping(name, _real[name]))

    def _stepping(self, name, inner):
        def outer(*args, **kwargs):
            result = inner(*args, **kwargs)
            if name != "open" or (len(args) > 1 and args[1] & os.O_CREAT):
                self.step(name)
            return result

        return outer

    def wrap_netlink(self):
        """Report the requests by which the kernel is told to change something."""
        self._after(netlink.Netlink, "put", "netlink")
        self._after(netlink, "set_up", "link")

    def _after(self, owner, name, step):
        inner = getattr(owner, name)

        @functools.wraps(inner)
        def outer(*args, **kwargs):
            result = inner(*args, **kwargs)
            self.step(step)
            return result

        setattr(owner, name, outer)


# -- on a node ---------------------------------------------------------------------------------------------------------


def install(role):
    """Report the transitions of this process, the agent's server or fuse."""
    importlib.import_module("chaoskit.faults").discover()
    for module, values in QUICK.items():
        for name, value in values.items():
            assert hasattr(importlib.import_module(module), name), (module, name)
            setattr(importlib.import_module(module), name, value)
    points = Points(role, _order_here, _fire_here, os.path.join(FOLDER, "log"))
    patience = reverting.PATIENCE

    def of_append(_ledger, _entry, state, **more):
        order = _order_here() or {}
        reverting.PATIENCE = 0.2 if order.get("lie") else patience
        if state == "failed":
            put(os.path.join(FOLDER, "lied"), order.get("id"))
        return "{}{}".format(state, more["span"] or "" if "span" in more else "")

    points.wrap(ledger.Ledger, "append", of_append)
    points.wrap(ledger.Ledger, "plan", lambda *_: "planned")
    points.wrap(node, "write_lease", lambda *_: "lease")
    points.wrap_steps()
    points.wrap_netlink()
    _wrap_faults(points, registry.Registry)


def _has_lied(order):
    """Whether an order's lie was told, by us or by a server before us: it is for once, whoever reverts next."""
    return read(os.path.join(FOLDER, "lied")) == order["id"]


def _wrap_faults(points, registry):
    make, seen = registry.make, set()

    def made(self, name, params):
        fault = make(self, name, params)
        kind = type(fault)
        if kind not in seen:
            seen.add(kind)
            points.wrap(kind, "inject", lambda *_: "inject")
            points.wrap(kind, "revert", lambda *_: "revert")
            _make_liar(kind)
        return fault

    registry.make = made


def _make_liar(kind):
    """Have `gone` deny once what is true when the order says so: the way to a revert that failed."""
    gone = kind.gone

    def denied(self, host, undo):
        order = _order_here() or {}
        if order.get("lie") and not _has_lied(order):
            return Evidence(False, "denied by the matrix")
        return gone(self, host, undo)

    kind.gone = denied


def _order_here():
    return read(os.path.join(FOLDER, "order"))


def read(path):
    """Return what `put` left in a file, or None."""
    try:
        fd = _real["open"](path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return json.loads(_real["read"](fd, 65536).decode() or "null")
    finally:
        os.close(fd)


def put(path, data):
    """Replace a file at once, by calls that are no steps."""
    fd = _real["open"](path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    _real["write"](fd, json.dumps(data).encode())
    os.close(fd)
    _real["rename"](path + ".new", path)


def _fire_here(order):
    if os.path.exists(os.path.join(FOLDER, "hit")):
        return  # before a reboot, or by a server before us: an order is for once
    put(os.path.join(FOLDER, "hit"), {"id": order["id"], "boottime": time.clock_gettime(time.CLOCK_BOOTTIME)})
    if order["victim"] in ("controller", "both"):  # of both, a controller that lives would send somebody new
        until = time.monotonic() + GO_WITHIN
        while not os.path.exists(os.path.join(FOLDER, "go")) and time.monotonic() < until:
            time.sleep(0.002)
    if order["victim"] == "controller":
        return
    stop(order["victim"], order["how"], None)


# -- stopping somebody, from a node or from the machine that it runs on -------------------------------------------------


def stop(victim, how, namespace):
    """
    Stop somebody on a node; ourselves last.

    Args:
        victim: `server`, `fuse`, `both` or `channel`.
        how: KILL or STOP; of a channel RST, FIN or SILENCE.
        namespace: The node's process namespace, seen from outside; None: we are on the node.
    """
    if victim == "channel":
        cut(how, namespace)
        return
    verbs = {"server": (b"serve",), "fuse": (b"fuse",), "both": (b"fuse", b"serve")}[victim]
    number = {"KILL": signal.SIGKILL, "STOP": signal.SIGSTOP}[how]
    met, looks = {os.getpid()}, 0
    while looks < 2:  # one that is just being started is in none of the lists, or in the next
        found = {pid for verb in verbs for pid in agents(verb, namespace)}
        looks = 0 if found - met else looks + 1
        for pid in found - met:
            _signal(pid, number)
        met |= found
    if os.getpid() in {pid for verb in verbs for pid in agents(verb, namespace)}:
        _signal(os.getpid(), number)


def _signal(pid, number):
    with suppress(ProcessLookupError):
        _real["kill"](pid, number)


def commands(namespace):
    """Return (pid, command line as a list of words) of every process of a node."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                if namespace is not None and os.readlink("/proc/{}/ns/pid".format(name)) != namespace:
                    continue
                with open("/proc/{}/cmdline".format(name), "rb") as file:
                    found.append((int(name), file.read().split(b"\0")))
    return found


def agents(verb, namespace):
    """Return the pids of the agent's processes of a verb."""
    return [pid for pid, argv in commands(namespace) if verb in argv and any(word.endswith(b".pyz") for word in argv)]


def sessions(namespace):
    """Return the pids of sshd's processes that hold a connection."""
    return [pid for pid, argv in commands(namespace) if argv[0].startswith(b"sshd: ") and b"listener" not in argv[0]]


def cut(how, namespace):
    """End every SSH connection: by a reset, by its end, or by silence."""
    found = sessions(namespace)
    if how == "RST":
        for pid in found:
            _linger_not(pid)
    for pid in found:
        with suppress(ProcessLookupError):
            _real["kill"](pid, signal.SIGSTOP if how == "SILENCE" else signal.SIGKILL)


def _linger_not(pid):
    """Have the sockets of a process end by a reset: the option is the socket's, whoever sets it."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = libc.syscall(434, pid, 0)  # pidfd_open
    for name in os.listdir("/proc/{}/fd".format(pid)):
        with suppress(OSError):
            if os.readlink("/proc/{}/fd/{}".format(pid, name)).startswith("socket:"):
                fd = libc.syscall(438, handle, int(name), 0)  # pidfd_getfd
                if fd >= 0:
                    with socket.socket(fileno=fd) as sock:
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    os.close(handle)
