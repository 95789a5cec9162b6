"""
Whatever is wrong with a host key, and on whatever way to the host: nobody is logged in, and the error says what to mend.

Five defects by five ways. That nothing was sent is read from the log of the real sshd, which tells of each login it is
asked for; what it says of one that works shows that the log would tell.
"""

import subprocess
from pathlib import Path

import pytest
from fair_watch import until
from loopback_sshd import keygen

from chaoskit.cli.main import main
from chaoskit.errors import HostKeyError
from chaoskit.fleet.fleet import SshFleet
from chaoskit.model.inventory import Inventory, InventoryFile, Node

pytestmark = pytest.mark.row("S8", "L33")

VERBOSE = ("LogLevel DEBUG1",)
ASKED = "userauth-request"
# What known_hosts says: {as_} is the host's name there, {key} the key that it shows, {old} and {rsa} others.
DEFECTS = {
    "unknown": "[127.0.0.9]:9 {key}",
    "changed": "# mine\n{as_} {old}",
    "revoked": "{as_} {key}\n@revoked * {key}",
    "certificate authority only": "\n\n@cert-authority {as_} {old}",
    "other type": "{as_} {rsa}",
}
LINES = {"changed": 2, "revoked": 2, "certificate authority only": 3, "other type": 1}
SAYS = {
    "unknown": "is unknown: it showed",
    "changed": "has changed: it showed",
    "revoked": "is revoked:",
    "certificate authority only": "is known only by the certificate authority at",
    "other type": "is of a type that is not known for it",
}


def public_of(path):
    return " ".join(Path(f"{path}.pub").read_text().split()[:2])


def fingerprint_of(path):
    return subprocess.run(["ssh-keygen", "-lf", path], capture_output=True, text=True, check=True).stdout.split()[1]


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """Keys that no server here has."""
    folder = tmp_path_factory.mktemp("others")
    return {"old": keygen(folder / "old"), "rsa": keygen(folder / "rsa", "rsa")}


@pytest.fixture(scope="module")
def node(tmp_path_factory, start):
    """A server that tells of each login it is asked for."""
    return start(tmp_path_factory.mktemp("node"), more=VERBOSE)


def spoilt(server, defect, others):
    """Write a file of known hosts with this defect of the server's key."""
    old, rsa = public_of(others["old"]), public_of(others["rsa"])
    return server.known_hosts(DEFECTS[defect].format(as_=server.known_as, key=server.public(), old=old, rsa=rsa) + "\n")


def assert_told(text, server, file, defect, others):
    """The error has both fingerprints as `ssh-keygen` prints them, the line to mend, and the command that mends it."""
    assert SAYS[defect] in text
    assert f"ssh-ed25519 {fingerprint_of(server.host_keys['ed25519'])}" in text
    if defect in LINES:
        assert f"{file}:{LINES[defect]}" in text
    if defect in ("changed", "other type"):
        assert fingerprint_of(others["old" if defect == "changed" else "rsa"]) in text
        assert f"ssh-keygen -f {file} -R '{server.known_as}'" in text
    if defect != "revoked":
        assert "`chaoskit trust" in text
        assert "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub" in text


class Silence:
    """What a server's log says from here on."""

    def __init__(self, server):
        self.server = server
        self.before = len(server.log)

    def assert_nobody_asked(self, connections=1):
        """Each connection ended before any login was asked for."""
        until(lambda: self.server.log[self.before :].count("[preauth]\n") >= connections, what="the connections did not end")
        said = self.server.log[self.before :]
        assert said.count("Connection from") >= connections
        assert ASKED not in said
        assert "user root" not in said


def fleet_of(server, file, tmp_path):
    plain = {"group": "workers", "gpus": 1, "rails": (), "address": "127.0.0.1", "machine_id": None, "mounts": (), "python": None}
    inventory = InventoryFile("test", {}, ssh=server.ssh(file), allow="lab", shared="accept")
    return SshFleet(Inventory("test", str(tmp_path / "site.yaml"), {"n1": Node(name="n1", protected=False, **plain)}, inventory))


def test_the_log_would_tell(node, dial):
    """A login that works is seen there, so that its absence means something."""
    before = len(node.log)
    dial(node.ssh())

    assert ASKED in node.log[before:]


@pytest.mark.parametrize("defect", DEFECTS)
def test_directly(node, dial, others, defect):
    """The first connection."""
    file, silence = spoilt(node, defect, others), Silence(node)

    with pytest.raises(HostKeyError) as caught:
        dial(node.ssh(file))

    assert_told(str(caught.value), node, file, defect, others)
    silence.assert_nobody_asked()


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_jump_host_and_a_node_behind_one(node, sshd, dial, others, defect, tmp_path):
    """A bad key of a jump host's, and that of a node behind a good one, which we are logged in to."""
    (tmp_path / "config").write_text(f"Host gate\nHostName 127.0.0.1\nUser root\nPort {{}}\nIdentityFile {node.client_key}\n")
    config = (tmp_path / "config").read_text()
    bad = spoilt(node, defect, others)

    (tmp_path / "config").write_text(config.format(node.port))
    silence = Silence(node)
    with pytest.raises(HostKeyError, match=r"n1 \(jump host gate\)") as caught:
        dial(sshd.ssh(bad, config=str(tmp_path / "config"), jump="gate"))
    assert_told(str(caught.value), node, bad, defect, others)
    silence.assert_nobody_asked()

    (tmp_path / "config").write_text(config.format(sshd.port).replace(str(node.client_key), str(sshd.client_key)))
    both = node.known_hosts(bad.read_text() + f"{sshd.known_as} {sshd.public('rsa')}\n")
    silence = Silence(node)
    with pytest.raises(HostKeyError, match=r"^n1: ") as caught:
        dial(node.ssh(both, config=str(tmp_path / "config"), jump="gate"))
    assert_told(str(caught.value), node, both, defect, others)
    silence.assert_nobody_asked()


