"""One command of the site, run on the controller as an argument list and without a shell."""

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from tempfile import TemporaryFile
from typing import IO

from chaoskit.errors import TrainingError

GRACE = 5.0
"""Seconds that a command may still take when a deadline or a signal has ended the wait for it: `start` may be about to tell the id."""
OUTPUT_CAP = 1_000_000
"""Bytes of a command's output that are read."""


class Command:
    """
    One command of the site, under way; its output goes into files, since what it leaves behind may hold a pipe open.

    In a session of its own: Ctrl-C in a terminal ends the run, and no submission half way.

    Args:
        argv: What is run.
        where: Its place in the inventory, for error texts.

    Raises:
        TrainingError: It cannot be run.
    """

    def __init__(self, argv: Sequence[str], where: str) -> None:
        self._name, self._where = argv[0], where
        self._out, self._err = TemporaryFile(), TemporaryFile()  # noqa: SIM115 - the system removes them with this object
        try:
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=self._out, stderr=self._err, start_new_session=True)
        except OSError as error:
            raise TrainingError(f"cannot run {argv[0]}: {error.strerror}", where=where) from error

    def finish(self, within: float) -> str:
        """Wait for its end and return what it printed; whatever ends the wait ends the command. Raises TrainingError."""
        try:
            code = self._process.wait(within)
        except subprocess.TimeoutExpired as error:
            self._end()
            hint = "it must end by itself; `sbatch --wait` does not"
            raise TrainingError(f"{self._name} did not end within {within:g} s", where=self._where, hint=hint) from error
        except BaseException:
            self._end()
            raise
        if code != 0:
            raise TrainingError(f"{self._name} ended with status {code}: {_text(self._err).strip()[-300:]}", where=self._where)
        return self.printed

    def _end(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)
        self.kill()

    def kill(self) -> None:
        """End it at once, if it has not ended."""
        self._process.kill()
        self._process.wait()

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    @property
    def succeeded(self) -> bool:
        """Whether it has ended and says that all went well."""
        return self._process.returncode == 0

    @property
    def failed(self) -> bool:
        """Whether it has ended by itself and says that it failed."""
        return (self._process.returncode or 0) > 0

    @property
    def printed(self) -> str:
        """What it has printed so far."""
        return _text(self._out)


def _text(file: IO[bytes]) -> str:
    # Not by seeking: whoever still writes there has the same offset.
    return os.pread(file.fileno(), OUTPUT_CAP, 0).decode("utf-8", "replace")
