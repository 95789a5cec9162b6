"""The bundle: the same bytes from every build, small, quick to start, and nothing in it but ours."""

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import chaoskit
from chaoskit.agent.bundle import build, contents
from chaoskit.errors import InputError

TOY = Path(__file__).parent / "toys" / "toy_file.py"


def test_two_builds_are_the_same_bytes(tmp_path):
    """Also from another folder, at another time, under another umask, in another process."""
    one = build(tmp_path / "one")
    script = "import os, sys, pathlib; os.umask(0); from chaoskit.agent.bundle import build; build(pathlib.Path(sys.argv[1]))"
    environment = {**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "PYTHONPATH": str(Path(chaoskit.__file__).parent.parent)}
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "two")], check=True, cwd=tmp_path, env=environment, capture_output=True)
    (two,) = (tmp_path / "two").iterdir()

    assert one.path.read_bytes() == two.read_bytes()
    assert one.path.name == two.name == f"{one.sha256}.pyz"
    assert hashlib.sha256(one.path.read_bytes()).hexdigest() == one.sha256


def test_a_damaged_cache_is_built_anew(tmp_path):
    """What lies in the cache is compared, not trusted."""
    bundle = build(tmp_path)
    bundle.path.write_bytes(b"damaged")

    assert build(tmp_path) == bundle
    assert hashlib.sha256(bundle.path.read_bytes()).hexdigest() == bundle.sha256


def test_it_holds_the_nodes_part_only(archive):
    """Agent, faults, errors and NVIDIA's pynvml; neither the controller's files nor anything compiled."""
    with zipfile.ZipFile(archive.path) as found:
        names = found.namelist()
        dates = {info.date_time for info in found.infolist()}

    folders = ("chaoskit/agent/", "chaoskit/faults/")
    files = ("__main__.py", "chaoskit/__init__.py", "chaoskit/errors.py", "pynvml.py")
    assert all(name.startswith(folders) or name in files for name in names)
    assert names == sorted(names)
    assert not {"chaoskit/agent/bundle.py", "chaoskit/agent/loader.py"} & set(names)
    assert dates == {(1980, 1, 1, 0, 0, 0)}
    assert "chaoskit/faults/toy_file.py" in names


@pytest.mark.parametrize("name", ["link_flap", "not-a-name"])
def test_a_third_partys_fault_cannot_take_a_name_of_ours(name):
    """A fault that stands in for another would be a lie."""
    with pytest.raises(InputError, match=name):
        contents({name: TOY})


def test_a_bridge_loads_next_to_nothing(archive):
    """What costs time to import stays with the server: a bridge is up in a blink, a living server answers the rest."""
    script = "import sys; sys.path.insert(0, sys.argv[1]); import chaoskit.agent.command, chaoskit.agent.bridge; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script, str(archive.path)], check=True, capture_output=True, text=True)

    loaded = set(done.stdout.split())
    assert "chaoskit.agent.bridge" in loaded
    assert not loaded & {
        "pynvml",
        "subprocess",
        "dataclasses",
        "inspect",
        "threading",
        "ctypes",
        "json",
        "zipfile",
        "chaoskit.agent.server",
    }


def test_it_carries_nvidias_own_pynvml_which_runs_without_site_packages(python, archive):
    """NVML is asked by the real binding, on the oldest Python too."""
    script = "import sys; sys.path.insert(0, sys.argv[1]); import pynvml; print(pynvml.__file__, pynvml.NVMLError(15))"
    done = subprocess.run([python, "-I", "-S", "-c", script, str(archive.path)], check=False, capture_output=True, text=True)

    assert done.stdout == f"{archive.path}/pynvml.py GPU is lost\n", done.stderr


def test_a_wrong_command_line_is_an_error_in_words(archive):
    """No traceback, and the exit status says so."""
    done = subprocess.run([sys.executable, "-I", "-S", archive.path, "dance"], check=False, capture_output=True, text=True)

    assert done.returncode == 3
    assert done.stderr == "verb 'dance' is not known (bridge, serve, fuse, boot, tail, launch or examine)\n"
