"""
How NVML is asked: a child of the real `pynvml` for each order, killed at its deadline, wherever the driver holds it.

The child is `nvml_child`; it comes from the zipapp or a source tree, as we do, and answers in JSON lines. Standard library
only, Python 3.8.
"""

import functools
import importlib.util
import json
import marshal
import os
import select
import subprocess
import sys
import time
from importlib.machinery import ModuleSpec
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from chaoskit.agent.detach import ENVIRONMENT
from chaoskit.errors import DeadlineError, NodeError

REAP_WITHIN = 2.0
"""Seconds from SIGKILL until a child counts as held by the driver."""

CHILD = """
import json, marshal, os, sys, types
order = json.loads(sys.argv[1])
sys.path[:0] = order.pop("path")
size = order.pop("compiled")
if size:
    sys.modules["pynvml"] = types.ModuleType("pynvml")
    exec(marshal.loads(os.pread(0, size, 0)), sys.modules["pynvml"].__dict__)
from chaoskit.agent.nvml_child import main
main(order)
"""


class Answer(NamedTuple):
    """What a child said: its lines, the GPU that it was at, whether it came to its end, and else the traceback that it left."""

    lines: List[Dict[str, Any]]
    at: Optional[int]
    finished: bool
    noise: str


def hang(answer: Answer) -> NodeError:
    """Say how a child ended that did not come to its end."""
    if answer.noise:
        return NodeError(
            "the child that asks NVML failed: {}".format(answer.noise[-500:]), hint="this is an error of chaoskit's: report it"
        )
    who = "NVML" if answer.at is None else "GPU {}".format(answer.at)
    hint = "a lost GPU hangs who asks it: drain the node, see `dmesg | grep NVRM`, then reset the GPU or reboot"
    return DeadlineError("{} did not answer in time, and the child that asked was killed".format(who), hint=hint)


def ask(order: Dict[str, Any], within: float, stall: Optional[float] = None) -> Answer:
    """Have a child carry out an order, and kill it at its deadline, or when it says nothing for `stall` seconds."""
    code, size = compiled()
    told = {**order, "within": within, "path": path(), "compiled": size}
    argv = [sys.executable or "/usr/bin/python3", "-I", "-S", "-c", CHILD, json.dumps(told)]
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL if code is None else code,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            env={**os.environ, **ENVIRONMENT},
        )
    except OSError as error:
        raise NodeError("could not start {}: {}".format(argv[0], error)) from error
    return _understood(_gather(child, time.monotonic() + within, within if stall is None else stall), child.returncode)


def _pynvml() -> ModuleSpec:
    spec = importlib.util.find_spec("pynvml")
    if spec is None or not spec.origin:
        raise NodeError("NVIDIA's pynvml is not installed", hint="install the package nvidia-ml-py")
    return spec


def path() -> List[str]:
    """Return where the child finds us and `pynvml`: in the zipapp both, else in a source tree and beside it."""
    ours = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return list(dict.fromkeys((ours, os.path.dirname(str(_pynvml().origin)))))


@functools.lru_cache(maxsize=1)
def compiled() -> Tuple[Optional[int], int]:
    """
    Return a file in memory that holds `pynvml` compiled, and its size: None and 0 where there are no such files.

    Its 8,000 lines, compiled anew by each child that reads them from the zipapp, would be most of the time from an order to
    its effect, just when a fault begins or ends.
    """
    loader: Any = _pynvml().loader
    if not hasattr(os, "memfd_create") or not hasattr(loader, "get_code"):
        return None, 0
    data = marshal.dumps(loader.get_code("pynvml"))
    file = os.memfd_create("pynvml")
    with os.fdopen(os.dup(file), "wb") as writer:
        writer.write(data)
    return file, len(data)


def _gather(child: "subprocess.Popen[bytes]", until: float, stall: float) -> str:
    """Return what a child wrote until it ended; kill it at the deadline, and leave it to itself where the driver holds it."""
    assert child.stdout is not None  # noqa: S101 - it is a pipe, as it was started
    poll = select.poll()
    poll.register(child.stdout, select.POLLIN | select.POLLHUP)
    text, data = b"", b"-"
    with child.stdout:
        while data and poll.poll(max(0.0, min(stall, until - time.monotonic())) * 1000):
            data = os.read(child.stdout.fileno(), 1 << 16)
            text += data
    if data:
        child.kill()
    try:
        child.wait(REAP_WITHIN)
    except subprocess.TimeoutExpired:
        child.kill()
        _held.append(child)
    _held[:] = [one for one in _held if one.poll() is None]
    return text.decode("utf-8", "replace")


_held: List["subprocess.Popen[bytes]"] = []
"""Children that SIGKILL has not ended yet: they wait in the driver, and are collected once it lets them go."""


def _understood(text: str, status: Optional[int]) -> Answer:
    lines: List[Dict[str, Any]] = []
    noise: List[str] = []
    at: Optional[int] = None
    for row in text.splitlines():
        try:
            line = json.loads(row)
        except ValueError:
            noise.append(row)
            continue
        lines.append(line)
        at = line.get("at", at)
    finished = any("done" in line or "failed" in line for line in lines)
    # A child that ended by itself, and not by a signal, has failed in Python; else it is what a library had to say.
    failed = not finished and status is not None and status > 0
    return Answer(lines, at, finished, "\n".join(noise) if failed else "")
