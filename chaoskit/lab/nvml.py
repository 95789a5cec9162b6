"""Builds the simulated NVML of `nvml.c`, which lies beside this file, with the machine's C compiler."""

import hashlib
import subprocess
from pathlib import Path

from chaoskit.errors import RefusedError
from chaoskit.lab.requirements import program

SOURCE = Path(__file__).with_name("nvml.c")
LIBRARY = "libnvidia-ml.so.1"
"""The name by which every program asks for NVML."""

FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", "-fvisibility=hidden", f"-Wl,-soname,{LIBRARY}")
COMPILE_WITHIN = 60.0


def build(folder: Path) -> Path:
    """
    Return the library's path in a folder; it is compiled only when the source or the flags are not those of the last time.

    Raises:
        RefusedError: There is no compiler, or it fails.
    """
    library, mark = folder / LIBRARY, folder / "nvml.sha256"
    digest = hashlib.sha256(SOURCE.read_bytes() + " ".join(FLAGS).encode()).hexdigest()
    if library.exists() and mark.exists() and mark.read_text(encoding="ascii") == digest:
        return library
    folder.mkdir(parents=True, exist_ok=True)
    # Beside it and then into place: a process may have the old one mapped.
    fresh = folder / f".{LIBRARY}.new"
    argv = [program("gcc"), *FLAGS, "-o", str(fresh), str(SOURCE)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=COMPILE_WITHIN, check=False)
    if done.returncode:
        hint = "apt-get install gcc libc6-dev"
        raise RefusedError(f"the simulated NVML cannot be built: {done.stderr.strip()[-2000:]}", where="lab", hint=hint)
    fresh.chmod(0o755)
    fresh.replace(library)
    mark.write_text(digest, encoding="ascii")
    return library
