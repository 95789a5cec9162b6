"""From reads to samples: however the lines arrive, what is told is the same, and silence has an owner."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from scripted_node import ScriptedNode

from chaoskit.judge.timeline import MarkKind
from chaoskit.training.formats import compile_format
from chaoskit.training.watch import Watch


def watching(*names, spec="chaoskit", batch=None, whole=True):
    watch, nodes = Watch(compile_format(spec, "x"), None, batch), [ScriptedNode(name) for name in names]
    for node in nodes:
        watch.follow(node, "/log", whole=whole, now=0.0)
    return watch, *nodes


def born(rank, restart=0):
    ranks = f"  global_ranks=[{rank}]"
    return [
        "api.py:912] [default] starting workers for entrypoint: python",
        "api.py:707] [default] Rendezvous'ing worker group",
        f"api.py:553] {ranks}",
        "api.py:715] [default] Starting worker group",
        f"chaoskit-trainer start rank {rank} restart {restart} pid 9",
    ]


def life(restart, loaded, last):
    """Return the log of rank 0's node over one life."""
    steps = [f"step {step} loss 1.0 batch 32" for step in range(loaded + 1, last + 1)]
    head = born(0, restart)[1 if restart else 0 :]
    start = f"loaded step {loaded}" if loaded else "no checkpoint"
    return [*head, "group up rank 0 world 2", start, *steps, "failed (exitcode: -9) local_rank: 0 (pid: 9) of binary: python"]


@given(st.data())
def test_how_lines_are_cut_into_reads_and_polls_changes_nothing_but_uncertainty(data):
    lines = life(0, 0, 12) + life(1, 10, 15) + life(2, 10, 20)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(lines)), max_size=12)))
    watch, node = watching("n1")
    samples, marks, now = [], [], 0.0
    for lo, hi in pairwise([0, *cuts, len(lines)]):
        now += data.draw(st.floats(0.02, 5))
        node.read(*lines[lo:hi], at=now)
        if data.draw(st.booleans()):
            seen = watch.poll(now)
            samples, marks = samples + list(seen.samples), marks + list(seen.marks)
    seen = watch.poll(now)
    samples, marks = samples + list(seen.samples), marks + list(seen.marks)
    expected = [("n1#1", step) for step in range(1, 13)] + [("n1#2", step) for step in range(11, 16)]
    assert [(sample.session, sample.step) for sample in samples] == expected + [("n1#3", step) for step in range(11, 21)]
    assert [mark.session for mark in marks if mark.kind is MarkKind.BORN] == ["n1#1", "n1#2", "n1#3"]
    assert [(mark.session, mark.step) for mark in marks if mark.kind is MarkKind.LOADED] == [("n1#1", 0), ("n1#2", 10), ("n1#3", 10)]
    assert all(early.t.hi <= late.t.hi for early, late in pairwise(samples))


@given(st.data())
def test_how_the_logs_of_two_nodes_interleave_within_a_life_changes_no_sample(data):
    first = [*life(0, 0, 5), *life(1, 0, 5)]
    second = [*born(1), "failed (exitcode: 1) local_rank: 0 (pid: 8) of binary: python", *born(1, 1)[1:]]
    watch, n1, n2 = watching("n1", "n2")
    order = data.draw(st.permutations(["n1"] * len(first) + ["n2"] * len(second)))
    left = {"n1": iter(first), "n2": iter(second)}
    for number, name in enumerate(order):
        (n1 if name == "n1" else n2).read(next(left[name]), at=1.0 + number)
    seen = watch.poll(100.0)
    assert [(sample.session, sample.step) for sample in seen.samples] == [(f"n1#{life}", step) for life in (1, 2) for step in range(1, 6)]
    assert dict(seen.batch) == {"n1#1": 32, "n1#2": 32}
    assert dict(seen.gpus) == {"n1#1": 2, "n1#2": 2}


