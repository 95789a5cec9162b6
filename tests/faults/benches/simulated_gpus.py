"""
Simulated GPUs for the benches of the GPU faults: a copy of the state that the fixture `isolated` has made, in text files.

What the files mean stands in `chaoskit/lab/nvml.c`. Standard library only, Python 3.8.
"""

import os
import shutil
import tempfile

from bench import RUN, trainer

from chaoskit.agent import gpu_targets
from chaoskit.agent.contract import Site, TrainingFacts
from chaoskit.agent.host import Host

STATE = "CHAOSKIT_GPU_STATE"


def gpus():
    """Give this process GPUs of its own, two that idle; looks are quick, as their answers are."""
    gpu_targets.EVERY = gpu_targets.WITNESS_EVERY = 0.01
    folder = os.path.join(tempfile.mkdtemp(), "gpus")
    shutil.copytree(os.environ[STATE], folder)
    os.environ[STATE] = folder


def edit(index, **fields):
    """Change fields of a GPU, as an operator, another tool or a failure does."""
    with open(_path("gpu{}".format(index))) as file:
        now = dict(line.rstrip("\n").split(" ", 1) for line in file)
    assert set(fields) <= set(now), fields
    now.update({key: str(value) for key, value in fields.items()})
    with open(_path("fresh"), "w") as file:
        file.writelines("{} {}\n".format(key, value) for key, value in now.items())
    os.rename(_path("fresh"), _path("gpu{}".format(index)))


def computes(pid, index, kind=""):
    """Say that a process computes on a GPU."""
    with open(_path("clients/{}".format(pid)), "w") as file:
        file.write("{} {}\n".format(index, kind))


def snapshot():
    """Return what is set on every GPU, read from the files themselves."""
    seen = {}
    for name in ("gpu0", "gpu1"):
        with open(_path(name)) as file:
            seen[name] = sorted(file)
    return seen


def training():
    """Let two ranks train, rank 4 on GPU 1 and rank 5 on GPU 0; return their node."""
    for rank, index in ((4, 1), (5, 0)):
        computes(trainer(rank, rank - 4).pid, index)
    return host()


def host(**facts):
    """Return a node with the training's facts."""
    return Host(Site("bench", training=TrainingFacts(run_id=RUN), **facts))


def _path(name):
    return os.path.join(os.environ[STATE], name)
