"""A link to a real sshd: the host key is checked before anything is sent, and the error says what to do."""

import base64
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fair_watch import FairWatch
from key_agent import add_keys, key_agent

from chaoskit.errors import HostKeyError, InputError, PrivilegeError, UnreachableError
from chaoskit.fleet.known_hosts import fingerprint
from chaoskit.fleet.link import Dialer
from chaoskit.fleet.ssh_options import Resolver


def blob(public):
    return base64.b64decode(public.split()[1])


def log_of(server):
    return (server.folder / "log").read_text()


def make_key(path, kind="ed25519", passphrase=""):
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-f", path], check=True)
    return path


@pytest.fixture
def ssh_agent(tmp_path, monkeypatch):
    """A real ssh-agent that holds the given keys."""
    sock = tmp_path / "agent.sock"

    def start(*keys):
        add_keys(sock, *keys)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(sock))

    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with key_agent(sock):
        yield start


def test_a_known_host_lets_us_in(sshd, dial):
    assert dial(sshd.ssh()).transport.is_authenticated()


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_the_key_type_that_is_known_is_the_one_asked_for(sshd, dial, kind):
    link = dial(sshd.ssh(sshd.known_hosts(f"{sshd.known_as} {sshd.public(kind)}\n")))

    assert link.transport.get_remote_server_key().get_base64() == sshd.public(kind).split()[1]


def test_an_unknown_key_is_refused_with_its_fingerprint_and_the_line_to_add(sshd, dial):
    file = sshd.known_hosts("")

    with pytest.raises(HostKeyError) as caught:
        dial(sshd.ssh(file))

    assert fingerprint(blob(sshd.public())) in str(caught.value)
    assert f"add to {file}: {sshd.known_as} {sshd.public()}" in str(caught.value)
    assert str(caught.value).startswith("n1: ")


def test_the_line_to_add_is_right(sshd, dial):
    file = sshd.known_hosts("")
    with pytest.raises(HostKeyError) as caught:
        dial(sshd.ssh(file))
    Path(file).write_text(caught.value.hint.rpartition(": ")[2] + "\n")

    dial(sshd.ssh(file))


def test_a_changed_key_is_refused_with_both_fingerprints_and_the_line_to_mend(sshd, dial, tmp_path):
    other = " ".join(Path(f"{make_key(tmp_path / 'other')}.pub").read_text().split()[:2])
    file = sshd.known_hosts(f"# a comment\n{sshd.known_as} {other}\n")

    with pytest.raises(HostKeyError, match="has changed") as caught:
        dial(sshd.ssh(file))

    assert fingerprint(blob(sshd.public())) in str(caught.value)
    assert f"{fingerprint(blob(other))} at {file}:2" in str(caught.value)
    assert f"mend {file}:2" in caught.value.hint


def test_a_host_that_shows_a_type_we_do_not_know_is_refused_and_says_so(sshd, dial):
    """Known by a key of a type that this server does not have at all."""
    text = "ecdsa-sha2-nistp521"
    key = b"".join(len(part).to_bytes(4, "big") + part for part in (text.encode(), b"nistp521", b"x"))
    file = sshd.known_hosts(f"{sshd.known_as} {text} {base64.b64encode(key).decode()}\n")

    with pytest.raises(HostKeyError, match="of a type that is not known"):
        dial(sshd.ssh(file))


def test_a_revoked_key_is_refused_even_when_another_line_knows_it(sshd, dial):
    file = sshd.known_hosts(f"{sshd.known_as} {sshd.public()}\n@revoked * {sshd.public()}\n")

    with pytest.raises(HostKeyError, match=f"revoked: ssh-ed25519 SHA256:.* at {file}:2"):
        dial(sshd.ssh(file))


def test_a_host_known_only_by_a_certificate_authority_is_refused_and_says_so(sshd, dial):
    file = sshd.known_hosts(f"@cert-authority {sshd.known_as} {sshd.public()}\n")

    with pytest.raises(HostKeyError, match=f"only by the certificate authority at {file}:1"):
        dial(sshd.ssh(file))


def test_a_list_of_revoked_keys_that_we_cannot_read_is_refused_rather_than_ignored(sshd, dial, tmp_path):
    (tmp_path / "config").write_text(f"RevokedHostKeys {tmp_path}/krl\n")

    with pytest.raises(HostKeyError, match="RevokedHostKeys"):
        dial(sshd.ssh(config=str(tmp_path / "config")))


@pytest.mark.row("S8")
def test_a_refused_host_key_means_that_no_account_and_no_key_was_sent(sshd, dial):
    before = len(log_of(sshd))

    with pytest.raises(HostKeyError):
        dial(sshd.ssh(sshd.known_hosts("")))
    time.sleep(0.3)

    said = log_of(sshd)[before:]
    assert "root" not in said
    assert "preauth" in said or "Connection" in said


