"""What is given away is our files and no others, is built without a network, and stands on versions without known holes."""

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

pytestmark = pytest.mark.row("S16")

FIRST_SOUND = {"paramiko": "5.0.0", "pytest": "9.0.3"}
"""Versions in which holes that would concern us were closed: old signatures and key exchanges; folders that others make first."""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return the folder of a wheel and a source archive, built by the project's own builder in a place without any network."""
    made = tmp_path_factory.mktemp("dist")
    argv = [sys.executable, "-m", "hatchling", "build", "-d", str(made)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture(scope="module")
def ours():
    """Return the files that are the project's: those that git has, or would take."""
    argv = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this is no checkout of git")
    return {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}


def test_the_wheel_holds_the_package_and_its_own_description_alone(built, ours):
    [wheel] = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    described = {name for name in names if ".dist-info/" in name}

    assert {name.partition("/")[2] for name in described} == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}
    assert names - described == {name for name in ours if name.startswith("chaoskit/")}


def test_the_source_archive_holds_no_file_that_is_not_ours(built, ours):
    [archive] = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        members = opened.getmembers()
    names = {member.name.partition("/")[2] for member in members if not member.isdir()}

    assert names - ours == {"PKG-INFO"}
    assert all(member.isfile() or member.isdir() for member in members), "a link would lead out of it"


def test_nothing_in_it_is_a_secret_or_a_leftover(ours):
    """Keys of sites, folders of runs, caches: none of them is ever handed out by accident."""
    left = (".pem", ".key", ".pyc", ".orig", ".rej", ".log", ".db")
    assert [] == [name for name in ours if name.endswith(left) or name.startswith("runs/")]


def test_each_dependency_has_a_lower_and_an_upper_bound():
    """What comes next year was tried by nobody."""
    needs = [Requirement(text) for text in PROJECT["project"]["dependencies"]]
    assert [] == [str(one) for one in needs if {">=", "<"} - {spec.operator for spec in one.specifier}]


@pytest.mark.parametrize("name", sorted(FIRST_SOUND))
def test_no_version_with_a_known_hole_is_allowed(name):
    [need] = [one for one in map(Requirement, PROJECT["project"]["dependencies"]) if one.name == name]
    [lowest] = [spec.version for spec in need.specifier if spec.operator == ">="]
    assert tuple(map(int, lowest.split("."))) >= tuple(map(int, FIRST_SOUND[name].split(".")))[: len(lowest.split("."))]


OFFLINE = ["tests/packaging/test_wheel.py", "tests/model", "tests/fleet/test_link.py", "tests/cli"]


@pytest.mark.prove
@pytest.mark.alone
@pytest.mark.usefixtures("can_have_lab")
def test_the_suite_asks_nothing_of_any_network():
    """In a network of its own that has a loopback and no way out, tests pass that build, read, and connect."""
    inside = 'ip link set lo up && exec "$@"'
    pytest_ = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not (prove or cluster or alone)", *OFFLINE]
    argv = ["unshare", "--net", "sh", "-c", inside, "sh", *pytest_]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
