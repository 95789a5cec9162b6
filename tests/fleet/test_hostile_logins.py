"""Accounts and nodes that are not as one hopes: each ends in an error that names the node and the cause, in time and half done nowhere."""

import contextlib
import os
import shutil
import subprocess

import pytest
from fair_watch import FairWatch

from chaoskit.errors import NodeError, PrivilegeError, UnreachableError
from chaoskit.fleet import connection as connections
from chaoskit.fleet.connection import Connection, probe
from chaoskit.fleet.fleet import SshFleet
from chaoskit.fleet.push import command
from chaoskit.model.inventory import Inventory, InventoryFile, Node

pytestmark = pytest.mark.row("S12", "L24", "L31", "L32", "L34")

LONG = pytest.mark.prove
FREE = "ALL=(ALL) NOPASSWD: ALL"
# name -> (login shell, line for sudoers)
ACCOUNTS = {
    "plain": ("/bin/sh", f"plain {FREE}"),
    "chatty": ("/bin/bash", f"chatty {FREE}"),
    "cshlike": ("/home/cshlike/shell", f"cshlike {FREE}"),
    "tcsh": ("/usr/bin/tcsh", f"tcsh {FREE}"),
    "fish": ("/usr/bin/fish", f"fish {FREE}"),
    "hanging": ("/bin/bash", ""),
    "slowsudo": ("/bin/bash", ""),
    "slowpython": ("/bin/sh", f"slowpython {FREE}"),
    "lectured": ("/bin/sh", "Defaults:lectured lecture=always\nlectured ALL=(ALL) ALL"),
    "narrow": ("/bin/sh", "narrow ALL=(root) NOPASSWD: /bin/true"),
    "expired": ("/bin/bash", ""),
    "secure": ("/bin/sh", f"Defaults:secure secure_path=/nowhere\nsecure {FREE}"),
    "noexec": ("/bin/sh", f"noexec {FREE}"),
    "over": ("/bin/sh", f"over {FREE}"),
}
BASHRC = r"""
printf 'Welcome\n\033[31mto the cluster\033[0m\n{not json\n\n%s' 'no newline at the end'
echo maintenance >&2
"""
# As csh does: a quoted word ends at a newline.
CSH_LIKE = """#!/bin/sh
case $2 in *'
'*) echo "Unmatched '''." >&2; exit 1;; esac
exec /bin/sh "$@"
"""
# Words of sudo's own, from an account that no PAM here could make.
EXPIRED = 'sudo: Account expired or PAM config lacks an "account" section for sudo, contact your system administrator'


def setup_of(folder):
    """Return shell text that makes the accounts in mounts of their own."""
    lines = [f"{name}:*:{62000 + n}:{62000 + n}::/home/{name}:{shell}" for n, (name, (shell, _)) in enumerate(ACCOUNTS.items())]
    with open("/etc/passwd", encoding="utf-8") as file:
        (folder / "passwd").write_text(file.read() + "\n".join(lines) + "\n")
    (folder / "shadow").write_text("over:*:1::::1:1:\n")  # since the second day of 1970
    (folder / "sudoers").write_text("\n".join(line for _, line in ACCOUNTS.values()) + "\n")
    (folder / "chatty").write_text(BASHRC)
    (folder / "shell").write_text(CSH_LIKE)
    (folder / "path").write_text("PATH=$HOME/bin:$PATH\n")
    (folder / "sleep").write_text("#!/bin/sh\nexec sleep 600\n")
    (folder / "expire").write_text(f"#!/bin/sh\necho '{EXPIRED}' >&2\nexit 1\n")
    return f"""
        chmod 0644 {folder}/passwd
        mount --bind {folder}/passwd /etc/passwd
        mount --bind {folder}/shadow /etc/shadow
        mount -t tmpfs -o mode=0750 chaoskit-test /etc/sudoers.d
        install -m 0440 {folder}/sudoers /etc/sudoers.d/accounts
        mount -t tmpfs -o mode=0755 chaoskit-test /home
        for name in {" ".join(ACCOUNTS)}; do
            mkdir -p /home/$name/bin
            test $name != noexec || mount -t tmpfs -o noexec,mode=0755 chaoskit-test /home/noexec
            install -m 0644 {folder}/client.pub /home/$name/keys
        done
        install -m 0644 {folder}/chatty /home/chatty/.bashrc
        install -m 0755 {folder}/shell /home/cshlike/shell
        mkfifo /home/hanging/.bashrc
        for name in slowsudo expired; do install -m 0644 {folder}/path /home/$name/.bashrc; done
        install -m 0755 {folder}/sleep /home/slowsudo/bin/sudo
        install -m 0755 {folder}/expire /home/expired/bin/sudo
        install -m 0755 {folder}/sleep /home/slowpython/bin/python3
        for name in {" ".join(ACCOUNTS)}; do chown -R $name /home/$name; done
    """


@pytest.fixture(scope="module")
def accounts(tmp_path_factory, start):
    if shutil.which("sudo") is None:
        pytest.skip("sudo is not installed")
    folder = tmp_path_factory.mktemp("hostile-logins")
    return start(folder, keys="/home/%u/keys", setup=setup_of(folder))


@pytest.fixture
def reach(accounts, dial):
    return lambda user: Connection(dial(accounts.ssh(user=user, become="sudo")), "n1")


