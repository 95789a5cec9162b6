"""`chaoskit trust` against real servers: what it shows, what it writes, what it leaves alone, and that `ssh` accepts what it wrote."""

import contextlib
import io
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest
from loopback_sshd import keygen

from chaoskit.cli.main import main
from chaoskit.errors import EXIT_ABORTED, EXIT_BAD_INPUT, EXIT_INCONCLUSIVE, RefusedError
from chaoskit.fleet.known_hosts import KnownHosts, parse_line
from chaoskit.fleet.known_hosts_file import change, check_mendable, check_name

pytestmark = pytest.mark.row("L33")
ROOT = Path(__file__).parents[2]


def fingerprint_of(public):
    return subprocess.run(["ssh-keygen", "-lf", f"{public}"], capture_output=True, text=True, check=True).stdout.split()[1]


@pytest.fixture
def site(sshd, tmp_path):
    """Return a function that writes an inventory of one node, reached by an ssh_config with these lines."""

    def write(config="", nodes='{n1: {group: workers, address: "127.0.0.1"}}', **ssh):
        own = tmp_path / "own" / "known_hosts"
        lines = [config, "Host *", f"Port {sshd.port}", "User root", f"IdentityFile {sshd.client_key}", f"UserKnownHostsFile {own}"]
        (tmp_path / "config").write_text("\n".join([*lines, "GlobalKnownHostsFile none", ""]))
        more = "".join(f", {key}: {value}" for key, value in ssh.items())
        training = "trainings: {default: {launcher: attach, log: /x}}"
        (tmp_path / "site.yaml").write_text(f"name: s\nssh: {{config: config{more}}}\nnodes: {nodes}\n{training}\n")
        return own

    return write


@pytest.fixture
def trust(tmp_path, capsys, monkeypatch):
    """Return a function that runs `chaoskit trust` on that inventory, without a terminal."""

    nobody = io.StringIO()

    def run(*argv):
        monkeypatch.setattr("sys.stdin", nobody)
        code = main(["trust", "-i", str(tmp_path / "site.yaml"), *map(str, argv)])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def listed(tmp_path):
    """Return a function that writes the file of fingerprints that a person collected on the nodes."""

    def write(*servers):
        file = tmp_path / "fingerprints"
        lines = [subprocess.run(["ssh-keygen", "-lf", key], capture_output=True, text=True, check=True).stdout for key in servers]
        file.write_text("".join(lines))
        return file

    return write


def answered(tmp_path, answer):
    """Run `chaoskit trust` on a terminal of its own, and type an answer when it asks."""
    argv = [sys.executable, "-c", "from chaoskit.cli.main import entry; entry()", "trust", "-i", str(tmp_path / "site.yaml")]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, start_new_session=True)
    os.close(theirs)
    said = b""
    until = time.monotonic() + 60
    with contextlib.suppress(OSError):  # that of a terminal whose other end is closed
        while time.monotonic() < until and (read := os.read(ours, 4096)):
            said += read
            if b"[y/N]" in said and answer:
                os.write(ours, answer)
                answer = b""
    os.close(ours)
    return process.wait(30), said.decode()


def ssh_accepts(tmp_path, host="127.0.0.1"):
    argv = ["ssh", "-F", tmp_path / "config", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", host, "true"]
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=30).returncode == 0


@pytest.mark.parametrize("hashing", ["no", "yes"])
def test_a_listed_key_is_added_as_ssh_would_write_it(sshd, site, trust, listed, tmp_path, hashing):
    """A script gives the fingerprints, nobody is asked, `ssh` accepts what was written; only its owner reads the file."""
    own = site(f"HashKnownHosts {hashing}")

    code, out, _ = trust("--fingerprints", listed(sshd.host_keys["ed25519"]))

    assert 0 == code, out
    assert f"new n1 ([127.0.0.1]:{sshd.port}): ssh-ed25519 {fingerprint_of(sshd.host_keys['ed25519'])}" in out
    assert "PASSED: 1 hosts are known" in out
    assert (0o600, 0o700) == (own.stat().st_mode & 0o777, own.parent.stat().st_mode & 0o777)
    assert (hashing == "yes") == ("127.0.0.1" not in own.read_text())
    assert ssh_accepts(tmp_path)
    assert (0, 1) == (trust()[0], len(own.read_text().splitlines()))
    assert [own] == list(own.parent.iterdir())


def test_ssh_keygen_finds_and_removes_what_was_added(sshd, site, trust, listed):
    """The line is an ordinary one."""
    own = site("HashKnownHosts yes")
    trust("--fingerprints", listed(sshd.host_keys["ed25519"]))

    subprocess.run(["ssh-keygen", "-q", "-f", own, "-R", sshd.known_as], check=True, capture_output=True)
    assert "" == own.read_text()


