"""Hosts are resolved as OpenSSH resolves them, and nothing but a host, an account or a port gets through."""

import contextlib
import os
import re
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaoskit.errors import InputError
from chaoskit.fleet.proxy import words_of
from chaoskit.fleet.ssh_options import CONNECT_TIMEOUT, Resolver, parse_resolved
from chaoskit.model.inventory import Ssh
from chaoskit.model.ssh_names import check_host, check_user, parse_hop

CONFIG = """
Host gpu*
    HostName %h.cluster.example
    Port 2222
    User ops
    IdentityFile ~/keys/%n-%r
    IdentitiesOnly yes
    UserKnownHostsFile /etc/known/%h /etc/known/more
    HostKeyAlias farm
    ConnectTimeout 3
    ProxyJump admin@bastion:2200,inner
Host proxied
    ProxyCommand exec nc -X connect "%h" %p
Host *
    GlobalKnownHostsFile none
"""


@pytest.fixture
def resolver(tmp_path):
    def make(**ssh):
        (tmp_path / "config").write_text(CONFIG)
        return Resolver(Ssh(config="config", **ssh), tmp_path)

    return make


def test_ssh_config_says_how_a_host_is_reached(resolver):
    found = resolver().node("gpu7")

    assert (found.hostname, found.port, found.user) == ("gpu7.cluster.example", 2222, "ops")
    assert found.identity_files == (Path.home() / "keys" / "gpu7-ops",)
    assert found.known_hosts == (Path("/etc/known/gpu7.cluster.example"), Path("/etc/known/more"))
    assert (found.known_as, found.connect_timeout, found.identities_only) == ("farm", 3.0, True)
    assert found.jumps == ("admin@bastion:2200", "inner")


def test_the_inventory_wins_over_ssh_config(resolver, tmp_path):
    found = resolver(user="chaos", port=22, jump="gate", key="id", known_hosts=("known",)).node("gpu7")

    assert (found.user, found.port, found.jumps) == ("chaos", 22, ("gate",))
    assert found.identity_files[0] == tmp_path / "id"
    assert found.known_hosts == (tmp_path / "known",)


def test_account_and_port_of_the_nodes_are_not_those_of_the_jump_host(resolver):
    found = resolver(user="chaos", port=2022).jump("admin@bastion:2200")

    assert (found.hostname, found.user, found.port) == ("bastion", "admin", 2200)


def test_the_words_of_a_proxy_command_stay_words(resolver):
    assert resolver().node("proxied").proxy == ("nc", "-X", "connect", "proxied", "22")


def test_a_host_without_settings_gets_the_defaults(resolver):
    found = resolver().node("10.0.0.1")

    assert (found.hostname, found.port, found.known_as, found.connect_timeout) == ("10.0.0.1", 22, "10.0.0.1", CONNECT_TIMEOUT)
    assert (found.jumps, found.proxy) == ((), ())


def test_another_port_is_part_of_the_name_in_known_hosts(resolver):
    assert resolver(port=2022).node("n1").known_as == "[n1]:2022"


@pytest.mark.row("S1", "S3")
@pytest.mark.parametrize(
    "host", ["-oProxyCommand=touch /tmp/x", "", "a b", "a;b", "$(id)", "`id`", "a\nb", "a/b", "~root", "*", "a" * 256, "é", "a\0b"]
)
def test_what_is_no_host_never_reaches_ssh(resolver, host):
    with pytest.raises(InputError, match="not a host"):
        resolver().node(host)


@pytest.mark.parametrize("hop", ["-J", "@host", "user@", "host:port", "-l@host", "user@-host", "a b", "[::1", "host:22:33"])
def test_what_is_no_jump_host_is_refused(hop):
    with pytest.raises(InputError):
        parse_hop(hop)


def test_jump_hosts_may_be_ipv6_addresses_or_urls():
    assert (parse_hop("me@[fe80::1]:22").host, parse_hop("ssh://me@gate:2200").port) == ("fe80::1", 2200)


