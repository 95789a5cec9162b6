"""Names that become paths on the node: of runs, entries and keys. Whatever a controller sends, nothing is made outside their folders."""

import os

import pytest
from escapes import ESCAPES

from chaoskit.agent.paths import Paths
from chaoskit.errors import ProtocolError

pytestmark = pytest.mark.row("S4")

TOY = {"fault": "toy_file", "site": {"node": "n1"}}


def requests(name):
    """Yield each request in which a name becomes part of a path."""
    for entry in (name, f"{name}/1/n1", f"run/{name}/n1", f"run/1/{name}"):
        yield "prepare", {"run": "run", "entry": entry, "params": {"path": "/dev/null"}, **TOY}
        yield "heal", {"entries": [entry]}
        yield from ((verb, {"entry": entry}) for verb in ("revert", "gone", "witness", "forget", "finish"))
        yield "arm", {"entry": entry, "lease": 30.0, "controller": "tester"}
    yield "prepare", {"run": name, "entry": f"{name}/1/n1", "params": {"path": "/dev/null"}, **TOY}
    yield "hold", {"run": name, "controller": "tester", "lease": 30.0}
    yield from ((verb, {"run": name}) for verb in ("release", "entries"))
    yield "renew", {"run": name, "lease": 30.0}
    yield "spawn", {"key": name, "argv": ["true"], "cwd": "/", "log": "/dev/null"}
    yield from ((verb, {"key": name}) for verb in ("spawned", "stop"))


def tree(agent):
    """Return everything below the agent's roots, its sockets and locks too."""
    return sorted(os.path.join(folder, name) for folder, folders, files in os.walk(agent.root) for name in (*folders, *files))


@pytest.fixture(scope="module")
def channel(shared_agent):
    made = shared_agent.connect()
    made.ask("clock")
    made.ask("entries", run="run")
    return made


@pytest.mark.parametrize("name", ESCAPES)
def test_no_request_takes_a_name_for_a_path(shared_agent, channel, name):
    """Each is refused before anything is made, and the server goes on."""
    before = tree(shared_agent)
    for verb, fields in requests(name):
        with pytest.raises(RuntimeError):
            channel.ask(verb, **fields)
    assert channel.ask("clock")["mono"] > 0
    assert tree(shared_agent) == before


@pytest.mark.parametrize("name", ESCAPES)
def test_no_path_of_ours_is_made_of_it(name):
    """The roots themselves refuse it, whoever asks."""
    for make in (Paths().lease, Paths().spawned):
        with pytest.raises(ProtocolError):
            make(name)
