"""What log lines tell: shapes of well-known trainers and launchers, and what users write themselves."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaoskit.errors import InputError
from chaoskit.model.inventory import Format
from chaoskit.training.cleaning import clean
from chaoskit.training.events import EventKind
from chaoskit.training.formats import compile_format, parse_time

SAMPLES = Path(os.environ.get("CHAOSKIT_LOG_SAMPLES") or Path(__file__).parents[3] / "shared" / "logs")
"""Logs of real trainings, whose owners do not let us ship them; kept beside the checkout where there are any."""


def read(spec, text):
    reader = compile_format(spec, "trainings.x.format").reader()
    return [event for raw in text.split("\n") for _, line in clean(raw) for event in reader.feed(line)]


def told(spec, text):
    return [(event.kind.value, event.step) for event in read(spec, text)]


@pytest.mark.parametrize(
    ("name", "line", "step", "batch"),
    [
        ("chaoskit", "step 120 loss 5.4300 batch 32", 120, 32),
        (
            "megatron",
            " iteration       40/    1000 | consumed samples:   160 | lr: 0.0 | global batch size:     4 | lm loss: 1.2E+01 |",
            40,
            4,
        ),
        ("megatron", " [2026-01-02 03:04:05.678901] iteration        7/     900 | consumed samples:            50 |", 7, None),
        ("megatron", "[default7]: iteration    10/  500 | consumed tokens:  2 | elapsed time per iteration (s): 105.22 |", 10, None),
        (
            "nemo",
            "Training epoch 1, iteration 2/19 | lr: 1e-06 | global_batch_size: 512 | global_step: 21 | reduced_train_loss: 9",
            21,
            512,
        ),
        ("torchtitan", "[titan] 2026-01-02 03:04:05,678 - root - INFO - step: 20  loss: 11.8  grad_norm:  9.6", 20, None),
        ("deepspeed", "[2026-01-02 03:04:05] [INFO] [logging.py:1] [Rank 0] step=10, skipped=0, lr=[0.1], mom=[0.9]", 10, None),
        ("deepspeed", "steps: 10 loss: 7.1234 iter time (s): 1.234 samples/sec: 829.9", 10, None),
        ("maxtext", "completed step: 8, seconds: 0.159, TFLOP/s/device: 43.430, loss: 11.689", 8, None),
        ("composer", "[epoch=1][batch=3/50]:", 3, None),
        ("nanogpt", "iter 250: loss 2.1234, time 135.67ms, mfu 12.34%", 250, None),
    ],
)
def test_steps_of_well_known_trainers_are_read_by_name_and_by_auto(name, line, step, batch):
    for spec in (name, "auto"):
        [event] = read(spec, line)
        assert (event.kind, event.step, event.batch) == (EventKind.STEP, step, batch)


def test_auto_keeps_to_the_first_trainer_whose_step_it_saw():
    assert told("auto", "iter 5: loss 2.1, time 1ms\nsteps: 9 loss: 7.1 iter time (s): 1.2") == [("step", 5)]


def test_the_stamp_inside_a_line_is_read():
    [event] = read("megatron", "[1970-01-02 00:00:01.500000] iteration 7/ 9 |")
    assert event.time == 86401.5


TORCHRUN = """\
I0101 12:00:00.000 7 torch/distributed/elastic/agent/server/api.py:912] [default] starting workers for entrypoint: python
I0101 12:00:00.001 7 torch/distributed/elastic/agent/server/api.py:707] [default] Rendezvous'ing worker group
I0101 12:00:01.000 7 torch/distributed/elastic/agent/server/api.py:553] [default] Rendezvous complete for workers. Result:
I0101 12:00:01.000 7 torch/distributed/elastic/agent/server/api.py:553]   restart_count=0
I0101 12:00:01.000 7 torch/distributed/elastic/agent/server/api.py:553]   group_rank=0
I0101 12:00:01.000 7 torch/distributed/elastic/agent/server/api.py:553]   global_ranks=[{ranks}]
I0101 12:00:01.000 7 torch/distributed/elastic/agent/server/api.py:715] [default] Starting worker group
chaoskit-trainer start rank {rank} restart 0 pid 345
group up rank 0 world 4
no checkpoint
step 1 loss 5.4300 batch 32
E0101 12:00:09.000 7 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 0 (pid: 345) of binary: python
I0101 12:00:09.000 7 torch/distributed/elastic/agent/api.py:942] [default] Worker group FAILED. 3/3 attempts left; will restart worker group
I0101 12:00:09.000 7 torch/distributed/elastic/agent/server/api.py:707] [default] Rendezvous'ing worker group
"""


def test_an_elastic_agent_tells_births_with_their_rank_failures_and_the_end_of_its_old_workers():
    events = read("chaoskit", TORCHRUN.format(ranks="0, 1", rank=0))
    assert [(event.kind.value, event.rank, event.by_agent) for event in events if event.kind is EventKind.BORN] == [
        ("born", 0, True),
        ("born", 0, False),
    ]
    assert [event.kind.value for event in events] == ["born", "born", "group_up", "loaded", "step", "detect", "detect", "old_gone"]
    assert [event.rank for event in read("chaoskit", TORCHRUN.format(ranks="2,3", rank=2))][:2] == [2, 2]


def test_the_first_rendezvous_of_an_agent_ends_nothing():
    assert "old_gone" not in [kind for kind, _ in told("auto", TORCHRUN.split("E0101", maxsplit=1)[0].format(ranks="0", rank=0))]


@pytest.mark.parametrize(
    "line",
    [
        "[default] Detected 1 new nodes from group_rank=0; will restart worker group",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        "RendezvousClosedError",
        "[rank0]:[E1218 20:27:21 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)",
        "RuntimeError: [/x/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:1: Connection reset by peer",
        "srun: error: Node failure on gpu003",
        "slurmstepd: error: *** JOB 17 ON gpu1 CANCELLED AT 2026-01-01T00:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
        "failed rank 2 after step 130: RuntimeError: x",
    ],
)
def test_first_signs_of_trouble_are_read_in_every_format(line):
    assert told("chaoskit", line) == told(Format(regex={"step": r"it (\d+)"}), line) == told(Format(jsonl={"step": "s"}), line)
    assert told("auto", line) == [("detect", None)]


def test_own_expressions_carry_values_in_named_groups_and_replace_what_launchers_say():
    spec = Format(
        regex={
            "step": r"it (?P<step>[\d,]+) b=(?P<batch>\d+) t=(?P<time>\S+) s=(?P<session>\w+)",
            "loaded": r"from (?P<step>\d+)|scratch",
            "born": r"hello (?P<rank>\d+)",
            "detect": "oops",
            "exit": "bye",
        }
    )
    events = read(spec, "it 1,024 b=8 t=12.5 s=a1\nfrom 77\nscratch\nhello 3\noops\nWorker group FAILED\nbye\nStarting worker group")
    assert [(event.kind.value, event.step) for event in events] == [
        ("step", 1024),
        ("loaded", 77),
        ("loaded", 0),
        ("born", None),
        ("detect", None),
        ("exit", None),
    ]
    assert (events[0].batch, events[0].time, events[0].session, events[3].rank) == (8, 12.5, "a1", 3)
    assert told(Format(regex={"step": r"it (\d+)"}), "it 5") == [("step", 5)]


def test_json_lines_map_keys_nested_ones_by_dots():
    spec = Format(jsonl={"step": "train.step", "time": "ts", "batch": "bs", "incarnation": "attempt", "event": "what"})
    text = (
        '{"what": "step", "train": {"step": 7}, "ts": 1700000000000, "bs": 64, "attempt": 2}\n{"what": "lr"}\n{torn\n[1]\n{"what":"step"}'
    )
    [event] = read(spec, text)
    assert (event.step, event.time, event.batch, event.session) == (7, 1.7e9, 64, "2")
    assert told(Format(jsonl={"step": "s"}), '{"s": 3}\n{"x": 1}\n{"s": "no"}\n{"s": null}') == [("step", 3)]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("megatorn", "trainings.x.format: unknown format 'megatorn', did you mean 'megatron'?"),
        (Format(), "trainings.x.format: expected exactly one of regex and jsonl"),
        (Format(regex={"stp": "a"}), "stp: unknown name, did you mean 'step'?\nexpected an expression for step"),
        (Format(regex={"step": "it (\\d+"}), "step: not a regular expression: missing ), unterminated subpattern at character 4"),
        (Format(regex={"step": "it \\d+"}), "step: expected a group named step, such as (?P<step>\\d+)"),
        (Format(regex={"step": "(?P<stp>1)"}), "step: unknown name, did you mean 'step'?"),
        (Format(jsonl={"tme": "t"}), "tme: unknown name, did you mean 'time'?\nexpected the key of the step"),
    ],
)
def test_a_format_that_cannot_be_used_says_where_and_all_that_is_wrong(spec, expected):
    with pytest.raises(InputError) as caught:
        compile_format(spec, "trainings.x.format")
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.7e9, 1.7e9),
        ("1700000000123", 1.7e9 + 0.123),
        (1.7e18, 1.7e9),
        (12.5, 12.5),
        ("2026-01-02T03:04:05Z", 1767323045.0),
        ("2026-01-02 03:04:05,5", 1767323045.5),
        ("nan", None),
        ("soon", None),
        (None, None),
        ([], None),
    ],
)
def test_stamps_are_read_in_any_usual_unit(value, expected):
    assert parse_time(value) == (None if expected is None else pytest.approx(expected))


@given(st.text(), st.sampled_from(["auto", Format(jsonl={"step": "a.b", "time": "t"}), Format(regex={"step": r"(\d+)"})]))
def test_no_line_breaks_a_reader(text, spec):
    read(spec, text)
    read(spec, '{"a": ' + text + "}")


@pytest.mark.skipif(not SAMPLES.is_dir(), reason=f"no real logs in {SAMPLES}: name their folder in CHAOSKIT_LOG_SAMPLES")
@pytest.mark.parametrize(
    ("name", "steps", "last"),
    [("nemo2_baseline.log", 20, 19), ("nemo2_nvrx_ft_launcher_crash_restart.log", 26, 19), ("megatron_2021_n4_cancelled.out", 20, 200)],
)
def test_real_logs_are_read(name, steps, last):
    found = [step for kind, step in told("auto", (SAMPLES / name).read_text(errors="replace")) if kind == "step"]
    assert (len(found), found[-1]) == (steps, last)