def test_a_missing_ssh_config_says_what_would_make_it(tmp_path):
    with pytest.raises(InputError, match=r"does not exist.*chaoskit lab up"):
        Resolver(Ssh(config="nowhere"), tmp_path).node("node1")


def test_a_broken_ssh_config_is_an_error_with_its_own_words(tmp_path):
    (tmp_path / "config").write_text("Port many\n")

    with pytest.raises(InputError, match=r"config.*line 1"):
        Resolver(Ssh(config="config"), tmp_path).node("n1")


@given(st.text(max_size=40))
def test_a_checked_host_is_safe_as_an_argument(text):
    try:
        host = check_host(text)
    except InputError:
        return

    assert not host.startswith("-")
    assert not set(host) & set(" \t\n\0;|&$`'\"\\<>(){}*?~/")


def test_a_host_name_from_a_hostile_resolver_is_refused():
    with pytest.raises(InputError):
        parse_resolved("n1", "hostname -oProxyCommand=x\nport 22\nuser root\n")


# -- what reaches ssh ---------------------------------------------------------------------------------------------------

PAYLOADS = [
    "-oProxyCommand=touch {canary}",
    "-F{canary}",
    "--",
    "-",
    "",
    " ",
    "x;touch {canary}",
    "x&touch {canary}",
    "x|touch {canary}",
    "$(touch {canary})",
    "`touch {canary}`",
    "${{HOME}}",
    "x\ntouch {canary}",
    "x\rtouch {canary}",
    "x\0y",
    "x\ty",
    "../x",
    "/no/such/file",
    "~root",
    "~nobody-there/x",
    "*",
    "a[1-3]",
    "{{a,b}}",
    "%h",
    "a%h",
    "%%",
    "a'b",
    'a"b',
    "a\\b",
    "<x",
    ">{canary}",
    "!x",
    "#x",
    "a=b",
    "a:b:c",
    "[::1",
    "user@-oX=y",
    "é",
    "n\u202e1",
    "\ufeffn1",
    "x" * 1_000_000,
]
_watching = []
"""The list that takes what this process starts, while somebody watches."""


def _audit(event, args):
    if _watching and event in ("subprocess.Popen", "os.exec", "os.system", "os.posix_spawn", "os.spawn"):
        _watching[0].append((event, args[1] if event == "subprocess.Popen" else args))


sys.addaudithook(_audit)


@pytest.fixture
def executed():
    """Every program that is started here during the test, by the interpreter's own account."""
    started = []
    _watching.append(started)
    yield started
    _watching.clear()


def assert_only_ssh_g(started, host, values):
    """Each call is `ssh -G`, with options that we wrote, values that are one word each, and the host behind `--`."""
    for event, argv in started:
        assert "subprocess.Popen" == event
        *options, dashes, name = argv
        assert (["ssh", "-G"], "--") == (options[:2], dashes)
        assert name in host
        assert set(options[2::2]) <= {"-F", "-l", "-p"}
        assert all(value in values or value.startswith("/") for value in options[3::2])


def error_of(resolver, host):
    """Resolve a node and the hops before it; return the refusal, if any."""
    try:
        for hop in resolver.node(host).jumps:
            resolver.jump(hop)
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.row("S1", "S3")
@pytest.mark.parametrize("field", ["address", "user", "jump", "config", "key", "known_hosts"])
def test_whatever_stands_in_the_inventory_is_refused_or_stays_one_word(field, tmp_path, executed):
    """No option, no second command, no file that was not named, whatever the payload; the refusal is short."""
    canary = tmp_path / "canary"
    (tmp_path / "config").write_text("Host *\nGlobalKnownHostsFile none\n")
    refused = 0
    for payload in PAYLOADS:
        text = payload.format(canary=canary)
        ssh = {"config": "config", "user": "ops"}
        if field == "config" and "/" not in text:  # a file of that name here, and nowhere else
            with contextlib.suppress(OSError, ValueError):
                (tmp_path / text).write_text("Host *\n")
        if field != "address":
            ssh[field] = (text,) if field == "known_hosts" else text
        resolver = Resolver(Ssh(**ssh), tmp_path)
        host = text if field == "address" else "n1"
        said = error_of(resolver, host)
        refused += bool(said)
        assert len(said) < 1000
        assert_only_ssh_g(executed, {host, *text.split(",")}, {text, "ops"})
        executed.clear()

    assert not canary.exists()
    assert {"address": 41, "user": 41, "jump": 38}.get(field, 0) <= refused