@pytest.mark.parametrize("defect", DEFECTS)
def test_pushing_the_agent(node, others, defect, tmp_path):
    """No SFTP session, no file on the node; the command names the inventory."""
    file, silence = spoilt(node, defect, others), Silence(node)
    fleet = fleet_of(node, file, tmp_path)
    try:
        with pytest.raises(ExceptionGroup) as caught:
            fleet.connect(["n1"])
        again = fleet.reconnect("n1").exception()
    finally:
        fleet.close()

    for error in (*caught.value.exceptions, again):
        assert isinstance(error, HostKeyError)
        assert_told(str(error), node, file, defect, others)
        assert defect == "revoked" or f"`chaoskit trust -i {tmp_path}/site.yaml n1" in error.hint
    silence.assert_nobody_asked(connections=2)
    assert not list((node.folder / "home").iterdir())


@pytest.mark.parametrize("defect", DEFECTS)
def test_healing(node, others, defect, tmp_path, capsys):
    """`chaoskit heal` says that the node could not be asked, never that it owes nothing."""
    file, silence = spoilt(node, defect, others), Silence(node)
    (tmp_path / "site.yaml").write_text(
        f"name: s\nssh: {{config: /dev/null, user: root, become: none, port: {node.port}, key: {node.client_key}, known_hosts: [{file}]}}\n"
        'nodes: {n1: {group: workers, address: "127.0.0.1"}}\ntrainings: {default: {launcher: attach, log: /x}}\n'
    )

    code = main(["heal", "-i", str(tmp_path / "site.yaml"), "--runs", str(tmp_path / "runs")])

    out, err = capsys.readouterr()
    assert 3 == code, out + err
    assert_told(out, node, file, defect, others)
    silence.assert_nobody_asked()


@pytest.mark.prove
@pytest.mark.parametrize("more", [(), ("HostKeyAlgorithms ssh-ed25519-cert-v01@openssh.com",)], ids=["beside its key", "alone"])
def test_a_server_with_a_certificate(start, dial, tmp_path, more):
    """Its key may be known plainly; by the authority alone it is refused and that is said, whatever the server insists on."""
    authority, key = keygen(tmp_path / "authority"), keygen(tmp_path / "key")
    subprocess.run(["ssh-keygen", "-q", "-s", authority, "-I", "x", "-h", "-n", "127.0.0.1", f"{key}.pub"], check=True)
    server = start(tmp_path / "server", kinds=(), more=(*VERBOSE, f"HostKey {key}", f"HostCertificate {key}-cert.pub", *more))

    assert dial(server.ssh(server.known_hosts(f"{server.known_as} {public_of(key)}\n"))).transport.is_authenticated()
    silence = Silence(server)
    file = server.known_hosts(f"@cert-authority * {public_of(authority)}\n")
    with pytest.raises(HostKeyError) as refused:
        dial(server.ssh(file))
    assert f"only by the certificate authority at {file}:1; it showed ssh-ed25519 {fingerprint_of(key)[:20]}" in str(refused.value)
    silence.assert_nobody_asked()


# A second server takes the first one's place; {as_} and {first} are the first's name and key, {second} the second's.
LATER = {
    "unknown": "127.0.0.1 {first}",
    "changed": "{as_} {first}",
    "revoked": "{as_} {first}\n@revoked * {second}",
    "certificate authority only": "@cert-authority {as_} {rsa}\n127.0.0.1 {first}",
}


@pytest.mark.parametrize(
    "defect", [pytest.param(each, marks=() if each == "changed" else pytest.mark.prove) for each in (*LATER, "other type")]
)
def test_reconnecting(start, others, defect, tmp_path):
    """A node that was reached, is lost, and comes back with a key that is not the known one: another machine has its address."""
    kind = "ecdsa" if defect == "other type" else "ed25519"
    second = keygen(tmp_path / "second", kind)
    first = start(tmp_path / "first", more=VERBOSE)
    words = {"as_": first.known_as, "first": first.public(), "second": public_of(second), "rsa": public_of(others["rsa"])}
    file = first.known_hosts(LATER.get(defect, LATER["changed"]).format(**words) + "\n")
    fleet = fleet_of(first, file, tmp_path)
    try:
        agent = fleet.connect(["n1"])["n1"]
        first.stop()
        other = start(tmp_path / "other", kinds=(), more=(*VERBOSE, f"HostKey {second}"), port=first.port, client=first.client_key)
        until(lambda: not agent.connected, what="the loss was not noticed")
        error = fleet.reconnect("n1").exception()
    finally:
        fleet.close()

    assert isinstance(error, HostKeyError)
    assert SAYS[defect] in error.what
    assert fingerprint_of(second) in error.what
    if defect in ("changed", "other type"):
        assert f"{fingerprint_of(first.host_keys['ed25519'])} at {file}:1" in error.what
    until(lambda: "Connection from" in other.log, what="nobody asked the other machine")
    said = other.log
    assert ASKED not in said