def test_without_a_terminal_and_without_fingerprints_nothing_is_added(sshd, site, trust):
    """No script ever trusts what it happens to meet."""
    own = site()

    code, out, err = trust()

    assert EXIT_BAD_INPUT == code
    assert "new n1" in out
    assert "no terminal to ask on" in err
    assert "--fingerprints FILE" in err
    assert not own.parent.exists()


def test_a_key_whose_fingerprint_is_not_listed_is_not_added(sshd, site, trust, listed, tmp_path):
    """Somebody in between has another."""
    own = site()

    code, out, _ = trust("--fingerprints", listed(keygen(tmp_path / "another")))

    assert EXIT_INCONCLUSIVE == code
    assert "its fingerprint is not in the file" in out
    assert "INCONCLUSIVE: not trusted: n1" in out
    assert not own.exists()


def test_a_file_without_a_fingerprint_is_refused(site, trust, tmp_path):
    """A wrong file is no empty permission."""
    site()
    (tmp_path / "empty").write_text("node1 is fine\nMD5:aa:bb\n")

    code, _, err = trust("--fingerprints", tmp_path / "empty")

    assert EXIT_BAD_INPUT == code
    assert "no fingerprints in it" in err


@pytest.mark.parametrize(("answer", "code"), [(b"y\n", 0), (b"n\n", EXIT_ABORTED), (b"\n", EXIT_ABORTED), (b"\x04", EXIT_ABORTED)])
def test_a_person_is_asked_and_only_a_yes_adds(sshd, site, tmp_path, answer, code):
    """Return alone means no, and so does the end of the input; then the file is not touched."""
    own = site()
    own.parent.mkdir()
    own.write_text("# mine\n")
    before = own.stat()

    exited, said = answered(tmp_path, answer)

    assert code == exited, said
    assert f"add 1 keys to {own}" in said.replace("\r\n", "")
    if code:
        assert said.replace("\r", "").rstrip().splitlines()[-1].startswith("ABORTED: 1 keys to ")
        after = own.stat()
        assert (before.st_ino, before.st_mtime_ns, "# mine\n") == (after.st_ino, after.st_mtime_ns, own.read_text())
    else:
        assert f"# mine\n{sshd.known_as} {sshd.public()}\n" == own.read_text()


def test_a_changed_key_is_shown_with_both_and_refused_unless_told_to_replace_it(sshd, site, trust, listed, tmp_path):
    """The known key stays the known one; with --replace the line of this host goes, and no other's."""
    own = site()
    other = " ".join(Path(f"{keygen(tmp_path / 'old')}.pub").read_text().split()[:2])
    own.parent.mkdir()
    text = f"# first\n{sshd.known_as} {other}\nelsewhere,{sshd.known_as} {other} of both\n[127.0.0.2]:{sshd.port} {other}"
    own.write_text(text)
    own.chmod(0o644)
    allowed = listed(sshd.host_keys["ecdsa"], sshd.host_keys["ed25519"])

    code, out, _ = trust("--fingerprints", allowed)
    assert EXIT_INCONCLUSIVE == code
    assert f"CHANGED n1 ([127.0.0.1]:{sshd.port}): ssh-ed25519 {fingerprint_of(sshd.host_keys['ed25519'])}; known is ssh-ed25519" in out
    assert f"{fingerprint_of(tmp_path / 'old')} at {own}:2" in out
    assert "--replace lets" in out
    assert text == own.read_text()

    code, out, _ = trust("--replace", "--fingerprints", allowed)
    assert 0 == code, out
    rest = f"# first\nelsewhere {other} of both\n[127.0.0.2]:{sshd.port} {other}\n"
    assert f"{rest}{sshd.known_as} {sshd.public()}\n" == own.read_text()
    assert 0o644 == own.stat().st_mode & 0o777
    assert ssh_accepts(tmp_path)


@pytest.mark.parametrize("line", ["*.0.0.1,{as_} {other}", "[127.0.0.?]:* {other}"])
def test_a_line_for_other_hosts_too_is_never_mended(sshd, site, trust, listed, tmp_path, line):
    """The person is told which it is."""
    own = site()
    other = " ".join(Path(f"{keygen(tmp_path / 'old')}.pub").read_text().split()[:2])
    own.parent.mkdir()
    text = line.format(as_=sshd.known_as, other=other) + "\n"
    own.write_text(text)

    code, out, _ = trust("--replace", "--fingerprints", listed(sshd.host_keys["ed25519"]))

    assert EXIT_INCONCLUSIVE == code
    assert f"{own}:1 is a pattern for other hosts too" in out
    assert text == own.read_text()


