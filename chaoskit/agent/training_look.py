"""
What a training stands on at a node, as the account that trains sees it: its Python, its packages, its folders.

Standard library only, Python 3.8.
"""

import json
import os
import shutil
import subprocess
from typing import Dict, Iterator, List

from chaoskit.agent import users
from chaoskit.agent.seen import DEFECT, OK, UNKNOWN, Args, Ask, Seen

PYTHON_WITHIN = 10.0
"""Seconds for the training's Python to start; on a cold network file system that takes a while."""

# Nothing is imported: torch alone would take seconds, and open the GPUs.
PACKAGES = """
import importlib.util, os, sys
wanted = ("torch-", "triton-", "nvidia_nccl", "nvidia_cuda_runtime", "nvidia_cudnn", "transformer_engine-", "flash_attn-", "apex-")
for folder in dict.fromkeys(sys.path):
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if name.startswith(wanted) and name.endswith(".dist-info"):
            print(name)
sys.exit(3 * (importlib.util.find_spec("torch") is None))
"""
NO_TORCH = 3


def training(ask: Ask, args: Args) -> Iterator[Seen]:
    """Look, as the account that trains, for what its trainings stand on: `trainings`, see `chaoskit.engine.doctor_orders`."""
    alike: Dict[str, List[Args]] = {}  # trainings often differ in nothing that is looked at here
    for one in args["trainings"]:
        alike.setdefault(json.dumps([one["python"], one["folders"]]), []).append(one)
    for group in alike.values():
        names = "training{} {}".format("s" * (len(group) > 1), ", ".join(one["name"] for one in group))
        found: Dict[str, str] = {}
        seen = [*_python(group[0], found), *_folders(group[0])]
        for each in seen or [Seen(OK, "all is there for {}".format(ask.user or "root"), readings={"facts": found})]:
            yield each._replace(says="{}: {}".format(names, each.says))


def _python(one: Args, found: Dict[str, str]) -> Iterator[Seen]:
    """Try the training's interpreter, and note in `found` which packages it has of those that must be alike everywhere."""
    if not one["python"]:
        return
    environment = users.environment(None)
    path = shutil.which(one["python"], path=environment["PATH"])
    do = "correct `python` of the training in the inventory, or install it there"
    if path is None:
        yield Seen(DEFECT, "{} is no program that {} can run".format(one["python"], environment["USER"]), do)
        return
    try:
        done = subprocess.run([path, "-c", PACKAGES], env=environment, timeout=PYTHON_WITHIN, check=False, capture_output=True, cwd="/")
    except subprocess.TimeoutExpired:
        yield Seen(UNKNOWN, "{} did not start within {:g} s".format(path, PYTHON_WITHIN), "is it on a file system that hangs?")
        return
    except OSError as error:
        yield Seen(DEFECT, "{} cannot be run: {}".format(path, error.strerror), do)
        return
    if done.returncode == NO_TORCH:
        yield Seen(DEFECT, "{} has no torch".format(path), "install torch for it, or name the interpreter that has it")
    elif done.returncode:
        words = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        yield Seen(DEFECT, "{} ends with status {}: {}".format(path, done.returncode, "".join(words)[:200]), do)
    found.update(_packages(done.stdout))


def _packages(said: bytes) -> Dict[str, str]:
    """Return the facts of the folders that Python names a package's version by, such as `torch-2.5.1.dist-info`."""
    pairs = (name.partition(".dist-info")[0].split("-", 1) for name in said.decode("utf-8", "replace").split("\n") if "-" in name)
    found: Dict[str, str] = {}
    for name, version in pairs:
        found.setdefault("package " + name, version)  # what comes first on the path is what is imported
    return found


def _folders(one: Args) -> Iterator[Seen]:
    for what, path, writes in one["folders"]:
        who = users.environment(None)["USER"]
        if not os.path.isdir(path):
            yield Seen(DEFECT, "the folder of its {}, {}, is not there for {}".format(what, path, who), "make it, or mount what holds it")
        elif not os.access(path, os.R_OK | os.X_OK | (os.W_OK if writes else 0)):
            may = "write" if writes else "read"
            yield Seen(DEFECT, "{} may not {} in the folder of its {}, {}".format(who, may, what, path), "change its owner or rights")
