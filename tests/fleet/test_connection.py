"""The probe on real accounts with real sudo: what it finds, and the line that would grant what is missing."""

import os
import shutil
import signal
import socket
import threading
import time
from pathlib import Path

import paramiko
import pytest
from fair_watch import FairWatch

from chaoskit.errors import NodeError, PrivilegeError, ProtocolError, UnreachableError
from chaoskit.fleet.connection import OUTPUT_CAP, Connection, probe
from chaoskit.fleet.fleet import SshFleet
from chaoskit.model.inventory import Inventory, InventoryFile, Node

pytestmark = pytest.mark.row("S12", "L9", "L31", "L32", "L33", "L34")

# name -> (login shell, line for sudoers)
ACCOUNTS = {
    "admin": ("/bin/sh", "admin ALL=(ALL) NOPASSWD: ALL"),
    "narrow": ("/bin/bash", "narrow ALL=(root) NOPASSWD: /usr/bin/python3*"),
    "asked": ("/bin/sh", "asked ALL=(ALL) ALL"),
    "nobody_knows": ("/bin/sh", ""),
    "ttyonly": ("/bin/sh", "Defaults:ttyonly requiretty\nttyonly ALL=(ALL) NOPASSWD: ALL"),
    "in_a_pty": ("/bin/sh", "Defaults:in_a_pty use_pty\nin_a_pty ALL=(ALL) NOPASSWD: ALL"),
    "noisy": ("/home/noisy/shell", "noisy ALL=(ALL) NOPASSWD: ALL"),
    "forgetful": ("/home/forgetful/forget", "forgetful ALL=(ALL) NOPASSWD: ALL"),
    "nologin": ("/usr/sbin/nologin", "nologin ALL=(ALL) NOPASSWD: ALL"),
    "endless": ("/home/endless/endless", ""),
}


def setup_of(folder):
    """Return shell text that makes the accounts, in mounts of their own; the machine's files stay as they are."""
    passwd = folder / "passwd"
    lines = [
        f"{name}:*:{61000 + number}:{61000 + number}::/home/{name}:{shell}" for number, (name, (shell, _)) in enumerate(ACCOUNTS.items())
    ]
    with open("/etc/passwd", encoding="utf-8") as file:
        passwd.write_text(file.read() + "\n".join(lines) + "\n")
    (folder / "sudoers").write_text("\n".join(line for _, line in ACCOUNTS.values()) + "\n")
    (folder / "shell").write_text('#!/bin/sh\necho "Welcome to the cluster!"\necho "maintenance on friday" >&2\nexec /bin/sh "$@"\n')
    (folder / "endless").write_text("#!/bin/sh\nexec yes\n")
    (folder / "forget").write_text('#!/bin/sh\nunset SSH_CONNECTION\nexec /bin/sh "$@"\n')
    return f"""
        chmod 0644 {passwd}
        mount --bind {passwd} /etc/passwd
        mount -t tmpfs -o mode=0750 chaoskit-test /etc/sudoers.d
        install -m 0440 {folder}/sudoers /etc/sudoers.d/accounts
        mount -t tmpfs -o mode=0755 chaoskit-test /home
        for name in {" ".join(ACCOUNTS)}; do
            mkdir -p /home/$name
            install -m 0644 {folder}/client.pub /home/$name/keys
            install -m 0755 {folder}/shell {folder}/endless {folder}/forget /home/$name
            chown -R $name /home/$name
        done
    """


@pytest.fixture(scope="module")
def accounts(tmp_path_factory, start):
    if shutil.which("sudo") is None:
        pytest.skip("sudo is not installed")
    folder = tmp_path_factory.mktemp("accounts")
    return start(folder, keys="/home/%u/keys", setup=setup_of(folder))


@pytest.fixture
def reach(accounts, dial):
    return lambda user: Connection(dial(accounts.ssh(user=user, become="sudo")), "n1")


def ask(connection, **more):
    return probe(connection, **{"python": None, "agent_file": "agent-x.pyz", "become": "sudo", **more})


@pytest.mark.parametrize("user", ["admin", "narrow", "noisy"])
def test_an_account_with_sudo_is_fit_whatever_its_login_shell_prints(reach, user):
    facts = ask(reach(user))

    assert facts.home == f"/home/{user}"
    assert facts.uid >= 61000
    assert facts.python.startswith("/")
    assert (facts.client_address, facts.server_address, facts.agent_size) == ("127.0.0.1", "127.0.0.1", None)