def test_a_revoked_key_is_never_added(sshd, site, trust, listed):
    """Not even when it is listed and shall be replaced."""
    own = site()
    own.parent.mkdir()
    own.write_text(f"@revoked * {sshd.public()}\n")

    code, out, _ = trust("--replace", "--fingerprints", listed(sshd.host_keys["ed25519"]))

    assert EXIT_INCONCLUSIVE == code
    assert "REVOKED n1" in out
    assert f"@revoked * {sshd.public()}\n" == own.read_text()


def test_a_line_that_cannot_be_used_is_told_with_its_number(sshd, site, trust, listed):
    """It may be the one that the person thinks of."""
    own = site()
    own.parent.mkdir()
    own.write_text(f"# mine\n{sshd.known_as} ssh-ed25519 ???\n")

    code, _, err = trust("--fingerprints", listed(sshd.host_keys["ed25519"]))

    assert 0 == code
    assert f"{own}:2: line ignored: the key is not base64" in err


def test_a_host_known_by_a_certificate_authority_only_gets_a_line_of_its_own(sshd, site, trust, listed):
    """And it is said why that is needed."""
    own = site()
    own.parent.mkdir()
    own.write_text(f"@cert-authority * {sshd.public('rsa')}\n")

    code, out, _ = trust("--fingerprints", listed(sshd.host_keys["ed25519"]))

    assert 0 == code
    assert "chaoskit checks no certificates" in out
    assert f"{sshd.known_as} {sshd.public()}" in own.read_text()


def test_an_alias_is_the_name_that_is_written(sshd, site, trust, listed, tmp_path):
    """HostKeyAlias names the line, without a port."""
    own = site("HostKeyAlias farm")

    assert 0 == trust("--fingerprints", listed(sshd.host_keys["ed25519"]))[0]
    assert f"farm {sshd.public()}\n" == own.read_text()
    assert ssh_accepts(tmp_path)


def test_the_inventory_s_own_file_wins(sshd, site, trust, listed, tmp_path):
    """What reads them reads there, too."""
    own = site(known_hosts="[mine/known, more]")

    assert 0 == trust("--fingerprints", listed(sshd.host_keys["ed25519"]))[0]
    assert f"{sshd.known_as} {sshd.public()}\n" == (tmp_path / "mine" / "known").read_text()
    assert not own.exists()


@pytest.mark.parametrize("file", ["none", "/dev/null"])
def test_where_no_file_of_ones_own_is_named_that_is_said(sshd, site, trust, listed, tmp_path, file):
    """Nothing is written into a file of everybody's, and nothing is thrown away in silence."""
    site()
    config = tmp_path / "config"
    shared = tmp_path / "shared"
    text = config.read_text().replace(f"UserKnownHostsFile {tmp_path}/own/known_hosts", f"UserKnownHostsFile {file}")
    config.write_text(text.replace("GlobalKnownHostsFile none", f"GlobalKnownHostsFile {shared}"))

    code, out, _ = trust("--fingerprints", listed(sshd.host_keys["ed25519"]))

    assert EXIT_INCONCLUSIVE == code
    assert "UserKnownHostsFile" in out
    assert not shared.exists()


def test_jump_hosts_come_first_and_nobody_is_logged_in_to_an_unknown_one(start, site, trust, listed, tmp_path, sshd):
    """Two levels: the gate's key is added, then the node behind it is looked at through it."""
    gate = start(tmp_path / "gate", more=("LogLevel DEBUG1",), client=sshd.client_key, keys=f"{sshd.client_key}.pub")
    own = site(f"Host gate\nHostName 127.0.0.1\nPort {gate.port}\nProxyJump none\nHost 127.0.0.1\nProxyJump gate")

    code, out, _ = trust("--fingerprints", listed(sshd.host_keys["ed25519"]))
    assert EXIT_INCONCLUSIVE == code
    assert "new jump host gate" in out
    assert "not seen n1: the host key of" in out
    assert "userauth-request" not in gate.log
    assert not own.exists()

    code, out, _ = trust("--fingerprints", listed(sshd.host_keys["ed25519"], gate.host_keys["ed25519"]))
    assert 0 == code, out
    assert [f"{gate.known_as} {gate.public()}", f"{sshd.known_as} {sshd.public()}"] == own.read_text().splitlines()
    assert ssh_accepts(tmp_path)


