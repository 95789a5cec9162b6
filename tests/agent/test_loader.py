"""The loader: what root runs is the copy that root hashed, or nothing."""

import ast
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from chaoskit.agent.loader import LOADER

pytestmark = pytest.mark.row("S5", "S15")


@pytest.fixture
def load(tmp_path):
    """Return a function that runs the loader on a pushed file."""

    def run(path, sha256, python=sys.executable, state=None):
        argv = [python, "-I", "-S", "-c", LOADER, str(path), sha256, "no-such-verb", "--state", str(state or tmp_path / "state")]
        return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=20)

    return run


@pytest.fixture
def pushed(archive, tmp_path):
    return Path(shutil.copy(archive.path, tmp_path / "pushed.pyz"))


RAN = "verb 'no-such-verb' is not known"


def test_the_copy_is_what_runs(load, pushed, archive, tmp_path):
    """It lies under its hash where only root can enter, and a second time nothing needs to be pushed."""
    assert RAN in load(pushed, archive.sha256).stderr

    copy = tmp_path / "state" / "agent" / f"{archive.sha256}.pyz"
    assert copy.read_bytes() == archive.path.read_bytes()
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert stat.S_IMODE(copy.parent.stat().st_mode) == 0o700
    pushed.unlink()
    assert RAN in load(pushed, archive.sha256).stderr


def test_another_file_than_was_meant_is_refused(load, pushed, archive, tmp_path):
    """Swapped after the push: the hash of the copy differs, nothing runs and nothing is left."""
    pushed.write_bytes(pushed.read_bytes() + b"#")
    done = load(pushed, archive.sha256)

    assert "expected {}: push it again".format(archive.sha256) in done.stderr
    assert RAN not in done.stderr
    assert done.returncode != 0
    assert list((tmp_path / "state" / "agent").iterdir()) == []


def test_a_damaged_copy_is_taken_again(load, pushed, archive, tmp_path):
    """What lies there is hashed each time."""
    load(pushed, archive.sha256)
    copy = tmp_path / "state" / "agent" / f"{archive.sha256}.pyz"
    copy.write_bytes(b"damaged")

    assert RAN in load(pushed, archive.sha256).stderr
    assert copy.read_bytes() == archive.path.read_bytes()


def test_links_and_pipes_are_refused(load, pushed, archive, tmp_path):
    """The pushed file, the copy and the folders above it are never followed elsewhere."""
    link = tmp_path / "link.pyz"
    link.symlink_to(pushed)
    assert RAN not in load(link, archive.sha256).stderr
    os.mkfifo(tmp_path / "pipe.pyz")
    assert "not a regular file" in load(tmp_path / "pipe.pyz", archive.sha256).stderr

    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "elsewhere")
    assert "is a link or not root's own folder" in load(pushed, archive.sha256, state=tmp_path / "linked").stderr
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_folders_that_others_could_swap_are_refused(load, pushed, archive, tmp_path):
    """Another user's folder, and one that others may write in."""
    foreign, loose = tmp_path / "foreign", tmp_path / "loose"
    foreign.mkdir()
    os.chown(foreign, 65534, 65534)
    loose.mkdir()
    loose.chmod(0o777)

    assert "not root's own folder" in load(pushed, archive.sha256, state=foreign / "state").stderr
    assert "others may write" in load(pushed, archive.sha256, state=loose / "state").stderr


@pytest.fixture
def home():
    """A folder that only its owner may enter, below none that he may not."""
    path = Path(tempfile.mkdtemp(prefix="chaoskit-home-"))
    yield path
    shutil.rmtree(path)


def test_a_home_that_root_may_not_enter_is_read_as_its_owner(pushed, archive, tmp_path, home):
    """Homes on a file server that takes root for nobody: sudo's caller can read there, and root's own rights are not needed."""
    file = Path(shutil.move(pushed, home / "pushed.pyz"))
    for path in (home, file):
        os.chown(path, 65534, 65534)
    without = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"]
    argv = [sys.executable, "-I", "-S", "-c", LOADER, str(file), archive.sha256, "no-such-verb", "--state", str(tmp_path / "state")]

    def load(**caller):
        return subprocess.run([*without, *argv], check=False, capture_output=True, text=True, timeout=20, env={**os.environ, **caller})

    assert "Permission denied" in load().stderr
    assert RAN in load(SUDO_UID="65534", SUDO_GID="65534").stderr
    assert os.stat(tmp_path / "state" / "agent" / f"{archive.sha256}.pyz").st_uid == 0


@pytest.mark.parametrize("sha256", ["", "short", "../../etc/passwd", "A" * 64])
def test_what_is_no_hash_names_no_file(load, pushed, sha256):
    """The hash becomes a file name, so it is checked first."""
    assert "is not a sha256" in load(pushed, sha256).stderr


@pytest.mark.skipif(not os.access("/usr/bin/python3", os.X_OK), reason="no interpreter that another user can run")
def test_only_root_loads(pushed, archive):
    """Without root there is one clear sentence."""
    argv = ["/usr/bin/python3", "-I", "-S", "-c", LOADER, str(pushed), archive.sha256, "bridge"]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, user=65534)

    assert done.stderr == "chaoskit: this must run as root\n"


def test_its_text_parses_on_old_pythons():
    """An old interpreter must reach the sentence that says it is too old."""
    ast.parse(LOADER, feature_version=(3, 4))


OLD = [path for path in (shutil.which(f"python3.{minor}") for minor in (4, 5, 6, 7)) if path]
OLD += [str(path) for path in sorted((Path.home() / ".pyenv" / "versions").glob("3.[4567].*/bin/python3"))]
OLD = [path for path in OLD if subprocess.run([path, "-c", "pass"], check=False, capture_output=True).returncode == 0]


@pytest.mark.skipif(not OLD, reason="no Python older than 3.8 on this machine")
@pytest.mark.parametrize("python", OLD)
def test_an_old_python_is_refused_in_one_line(load, pushed, archive, python):
    """One sentence with the version found, and no traceback."""
    done = load(pushed, archive.sha256, python=python)

    assert done.returncode == 1
    assert done.stderr.startswith("chaoskit: Python 3.8 or later is needed on the node")
    assert done.stderr.count("\n") == 1
