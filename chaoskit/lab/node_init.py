"""
Process 1 of a lab node: waits for the supervisor's go, starts sshd and the driver of its GPUs, keeps a syslog, reaps.

Run as a file inside the node by `python -I -S`; also as `node_init.py reboot|poweroff|halt`, which ends the node.
"""

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

REBOOT_COMMANDS = {"reboot": 0x01234567, "poweroff": 0x4321FEDC, "halt": 0xCDEF0123}
SSHD = ("/usr/sbin/sshd", "-D", "-e", "-f", "/etc/ssh/sshd_config")
GPU_STATE = Path("/run/chaoskit-gpu")
GPU_DRIVER = (sys.executable, "-I", "-S", str(Path(__file__).with_name("gpu_driver.py")))
PREFIX = re.compile(r"(<\d+>)?([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d )?")
"""Priority and time stamp that programs put before a syslog message; we stamp it ourselves."""


def end_machine(word: str) -> None:
    """End this node by the system call, as the kernel of a real machine would."""
    os.sync()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.reboot(ctypes.c_int(REBOOT_COMMANDS[word] - (1 << 32) if REBOOT_COMMANDS[word] >> 31 else REBOOT_COMMANDS[word])) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def delegate_cgroup(root: Path = Path("/sys/fs/cgroup")) -> None:
    """
    On a pure cgroup v2 machine, move out of the root cgroup and hand its controllers down.

    A cgroup with processes cannot give controllers to its children, and the agent needs children with quotas.
    """
    if not (root / "cgroup.controllers").exists():
        return
    own = root / "init"
    own.mkdir(exist_ok=True)
    (own / "cgroup.procs").write_text("1", encoding="ascii")
    for name in (root / "cgroup.controllers").read_text(encoding="ascii").split():
        try:
            (root / "cgroup.subtree_control").write_text(f"+{name}", encoding="ascii")
        except OSError as error:  # a controller that the machine keeps to itself is no reason not to boot
            print(f"cgroup controller {name}: {error}", file=sys.stderr)


def keep_syslog() -> None:
    """Write what arrives at /dev/log to /var/log/syslog, one line a message."""
    inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    inbox.bind("/dev/log")
    Path("/dev/log").chmod(0o666)
    name = socket.gethostname()
    with Path("/var/log/syslog").open("a", encoding="utf-8", buffering=1) as log:
        while True:
            text = inbox.recv(65536).decode("utf-8", "backslashreplace").rstrip("\n\0")
            line = "".join(char if char.isprintable() else "?" for char in PREFIX.sub("", text))
            log.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {name} {line}\n")


def find_libraries(conf: Path = Path("/etc/ld.so.conf"), cache: Path = Path("/etc/ld.so.cache")) -> None:
    """Let every program find the libraries of `conf`, once: its folders come before the system's own."""
    if not cache.exists() or conf.stat().st_mtime > cache.stat().st_mtime:
        subprocess.run(["/sbin/ldconfig", "-X"], check=True, stdin=subprocess.DEVNULL)


def main() -> None:
    """Be process 1."""
    sys.stdin.read()  # the supervisor closes it when /proc is safe and the links are there
    delegate_cgroup()
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    threading.Thread(target=keep_syslog, daemon=True).start()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    services: list[tuple[str, ...]] = [SSHD]
    if GPU_STATE.exists():
        find_libraries()
        services.append(GPU_DRIVER)
    running = {subprocess.Popen(service, stdin=subprocess.DEVNULL).pid: service for service in services}
    while True:
        ended = running.pop(os.wait()[0], None)
        if ended:
            time.sleep(0.2)  # somebody killed it: as a service manager would, start it again
            running[subprocess.Popen(ended, stdin=subprocess.DEVNULL).pid] = ended


if __name__ == "__main__":
    if len(sys.argv) > 1:
        end_machine(sys.argv[1])
    main()
