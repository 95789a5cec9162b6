"""Real sshds on loopback, and the way to them."""

import os
from pathlib import Path

import pytest
from loopback_sshd import start_sshd

from chaoskit.fleet.link import Dialer
from chaoskit.fleet.ssh_options import Resolver

NEEDS_ROOT = "sshd here runs as root, in namespaces of its own"


@pytest.fixture(scope="session")
def start():
    """Start further servers; they end with the session."""
    if os.geteuid() != 0:
        pytest.skip(NEEDS_ROOT)
    servers = []

    def begin(*args, **kwargs):
        servers.append(start_sshd(*args, **kwargs))
        return servers[-1]

    yield begin
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def sshd(tmp_path_factory, start):
    """An sshd with three host keys that all tests may share."""
    return start(tmp_path_factory.mktemp("sshd"), kinds=("ed25519", "ecdsa", "rsa"))


@pytest.fixture
def dial(request):
    """Connect by the whole way (resolve, host key, login); what was opened is closed after the test."""
    opened = []

    def connect(ssh, host="127.0.0.1", node="n1", **more):
        dialer = Dialer(Resolver(ssh, Path("/")), **more)
        opened.append(dialer)
        link = dialer.open(dialer.resolver.node(host), node)
        opened.append(link)
        return link

    yield connect
    for each in reversed(opened):
        each.close()
