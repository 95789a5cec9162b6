"""Processes that outlive the agent: started as the user, asked for by key, ended with all their kin."""

import os
import pwd
import tempfile
import time
from pathlib import Path

import pytest
from fair_watch import FairWatch

from chaoskit.agent import cgroups
from chaoskit.agent.identity import Process, in_session
from chaoskit.agent.spawn import group_of

NOBODY = pwd.getpwuid(65534).pw_name


@pytest.fixture
def key(tmp_path):
    name = "t{}".format(tmp_path.name.replace("_", "-"))
    yield name
    for process in cgroups.members(group_of(name)):
        process.kill(9)
    time.sleep(0.1)
    cgroups.remove(group_of(name))


@pytest.fixture
def order():
    """Return a function that makes an order; its log lies where every user may write (pytest's folders are root's)."""
    with tempfile.TemporaryDirectory(prefix="chaoskit-test-") as folder:
        os.chmod(folder, 0o777)  # noqa: S103 - the user under test writes here

        def make(script, **more):
            return {"argv": ["/bin/sh", "-c", script], "env": {}, "user": None, "cwd": "/", "log": os.path.join(folder, "log"), **more}

        yield make


def test_a_process_runs_as_its_user_and_appends_to_its_log(any_agent, key, until, order):
    """User, groups, umask, environment and directory are as asked; the log is the user's, and is appended to."""
    channel = any_agent.connect()
    log = Path(order("")["log"])
    script = "id -un; id -Gn; umask; echo $EXTRA $HOME $USER; pwd; echo trouble >&2"
    for _ in range(2):
        channel.ask("spawn", key=key, **order(script, user=NOBODY, env={"EXTRA": "one"}, cwd="/tmp"))
        until(lambda: not channel.ask("spawned", key=key)["alive"])

    account = pwd.getpwnam(NOBODY)
    lines = log.read_text().splitlines()
    assert lines[:6] == [NOBODY, lines[1], "0022", f"one {account.pw_dir} {NOBODY}", "/tmp", "trouble"]
    assert "root" not in lines[1]
    assert lines[6:] == lines[:6]
    assert log.stat().st_uid == account.pw_uid


def test_it_outlives_the_agent_and_a_later_one_knows_it(agent, key, order):
    """Killing the server ends no training: its session and its cgroup are its own."""
    started = agent.connect().ask("spawn", key=key, **order("exec sleep 60"))
    assert started["pid"] in [process.pid for process in cgroups.members(group_of(key))]
    assert [process.pid for process in in_session(started["pid"])] == [started["pid"]]
    agent.kill("serve")

    channel = agent.connect()
    assert channel.ask("spawned", key=key) == {"alive": True, **started}
    with pytest.raises(RuntimeError, match="alive under key"):
        channel.ask("spawn", key=key, **order("true"))
    assert channel.ask("stop", key=key, grace=5.0) == {"stopped": True}
    assert not channel.ask("spawned", key=key)["alive"]


def test_stop_ends_all_kin_also_those_with_a_session_of_their_own(any_agent, key, until, order):
    """Workers that ignore SIGTERM and lead their own sessions are found by their cgroup."""
    pids = Path(order("")["log"]).with_name("pids")
    worker = f"trap '' TERM; echo $$ >> {pids}; while :; do sleep 0.1; done"
    channel = any_agent.connect()
    channel.ask("spawn", key=key, **order(f'setsid /bin/sh -c "{worker.replace("$", chr(92) + "$")}" & {worker}'))
    until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    kin = [Process.of(int(pid)) for pid in pids.read_text().split()]

    start = time.monotonic()
    assert channel.ask("stop", key=key, grace=0.5) == {"stopped": True}
    assert time.monotonic() - start > 0.5
    assert not any(process.alive() for process in kin)
    assert not any(os.path.exists(os.path.join(root, group_of(key))) for root in cgroups.roots())


def test_a_process_that_obeys_is_not_killed(agent, key, order):
    """SIGTERM first, and no waiting once it has gone."""
    channel = agent.connect()
    out = Path(order("")["log"])
    channel.ask("spawn", key=key, **order("trap 'echo bye; exit' TERM; echo up; while :; do sleep 0.05; done"))
    while "up" not in (out.read_text() if out.exists() else ""):
        time.sleep(0.01)
    watch = FairWatch()

    assert channel.ask("stop", key=key, grace=30.0) == {"stopped": True}
    assert watch.took() < 5.0
    assert out.read_text().endswith("bye\n")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"argv": ["/no/such/program"]}, "FileNotFoundError"),
        ({"argv": []}, "argv is not empty"),
        ({"user": "no-such-user"}, "does not exist"),
        ({"cwd": "/no/such/folder"}, "/no/such/folder"),
        ({"log": "relative"}, "absolute"),
        ({"log": "/no/such/folder/log"}, "/no/such/folder/log"),
        ({"env": {"A": "b\0c"}}, "NUL"),
    ],
)
def test_what_cannot_start_says_why(shared_agent, key, more, words, order):
    """The error names what was wrong; nothing is left running."""
    channel = shared_agent.connect()
    with pytest.raises(RuntimeError, match=words):
        channel.ask("spawn", key=key, **{**order("true"), **more})
    assert cgroups.members(group_of(key)) == []


@pytest.mark.row("S4")
@pytest.mark.parametrize("key", ["../x", "", "a/b", ".hidden"])
def test_a_key_is_no_path(shared_agent, key):
    """It becomes a file's and a cgroup's name."""
    with pytest.raises(RuntimeError, match="cannot be a name"):
        shared_agent.connect().ask("spawned", key=key)


def test_an_unknown_key_is_an_error(shared_agent):
    """Never 'not alive': nobody knows."""
    with pytest.raises(RuntimeError, match="nothing was started"):
        shared_agent.connect().ask("spawned", key="unknown")
