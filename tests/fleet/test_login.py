"""Logging in as OpenSSH users expect it: which keys are tried in which order, chains of jump hosts, and never a question or a secret."""

import base64
import contextlib
import logging
import os
import signal
import subprocess
import traceback
from pathlib import Path

import pytest
from fair_watch import FairWatch
from key_agent import add_keys, key_agent
from loopback_sshd import keygen

from chaoskit.errors import HostKeyError, InputError, PrivilegeError, UnreachableError
from chaoskit.fleet.connection import Connection
from chaoskit.fleet.keys import public_blob
from chaoskit.model.inventory import Ssh

CANARY = "canary-7f3a passphrase"


def public_of(path):
    return Path(f"{path}.pub").read_text()


def ssh_gets_in(server, *options):
    """Say whether `ssh` itself logs in with these options and nothing else."""
    argv = ["ssh", "-F", "/dev/null", "-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={server.known_hosts()}", *options]
    argv += ["-p", str(server.port), "root@127.0.0.1", "true"]
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=30).returncode == 0


@pytest.fixture
def config(tmp_path):
    """Return a function that writes an ssh_config and returns its path."""

    def write(*lines):
        (tmp_path / "config").write_text("\n".join(lines) + "\n")
        return str(tmp_path / "config")

    return write


@pytest.fixture
def ssh_agent(tmp_path, monkeypatch):
    """A real ssh-agent; the function adds keys, with their passphrase where they have one."""
    sock = tmp_path / "agent.sock"
    monkeypatch.setenv("SSH_AUTH_SOCK", str(sock))
    askpass = tmp_path / "askpass"
    askpass.write_text(f"#!/bin/sh\necho '{CANARY}'\n")
    askpass.chmod(0o700)

    with key_agent(sock):
        yield lambda *keys: add_keys(sock, *keys, SSH_ASKPASS=str(askpass), SSH_ASKPASS_REQUIRE="force")


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Keys of each kind, and an encrypted one; all of them open the door of `server`."""
    folder = tmp_path_factory.mktemp("keys")
    made = {kind: keygen(folder / kind, kind) for kind in ("ed25519", "ecdsa", "rsa")}
    return {**made, "encrypted": keygen(folder / "encrypted", passphrase=CANARY)}


@pytest.fixture(scope="module")
def server(tmp_path_factory, start, keys):
    """A server with the usual limit of six tries, and two accounts beside root."""
    folder = tmp_path_factory.mktemp("login")
    authorized = folder / "authorized"
    authorized.write_text("".join(map(public_of, keys.values())))
    passwd = folder / "passwd"
    accounts = "one:*:61001:61001::/tmp:/bin/sh\ntwo:*:61002:61002::/tmp:/bin/sh\n"
    passwd.write_text(Path("/etc/passwd").read_text() + accounts)
    return start(folder, keys="/home/keys", setup=setup_of(folder), more=("LogLevel VERBOSE",))


def setup_of(folder):
    """Return shell text that gives an sshd these accounts and keys, in mounts of its own."""
    return f"""
        chmod 0644 {folder}/passwd
        mount --bind {folder}/passwd /etc/passwd
        mount -t tmpfs -o mode=0755 chaoskit-test /home
        install -m 0644 {folder}/authorized /home/keys
    """


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_keys_of_each_kind_open_the_door(server, dial, keys, kind):
    """RSA by SHA-2."""
    assert dial(server.ssh(key=str(keys[kind]))).transport.is_authenticated()


@pytest.mark.row("S13")
def test_an_encrypted_key_is_never_asked_for_and_the_error_names_it_and_the_command(server, dial, keys, tmp_path):
    """No question, no waiting, on no terminal."""
    watch = FairWatch()
    with pytest.raises(PrivilegeError) as caught:
        dial(server.ssh(key=str(keys["encrypted"])))

    assert f"{keys['encrypted']}: needs a passphrase; add it to ssh-agent: ssh-add {keys['encrypted']}" in caught.value.what
    assert watch.took() < 10


@pytest.mark.row("S13")
def test_an_encrypted_key_is_used_through_the_agent_and_its_passphrase_is_nowhere(server, dial, keys, tmp_path, ssh_agent, config, caplog):
    """With IdentitiesOnly, and named by the head of the file, which is not encrypted; chaoskit never knows the passphrase."""
    alone = tmp_path / "alone"
    alone.write_bytes(keys["encrypted"].read_bytes())
    alone.chmod(0o600)
    ssh_agent(keys["encrypted"])
    caplog.set_level(logging.DEBUG)
    ssh = server.ssh(key=str(alone), config=config("IdentitiesOnly yes"))

    assert dial(ssh).transport.is_authenticated()
    with pytest.raises(HostKeyError) as caught:
        dial(server.ssh(server.known_hosts(""), key=str(alone)))

    told = "".join(traceback.TracebackException.from_exception(caught.value, capture_locals=True).format())
    private = base64.b64encode(keys["encrypted"].read_bytes()[40:120]).decode()
    for secret in (CANARY, private, keys["encrypted"].read_text().split("\n")[2]):
        assert secret not in caplog.text
        assert secret not in told


@pytest.mark.row("S13")
def test_a_private_key_is_in_no_log_and_no_traceback(server, dial, keys, caplog, tmp_path):
    """Neither its text nor its number, whatever fails after it was read; here a login at an account that does not exist."""
    caplog.set_level(logging.DEBUG)
    key = keys["ed25519"]
    with pytest.raises(PrivilegeError) as caught:
        dial(server.ssh(key=str(key), user="nobody-there"))

    told = "".join(traceback.TracebackException.from_exception(caught.value, capture_locals=True).format()) + caplog.text
    assert not [line for line in key.read_text().split("\n")[2:-2] if line in told]


def test_of_many_keys_in_the_agent_the_named_one_comes_first(server, dial, keys, tmp_path, ssh_agent, config):
    """sshd hangs up after six tries; the seventh key is the right one, and ssh_config names it. `ssh` does the same."""
    wrong = [keygen(tmp_path / f"wrong{number}") for number in range(7)]
    ssh_agent(*wrong, keys["encrypted"])

    link = dial(server.ssh(key=None, config=config(f"IdentityFile {keys['encrypted']}")))
    assert link.transport.is_authenticated()
    assert ssh_gets_in(server, "-i", str(keys["encrypted"]))


def test_too_many_keys_say_what_to_do(server, dial, tmp_path, ssh_agent, config):
    """And which were tried."""
    ssh_agent(*(keygen(tmp_path / f"wrong{number}") for number in range(7)))

    with pytest.raises(PrivilegeError, match=r"hung up after these keys: .*wrong0.*MaxAuthTries.*IdentitiesOnly yes"):
        dial(server.ssh(key=None, config=config(f"IdentityFile {tmp_path}/none")))


def test_a_key_that_others_may_read_is_not_used_as_with_ssh(server, dial, keys, tmp_path):
    """And the command that mends it is named."""
    open_key = tmp_path / "open"
    open_key.write_bytes(keys["ed25519"].read_bytes())
    open_key.chmod(0o640)

    with pytest.raises(PrivilegeError, match=r"others may read it \(mode 0640\): chmod 600"):
        dial(server.ssh(key=str(open_key)))
    assert not ssh_gets_in(server, "-i", str(open_key))
    open_key.chmod(0o600)
    assert dial(server.ssh(key=str(open_key))).transport.is_authenticated()
    assert ssh_gets_in(server, "-i", str(open_key))


@pytest.mark.parametrize("content", ["", "no key", "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n", "sk"])
def test_a_file_that_is_no_usable_key_is_named_and_the_next_is_tried(server, dial, keys, tmp_path, config, content):
    """Also the key of a security token, which only `ssh` can use."""
    if content == "sk":
        kind, word = b"sk-ssh-ed25519@openssh.com", lambda data: len(data).to_bytes(4, "big") + data
        public = word(kind) + word(bytes(32)) + word(b"ssh:")
        private = bytes(8) + public + b"\1" + word(bytes(64)) + word(b"") + word(b"me")
        private += bytes(range(1, 1 + -len(private) % 8))
        raw = b"openssh-key-v1\0" + word(b"none") * 2 + word(b"") + (1).to_bytes(4, "big") + word(public) + word(private)
        content = f"-----BEGIN OPENSSH PRIVATE KEY-----\n{base64.b64encode(raw).decode()}\n-----END OPENSSH PRIVATE KEY-----\n"
    bad = tmp_path / "bad"
    bad.write_text(content)
    bad.chmod(0o600)

    assert dial(server.ssh(key=str(bad), config=config(f"IdentityFile {keys['ed25519']}"))).transport.is_authenticated()
    with pytest.raises(PrivilegeError, match=rf"{bad}: cannot be read"):
        dial(server.ssh(key=str(bad), config=config("IdentityFile none")))


def test_a_server_that_takes_passwords_only_is_told_as_such(start, dial, tmp_path):
    """chaoskit has none to give."""
    folder = tmp_path / "passwords"
    only = start(folder, more=("PubkeyAuthentication no", "PasswordAuthentication yes"))

    with pytest.raises(PrivilegeError, match=r"takes no public keys, only: password.*logs in by public key only"):
        dial(only.ssh())


def test_what_ssh_would_have_tried_beside_is_named(server, dial, tmp_path, config):
    """A site with Kerberos learns why `ssh` gets in and we do not."""
    wrong = keygen(tmp_path / "wrong")

    with pytest.raises(PrivilegeError, match=r"cannot use GSSAPIAuthentication \(Kerberos\), PKCS11Provider"):
        dial(server.ssh(key=str(wrong), config=config("GSSAPIAuthentication yes", "PKCS11Provider /usr/lib/card.so")))
    with pytest.raises(HostKeyError, match="does not follow KnownHostsCommand of ssh_config"):
        dial(server.ssh(server.known_hosts(""), config=config("KnownHostsCommand /usr/bin/known %H")))


def test_a_key_type_that_ssh_config_does_not_allow_is_not_tried(server, dial, keys, config):
    """PubkeyAcceptedAlgorithms holds here, too."""
    line = "PubkeyAcceptedAlgorithms rsa-sha2-512"

    with pytest.raises(PrivilegeError, match="allows no ssh-ed25519"):
        dial(server.ssh(key=str(keys["ed25519"]), config=config(line)))
    assert dial(server.ssh(key=str(keys["rsa"]), config=config(line))).transport.is_authenticated()


def test_the_public_half_is_read_from_beside_or_from_the_head_of_an_encrypted_key(keys, tmp_path):
    """Both are the same."""
    beside = public_blob(keys["encrypted"])
    alone = tmp_path / "alone"
    alone.write_bytes(keys["encrypted"].read_bytes())

    assert base64.b64decode(public_of(keys["encrypted"]).split()[1]) == beside == public_blob(alone)
    assert public_blob(tmp_path / "none") is None


# -- on the way ---------------------------------------------------------------------------------------------------------


def test_a_chain_of_three_jump_hosts_each_with_its_own_port_account_key_and_known_hosts(start, server, dial, keys, tmp_path, config):
    """Nothing of one hop is used for another; each sshd sees the account that is meant for it."""
    more = {"keys": "/home/keys", "setup": setup_of(server.folder), "more": ("LogLevel VERBOSE",)}
    hops = [start(tmp_path / f"hop{number}", **more) for number in range(2)]
    lines = []
    for name, hop, user, kind in zip(("a", "b", "c"), (*hops, server), ("one", "two", "one"), ("ed25519", "ecdsa", "rsa"), strict=True):
        (tmp_path / f"known_{name}").write_text(f"{hop.known_as} {hop.public()}\n")
        lines += [f"Host {name}", "HostName 127.0.0.1", f"Port {hop.port}", f"User {user}"]
        lines += [f"IdentityFile {keys[kind]}", f"UserKnownHostsFile {tmp_path}/known_{name}", "IdentitiesOnly yes"]
    (tmp_path / "known_node").write_text(f"[127.0.0.2]:{server.port} {server.public()}\n")
    lines += ["Host node", "HostName 127.0.0.2", f"Port {server.port}", f"UserKnownHostsFile {tmp_path}/known_node"]
    lines += ["User root", "ProxyJump a,b,c", f"IdentityFile {keys['ed25519']}", "Host *", "GlobalKnownHostsFile none"]
    before = len(server.log)

    link = dial(Ssh(become="none", config=config(*lines)), host="node")

    assert link.transport.is_authenticated()
    assert "Accepted publickey for one from" in hops[0].log
    assert "Accepted publickey for two from" in hops[1].log
    said = server.log[before:]
    assert "Accepted publickey for one from" in said
    assert "Accepted publickey for root from" in said
    assert "ED25519" in hops[0].log
    assert "ECDSA" in hops[1].log


def test_the_address_to_leave_by_is_the_one_of_ssh_config(sshd, dial, config):
    """BindAddress and BindInterface; a bad one is named."""
    before = len(sshd.log)
    dial(sshd.ssh(config=config("BindAddress 127.0.0.3", "BindInterface lo")))
    assert "from 127.0.0.3 port" in sshd.log[before:]

    for line in ("BindInterface nosuch0", "BindAddress 192.0.2.77"):
        with pytest.raises(UnreachableError, match=rf"cannot leave by {line.split()[1]}, as ssh_config"):
            dial(sshd.ssh(config=config(line)))


def test_the_address_family_is_the_one_of_ssh_config(sshd, dial, config):
    """This server listens on version 4 alone."""
    known = sshd.known_hosts(f"[localhost]:{sshd.port} {sshd.public()}\n")
    assert dial(sshd.ssh(known, config=config("AddressFamily inet")), host="localhost").transport.is_authenticated()
    with pytest.raises(UnreachableError):
        dial(sshd.ssh(known, config=config("AddressFamily inet6")), host="localhost")


def test_only_what_ssh_config_allows_is_offered(sshd, dial, config):
    """A cipher, a host key that is not the preferred one, and one that nobody here has."""
    assert "aes256-ctr" == dial(sshd.ssh(config=config("Ciphers aes256-ctr"))).transport.local_cipher
    known = sshd.known_hosts(f"{sshd.known_as} {sshd.public('rsa')}\n{sshd.known_as} {sshd.public()}\n")
    shown = dial(sshd.ssh(known, config=config("HostKeyAlgorithms ssh-ed25519"))).transport.get_remote_server_key()
    assert "ssh-ed25519" == shown.get_name()
    with pytest.raises(HostKeyError, match="of a type that is not known"):
        dial(sshd.ssh(config=config("HostKeyAlgorithms ecdsa-sha2-nistp256")))
    with pytest.raises(InputError, match=r"Ciphers allows none that chaoskit has.*allow one of: aes128-gcm"):
        dial(sshd.ssh(config=config("Ciphers chacha20-poly1305@openssh.com")))


def test_an_rsa_host_key_that_is_too_short_is_refused(sshd, dial, config):
    """RequiredRSASize; `ssh` refuses it as well."""
    known = sshd.known_hosts(f"{sshd.known_as} {sshd.public('rsa')}\n")
    with pytest.raises(HostKeyError, match=r"has 2048 bits: ssh-rsa SHA256:.*wants 3072"):
        dial(sshd.ssh(known, config=config("RequiredRSASize 3072")))
    assert dial(sshd.ssh(known, config=config("RequiredRSASize 2048"))).transport.is_authenticated()


def test_a_proxy_command_that_fails_says_why(sshd, dial, config, tmp_path):
    """Its own last words, or that there is no such program."""
    (tmp_path / "proxy").write_text("#!/bin/sh\necho 'not logged in to the cloud' >&2\nexit 1\n")
    (tmp_path / "proxy").chmod(0o755)

    with pytest.raises(UnreachableError, match="the ProxyCommand said: not logged in to the cloud"):
        dial(sshd.ssh(config=config(f"ProxyCommand {tmp_path}/proxy %h %p")))
    with pytest.raises(UnreachableError, match="No such file"):
        dial(sshd.ssh(config=config(f"ProxyCommand {tmp_path}/nothing %h")))


@pytest.mark.parametrize("host", ["a" * 64, "a..b", f"{'a' * 64}.example", "x" * 255])
def test_a_name_that_no_resolver_takes_is_unreachable_and_no_defect(sshd, dial, host):
    """Python's codec for host names has errors of its own."""
    with pytest.raises(UnreachableError, match="no connection to"):
        dial(sshd.ssh(), host=host)


@pytest.mark.row("L32")
def test_a_host_that_is_lost_while_a_session_is_opened_is_given_up(start, dial, tmp_path, monkeypatch):
    """paramiko would wait an hour for it."""
    monkeypatch.setattr("chaoskit.fleet.link.CHANNEL_TIMEOUT", 1.0)
    server = start(tmp_path / "lost")
    connection = Connection(dial(server.ssh()), "n1")
    stopped = [pid for pid in below(server.process.pid) if pid != server.process.pid]
    watch = FairWatch()
    try:
        signal_all(stopped, signal.SIGSTOP)
        with pytest.raises(UnreachableError, match="a command broke off"):
            connection.ask(["true"])
        with pytest.raises(UnreachableError, match="SFTP"):
            connection.sftp()
    finally:
        signal_all(stopped, signal.SIGCONT)

    assert watch.took() < 10


def signal_all(pids, number):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def below(pid):
    """Return a process and all its descendants."""
    children = []
    with contextlib.suppress(FileNotFoundError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in below(int(child)))]