@pytest.mark.row("S1")
@given(st.text(max_size=40))
def test_a_checked_account_is_safe_as_an_argument(text):
    """And so is each hop of a jump."""
    for check in (check_user, lambda hop: parse_hop(hop).host, lambda hop: parse_hop(hop).user or "x"):
        with contextlib.suppress(InputError):
            checked = check(text)
            assert not checked.startswith("-")
            assert not set(checked) & set(" \t\n\0;|&$`'\"\\<>(){}*?~/")


# -- what ssh_config says -----------------------------------------------------------------------------------------------


def test_included_files_and_matches_count(tmp_path):
    """`ssh` itself reads them; paramiko's parser would not."""
    (tmp_path / "more").write_text("Match originalhost n1 user ops\n  Port 2222\nMatch exec true\n  HostKeyAlias all\n")
    (tmp_path / "config").write_text(f"Include {tmp_path}/more\nHost n1\n  User other\n")
    found = Resolver(Ssh(config="config", user="ops"), tmp_path).node("n1")

    assert (2222, "all", "ops") == (found.port, found.host_key_alias, found.user)


def test_what_else_is_followed(tmp_path):
    """Algorithms, addresses and files, each as `ssh -G` tells it."""
    (tmp_path / "known hosts").write_text("")
    (tmp_path / "config").write_text(
        "AddressFamily inet6\nBindAddress 127.0.0.2\nBindInterface lo\nHashKnownHosts yes\nCiphers aes256-ctr\nMACs hmac-sha2-256\n"
        "KexAlgorithms curve25519-sha256@libssh.org\nHostKeyAlgorithms ssh-ed25519\nPubkeyAcceptedAlgorithms ssh-ed25519\n"
        f'RequiredRSASize 3072\nUserKnownHostsFile "{tmp_path}/known hosts" {tmp_path}/none\nGlobalKnownHostsFile /etc/known\n'
    )
    found = Resolver(Ssh(config="config"), tmp_path).node("n1")

    assert (socket.AF_INET6, "127.0.0.2", "lo") == (found.family, found.bind_address, found.bind_interface)
    assert (("aes256-ctr",), ("hmac-sha2-256",)) == (found.ciphers, found.macs)
    assert (("curve25519-sha256@libssh.org",), ("ssh-ed25519",)) == (found.kex_algorithms, found.host_key_algorithms)
    assert (("ssh-ed25519",), 3072, True) == (found.accepted_keys, found.least_rsa_bits, found.hash_known_hosts)
    assert (tmp_path / "known hosts", tmp_path / "none") == found.own_known_hosts
    assert (*found.own_known_hosts, Path("/etc/known")) == found.known_hosts


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("PubkeyAuthentication no", "no login by public key"),
        ("PreferredAuthentications password,keyboard-interactive", "no login by public key"),
        ("ProxyCommand ssh -W %h:%p gate 2>/dev/null", "'>' is shell syntax"),
        ("ProxyCommand nc %h %p | tee log", "'|' is shell syntax"),
        ('ProxyCommand nc "$GATE" %p', "'$' is shell syntax"),
        ("ProxyCommand nc `gate` %p", "'`' is shell syntax"),
        ("ProxyCommand exec", "names no program"),
        ("ProxyCommand nc %h %p\n  ProxyUseFdpass yes", "ProxyUseFdpass"),
    ],
)
def test_what_would_be_another_connection_than_the_user_s_is_refused_by_name(tmp_path, line, says):
    """Never ignored, never guessed."""
    (tmp_path / "config").write_text(f"Host n1\n  {line}\n")

    with pytest.raises(InputError, match=re.escape(says)) as caught:
        Resolver(Ssh(config="config"), tmp_path).node("n1")
    assert "n1" in caught.value.what


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("ssh -W [%h]:%p -- gate", ["ssh", "-W", "[%h]:%p", "--", "gate"]),
        ("sh -c \"start --target %h --parameters 'portNumber=%p'\"", ["sh", "-c", "start --target %h --parameters 'portNumber=%p'"]),
        ("exec nc -X connect '%h' %p", ["nc", "-X", "connect", "%h", "%p"]),
        ("nc 'a;b|c$(d)' \\$x", ["nc", "a;b|c$(d)", "$x"]),
        ("~/bin/proxy %h", [str(Path.home() / "bin/proxy"), "%h"]),
    ],
)
def test_a_proxy_command_that_needs_no_shell_is_cut_into_its_words(template, words):
    """As a shell would cut it."""
    assert words == words_of(template)


