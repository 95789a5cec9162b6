"""Generated logs: whatever the trainer, its prefixes and colours, and however its bytes arrive, each step is told once and rightly."""

import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from properties import check, tried
from scripted_node import ScriptedNode

from chaoskit.agent.tail import Follower
from chaoskit.judge import judge
from chaoskit.judge.timeline import Fact, InjectionFacts, Interval, Spec, Timeline
from chaoskit.model.experiment import Budgets
from chaoskit.model.inventory import Format
from chaoskit.training.formats import compile_format
from chaoskit.training.watch import Watch

YES = Fact(True)
WRITERS = {
    "chaoskit": "step {} loss 5.4300 batch 32",
    "megatron": " [2026-01-02 03:04:05.678901] iteration {:8d}/   90000 | consumed samples:           50 | global batch size:     4 |",
    "nemo": "Training epoch 1, iteration 2/19 | lr: 1e-06 | global_batch_size: 512 | global_step: {} | reduced_train_loss: 9",
    "torchtitan": "[titan] 2026-01-02 03:04:05,678 - root - INFO - step: {}  loss: 11.8  grad_norm:  9.6",
    "deepspeed": "steps: {} loss: 7.1234 iter time (s): 1.234 samples/sec: 829.9",
    "maxtext": "completed step: {}, seconds: 0.159, TFLOP/s/device: 43.430, loss: 11.689",
    "composer": "[epoch=1][batch={}/90000]:",
    "nanogpt": "iter {}: loss 2.1234, time 135.67ms, mfu 12.34%",
}
NOISE = (
    "warnings.warn(",
    "\rloading shards:  10%|#   | 1/10\rloading shards:  20%|##  | 2/10",
    "",
    "   ",
    "eval loss 2.31 after 400 batches",
    "\x1b]0;title\x07",
    "Saving model checkpoint to out/checkpoint-500",
    "ünïcode \u2028 and \x85 in one line",
)
PREFIXES = ("", "[default0]:", "[rank0]: ", "0: ", "0: [default3]:", "(RayTrainWorker, pid=12) ")


@dataclass(frozen=True)
class Story:
    """What one log says: its trainer, how its lines look, and the lives it tells, each as (first step, last step)."""

    trainer: str
    prefix: str
    coloured: bool
    lives: tuple
    every: int

    def steps(self):
        return [list(range(first, last + 1, self.every)) for first, last in self.lives]

    def line(self, step):
        text = WRITERS[self.trainer].format(step)
        return f"{self.prefix}\x1b[32m{text}\x1b[0m" if self.coloured else f"{self.prefix}{text}"


