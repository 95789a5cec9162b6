"""Our reader of known_hosts: what it makes of every kind of line, and that `ssh` itself makes the same of it."""

import base64
import hashlib
import hmac
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaoskit.errors import HostKeyError
from chaoskit.fleet.known_hosts import KnownHosts, Verdict, fingerprint, matches, parse_line

KEY = "ssh-ed25519"
BLOB = len(KEY).to_bytes(4, "big") + KEY.encode() + (32).to_bytes(4, "big") + bytes(range(32))
OTHER = BLOB[:-1] + b"\xff"


def line(hosts, blob=BLOB, marker=""):
    return f"{marker} {hosts} {KEY} {base64.b64encode(blob).decode()}".strip()


def hashed(name, salt=b"0123456789abcdefghij"):
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


def known(tmp_path, *lines):
    file = tmp_path / "known"
    file.write_bytes("\n".join(lines).encode())
    return KnownHosts.read([file])


@pytest.mark.row("S8")
@pytest.mark.parametrize(
    ("lines", "verdict"),
    [
        ([line("n1")], Verdict.OK),
        ([line("N1")], Verdict.OK),
        ([line("a,n1,b")], Verdict.OK),
        ([line("n?")], Verdict.OK),
        ([line("*,!n2")], Verdict.OK),
        ([line("*,!n1")], Verdict.UNKNOWN),
        ([line("n[1]")], Verdict.UNKNOWN),
        ([line(hashed("n1"))], Verdict.OK),
        ([line(hashed("n2"))], Verdict.UNKNOWN),
        ([line("n2")], Verdict.UNKNOWN),
        ([line("n1", OTHER)], Verdict.CHANGED),
        ([line("n1", OTHER), line("n1")], Verdict.OK),
        ([line("n1"), line("*", marker="@revoked")], Verdict.REVOKED),
        ([line("n1"), line("*", OTHER, "@revoked")], Verdict.OK),
        ([line("n1", marker="@cert-authority")], Verdict.AUTHORITY_ONLY),
        (["# n1", "", "n1 ssh-ed25519"], Verdict.UNKNOWN),
        ([line("n1") + " a comment\r"], Verdict.OK),
        ([line("n1") + "\r"], Verdict.OK),
        ([line("n1") + "\r# x"], Verdict.UNKNOWN),
        ([line("n1").replace(" ", "\u00a0", 1)], Verdict.UNKNOWN),
    ],
)
def test_each_kind_of_line(tmp_path, lines, verdict):
    assert verdict is known(tmp_path, *lines).check(["n1"], BLOB).verdict


def test_a_host_on_another_port_is_known_by_that_port_or_by_its_plain_name(tmp_path):
    table = known(tmp_path, line("[n1]:2222"), line("n2"))

    assert table.check(["[n1]:2222", "n1"], BLOB).verdict is Verdict.OK
    assert table.check(["n1"], BLOB).verdict is Verdict.UNKNOWN
    assert table.check(["[n2]:2222", "n2"], BLOB).verdict is Verdict.OK
    assert table.check(["[n2]:2222", "n2"], OTHER).verdict is Verdict.UNKNOWN


def test_bad_lines_are_reported_by_number_and_the_others_still_count(tmp_path):
    table = known(tmp_path, "n1 ssh-ed25519 ???", "@sometimes n1 a b", "n1", line("n1"), "n1 ssh-rsa " + line("n1").split()[-1])

    assert table.check(["n1"], BLOB).verdict is Verdict.OK
    assert [text.split(": ")[0].rpartition(":")[2] for text in table.warnings] == ["1", "2", "3", "5"]


def test_an_answer_names_the_line_it_came_from(tmp_path):
    answer = known(tmp_path, "", line("n1", OTHER)).check(["n1"], BLOB)

    assert [key.position for key in answer.lines] == [f"{tmp_path}/known:2"]


def test_ten_thousand_lines_are_read_and_searched_in_linear_time(tmp_path):
    """paramiko's reader takes 8 s for these; a quadratic one would not get through this test."""
    table = known(tmp_path, *(line(f"host{number}") for number in range(10_000)))

    assert all(table.check([f"host{number}"], BLOB).verdict is Verdict.OK for number in range(10_000))


def test_a_missing_file_knows_nobody(tmp_path):
    assert KnownHosts.read([tmp_path / "none"]).check(["n1"], BLOB).verdict is Verdict.UNKNOWN


@given(st.text(max_size=300))
def test_no_text_makes_the_reader_fail_otherwise_than_by_a_bad_line(text):
    try:
        key = parse_line(text, "known", 1)
    except ValueError:
        return

    assert key is None or key.blob


@given(st.text("ab*?!,[]:|1", max_size=20), st.text("ab[]:1", min_size=1, max_size=8))
def test_patterns_never_fail_and_a_negated_match_always_wins(patterns, name):
    assert not (matches(f"{patterns},!{name}", name) and "|" not in patterns[:1])


def test_fingerprints_read_like_those_of_ssh_keygen(tmp_path):
    file = tmp_path / "key.pub"
    file.write_text(line("", BLOB).strip())
    said = subprocess.run(["ssh-keygen", "-lf", file], capture_output=True, text=True, check=True).stdout

    assert fingerprint(BLOB) in said


