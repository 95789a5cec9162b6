"""Values to dataclasses: strict, all errors at once, and whatever remains after them."""

from dataclasses import dataclass, field
from typing import Any, Dict, List, Literal, Optional

import pytest

from chaoskit.agent.contract import Fault, seconds, share
from chaoskit.model.source import Source
from chaoskit.model.typed import did_you_mean, read_typed, show
from chaoskit.model.yaml_source import parse_source


@dataclass(frozen=True)
class Throttle(Fault):
    """A fault of another package, in the spelling of Python 3.8."""

    gpus: List[int] = field(default_factory=list)
    cap: float = share(0.5)
    hold: float = seconds(10.0)
    ramp: Optional[float] = seconds(None)  # type: ignore[arg-type]
    mode: Literal["power", "clock"] = "power"
    labels: Dict[str, str] = field(default_factory=dict)
    factor: float = 1.0
    other: Any = None

    def __post_init__(self):
        if self.ramp is not None and self.ramp > self.hold:
            raise ValueError("ramp must not be longer than hold")


@dataclass(frozen=True)
class Needy(Fault):
    path: str
    size: int


def read(kind, text):
    source = parse_source(text.encode(), "f")
    return read_typed(source, kind, source.value), [str(problem) for problem in source.problems]


def test_parameters_of_every_kind_are_read():
    made, said = read(Throttle, "gpus: [0, 3]\ncap: 25%\nhold: 1m\nramp: 500ms\nmode: clock\nlabels: {a: b}\nfactor: 2\nother: [1, {x: z}]")

    assert said == []
    assert made == Throttle(gpus=[0, 3], cap=0.25, hold=60.0, ramp=0.5, mode="clock", labels={"a": "b"}, factor=2.0, other=[1, {"x": "z"}])
    assert type(made.factor) is float


def test_an_optional_quantity_may_be_nothing():
    made, said = read(Throttle, "ramp: null")

    assert (made.ramp, said) == (None, [])


def test_every_wrong_value_is_reported_and_gives_way_to_its_default():
    made, said = read(Throttle, "gpus: [0, x]\ncap: 0.25\nhold: 10\nramp: 5\nmode: clok\nlabels: {a: 1}\nfactor: fast\nothr: 1")

    assert made == Throttle()
    assert said == [
        "f:8:1: othr: unknown key, did you mean other?",
        "f:1:11: gpus.1: expected a whole number; found 'x'",
        "f:2:6: cap: expected a percentage, such as 10%; found 0.25; did you mean 25%?",
        "f:3:7: hold: expected a duration with its unit, such as 250ms, 20s, 2m or 1h; found 10; did you mean 10s?",
        "f:4:7: ramp: expected a duration with its unit, such as 250ms, 20s, 2m or 1h; found 5; did you mean 5s?",
        "f:5:7: mode: expected power or clock; found 'clok', did you mean clock?",
        'f:6:13: labels.a: expected text; found 1, write "1"',
        "f:7:9: factor: expected a number; found 'fast'",
    ]


def test_what_the_fault_itself_refuses_stands_at_the_whole_of_it():
    made, said = read(Throttle, "hold: 1s\nramp: 2s")

    assert (made, said) == (None, ["f:1:1: ramp must not be longer than hold"])


def test_what_has_no_default_must_be_there():
    assert read(Needy, "sizes: 3") == (
        None,
        [
            "f:1:1: sizes: unknown key, did you mean size?",
            "f:1:1: path: missing, add `path:` here",
            "f:1:1: size: missing, add `size:` here",
        ],
    )
    assert read(Needy, "path: /x\nsize: 3") == (Needy("/x", 3), [])


@pytest.mark.parametrize(
    ("kind", "text"),
    [(int, "true"), (int, "1.0"), (float, "false"), (str, "1"), (bool, "1"), (bool, '"true"'), (int, "null"), (int, '"1"')],
)
def test_no_value_becomes_another_type(kind, text):
    made = read_typed(Source("f"), kind, parse_source(f"a: {text}".encode(), "f").value["a"])

    assert made is None


def test_a_value_with_a_problem_gets_no_second_one():
    _, said = read(Needy, "path: on\nsize: 012")

    assert len(said) == 2


def test_hints_name_what_is_near_or_what_there_is():
    assert did_you_mean("wrkers", ["workers", "spares"]) == "did you mean workers?"
    assert did_you_mean("zzz", ["workers", "spares"], "groups") == "groups: workers, spares"
    assert did_you_mean("zzz", [], "groups") == "groups: none"
    assert did_you_mean("zzz", [f"n{number}" for number in range(30)]).endswith("n19, ...")


def test_values_are_shown_short_and_as_yaml_says_them():
    assert [show(value) for value in (None, True, [], {}, "x", 1.5)] == ["nothing", "true", "a list", "`key: value` lines", "'x'", "1.5"]
    assert len(show("x" * 500)) == 60
