"""Real namespaces for the faults' tests, and every Python that they must run on."""

import ctypes
import functools
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from chaoskit.agent import gpu_targets, marks
from chaoskit.lab.gpus import Gpus

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CLONE_NEWNET = 0x40000000


def _load_bench():
    spec = importlib.util.spec_from_file_location("chaoskit_bench", HERE / "bench.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BENCH = _load_bench()


@pytest.fixture
def bench():
    """Return the module `bench.py`."""
    return BENCH


def _enter(call, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, call)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), call)


@pytest.fixture
def netns():
    """Move this thread into a fresh network namespace for one test; it and its peer are gone afterwards."""
    if os.geteuid() != 0:
        pytest.skip("making network namespaces needs root")
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    _enter("unshare", CLONE_NEWNET)
    try:
        yield
    finally:
        _enter("setns", home, CLONE_NEWNET)
        os.close(home)


@pytest.fixture
def wires(request, netns):
    """
    Return the process that holds the other ends of two cables, `ra` (10.1.0.1) and `rb` (10.2.0.1).

    Without IPv6, unless the test's parameter says so: the kernel is slow with it.
    """
    holder = BENCH.wires("ra", "rb", ipv6=getattr(request, "param", False))
    yield holder.pid
    holder.kill()
    holder.wait()


@functools.lru_cache(maxsize=1)
def oldest_python():
    """Return a Python 3.8 that runs here: on the PATH, or among pyenv's; None when there is none."""
    versions = Path(os.environ.get("PYENV_ROOT", "/nonexistent")).glob("versions/3.8*/bin/python3.8")
    for candidate in (shutil.which("python3.8"), *map(str, versions)):
        if candidate and subprocess.run([candidate, "-c", ""], check=False, stderr=subprocess.DEVNULL).returncode == 0:
            return candidate
    return None


@pytest.fixture(params=["this", "3.8"])
def python(request):
    """Return each Python that nodes may have: the one that runs the tests, and a real 3.8."""
    found = sys.executable if request.param == "this" else oldest_python()
    if found is None:
        pytest.skip("there is no Python 3.8 on this machine")
    return found


@pytest.fixture(scope="session")
def simulated_gpus(tmp_path_factory, nvml_library):
    """Return the environment in which NVIDIA's pynvml, and nothing else of our site packages, finds two simulated GPUs."""
    folder = tmp_path_factory.mktemp("bench")
    gpus = Gpus(folder / "gpus")
    gpus.make(count=2, machine_id="0" * 32)
    shutil.copy(importlib.util.find_spec("pynvml").origin, folder)
    return {"PYTHONPATH": os.pathsep.join((str(ROOT), str(folder))), **gpus.environment(nvml_library)}


@pytest.fixture
def isolated(simulated_gpus):
    """Return a function that runs a program in network, process and mount namespaces of its own, with our packages."""

    def run(*argv, timeout=180):
        inside = ["unshare", "--net", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc", *argv]
        env = {**os.environ, **simulated_gpus}
        return subprocess.run(inside, check=False, capture_output=True, text=True, timeout=timeout, env=env)

    return run


@pytest.fixture
def compute(gpus, monkeypatch, tmp_path):
    """Return a function that starts a rank of a run which computes on a simulated GPU; looks are quick meanwhile, as its answers are."""
    monkeypatch.setattr(gpu_targets, "EVERY", 0.01)
    monkeypatch.setattr(gpu_targets, "WITNESS_EVERY", 0.01)
    monkeypatch.setattr(marks, "FOLDER", str(tmp_path / "marks"))
    started = []

    def run(index, *, rank=4, run="bench-run"):
        process = subprocess.Popen(["sleep", "600"], env={**os.environ, "RANK": str(rank), "TORCHELASTIC_RUN_ID": run})
        started.append(process)
        gpus.add_client(process.pid, index)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def rank(compute):
    """Return rank 4, the lowest here, which trains on GPU 1."""
    return compute(1)
