"""
The node as a fault sees it: files, argument-list commands with deadlines, clocks, and what the inventory says of it.

Nothing here goes through a shell. Standard library only, Python 3.8.
"""

import os
import shutil
import subprocess
import syslog
import time
from typing import NamedTuple, Optional, Sequence

from chaoskit.agent.contract import Refusal, Site
from chaoskit.agent.wakeup import run_within

OUTPUT_CAP = 1 << 20
"""Bytes of a command's output that are handed on; the rest is cut, so that no evidence outgrows a line of the protocol."""

SYSLOG_WITHIN = 1.0
"""Seconds for a line of syslog: the daemon's disk may be the very thing that is broken, and no revert waits for it."""

SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin")


class Completed(NamedTuple):
    """A finished command: exit status, and its output as text (undecodable bytes replaced)."""

    status: int
    out: str
    err: str


class Host:
    """The node that a fault acts on. `site` is what the inventory says of it."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def read(self, path: str) -> str:
        """Return a file's text, stripped at the right. Raises OSError."""
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().rstrip()

    def which(self, program: str) -> Optional[str]:
        """Return the path of a program, looked for in the system directories only."""
        return shutil.which(program, path=os.pathsep.join(SBIN))

    def run(self, argv: Sequence[str], timeout: float = 10.0, stdin: bytes = b"") -> Completed:
        """
        Run a program from its argument list and wait for it.

        Args:
            argv: The program's name and its arguments; never a shell string.
            timeout: Seconds until it is killed.
            stdin: Bytes for its standard input.

        Raises:
            Refusal: The program is not on this node.
            subprocess.TimeoutExpired: It ran longer than `timeout` and was killed.
        """
        program = self.which(argv[0])
        if program is None:
            raise Refusal("program {!r} is not installed".format(argv[0]), where=self.site.node, hint="install it on the node")
        done = subprocess.run(
            [program, *argv[1:]],
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=timeout,
            check=False,
            env={"PATH": os.pathsep.join(SBIN), "LC_ALL": "C", "HOME": "/"},
            cwd="/",
        )
        out, err = (text[:OUTPUT_CAP].decode("utf-8", "replace") for text in (done.stdout, done.stderr))
        return Completed(done.returncode, out, err)

    def monotonic(self) -> float:
        """Return this node's CLOCK_MONOTONIC in seconds; every stamp of an event is on it."""
        return time.monotonic()

    def boottime(self) -> float:
        """Return this node's CLOCK_BOOTTIME in seconds; leases run on it, since it also counts while suspended."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def boot_id(self) -> str:
        """Return the id of this boot."""
        return self.read("/proc/sys/kernel/random/boot_id")

    def machine_id(self) -> str:
        """Return the id of this machine, empty when it has none."""
        try:
            return self.read("/etc/machine-id")
        except OSError:
            return ""

    def syslog(self, text: str) -> None:
        """Write one line for the engineer on call; a log daemon that hangs is given up after `SYSLOG_WITHIN` seconds."""
        run_within(lambda: _syslog(text), SYSLOG_WITHIN, "syslog")


def _syslog(text: str) -> None:
    syslog.openlog("chaoskit", syslog.LOG_PID, syslog.LOG_DAEMON)
    syslog.syslog(syslog.LOG_WARNING, text)
