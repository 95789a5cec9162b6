"""Trainings that others start: by the site's commands, or long before we came. Real scripts, real logs."""

import os
import signal
import stat
import sys
import time

import pytest
from fair_watch import until
from local_node import LocalNode

from chaoskit.errors import AbortedError, InputError, TrainingError
from chaoskit.judge.timeline import MarkKind
from chaoskit.model.inventory import Format, Inventory, InventoryFile, Node, Ssh, TrainingSpec
from chaoskit.training import make_training
from chaoskit.training.launch import open_training

TRAINER = """\
import sys, time
for step in range(1, 100000):
    print(f"it {step} done", flush=True)
    time.sleep(0.02)
"""
START = """\
#!/bin/sh
# As sbatch --parsable does: the job's id, and the cluster's name. What it leaves behind holds its standard error open.
{python} {folder}/trainer.py >{folder}/job-77.out &
echo $! >{folder}/pid
sleep 0.5
echo "77;cluster"
"""
STOP = """\
#!/bin/sh
echo "$1" >{folder}/stopped
kill "$(cat {folder}/pid)"
"""


@pytest.fixture
def folder(tmp_path):
    """A site's scripts; whatever they started is ended afterwards."""
    (tmp_path / "trainer.py").write_text(TRAINER)
    for name, text in (("start", START), ("stop", STOP)):
        path = tmp_path / name
        path.write_text(text.format(python=sys.executable, folder=tmp_path))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    yield tmp_path
    if (pid := tmp_path / "pid").exists() and not (tmp_path / "stopped").exists():
        os.kill(int(pid.read_text()), 9)


def site(spec, *names):
    nodes = {name: Node(name, "workers", 8, (), None, None, (), None, False) for name in names or ("login1",)}
    return Inventory("test", "test.yaml", nodes, InventoryFile("test", {}, Ssh(), trainings={"default": spec}))


def command(folder, **more):
    values = {
        "start": (f"{folder}/start",),
        "stop": (f"{folder}/stop", "{job}"),
        "log": f"{folder}/job-{{job}}.out",
        "format": Format(regex={"step": r"it (\d+) done"}),
        "start_within": 10.0,
    }
    return TrainingSpec("command", **(values | more))


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_commands_start_and_end_a_job_whose_log_is_followed_from_its_first_line(folder):
    spec = command(folder)
    training = make_training(spec, site(spec), "run-1")
    node = LocalNode("login1")
    training.start({"login1": node})
    assert (training.job, training.launches, training.nodes, training.run_id) == ("77", True, ("login1",), "")
    steps = [sample.step for sample in training.poll(time.monotonic()).samples]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= 1
    pid = int((folder / "pid").read_text())
    training.stop()
    assert (folder / "stopped").read_text() == "77\n"
    until(lambda: not alive(pid), seconds=10.0)
    assert not node.tails


def test_a_job_may_wait_in_the_queue_and_then_tell_its_nodes(folder):
    counter = folder / "asked"
    (folder / "nodes").write_text(f'#!/bin/sh\nif [ -e {counter} ]; then echo "gpu[1-2]"; fi\ntouch {counter}\n')
    (folder / "nodes").chmod(0o700)
    spec = command(folder, nodes_command=(f"{folder}/nodes", "{job}"), log_nodes="gpu1", run_id="{run}-{job}")
    training = make_training(spec, site(spec, "gpu1", "gpu2", "gpu3"), "run-1")
    assert training.nodes == ("gpu1", "gpu2", "gpu3")
    training.start({name: LocalNode(name) for name in training.nodes})
    assert training.nodes == ("gpu1", "gpu2")
    assert training.run_id == "run-1-77"
    training.stop()


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"start": ("false",)}, "trainings.default.start: false ended with status 1"),
        ({"start": ("echo", "; rm -rf /")}, "trainings.default.start: expected a job id, found '; rm -rf /"),
        ({"start": ("echo", "Submitted batch job 77")}, "trainings.default.start: expected a job id, found 'Submitted batch job 77"),
        ({"start": ("/no/such/program",)}, "trainings.default.start: cannot run /no/such/program: No such file or directory"),
        ({"nodes_command": ("echo", "other9")}, "the job runs on nodes that this training may not use: other9"),
        ({"nodes_command": ("echo", "a[")}, "trainings.default.nodes_command: expected a host list, found"),
    ],
)
def test_what_a_command_gets_wrong_is_said(folder, more, expected):
    spec = command(folder, **more)
    training = make_training(spec, site(spec), "run-1")
    with pytest.raises(TrainingError) as caught:
        training.start({"login1": LocalNode("login1")})
    assert expected in str(caught.value)