def test_a_node_that_does_not_say_how_it_was_reached_is_refused(reach):
    """Without its own address nobody could say which link must not be cut."""
    with pytest.raises(NodeError, match="by which of its addresses") as caught:
        ask(reach("forgetful"))
    assert "SSH_CONNECTION" in caught.value.hint


@pytest.mark.parametrize("user", ["admin", "in_a_pty"])
def test_the_agent_answers_through_sudo_also_where_that_makes_a_terminal(accounts, tmp_path, user):
    """`use_pty` is the default of newer sudos (Ubuntu 24.04): a process of sudo's own then stands between sshd and the agent."""
    file = InventoryFile("test", {}, ssh=accounts.ssh(user=user, become="sudo"), allow="lab", shared="accept")
    node = Node("n1", "workers", 1, (), "127.0.0.1", None, (), None, False)
    fleet = SshFleet(Inventory("test", str(tmp_path / "site.yaml"), {"n1": node}, file))
    try:
        agent = fleet.connect(["n1"])["n1"]
        for _ in range(20):
            agent.tick().result()
        assert agent.hello.uid == 0
    finally:
        fleet.close()


@pytest.mark.row("L34")
@pytest.mark.parametrize(
    ("user", "line"),
    [
        ("asked", "asked ALL=(root) NOPASSWD: /"),
        ("nobody_knows", "nobody_knows ALL=(root) NOPASSWD: /"),
        ("ttyonly", "Defaults:ttyonly !requiretty"),
    ],
)
def test_a_refused_sudo_names_the_line_that_would_grant_it_and_never_waits_for_a_password(reach, user, line):
    watch = FairWatch()
    with pytest.raises(PrivilegeError) as caught:
        ask(reach(user))

    assert f"/etc/sudoers.d/chaoskit: {line}" in caught.value.hint
    assert f"`sudo -n` is refused for {user}: sudo: " in caught.value.what
    assert caught.value.node == "n1"
    assert watch.took() < 5


@pytest.mark.row("L34")
def test_the_line_for_sudoers_grants_what_is_missing(reach, accounts):
    with pytest.raises(PrivilegeError) as caught:
        ask(reach("nobody_knows"))
    line = caught.value.hint.partition("chaoskit: ")[2].partition(" (this")[0]
    with open(
        f"/proc/{accounts.inner}/root/etc/sudoers.d/granted", "w", encoding="utf-8", opener=lambda p, f: os.open(p, f, 0o440)
    ) as file:
        file.write(line + "\n")

    assert ask(reach("nobody_knows")).uid >= 61000
    os.unlink(f"/proc/{accounts.inner}/root/etc/sudoers.d/granted")


def test_an_account_that_is_not_root_cannot_do_without_sudo(reach):
    with pytest.raises(PrivilegeError, match=r"admin is not root.*become: sudo"):
        ask(reach("admin"), become="none")


def test_an_account_without_a_login_is_told_in_its_own_words(reach):
    with pytest.raises(ProtocolError, match="not available"):
        ask(reach("nologin"))


@pytest.mark.row("L31")
def test_a_shell_that_prints_for_ever_is_cut_off(reach):
    with pytest.raises(UnreachableError, match=rf"broke off.*{OUTPUT_CAP}") as caught:
        ask(reach("endless"))

    assert len(str(caught.value)) < 200


def test_a_python_that_is_not_there_is_named(reach):
    with pytest.raises(NodeError, match=r"no Python 3\.8 or newer was found; looked for /usr/bin/python9"):
        ask(reach("admin"), python="/usr/bin/python9")


@pytest.mark.parametrize("version", ["3.6", "3.7", "2.7"])
def test_a_python_that_is_too_old_is_named(reach, accounts, version):
    """A stand-in that answers the probe as the old one would: what decides is the version it prints and its status."""
    path = f"/home/admin/python{version}"
    with open(f"/proc/{accounts.inner}/root{path}", "w", encoding="utf-8", opener=lambda p, f: os.open(p, f, 0o755)) as file:
        file.write(f'#!/bin/sh\necho "{version} {path}"\nexit 1\n')

    with pytest.raises(NodeError, match=f"Python {version} is older than 3.8; looked for {path}"):
        ask(reach("admin"), python=path)


