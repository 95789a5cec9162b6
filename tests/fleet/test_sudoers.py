"""The lines of sudoers that we print: visudo takes them, sudo lets the account do what we do, and nothing beside it."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from chaoskit.agent.bundle import build
from chaoskit.agent.loader import LOADER, ONE_LINE
from chaoskit.fleet import sudoers
from chaoskit.fleet.connection import Facts
from chaoskit.fleet.push import command, file_name

USER, UID = "sudotest", 4243
PYTHON = "/usr/bin/python3"

needs_sudo = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("sudo", "visudo", "setpriv", "unshare"))) or not Path(PYTHON).exists(),
    reason="needs root, sudo and the system's python3",
)

# A mount namespace in which there is one account more, and whose sudoers are ours; the machine's own stay as they are.
INSIDE = """
mount --make-rprivate /
{ cat /etc/passwd; echo "$USER_NAME:x:$USER_ID:$USER_ID::/:/bin/sh"; } > "$FOLDER/passwd"
{ cat /etc/shadow; echo "$USER_NAME:*:19000:0:99999:7:::"; } > "$FOLDER/shadow"
chmod 600 "$FOLDER/shadow"; chmod 440 "$FOLDER/sudoers"
for name in passwd shadow sudoers; do mount --bind "$FOLDER/$name" "/etc/$name"; done
exec setpriv --reuid "$USER_ID" --regid "$USER_ID" --clear-groups sh -c "$1"
"""


@pytest.fixture
def facts():
    return Facts("/home/sudo.test", UID, PYTHON, "192.0.2.1", "192.0.2.2", None)


@pytest.fixture(scope="module")
def bundle():
    return build()


@pytest.fixture
def as_user(tmp_path):
    """Return a function that runs a shell line as an account for which sudoers has these lines and no others."""

    def run(lines, line):
        (tmp_path / "sudoers").write_text("Defaults requiretty\n" + "\n".join(lines) + "\n")
        env = {**os.environ, "USER_NAME": USER, "USER_ID": str(UID), "FOLDER": str(tmp_path)}
        argv = ["unshare", "--mount", "sh", "-ec", INSIDE, "sh", line]
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL)

    return run


def test_the_program_in_one_line_is_the_program():
    assert set(ONE_LINE) & set(" \n\\,:=#") == set()
    spelled = ONE_LINE.replace("exec(", "print(", 1)
    done = subprocess.run([sys.executable, "-I", "-S", "-c", spelled], capture_output=True, text=True, check=True)
    assert ast.literal_eval(done.stdout).decode().rstrip("\n") == LOADER


@needs_sudo
@pytest.mark.parametrize("user", [USER, "first.last", "dom\\user name", "häns"])
def test_visudo_takes_the_lines(tmp_path, facts, bundle, user):
    path = tmp_path / "lines"
    path.write_text("\n".join(sudoers.lines(user, facts, bundle)) + "\n")
    path.chmod(0o440)
    done = subprocess.run(["visudo", "-cf", str(path)], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


@needs_sudo
@pytest.mark.row("L34", "S12")
def test_with_these_lines_sudo_lets_the_account_do_what_we_do_and_nothing_else(as_user, facts, bundle):
    """Also where sudoers wants a terminal; another hash, another file, another program or one argument more is refused."""
    lines = sudoers.lines(USER, facts, bundle)
    path = f"{facts.home}/.cache/chaoskit/{file_name(bundle)}"
    ours = command(path, facts, bundle, "sudo")

    probe = as_user(lines, f"sudo -n -- {PYTHON} -I -S -c pass")
    assert (probe.returncode, probe.stderr) == (0, "")
    taken = as_user(lines, ours)
    assert "chaoskit: " in taken.stderr  # it runs as root, and misses the file that nobody pushed
    assert "No such file" in taken.stderr
    refused = {
        "another hash": ours.replace(bundle.sha256 + " bridge", "0" * 64 + " bridge"),
        "another file": ours.replace(path, "/tmp/agent.pyz"),
        "one argument more": ours + " --state /tmp",
        "another program": f"sudo -n -- {PYTHON} -I -S -c 'import os'",
        "another interpreter's flags": ours.replace(" -I ", " ", 1),
        "a shell": "sudo -n -- /bin/sh",
    }
    assert all(line != ours for line in refused.values())
    for what, line in refused.items():
        done = as_user(lines, line)
        assert done.returncode != 0, what
        assert "chaoskit: " not in done.stderr, what


@needs_sudo
def test_without_the_lines_sudo_refuses(as_user, facts, bundle):
    """That it is the lines which let us."""
    for lines in ((), sudoers.lines("somebody", facts, bundle)):
        assert as_user(lines, f"sudo -n -- {PYTHON} -I -S -c pass").returncode != 0