@st.composite
def stories(draw):
    """
    One to four lives; each begins below the last step of the one before.

    Where nothing but steps is logged a life that begins with the very step that the last one ended with cannot be told from
    a second rank that prints it too.
    """
    every, lives, reached = draw(st.sampled_from([1, 1, 10])), [], 0
    for number in range(draw(st.integers(1, 4))):
        resumed = 0 if number == 0 else reached - every * draw(st.integers(2, min(reached // every, 6)))
        reached = resumed + every * draw(st.integers(2, 8))
        lives.append((resumed + every, reached))
    return Story(draw(st.sampled_from(list(WRITERS))), draw(st.sampled_from(PREFIXES)), draw(st.booleans()), tuple(lives), every)


def written(story, noise, ends):
    """Return the log's bytes: the steps in order, each life's beginning told by its falling step alone, noise in between."""
    lines = []
    for steps in story.steps():
        for step in steps:
            lines += [noise.draw(st.sampled_from(NOISE)) for _ in range(noise.draw(st.sampled_from([0, 0, 1])))]
            lines.append(story.line(step))
    return "".join(f"{line}{ends}" for line in lines).encode()


def read_by_a_tailer(raw, cuts):
    """Return the reads of a real follower of a real file that grows by these cuts, in the middle of lines and of characters."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log")
        path.touch()
        follower, reads = Follower(str(path), whole=True, now=0.0), []
        with path.open("ab", buffering=0) as log:
            for lo, hi in pairwise([0, *cuts, len(raw)]):
                log.write(raw[lo:hi])
                while (chunk := follower.poll(0.0)) is not None:
                    reads.append(tuple(chunk.lines))
        follower.close()
    return reads


def told(samples):
    """Return the steps of each life, as samples tell them: a session, or the part of one up to a step that falls back."""
    lives = []
    for before, sample in zip([None, *samples], samples, strict=False):
        if before is None or sample.session != before.session or sample.step < before.step:
            lives.append([])
        lives[-1].append(sample.step)
    return lives


@tried(60, 2500)
def test_every_step_is_told_once_whatever_the_format_the_prefix_and_the_cuts(examples):
    """Bytes are cut anywhere, lines are coloured, prefixed and interrupted by noise; the samples are the steps, life by life."""

    @given(story=stories(), noise=st.data(), ends=st.sampled_from(["\n", "\r\n"]), auto=st.booleans(), data=st.data())
    def holds(story, noise, ends, auto, data):
        raw = written(story, noise, ends)
        cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=10)))
        watch, node = Watch(compile_format("auto" if auto else story.trainer, "x"), None, None), ScriptedNode("n1")
        watch.follow(node, "/log", whole=True, now=0.0)
        for number, lines in enumerate(read_by_a_tailer(raw, cuts), 1):
            node.read(*lines, at=float(number))
        assert told(watch.poll(1000.0).samples) == story.steps()

    check(holds, examples)


@tried(40, 1500)
def test_a_channel_that_is_lost_at_any_moment_neither_loses_nor_doubles_a_step(examples):
    """The log is read again from its start after each loss, in other cuts; what was known is not told again."""

    @given(story=stories(), noise=st.data(), data=st.data())
    def holds(story, noise, data):
        raw, samples = written(story, noise, "\n"), []
        watch, node, now = Watch(compile_format(story.trainer, "x"), None, None), ScriptedNode("n1"), 0.0
        watch.follow(node, "/log", whole=True, now=0.0)
        grown = [*sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=4))), len(raw)]
        for size in grown:
            cuts = sorted(data.draw(st.lists(st.integers(0, size), max_size=4)))
            for lines in read_by_a_tailer(raw[:size], cuts):
                now += 1.0
                node.read(*lines, at=now)
            samples += watch.poll(now).samples
            node.connected = False
            node = ScriptedNode("n1")
            watch.again(node, rebooted=False, now=now)
        node.read(*[line for lines in read_by_a_tailer(raw, []) for line in lines], at=now + 1)
        samples += watch.poll(now + 1).samples
        assert told(samples) == story.steps()

    check(holds, examples)


@tried(40, 1500)
def test_json_lines_that_name_their_life_are_read_from_any_number_of_interleaved_logs(examples):
    """Each rank writes its own file; torn and foreign lines say nothing; a step that several ranks tell counts once."""

    @given(last=st.lists(st.integers(1, 9), min_size=1, max_size=3), ranks=st.integers(1, 3), data=st.data())
    def holds(last, ranks, data):
        spec = Format(jsonl={"step": "train.step", "incarnation": "attempt"})
        watch, nodes = Watch(compile_format(spec, "x"), None, None), [ScriptedNode(f"n{rank}") for rank in range(ranks)]
        for node in nodes:
            watch.follow(node, "/log", whole=True, now=0.0)
        now = 0.0
        for attempt, steps in enumerate(last):
            left = {rank: list(range(1, steps + 1)) for rank in range(ranks)}
            for rank in data.draw(st.permutations([one for one in left for _ in left[one]])):
                now += 1.0
                record = f'{{"train": {{"step": {left[rank].pop(0)}}}, "attempt": "a{attempt}"}}'
                nodes[rank].read(*data.draw(st.sampled_from([(), ('{"train": {"step": 9',), ("{}", "[1]")])), record, at=now)
        found = {}
        for sample in watch.poll(now).samples:
            found.setdefault(sample.session, []).append(sample.step)
        assert found == {f"a{attempt}": list(range(1, steps + 1)) for attempt, steps in enumerate(last)}

    check(holds, examples)


@tried(40, 1500)
def test_what_the_judge_counts_from_a_log_is_what_the_trainer_did(examples):
    """
    A training that was killed once: restarts and lost steps, from bytes to verdict, are those of the story.

    A read that holds all that is done again and more besides could also be of the old life going on: so no read is longer.
    """

    @given(
        trainer=st.sampled_from([name for name, line in WRITERS.items() if "03:04:05" not in line]),  # that clock stands still
        top=st.integers(125, 140),
        lost=st.integers(2, 30),
        reads=st.integers(1, 4),
        down=st.floats(6.0, 60.0),
    )
    def holds(trainer, top, lost, reads, down):
        story = Story(trainer, "[rank0]: ", False, ((1, top), (top - lost + 1, top + 60)), 1)
        watch, node, now = Watch(compile_format(trainer, "x"), None, None), ScriptedNode("n1"), 0.0
        watch.follow(node, "/log", whole=True, now=0.0)
        samples = []
        for number, steps in enumerate(story.steps()):
            now += down * number
            length = min(reads, lost)
            for place in range(0, len(steps), length):
                block = steps[place : place + length]
                now += float(len(block))
                node.read(*(story.line(step) for step in block), at=now, since=now - len(block))
                node.beat(now)
                samples += watch.poll(now).samples
            if number == 0:
                t0 = Interval.at(now + 0.5)
        fault = InjectionFacts("rank_kill", "", ("n1",), True, t0=t0, present=YES, exposed=YES, gone=YES)
        seen = Timeline(tuple(samples), (), (1.0, 120.0), (fault,), watched_until=now)
        verdict = judge(seen, Spec(Budgets(), for_=0.0))
        restarts, steps = verdict.quantities["restarts"].value, verdict.quantities["lost_steps"].value
        assert (restarts.lo, restarts.hi) == (1, 1)
        assert steps.lo <= lost <= steps.hi

    check(holds, examples)