def test_of_an_old_python_and_a_refused_sudo_both_are_told(reach, accounts):
    """And without any Python nobody knows what sudo would say."""
    path = "/home/asked/old"
    with open(f"/proc/{accounts.inner}/root{path}", "w", encoding="utf-8", opener=lambda p, f: os.open(p, f, 0o755)) as file:
        file.write(f'#!/bin/sh\necho "3.6 {path}"\nexit 1\n')
    with pytest.raises(NodeError, match="older than") as old:
        ask(reach("asked"), python=path)
    with pytest.raises(NodeError, match="no Python") as none:
        ask(reach("asked"), python="/no/such/python")

    [sudo] = old.value.also
    assert (old.value.step, sudo.step, "is refused for asked" in sudo.what) == ("python", "sudo", True)
    assert (none.value.step, none.value.also) == ("python", ())


def test_nothing_that_varies_is_read_by_a_shell(reach, accounts):
    connection = reach("admin")
    with pytest.raises(NodeError):
        ask(connection, python="$(touch /home/admin/pwned); `touch /home/admin/pwned` ' \" | &")
    ask(connection, agent_file="$(touch /home/admin/pwned)'; touch /home/admin/pwned")

    assert not os.path.exists(f"/proc/{accounts.inner}/root/home/admin/pwned")


@pytest.mark.row("L32", "L33")
def test_a_lost_connection_is_never_opened_again_behind_our_back(reach):
    """fabric would open a new one, and accept any host key."""
    connection = reach("admin")
    connection.transport.close()

    with pytest.raises(UnreachableError, match="was lost"):
        connection.ask(["true"])
    assert isinstance(connection.client._policy, paramiko.RejectPolicy)


def test_a_command_without_an_exit_status_is_no_answer(reach):
    """It was killed, or its end of the connection is gone: what it printed until then is not what was asked for."""
    with pytest.raises(UnreachableError, match="broke off"):
        reach("admin").ask(["sh", "-c", "echo half of it; kill -9 $PPID $$"])


@pytest.mark.row("L31")
def test_much_on_both_streams_at_once_is_no_deadlock(reach):
    """More than a window of each, the one that we do not want first; both are drained."""
    script = "i=0; while [ $i -lt 100 ]; do printf '%01200d' 0 >&2; printf '%01200d' 1; i=$((i + 1)); done"

    assert len(reach("admin").ask(["sh", "-c", script])) == 120_000


@pytest.mark.row("L31", "L32")
def test_a_command_that_hangs_is_given_up(reach):
    connection = reach("admin")
    watch = FairWatch()
    with pytest.raises(UnreachableError, match=r"longer than 0\.5 s"):
        connection.ask(["sleep", "60"], timeout=0.5)

    assert watch.took() < 5


def argv_of(pid):
    """Return a process's command line as the kernel keeps it; nothing of one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def sshd_of(*command):
    """Return the pid of the sshd that has begun a command, once it has."""
    line = b"".join(word.encode() + b"\0" for word in command)
    while not (pids := [pid for pid in filter(str.isdecimal, os.listdir("/proc")) if argv_of(pid) == line]):
        time.sleep(0.01)
    [pid] = pids
    while not Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").startswith("sshd"):
        pid = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1]
    return int(pid)


@pytest.mark.row("L31", "L32")
def test_a_command_that_hangs_on_a_broken_connection_is_given_up_in_one_sentence(reach, monkeypatch):
    """Ending it fails as well, on a thread where nobody would catch it: no traceback may come of that."""
    shown, stopped = [], []
    monkeypatch.setattr(threading, "excepthook", shown.append)
    connection = reach("admin")

    def cut():
        stopped.append(sshd_of("sleep", "60.25"))
        os.kill(stopped[0], signal.SIGSTOP)  # else it would end the command as soon as the connection breaks
        connection.transport.sock.shutdown(socket.SHUT_WR)

    cutting = threading.Thread(target=cut)
    cutting.start()
    with pytest.raises(UnreachableError, match="longer than 2 s"):
        connection.ask(["sleep", "60.25"], timeout=2.0)
    cutting.join()
    os.kill(stopped[0], signal.SIGKILL)

    assert [] == shown
