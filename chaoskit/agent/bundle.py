"""
The bundle: the agent and all faults as one zipapp, the same bytes from every build on every machine.

Controller side. Files are stored uncompressed (a zlib's version would show), in sorted order, with a fixed date, under
the folder of the archive's own hash. The agent needs nothing else on the node but a Python 3.8.

NVIDIA's `pynvml.py` goes with it always, not only when an experiment touches a GPU: its 0.3 MB are pushed once a version,
and one agent with one hash serves every experiment, `doctor`, `audit` and `heal` alike. Only short children import it.
"""

import hashlib
import io
import os
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import NamedTuple

import chaoskit
from chaoskit.errors import InputError

CONTROLLER_ONLY = frozenset({"bundle.py", "loader.py"})

MAIN = """import sys

from chaoskit.agent.command import main

sys.exit(main(sys.argv[1:], sys.argv[0]))
"""

INIT = '"""The part of chaoskit that runs on nodes."""\n\n__version__ = {!r}\n'


class Bundle(NamedTuple):
    """A built zipapp: where it lies on the controller, and its sha256."""

    path: Path
    sha256: str


def default_cache() -> Path:
    """Return the controller's cache folder for bundles."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "chaoskit"


def build(cache: Path | None = None, extra: Mapping[str, Path] | None = None) -> Bundle:
    """
    Build the zipapp, or find it built already.

    Args:
        cache: Folder that bundles are kept in.
        extra: Third parties' faults: name -> module file.

    Raises:
        InputError: A third party's fault has the name of one of ours.
    """
    data = contents(extra or {})
    digest = hashlib.sha256(data).hexdigest()
    path = (cache or default_cache()) / f"{digest}.pyz"
    if not path.exists() or path.read_bytes() != data:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
        # A cache may lie where others write, too: never through a link of theirs, and never readable for a moment.
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        temporary.rename(path)
    return Bundle(path, digest)


def contents(extra: Mapping[str, Path]) -> bytes:
    """Return the archive's bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, text in sorted(_files(extra)):
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.create_system = 3
            info.external_attr = 0o100600 << 16
            archive.writestr(info, text)
    return buffer.getvalue()


def _files(extra: Mapping[str, Path]) -> Iterator[tuple[str, bytes]]:
    package = Path(chaoskit.__file__).parent
    yield "__main__.py", MAIN.encode()
    yield "chaoskit/__init__.py", INIT.format(_version()).encode()
    yield "chaoskit/errors.py", (package / "errors.py").read_bytes()
    yield "pynvml.py", _pynvml()
    ours = set()
    for folder in ("agent", "faults"):
        for path in (package / folder).glob("*.py"):
            if path.name not in CONTROLLER_ONLY:
                ours.add((folder, path.stem))
                yield f"chaoskit/{folder}/{path.name}", path.read_bytes()
    for name, path in extra.items():
        if ("faults", name) in ours or not name.isidentifier():
            raise InputError(f"fault {name!r} cannot be added", where=str(path), hint="give it a name that chaoskit does not use itself")
        yield f"chaoskit/faults/{name}.py", path.read_bytes()


def _pynvml() -> bytes:
    """Return NVIDIA's own module; other packages of its name are none of it. Raises InputError: it is not installed."""
    try:
        return Path(str(distribution("nvidia-ml-py").locate_file("pynvml.py"))).read_bytes()
    except (PackageNotFoundError, FileNotFoundError) as error:
        raise InputError("NVIDIA's pynvml.py is not installed beside chaoskit", hint="pip install nvidia-ml-py") from error


def _version() -> str:
    try:
        return version("chaoskit")
    except PackageNotFoundError:
        return "0"