def ask(connection, python=None):
    return probe(connection, python=python, agent_file="agent-x.pyz", become="sudo")


@contextlib.contextmanager
def node_of(accounts, tmp_path, user):
    file = InventoryFile("test", {}, ssh=accounts.ssh(user=user, become="sudo"), allow="lab", shared="accept")
    fleet = SshFleet(
        Inventory("test", str(tmp_path / "site.yaml"), {"n1": Node("n1", "workers", 1, (), "127.0.0.1", None, (), None, False)}, file)
    )
    try:
        yield fleet
    finally:
        fleet.close()


@pytest.mark.parametrize("user", ["chatty", "cshlike", *(pytest.param(name, marks=LONG) for name in ("tcsh", "fish", "secure", "noexec"))])
def test_the_agent_answers_whatever_the_login_shell_is_and_prints(accounts, tmp_path, user):
    """Banners of ~/.bashrc, csh that ends words at newlines, fish, a secure_path without Python, a home without exec."""
    if (shell := ACCOUNTS[user][0]).startswith("/usr/bin/") and not os.path.exists(shell):
        pytest.skip(f"{shell} is not installed")
    with node_of(accounts, tmp_path, user) as fleet:
        agent = fleet.connect(["n1"])["n1"]

        assert agent.hello.uid == 0
        agent.tick().result(15)


def test_no_command_of_ours_holds_what_csh_takes_for_the_end_of_a_word():
    """A newline, or an exclamation mark that is a history substitution there."""
    facts = connections.Facts("/home/x", 1, "/usr/bin/python3", "::1", "::1", None)

    class Built:
        sha256 = "0" * 64

    for text in (connections._PROBE, connections._PYTHON_PROBE, command("/x", facts, Built, "sudo")):
        assert "\n" not in text
        assert "!" not in text


@pytest.mark.parametrize(
    ("user", "python", "hint"),
    [
        ("hanging", None, "login shell does not come to the command"),
        pytest.param("slowsudo", None, "sudo does not answer", marks=LONG),
        pytest.param("slowpython", "/home/slowpython/bin/python3", "home directory or a Python does not answer", marks=LONG),
    ],
)
def test_what_hangs_is_named_when_the_time_is_over(reach, monkeypatch, user, python, hint):
    """A start-up file that never ends (as on a dead file server), a sudo that waits for its directory, a Python that hangs."""
    monkeypatch.setattr(Connection.ask, "__defaults__", (6.0,))
    watch = FairWatch()
    with pytest.raises(UnreachableError, match="took longer than 6 s") as caught:
        ask(reach(user), python)

    assert hint in caught.value.hint
    assert caught.value.node == "n1"
    assert watch.took() < 40


@pytest.mark.parametrize(
    ("user", "words"), [("lectured", "password is required"), ("narrow", "password is required"), ("expired", "expired")]
)
def test_a_sudo_that_says_no_is_told_in_its_words_and_nothing_was_begun(reach, accounts, user, words):
    """A lecture, a command that is not granted, an account that is over."""
    with pytest.raises(PrivilegeError, match=f"refused for {user}: .*{words}") as caught:
        ask(reach(user))

    assert "/etc/sudoers.d/chaoskit" in caught.value.hint
    assert not os.path.exists(f"/proc/{accounts.inner}/root/home/{user}/.cache")


def test_an_account_that_has_expired_is_refused_by_the_server_before_anything_of_ours_runs(accounts, tmp_path):
    """The server tells a client no more than that it refuses: who was refused is said, and what that can mean."""
    with node_of(accounts, tmp_path, "over") as fleet, pytest.raises(ExceptionGroup) as caught:
        fleet.connect(["n1"])
    [error] = caught.value.exceptions

    assert "Account over has expired" in accounts.log
    assert (PrivilegeError, "n1") == (type(error), error.node)
    assert "over@127.0.0.1 takes none of our keys" in str(error)
    assert "an account that is locked or has expired" in error.hint
    assert not os.path.exists(f"/proc/{accounts.inner}/root/home/over/.cache")


def in_the_mounts(accounts, *argv):
    subprocess.run(["nsenter", "-t", str(accounts.inner), "-m", "-p", *argv], check=True)


@pytest.mark.parametrize(
    ("path", "options", "words"),
    [
        ("/var/lib/chaoskit", "ro", "Read-only file system: '/var/lib/chaoskit"),
        ("/run/chaoskit", "nr_inodes=1", "No space left on device: '/run/chaoskit"),
        pytest.param("/var/lib/chaoskit", "nr_inodes=1", "No space left on device: '/var/lib/chaoskit", marks=LONG),
    ],
)
def test_a_place_that_takes_no_files_is_named(accounts, tmp_path, path, options, words):
    """Read-only /var, full /run: refused before anything began, and the node is fit again once it is mended."""
    in_the_mounts(accounts, "mount", "-t", "tmpfs", "-o", f"mode=0700,{options}", "chaoskit-test", path)
    try:
        with node_of(accounts, tmp_path, "plain") as fleet, pytest.raises(ExceptionGroup) as caught:
            fleet.connect(["n1"])
    finally:
        in_the_mounts(accounts, "umount", "--lazy", path)
    [error] = caught.value.exceptions

    assert isinstance(error, NodeError)
    assert error.node == "n1"
    assert words in str(error)
    assert "Traceback" not in str(error)