def script(folder, name, text):
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o700)
    return f"{folder}/{name}"


def not_started(folder, error=TrainingError, **more):
    """Return a training whose start failed, and what was said of it."""
    spec = command(folder, **more)
    training = make_training(spec, site(spec), "run-1")
    with pytest.raises(error) as caught:
        training.start({"login1": LocalNode("login1")})
    return training, str(caught.value)


def test_a_job_whose_command_hangs_after_the_submission_is_ended(folder, monkeypatch):
    monkeypatch.setattr("chaoskit.training.site_command.GRACE", 0.0)
    (folder / "pid").write_text("999999999")  # nothing to kill
    training, said = not_started(folder, start=(script(folder, "hangs", "echo 77; exec sleep 60"),), start_within=0.5)

    assert "trainings.default.start: " in said
    assert "hangs did not end within 0.5 s" in said
    assert "77" == training.job
    with pytest.raises(TrainingError, match="ended with status"):  # as `kill` says
        training.stop()
    assert "77\n" == (folder / "stopped").read_text()


@pytest.mark.parametrize("says", ["", "printf 7;"], ids=["nothing", "a part of the id"])
def test_a_job_whose_id_was_never_told_is_ended_by_its_name(folder, monkeypatch, says):
    monkeypatch.setattr("chaoskit.training.site_command.GRACE", 0.0)
    stop = (script(folder, "by-name", f'echo "$1" >{folder}/stopped'), "--name={run}")
    training, _ = not_started(folder, start=(script(folder, "hangs", f"{says} exec sleep 60"),), stop=stop, start_within=0.5)

    assert "" == training.job
    training.stop()
    assert "--name=run-1\n" == (folder / "stopped").read_text()


def test_nothing_is_ended_when_the_submission_itself_failed(folder):
    stop = (script(folder, "by-name", f"touch {folder}/stopped"), "--name={run}")
    training, _ = not_started(folder, start=(script(folder, "fails", "echo 77; exit 3"),), stop=stop)

    assert "" == training.job
    training.stop()
    assert not (folder / "stopped").exists()


def test_a_signal_in_the_middle_of_the_submission_does_not_lose_the_job(folder):
    def ended(*_):
        raise AbortedError("ended by SIGALRM")

    start = script(folder, "slow", f"touch {folder}/began; sleep 1; echo 78")
    before = signal.signal(signal.SIGALRM, ended)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        training, _ = not_started(
            folder, AbortedError, start=(start,), stop=(script(folder, "note", f'echo "$1" >{folder}/stopped'), "{job}")
        )
    finally:
        signal.signal(signal.SIGALRM, before)

    assert (folder / "began").exists()
    training.stop()
    assert "78\n" == (folder / "stopped").read_text()


def test_a_wait_in_the_queue_can_be_ended(folder):
    """As `chaoskit stop` does; the job does not stay behind."""

    def stopped():
        raise AbortedError("stopped")

    (folder / "stopped").touch()
    start = (script(folder, "queued", "echo 77"),)
    spec = command(folder, start=start, nodes_command=("true",), stop=(script(folder, "end", f"echo $1 >{folder}/stopped"), "{job}"))
    training = make_training(spec, site(spec), "run-1")
    with pytest.raises(AbortedError):
        training.start({"login1": LocalNode("login1")}, stopped)
    training.stop()
    assert "77\n" == (folder / "stopped").read_text()


def test_a_log_may_lie_on_a_node_that_does_not_train(folder):
    spec = command(folder, nodes="gpu[1-2]", log_nodes="login1")
    training = make_training(spec, site(spec, "gpu1", "gpu2", "login1"), "run-1")

    assert (("gpu1", "gpu2"), ("login1",)) == (training.nodes, training.log_nodes)
    training.start({name: LocalNode(name) for name in ("gpu1", "gpu2", "login1")})
    training.stop()


@pytest.fixture
def often(monkeypatch):
    """The job's state is asked for ten times a second."""
    monkeypatch.setattr("chaoskit.training.command.STATE_EVERY", 0.1)


def polled(training, until_):
    """Poll until something holds; return every mark that came."""
    marks, give_up = [], time.monotonic() + 10
    while not until_(marks):
        assert time.monotonic() < give_up
        marks += training.poll(time.monotonic()).marks
        time.sleep(0.02)
    return marks


