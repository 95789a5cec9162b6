"""The bridge: the channel's ends go to the server itself, and the end of either side ends the other."""

import os
import subprocess

import pytest

from tests.support.open_files import open_files


def ends_of(server):
    """Return the sockets and pipes that a server holds; its files come and go with its work."""
    return [target for target in open_files(server) if target.startswith(("socket:", "pipe:"))]


def test_no_process_stands_between_the_channel_and_the_server(agent):
    channel = agent.connect()
    channel.ask("clock")
    bridge = channel.process.pid
    (server,) = agent.pids("serve")
    ends = set(open_files(server))

    assert [os.readlink(f"/proc/{bridge}/fd/{fd}") for fd in (0, 1)] == ["/dev/null", "/dev/null"]
    assert {os.readlink(f"/proc/self/fd/{pipe.fileno()}") for pipe in (channel.process.stdin, channel.process.stdout)} <= ends


def test_the_end_of_the_input_ends_the_bridge_and_leaves_nothing_open_in_the_server(agent, until):
    first = agent.connect()
    first.ask("clock")
    (server,) = agent.pids("serve")
    before = len(ends_of(server))
    second = agent.connect()
    second.ask("clock")
    second.close()

    assert second.process.returncode == 0
    assert first.ask("clock")
    until(lambda: len(ends_of(server)) == before)


def test_a_killed_bridge_ends_its_connection_in_the_server(agent, until):
    first, second = agent.connect(), agent.connect()
    first.ask("clock")
    second.ask("clock")
    (server,) = agent.pids("serve")
    before = len(ends_of(server))
    second.kill()

    until(lambda: len(ends_of(server)) == before - 3)  # the socket and the two ends
    assert first.ask("clock")


def test_a_killed_server_ends_the_bridge(agent):
    channel = agent.connect()
    channel.ask("clock")
    agent.kill("serve")
    channel.process.wait(5)

    with pytest.raises(EOFError):
        channel.read()


def test_an_input_that_cannot_be_waited_for_is_refused(agent, tmp_path):
    (tmp_path / "requests").write_text('{"id": 1, "do": "clock"}\n')
    argv = [agent.python, "-I", "-S", str(agent.archive), "bridge", *agent.roots]
    with (tmp_path / "requests").open() as file:
        done = subprocess.run(argv, stdin=file, capture_output=True, text=True, timeout=20, check=False)

    assert done.returncode != 0
    assert "must be pipes or sockets" in done.stderr