@pytest.mark.row("L33")
def test_strict_host_key_checking_no_changes_nothing(sshd, dial, tmp_path):
    (tmp_path / "config").write_text("StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n")

    with pytest.raises(HostKeyError, match="unknown"):
        dial(sshd.ssh(sshd.known_hosts(""), config=str(tmp_path / "config")))


def test_a_host_key_alias_is_the_name_that_counts(sshd, dial, tmp_path):
    (tmp_path / "config").write_text("HostKeyAlias farm\n")
    file = sshd.known_hosts(f"farm {sshd.public()}\n")

    assert dial(sshd.ssh(file, config=str(tmp_path / "config"))).options.known_as == "farm"


def test_a_refused_login_lists_the_keys_that_were_tried(sshd, dial, tmp_path, ssh_agent):
    wrong, locked = make_key(tmp_path / "wrong"), make_key(tmp_path / "locked", passphrase="secret words")
    held = make_key(tmp_path / "held", "ecdsa")
    ssh_agent(held)
    (tmp_path / "config").write_text(f"IdentityFile {locked}\nIdentityFile {tmp_path}/missing\n")

    with pytest.raises(PrivilegeError) as caught:
        dial(sshd.ssh(key=str(wrong), config=str(tmp_path / "config")))

    assert f"tried {wrong}; ssh-agent's ecdsa" in str(caught.value)
    assert f"; {locked}: needs a passphrase; add it to ssh-agent: ssh-add {locked}" in str(caught.value)
    assert "missing" not in str(caught.value)
    assert "secret words" not in str(caught.value)


def test_a_server_that_wants_more_than_a_key_is_told_as_such(start, dial, tmp_path):
    """The key was taken and yet we are not in: a second factor, for example, which chaoskit cannot give."""
    folder = tmp_path / "two"
    server = start(folder, setup=f'echo "AuthenticationMethods publickey,publickey" >> {folder}/sshd_config')

    with pytest.raises(PrivilegeError, match="the server took it and wants more: publickey") as caught:
        dial(server.ssh())
    assert str(server.client_key) in caught.value.what


def test_a_key_of_the_ssh_agent_opens_the_door(sshd, dial, tmp_path, ssh_agent):
    ssh_agent(sshd.client_key)
    (tmp_path / "config").write_text(f"IdentityFile {tmp_path}/missing\n")

    assert dial(sshd.ssh(key=None, config=str(tmp_path / "config"))).transport.is_authenticated()


def test_with_identities_only_the_ssh_agent_offers_named_keys_alone(sshd, dial, tmp_path, ssh_agent):
    ssh_agent(sshd.client_key)
    (tmp_path / "config").write_text(f"IdentityFile {tmp_path}/missing\nIdentitiesOnly yes\n")

    with pytest.raises(PrivilegeError, match="none: there are no keys"):
        dial(sshd.ssh(key=None, config=str(tmp_path / "config")))

    (tmp_path / "missing.pub").write_text(Path(f"{sshd.client_key}.pub").read_text())
    assert dial(sshd.ssh(key=None, config=str(tmp_path / "config"))).transport.is_authenticated()


def test_a_port_without_a_server_is_unreachable_at_once(sshd, dial):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(UnreachableError, match=r"refused.*try: ssh -v -p"):
            dial(sshd.ssh(port=closed.getsockname()[1]))


@pytest.mark.row("L32")
def test_a_server_that_says_nothing_is_given_up(sshd, dial):
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        watch = FairWatch()
        with pytest.raises(UnreachableError, match="handshake"):
            dial(sshd.ssh(port=mute.getsockname()[1]), handshake_timeout=0.5)

    assert watch.took() < 5


def test_a_server_that_speaks_another_protocol_is_named(sshd, dial):
    with socket.socket() as web:
        web.bind(("127.0.0.1", 0))
        web.listen()

        def answer():
            peer, _ = web.accept()
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n" * 300)
            peer.close()

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(UnreachableError, match="SSH handshake"):
            dial(sshd.ssh(port=web.getsockname()[1]))


def jump_config(tmp_path, server, hops="gate", **extra):
    lines = ["Host *", f"  Port {server.port}", "  User root", f"  HostKeyAlias {server.known_as}"]
    lines += [f"  {name} {value}" for name, value in extra.items()]
    (tmp_path / "config").write_text("Host gate\n  HostName localhost\nHost gate2\n  HostName 127.0.0.2\n" + "\n".join(lines) + "\n")
    return server.ssh(config=str(tmp_path / "config"), jump=hops)


def test_a_node_behind_a_jump_host_is_reached_through_it(sshd, dial, tmp_path):
    before = log_of(sshd).count("Accepted publickey")
    link = dial(jump_config(tmp_path, sshd))

    assert link.transport.is_authenticated()
    assert log_of(sshd).count("Accepted publickey") == before + 2


