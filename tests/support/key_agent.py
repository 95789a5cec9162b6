"""A real ssh-agent of a test's own."""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fair_watch import until


@contextmanager
def key_agent(sock: Path) -> Iterator[None]:
    """Run an ssh-agent without keys that listens at `sock`, and end it afterwards."""
    process = subprocess.Popen(["ssh-agent", "-D", "-a", sock], stdout=subprocess.DEVNULL)
    try:
        until(lambda: _listens(sock), what="ssh-agent does not listen")
        yield
    finally:
        process.terminate()
        process.wait()


def add_keys(sock: Path, *keys: Path, **environment: str) -> None:
    """Add keys to it, whose passphrases an SSH_ASKPASS program in the environment tells."""
    env = {**os.environ, "SSH_AUTH_SOCK": str(sock), **environment}
    subprocess.run(["ssh-add", "-q", *keys], check=True, stdin=subprocess.DEVNULL, capture_output=True, env=env)


def _listens(sock: Path) -> bool:
    """Return whether it takes connections: its socket is there a moment earlier."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(sock)) == 0
