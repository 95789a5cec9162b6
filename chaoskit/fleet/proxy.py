"""
A ProxyCommand: somebody else's program that carries our SSH connection on its standard input and output.

`ssh` gives it to the user's shell, and what stands in it with it: the holes of that kind in its history are why we do
not. The words are cut before anything is filled in, and shell syntax is refused by name instead of being misread.
"""

import os
import shlex
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

ENDS_WITHIN = 2.0
"""Seconds that the program has to end when asked, before it is killed."""
TOLD = 400
"""Characters of its last words that an error repeats."""

_SYNTAX = {"": frozenset("|&;<>()$`\n"), '"': frozenset("$`"), "'": frozenset()}
"""What only a shell understands: outside quotes, and inside each kind of them."""


def words_of(template: str) -> list[str]:
    """Return the words of a ProxyCommand. Raises ValueError for what only a shell could make sense of."""
    quote = ""
    escaped = False
    for char in template:
        if escaped:
            escaped = False
        elif char == "\\" and quote != "'":
            escaped = True
        elif char == quote:
            quote = ""
        elif not quote and char in "'\"":
            quote = char
        elif char in _SYNTAX[quote]:
            raise ValueError(f"{char!r} is shell syntax, and no shell reads it here")
    words = shlex.split(template)
    if words[:1] == ["exec"]:
        words = words[1:]
    if not words:
        raise ValueError("it names no program")
    return [str(Path(word).expanduser()) if word.startswith("~/") else word for word in words]


class Proxy:
    """A running ProxyCommand; `socket` is our end. Raises OSError when it cannot be started."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.socket, theirs = socket.socketpair()
        self._last_words: deque[bytes] = deque(maxlen=16)
        try:
            with theirs:
                end = theirs.fileno()
                self._process = subprocess.Popen(argv, stdin=end, stdout=end, stderr=subprocess.PIPE, start_new_session=True)
        except OSError:
            self.socket.close()
            raise
        self._reader = threading.Thread(target=self._listen, name="chaoskit-proxy", daemon=True)
        self._reader.start()

    def said(self) -> str:
        """Return the last of what it wrote to standard error, for an error text."""
        self._reader.join(0.2)  # it may be about to say why it ends
        return b"".join(self._last_words).decode(errors="replace").strip()[-TOLD:]

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _listen(self) -> None:
        """Drain its standard error, so that it never blocks there; of the last of it, a little is kept."""
        with self._process.stderr as stream:  # type: ignore[union-attr]  # it is a pipe, see above
            while said := os.read(stream.fileno(), 1024):
                self._last_words.append(said)