def test_a_log_read_again_after_a_lost_channel_counts_once_and_its_lines_are_as_old_as_the_loss():
    watch, node = watching("n1")
    lines = life(0, 0, 9)[:-1]
    for number, line in enumerate(lines[:-4]):
        node.read(line, at=1.0 + number / 20)
    node.beat(2.0)
    assert [sample.step for sample in watch.poll(2.0).samples] == [1, 2, 3, 4, 5]
    node.connected = False
    node.end(3.0)
    assert watch.poll(5.0).blind == ((2.0, 5.0),)
    again = ScriptedNode("n1")
    watch.again(again, rebooted=False, now=6.0)
    assert again.followed == [("/log", True)]
    again.read(*lines, at=6.5, since=0.0)
    again.beat(6.6)
    seen = watch.poll(7.0)
    assert [sample.step for sample in seen.samples] == [6, 7, 8, 9]
    assert all(1.9 <= sample.t.lo <= 2.0 <= sample.t.hi == 6.5 for sample in seen.samples)
    assert seen.blind == ((2.0, 6.5),)


def test_a_rebooted_node_was_not_out_of_sight():
    watch, node = watching("n1")
    node.read(*life(0, 0, 5)[:-1], at=1.0)
    node.connected = False
    assert watch.poll(6.0).blind == ((1.0, 6.0),)
    again = ScriptedNode("n1", "boot-2")
    watch.again(again, rebooted=True, now=7.0)
    again.read(*life(0, 0, 6)[:-1], at=7.2, since=0.0)
    seen = watch.poll(7.3)
    assert seen.blind == ((1.0, 1.0),)
    assert [sample.step for sample in seen.samples] == [6]


def test_a_rebooted_node_whose_log_is_not_read_again_was_out_of_sight():
    """An attached training may have been started again at boot, and its first lines came before we were back."""
    watch, node = watching("n1", spec="nanogpt", whole=False)
    node.read("iter 5: loss 1", at=1.0)
    node.connected = False
    assert watch.poll(6.0).blind == ((1.0, 6.0),)
    again = ScriptedNode("n1", "boot-2")
    watch.again(again, rebooted=True, now=7.0)
    again.beat(7.2)
    assert watch.poll(7.3).blind == ((1.0, 7.2),)


def test_a_tailer_that_ends_on_a_connected_node_is_started_again():
    watch, node = watching("n1")
    node.end(1.0, "permission denied")
    watch.poll(1.5)
    assert len(node.followed) == 1
    assert "n1: permission denied (log not followed)" in watch.last_lines()
    watch.poll(3.5)
    assert len(node.followed) == 2


def test_events_of_an_earlier_tailer_are_not_taken():
    watch, node = watching("n1", spec="nanogpt")
    late = node._on_event
    watch.again(node, rebooted=False, now=1.0)
    node._on_event, current = late, node._on_event
    node.read("iter 5: loss 1", at=2.0)
    node._on_event = current
    node.read("iter 6: loss 1", at=2.0)
    assert [sample.step for sample in watch.poll(3.0).samples] == [6]


def test_the_inventorys_batch_holds_where_the_log_says_none():
    watch, node = watching("n1", spec="nanogpt", batch=480)
    node.read("iter 5: loss 1", at=2.0)
    assert dict(watch.poll(3.0).batch) == {"": 480}
    watch, node = watching("n1", batch=480)
    node.read("step 5 loss 1.0 batch 32", at=2.0)
    assert dict(watch.poll(3.0).batch) == {"": 32}


def test_what_the_workers_said_is_kept_from_the_launchers_long_reports():
    watch, node = watching("n1")
    node.read("ValueError: no such dataset", "failed (exitcode: 1) local_rank: 0 (pid: 1) of binary: x", *["noise"] * 50, at=1.0)
    watch.poll(1.0)
    assert "n1 | ValueError: no such dataset" in watch.last_lines()


def test_following_stops():
    watch, node = watching("n1")
    watch.stop()
    assert node._on_event is None
    assert watch.poll(9.0).samples == ()