def test_jump_hosts_are_passed_in_their_order(sshd, dial, tmp_path):
    """The second hop is reached through the first: its sshd sees the connection come from there."""
    before = log_of(sshd).count("Accepted publickey")
    link = dial(jump_config(tmp_path, sshd, "gate,gate2"))

    assert link.transport.is_authenticated()
    assert log_of(sshd).count("Accepted publickey") == before + 3


def test_a_jump_host_is_shared_by_the_nodes_behind_it(sshd, tmp_path):
    before = log_of(sshd).count("Accepted publickey")
    dialer = Dialer(Resolver(jump_config(tmp_path, sshd), Path("/")))
    links = [dialer.open(dialer.resolver.node("127.0.0.1"), f"n{number}") for number in range(3)]
    for link in links:
        link.close()
    dialer.close()

    assert log_of(sshd).count("Accepted publickey") == before + 4


@pytest.mark.row("L32")
def test_a_dead_jump_host_is_not_waited_for_once_for_every_node_behind_it(sshd):
    """Sixty nodes behind one dead host take the time of one, and each says what is the matter."""
    with socket.socket() as mute, ThreadPoolExecutor(4) as pool:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        dialer = Dialer(Resolver(sshd.ssh(jump=f"127.0.0.1:{mute.getsockname()[1]}"), Path("/")), handshake_timeout=1.0)
        watch = FairWatch()
        tries = [pool.submit(dialer.open, dialer.resolver.node("127.0.0.1"), f"n{number}") for number in range(4)]
        failures = [each.exception() for each in tries]

    assert watch.took() < 3.5
    assert [type(each) for each in failures] == [UnreachableError] * 4
    assert [each.node.split()[0] for each in failures] == ["n0", "n1", "n2", "n3"]
    assert all("handshake" in each.what for each in failures)


def test_the_host_key_of_a_jump_host_is_checked_too(sshd, dial, tmp_path):
    ssh = jump_config(tmp_path, sshd)
    (tmp_path / "config").write_text(
        (tmp_path / "config").read_text().replace("HostName localhost", "HostName localhost\n  HostKeyAlias gate")
    )

    with pytest.raises(HostKeyError, match=r"n1 \(jump host gate\): the host key of gate is unknown"):
        dial(ssh)


def test_a_jump_host_that_names_itself_is_reached_directly(sshd, dial, tmp_path):
    """`Host *` with a ProxyJump is common, and covers the jump host as well."""
    link = dial(jump_config(tmp_path, sshd, None, ProxyJump="gate"))

    assert link.transport.is_authenticated()


def test_a_loop_of_jump_hosts_is_found(sshd, dial, tmp_path):
    (tmp_path / "config").write_text("Host a\n  ProxyJump b\nHost b\n  ProxyJump a\n")

    with pytest.raises(InputError, match="loop in ssh_config"):
        dial(sshd.ssh(config=str(tmp_path / "config")), host="a")


def test_a_proxy_command_carries_the_connection(sshd, dial, tmp_path):
    relay = tmp_path / "relay.py"
    relay.write_text(
        "import os, select, socket, sys\n"
        "s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "while True:\n"
        "    for r in select.select([0, s], [], [])[0]:\n"
        "        d = os.read(0, 65536) if r == 0 else s.recv(65536)\n"
        "        if not d: sys.exit()\n"
        "        s.sendall(d) if r == 0 else os.write(1, d)\n"
    )
    (tmp_path / "config").write_text(f"ProxyCommand python3 {relay} %h %p\n")

    assert dial(sshd.ssh(config=str(tmp_path / "config"))).transport.is_authenticated()


def test_a_proxy_command_that_does_not_want_to_end_is_ended(sshd, dial, tmp_path):
    """Closing a connection never waits for somebody else's program."""
    relay = tmp_path / "relay.py"
    relay.write_text(
        "import os, select, signal, socket, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "try:\n"
        "    while True:\n"
        "        for r in select.select([0, s], [], [])[0]:\n"
        "            d = os.read(0, 65536) if r == 0 else s.recv(65536)\n"
        "            if not d: raise OSError\n"
        "            s.sendall(d) if r == 0 else os.write(1, d)\n"
        "except OSError: time.sleep(30)\n"
    )
    (tmp_path / "config").write_text(f"ProxyCommand python3 {relay} %h %p\n")
    link = dial(sshd.ssh(config=str(tmp_path / "config")))

    watch = FairWatch()
    link.close()
    assert watch.took() < 10


def test_fifty_links_at_once_read_the_known_hosts_and_the_key_once(sshd, tmp_path):
    dialer = Dialer(Resolver(sshd.ssh(), Path("/")))
    with ThreadPoolExecutor(16) as pool:
        links = list(pool.map(lambda number: dialer.open(dialer.resolver.node("127.0.0.1"), f"n{number}"), range(50)))

    assert all(link.transport.is_authenticated() for link in links)
    assert (len(dialer._known), len(dialer._ring._files)) == (1, 1)
    for link in links:
        link.close()
