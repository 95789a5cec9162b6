"""What others planted where we write: links, pipes, names that exist, folders that anybody may change. Nothing is written through."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from chaoskit.agent import bundle, launch
from chaoskit.agent.paths import private_directory, write_atomically
from chaoskit.engine.journal import Journal, JournalError
from chaoskit.engine.stopping import why_stopped
from chaoskit.errors import InputError, PrivilegeError
from chaoskit.wiring import new_run_dir

pytestmark = pytest.mark.row("S5")

NOBODY = 65534


@pytest.fixture
def victim(tmp_path):
    file = tmp_path / "victim"
    file.write_text("untouched")
    return file


def plant(kind, path, victim):
    if kind == "symlink":
        path.symlink_to(victim)
    elif kind == "hardlink":
        path.hardlink_to(victim)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "dir":
        path.mkdir()


@pytest.mark.parametrize("kind", ["symlink", "hardlink", "fifo", "dir"])
def test_a_journal_is_never_written_through(tmp_path, victim, kind):
    """The first file of a run must not be there."""
    plant(kind, tmp_path / "journal.jsonl", victim)

    with pytest.raises(JournalError):
        Journal(tmp_path)
    assert victim.read_text() == "untouched"


@pytest.mark.parametrize("kind", ["symlink", "hardlink", "fifo"])
def test_a_planted_name_is_replaced_and_not_followed(tmp_path, victim, kind):
    """Leases, records and the bundle are renamed into place."""
    path = tmp_path / "record"
    plant(kind, path, victim)
    write_atomically(str(path), b"ours")

    assert (path.read_bytes(), victim.read_text()) == (b"ours", "untouched")


@pytest.mark.parametrize("kind", ["symlink", "fifo", "hardlink", "dir"])
def test_the_log_of_a_training_is_a_file_of_its_user(tmp_path, victim, kind):
    """Started as root, a log follows no link and is no other's file; a pipe without a reader holds nobody up."""
    log = tmp_path / "log"
    plant(kind, log, victim)
    code = f"from chaoskit.agent.launch import _open_output; _open_output({str(log)!r}); print('written')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)

    assert done.returncode != 0
    assert victim.read_text() == "untouched"


def test_the_log_of_another_user_is_not_roots_to_write(tmp_path):
    """And the user's own is."""
    log = tmp_path / "log"
    log.write_text("")
    os.chown(log, NOBODY, NOBODY)
    with pytest.raises(PermissionError, match="another user's"):
        launch._open_output(str(log))
    log.unlink()
    code = f"from chaoskit.agent.launch import _open_output; _open_output({str(log)!r}); print('hello')"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

    assert log.read_text() == "hello\n"


@pytest.mark.parametrize("kind", ["link", "foreign", "writable"])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_every_folder_above_ours_is_roots(tmp_path, kind, depth):
    """Whoever owns a parent can swap what lies below: each one is looked at."""
    parts = [tmp_path / "a", tmp_path / "a/b", tmp_path / "a/b/c"]
    for number, part in enumerate(parts[: depth + 1]):
        if number < depth:
            part.mkdir()
        elif kind == "link":
            (tmp_path / "elsewhere").mkdir()
            part.symlink_to(tmp_path / "elsewhere")
        else:
            part.mkdir()
            part.chmod(0o777) if kind == "writable" else os.chown(part, NOBODY, NOBODY)

    with pytest.raises(PrivilegeError):
        private_directory(str(parts[2]))
    assert not list((tmp_path / "elsewhere").iterdir() if kind == "link" else [])


def test_the_bundle_is_ours_alone_in_any_cache(tmp_path):
    """Its final mode from the first moment, and what somebody planted under its name is replaced."""
    built = bundle.build(tmp_path / "cache")
    good = built.path.read_bytes()
    built.path.unlink()
    (tmp_path / "victim").write_text("untouched")
    built.path.symlink_to(tmp_path / "victim")
    again = bundle.build(tmp_path / "cache")

    assert (again.sha256, again.path.read_bytes(), again.path.is_symlink()) == (built.sha256, good, False)
    assert (tmp_path / "victim").read_text() == "untouched"
    assert again.path.stat().st_mode & 0o077 == 0


def test_a_place_for_runs_that_anybody_may_change_is_refused(tmp_path):
    """A folder like /tmp is fine, one without its sticky bit is not, nor is another user's link."""
    out = tmp_path / "runs"
    out.mkdir()
    out.chmod(0o1777)
    assert new_run_dir(out, "x").parent == out
    out.chmod(0o777)
    with pytest.raises(InputError, match="anybody may rename"):
        new_run_dir(out, "x")
    (tmp_path / "link").symlink_to(tmp_path)
    os.lchown(tmp_path / "link", NOBODY, NOBODY)
    with pytest.raises(InputError, match="another user's link"):
        new_run_dir(tmp_path / "link", "x")


@pytest.mark.row("S14")
def test_under_an_open_umask_nothing_of_a_run_is_open(tmp_path):
    """The mode that a file is made with is its last: nobody gets in between."""
    before = os.umask(0)
    try:
        run_dir = new_run_dir(tmp_path / "runs", "x")
        Journal(run_dir).close()
    finally:
        os.umask(before)

    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "runs", run_dir, run_dir / "journal.jsonl")}
    assert all(mode & 0o022 == 0 for mode in modes.values()), modes
    assert modes["journal.jsonl"] == 0o600


@pytest.mark.row("S14")
def test_the_system_calls_themselves_ask_for_the_final_mode(tmp_path):
    """strace of what the agent makes under an open umask: every new file is 0600, every new folder 0700."""
    log = tmp_path / "trace"
    code = (
        "import os, sys; os.umask(0)\n"
        "from chaoskit.agent.paths import private_directory, write_atomically\n"
        "from chaoskit.agent.ledger import Ledger, Entry\n"
        f"root = private_directory({str(tmp_path / 'state')!r})\n"
        "write_atomically(root + '/record', b'x')\n"
        "ledger = Ledger(root + '/ledger')\n"
        "ledger.plan(Entry(entry='r/1/n1', run='r', fault='f', params={}, undo={}, site={}))\n"
        "ledger.append('r/1/n1', 'armed', lease=1.0)\n"
        "with ledger.resources_lock(), ledger.lock('r/1/n1', must=True): pass\n"
    )
    argv = ["strace", "-f", "-qq", "-e", "trace=openat,mkdir,mkdirat,chmod,fchmod,fchmodat", "-o", log, sys.executable, "-B", "-c", code]
    subprocess.run(argv, check=True, timeout=120, cwd=Path(__file__).parents[2])
    made = [line for line in log.read_text().splitlines() if str(tmp_path / "state") in line and ("O_CREAT" in line or "mkdir" in line)]

    assert len(made) >= 4
    for line in made:
        found = re.search(r", (0[0-7]+)\)", line)
        assert found, line
        assert int(found[1], 8) & 0o077 == 0, line


def test_a_pipe_named_stop_does_not_hold_up_the_loop(tmp_path):
    """The loop that looks for STOP renews the leases."""
    os.mkfifo(tmp_path / "STOP")

    assert "stopped by a file STOP" in why_stopped(tmp_path)