def test_a_host_that_is_not_there_does_not_hide_the_others(sshd, site, trust, listed):
    """Its line says why; the other is added."""
    own = site("Host 127.0.0.9\nPort 9", nodes='{n1: {group: workers, address: "127.0.0.1"}, n9: {group: workers, address: "127.0.0.9"}}')

    code, out, _ = trust("--fingerprints", listed(sshd.host_keys["ed25519"]))

    assert EXIT_INCONCLUSIVE == code
    assert "not seen n9: no connection to 127.0.0.9:9" in out
    assert sshd.known_as in own.read_text()


def test_hosts_are_names_of_the_inventory(site, trust):
    """A typing error is no other machine."""
    site()

    code, _, err = trust("n[1-2]")

    assert EXIT_BAD_INPUT == code
    assert "n2 is not a node of" in err


def test_without_an_inventory_hosts_are_those_of_ssh_config(sshd, tmp_path, monkeypatch, capsys):
    """`ssh -G` reads the user's own, which this is for `ssh` as well as for us."""
    wrapper = tmp_path / "bin" / "ssh"
    wrapper.parent.mkdir()
    (tmp_path / "config").write_text(f"Port {sshd.port}\nUserKnownHostsFile {tmp_path}/known\nGlobalKnownHostsFile none\n")
    wrapper.write_text(f'#!/bin/sh\nshift\nexec /usr/bin/ssh -G -F {tmp_path}/config "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("CHAOSKIT_INVENTORY", raising=False)
    (tmp_path / "seen").write_text(fingerprint_of(sshd.host_keys["ed25519"]))

    assert 0 == main(["trust", "localhost", "--fingerprints", str(tmp_path / "seen")])
    assert f"[localhost]:{sshd.port} {sshd.public()}\n" == (tmp_path / "known").read_text()


# -- the file ----------------------------------------------------------------------------------------------------------


KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJm5NZBvxGuk3pmzXlnDJEWxqAFcBVYlIjWNWJBqBgxQ"


def test_a_link_stays_a_link_and_what_stands_behind_it_changes(tmp_path):
    """Many keep their files elsewhere."""
    (tmp_path / "real").write_text("# no end of line")
    (tmp_path / "link").symlink_to(tmp_path / "real")

    change(tmp_path / "link", [f"n1 {KEY}"], {})

    assert (tmp_path / "link").is_symlink()
    assert f"# no end of line\nn1 {KEY}\n" == (tmp_path / "real").read_text()


def test_a_line_that_has_changed_meanwhile_is_not_mended(tmp_path):
    """Somebody else edits the file, too."""
    file = tmp_path / "known"
    file.write_text(f"n1 {KEY}\n")
    [key] = KnownHosts.read([file]).lines_for("n1")
    file.write_text(f"# new\nn1 {KEY}\n")

    with pytest.raises(RefusedError, match="has changed meanwhile"):
        change(file, [], {key: {"n1"}})
    assert f"# new\nn1 {KEY}\n" == file.read_text()


def test_a_change_that_fails_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    """A full disk, for example: no half file, and no remains beside it."""

    def full(*_):
        raise OSError(28, "No space left on device")

    file = tmp_path / "known"
    file.write_text("mine\n")
    monkeypatch.setattr("os.fsync", full)

    with pytest.raises(OSError, match="No space"):
        change(file, [f"n1 {KEY}"], {})
    assert ("mine\n", [file]) == (file.read_text(), list(tmp_path.iterdir()))


def test_bytes_that_are_no_text_are_kept(tmp_path):
    """A comment in another encoding is somebody's."""
    file = tmp_path / "known"
    file.write_bytes(b"# caf\xe9\r\nn1 x\n")

    change(file, [f"n2 {KEY}"], {})

    assert b"# caf\xe9\r\nn1 x\n" + f"n2 {KEY}\n".encode() == file.read_bytes()


@pytest.mark.parametrize("name", ["", "a b", "a,b", "*", "!a", "|1|x", "a\nb", "#a", "@revoked"])
def test_a_name_that_a_line_cannot_carry_is_refused(name):
    """It would stand for something else."""
    with pytest.raises(RefusedError):
        check_name(name)


def test_a_line_in_a_file_of_everybody_s_is_not_ours_to_mend(tmp_path):
    """The person is told where it stands."""
    key = parse_line(f"n1 {KEY}", "/etc/ssh/ssh_known_hosts", 7)

    with pytest.raises(RefusedError, match="/etc/ssh/ssh_known_hosts:7 is not in a file of yours"):
        check_mendable([key], [tmp_path / "known"])