def ssh_accepts(server, file):
    """Say whether `ssh` itself goes on with this file of known hosts."""
    argv = ["ssh", "-F", "/dev/null", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", f"UserKnownHostsFile={file}"]
    argv += ["-o", "GlobalKnownHostsFile=/dev/null", "-i", str(server.client_key), "-p", str(server.port), "root@127.0.0.1", "true"]
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=30).returncode == 0


CASES = {
    "known": "{as_} {ed}",
    "known by another type only": "{as_} {ec}",
    "known by rsa": "{as_} {rsa}",
    "unknown": "[127.0.0.1]:9 {ed}",
    "plain name": "127.0.0.1 {ed}",
    "changed": "{as_} {wrong}",
    "changed, plain name right": "{as_} {wrong}\n127.0.0.1 {ed}",
    "second line right": "{as_} {wrong}\n{as_} {ed}",
    "wildcard": "*.0.0.1 {ed}",
    "wildcard with port": "[127.0.*]:* {ed}",
    "negated": "*,!{as_} {ed}",
    "hashed": "{hash} {ed}",
    "revoked": "{as_} {ed}\n@revoked * {ed}",
    "other key revoked": "{as_} {ed}\n@revoked * {wrong}",
    "certificate authority only": "@cert-authority {as_} {ed}",
    "CRLF": "# first\r\n{as_} {ed}\r\n",
    "bad base64, then right": "{as_} ssh-ed25519 ???\n{as_} {ed}",
    "unknown marker": "@nonsense {as_} {ed}",
    "several names, comment": "a,{as_},b {ed} of the node",
    "empty": "",
}
# More of them, which take as long as `ssh` does.
ODD = {
    "tabs and blanks": " \t {as_}\t {ed}",
    "no end of the last line": "# x\n{as_} {ed}",
    "carriage return alone": "{as_} {ed}\r# x",
    "upper case": "[127.0.0.1]:{port} {ed}",
    "blank that is no blank": "{as_}\u00a0{ed}",
    "mark of the byte order": "\ufeff{as_} {ed}",
    "unknown type": "{as_} ssh-foo AAAAB3NzaC1mb28=",
    "unknown type, then right": "{as_} ssh-foo AAAAB3NzaC1mb28=\n{as_} {ed}",
    "name of a signature as the type": "{as_} rsa-sha2-512 {rsa_blob}",
    "type of another key": "{as_} ssh-rsa {ed_blob}",
    "cut off": "{as_} ssh-ed25519 AAAAC3NzaC1lZDI1NTE5",
    "without padding": "{as_} ecdsa-sha2-nistp256 {ec_cut}",
    "key and type the other way": "{as_} {ed_blob} ssh-ed25519",
    "old form with numbers": "{as_} 1024 35 1234567",
    "two names of hashes": "{hash},{hash} {ed}",
    "hash of another kind": "|2|AAAA|BBBB {ed}",
    "hash that is no hash": "|1|???|??? {ed}",
    "hash of the plain name": "{hash_plain} {ed}",
    "revoked by hash": "{as_} {ed}\n@revoked {hash} {ed}",
    "revoked in a second marker": "@revoked @revoked {as_} {ed}\n{as_} {ed}",
    "marker in capitals": "@REVOKED * {ed}\n{as_} {ed}",
    "revoked for others": "@revoked elsewhere {ed}\n{as_} {ed}",
    "negation alone": "!elsewhere {ed}",
    "negation of the plain name": "*,!127.0.0.1 {ed}",
    "question marks": "[127.0.0.?]:????? {ed}",
    "empty names": ",,{as_},, {ed}",
    "two keys in a line": "{as_} {wrong} {ed}",
    "a very long line": "{as_} {ed} {long}",
    "many names": "{many}{as_} {ed}",
    "certificate authority and a wrong key": "@cert-authority * {ed}\n{as_} {wrong}",
    "known as a comment": "#{as_} {ed}",
    "NUL in the comment": "{as_} {ed} \0x",
}
EVERY = [*CASES, *(pytest.param(each, marks=pytest.mark.prove) for each in ODD)]


@pytest.mark.row("S8")
@pytest.mark.parametrize("case", EVERY)
def test_ssh_itself_agrees(sshd, dial, case):
    """Whatever stands in the file: where `ssh` goes on we do, and where it stops we stop."""
    wrong = KEY + " " + base64.b64encode(OTHER).decode()
    words = {"as_": sshd.known_as, "ed": sshd.public(), "ec": sshd.public("ecdsa"), "rsa": sshd.public("rsa"), "wrong": wrong}
    words |= {"ed_blob": sshd.public().split()[1], "rsa_blob": sshd.public("rsa").split()[1], "hash_plain": hashed("127.0.0.1")}
    words |= {"port": sshd.port, "long": "x" * 100_000, "many": "".join(f"host{number}," for number in range(2000))}
    words |= {"ec_cut": sshd.public("ecdsa").split()[1].rstrip("=")}
    file = sshd.known_hosts((CASES | ODD)[case].format(hash=hashed(sshd.known_as), **words))
    try:
        dial(sshd.ssh(file))
        accepted = True
    except HostKeyError:
        accepted = False

    assert ssh_accepts(sshd, Path(file)) == accepted
