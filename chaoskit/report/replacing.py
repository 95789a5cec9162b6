"""Report files: whole or not at all, so that a full disk never leaves half of one for a CI to read."""

import os
from pathlib import Path


def replace_file(path: Path, data: bytes) -> None:
    """Write a file in place of another at once; where the disk refuses, what stood there stays. Raises OSError."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