def test_a_job_that_ends_by_itself_is_noticed_and_not_ended_again(folder, often):
    """Not by the first empty answer: one may fall into the moment of a requeue."""
    (folder / "queued").touch()
    state = script(folder, "state", f"echo >>{folder}/asked; if [ -e {folder}/queued ]; then echo RUNNING; else echo >>{folder}/empty; fi")
    spec = command(folder, state_command=(state,))
    training = make_training(spec, site(spec), "run-1")
    training.start({"login1": LocalNode("login1")})
    polled(training, lambda _: (folder / "asked").exists() and (folder / "asked").stat().st_size >= 2)
    gone = time.monotonic()
    (folder / "queued").unlink()
    marks = polled(training, lambda marks: any(mark.kind is MarkKind.EXIT for mark in marks))
    [ended] = [mark for mark in marks if mark.kind is MarkKind.EXIT]

    assert "job 77 has ended" == ended.says
    assert ended.t.lo <= gone <= ended.t.hi
    assert "\n\n" == (folder / "empty").read_text()
    training.stop()
    assert not (folder / "stopped").exists()


def test_a_scheduler_that_cannot_be_asked_says_nothing_of_the_job(folder, often):
    state = script(folder, "state", f"echo >>{folder}/asked; exit 1")
    spec = command(folder, state_command=(state,))
    training = make_training(spec, site(spec), "run-1")
    training.start({"login1": LocalNode("login1")})
    marks = polled(training, lambda _: (folder / "asked").exists() and (folder / "asked").stat().st_size >= 4)

    assert MarkKind.EXIT not in {mark.kind for mark in marks}
    training.stop()
    assert "77\n" == (folder / "stopped").read_text()


@pytest.mark.parametrize("nodes", [(), ("true",)], ids=["it ran", "it never had nodes"])
def test_a_job_that_ends_before_its_first_step_is_not_waited_for(folder, often, nodes):
    (folder / "stopped").touch()
    start = script(folder, "quits", f"echo no such interpreter >{folder}/job-77.out; echo 77")
    _, said = not_started(folder, start=(start,), state_command=("true",), nodes_command=nodes, start_within=60.0)

    if nodes:
        assert "job 77 ended before it had nodes" in said
    else:
        assert "the training ended before its first step: job 77 is no more" in said
        assert "no such interpreter" in said


def test_a_log_without_a_step_is_an_error_that_quotes_it(folder):
    spec = command(folder, format=Format(regex={"step": r"iteration (\d+)"}), start_within=1.0)
    training = make_training(spec, site(spec), "run-1")
    with pytest.raises(TrainingError, match=r"made no step within 1 s; its log ends:\nlogin1 \| it \d+ done"):
        training.start({"login1": LocalNode("login1")})
    training.stop()


def test_an_attached_training_is_watched_from_now_on_and_goes_on_afterwards(folder):
    log = folder / "run.log"
    log.write_text("iter 1: loss 2\niter 2: loss 2\n")
    spec = TrainingSpec("attach", log=str(log), format="nanogpt", start_within=10.0)
    training = make_training(spec, site(spec), "run-1")
    node = LocalNode("login1")
    with log.open("a") as file:
        tail, node.tail = node.tail, lambda *args: (tail(*args), file.write("iter 3: loss 1\n"), time.sleep(0.1), file.flush())[0]
        training.start({"login1": node})
    assert [sample.step for sample in training.poll(time.monotonic()).samples] == [3]
    assert not training.launches
    training.stop()
    assert not node.tails


def test_every_node_that_is_needed_must_be_connected(folder):
    spec = command(folder)
    with pytest.raises(TrainingError, match="not connected: login1"):
        make_training(spec, site(spec), "run-1").start({})


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (TrainingSpec("attach", group="nobody", log="x"), "trainings.t: no node trains (give nodes: or put nodes into the group nobody)"),
        (TrainingSpec("attach"), "trainings.t.log: expected a log to follow"),
        (TrainingSpec("torchrun", argv=("x",), log="/x"), "trainings.t.user: expected the account that trains"),
        (TrainingSpec("attach", log="x", format="fax"), "trainings.t.format: unknown format 'fax'"),
    ],
)
def test_an_inventory_that_cannot_be_used_is_said_before_anything_starts(spec, expected):
    with pytest.raises(InputError) as caught:
        open_training("t", spec, site(spec), "run-1")
    assert expected in str(caught.value)