def test_what_cannot_be_followed_is_remembered_by_name(tmp_path):
    """It may be why `ssh` gets in and we do not."""
    (tmp_path / "config").write_text(
        "GSSAPIAuthentication yes\nPKCS11Provider /usr/lib/pkcs11.so\nCertificateFile ~/c\n"
        "KnownHostsCommand /bin/known %H\nVerifyHostKeyDNS yes\n"
    )
    resolver = Resolver(Ssh(config="config"), tmp_path)

    assert ["GSSAPIAuthentication", "PKCS11Provider", "CertificateFile"] == [text.split()[0] for text in resolver.node("n1").other_logins]
    assert ("KnownHostsCommand", "VerifyHostKeyDNS") == resolver.node("n1").other_vouchers
    assert ((), ()) == (Resolver(Ssh(config="/dev/null"), tmp_path).node("n1").other_logins, resolver.jump("n1").other_vouchers[2:])


def test_each_host_is_resolved_once_whoever_asks(resolver, executed):
    """A jump host of a thousand nodes, by sixteen threads at once; a refusal too is found once."""
    made = resolver()
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda number: (made.node(f"gpu{number % 4}"), made.jump("me@gate")), range(64)))

    assert 5 == len(executed)
    assert 5 == len({options for pair in found for options in pair})

    broken = Resolver(Ssh(config="nowhere"), Path("/"))
    for _ in range(2):
        with pytest.raises(InputError, match="does not exist"):
            broken.node("n1")


def test_without_the_program_ssh_that_is_said(tmp_path, monkeypatch):
    """Not a traceback of a missing file."""
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(InputError, match=r"`ssh` is not installed here.*install the OpenSSH client"):
        Resolver(Ssh(config="/dev/null"), tmp_path).node("n1")


@pytest.mark.parametrize("said", ["", "hostname\nport x\nuser root", "host n1\nport 22", "hostname n1\nport 22\nuser "])
def test_an_ssh_that_answers_nonsense_is_named(said):
    """An old one, or a wrapper."""
    with pytest.raises(InputError, match="gave no host, port and account"):
        parse_resolved("n1", said)


def test_bytes_that_are_no_text_are_no_obstacle(tmp_path):
    """A path in another encoding."""
    (tmp_path / "config").write_bytes(b"IdentityFile /keys/caf\xe9\n")

    assert b"/keys/caf\xe9" == os.fsencode(Resolver(Ssh(config="config"), tmp_path).node("n1").identity_files[0])


@pytest.mark.parametrize("address", ["::1", "fe80::1%eth0", "2001:db8::7"])
def test_addresses_of_version_6_are_hosts(address):
    assert address == check_host(address)
