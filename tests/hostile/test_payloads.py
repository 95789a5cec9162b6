"""Every text that a user may write, and forty that nobody should: refused at its place, or data that no shell ever sees."""

import json
import random
import re
import sys
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from chaoskit.engine.plan import plan
from chaoskit.errors import ChaosError, InputError
from chaoskit.fleet.ssh_options import Resolver
from chaoskit.model.experiment import Experiment
from chaoskit.model.inventory import InventoryFile
from chaoskit.model.load import experiment_from, inventory_from
from chaoskit.model.typed import key_of
from chaoskit.model.yaml_source import parse_source
from chaoskit.wiring import new_run_dir

pytestmark = pytest.mark.row("S1", "S3")

MARK = "chaoskit-payload"
PAYLOADS = [
    *(
        f";touch {MARK}",
        f"$(touch {MARK})",
        f"`touch {MARK}`",
        f"| touch {MARK}",
        f"&& touch {MARK}",
        f"x\ntouch {MARK}",
        f"' ; touch {MARK} '",
    ),
    *(
        f'" ; touch {MARK} "',
        f"x\0{MARK}",
        f"-oProxyCommand=touch {MARK}",
        "-F/dev/null",
        "--",
        "-",
        "--help",
        f"../../{MARK}",
        "..",
        "/",
        "~",
        "~root",
    ),
    *(
        "*",
        "?",
        "[!a]",
        "{a,b}",
        "%h",
        "%s%n",
        "{node}",
        "{0.__class__}",
        "{{7*7}}",
        "${HOME}",
        "\u202e" + MARK,
        "\u0660",
        "\U0001f600",
        "\x1b[31m",
    ),
    *(
        "\x1b]52;c;eA==\x07",
        "\x00",
        "\x85",
        "\ufeff",
        "]]>",
        "<script>",
        "::set-output name=x::y",
        " ",
        "",
        "\r",
        "a\tb",
        "x" * 300_000,
        "a[0-999]b[0-999]c[0-999]",
    ),
]
EXPERIMENT = {"title": "t", "method": [{"fault": "link_flap", "target": {"group": "workers"}, "with": {"rail": 0, "down": "1s"}}]}
INVENTORY = {
    "name": "s",
    "ssh": {"config": "/dev/null"},
    "nodes": {"n1": {"group": "workers", "gpus": 1, "address": "127.0.0.1", "rails": [{"netdev": "eth1"}]}},
    "trainings": {"default": {"launcher": "attach", "log": "/l"}},
}
KEY = object()


def text_fields(kind, path=()):
    """Yield the path of every text, key and quantity that a type of our files holds, from the dataclasses themselves."""
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        for item in fields(kind):
            if item.init:
                yield from text_fields(hints[item.name], (*path, key_of(item.name)))
        return
    origin, args = get_origin(kind), get_args(kind)
    if kind is str or kind is Any:
        yield path
    elif origin is tuple:
        yield from text_fields(args[0], (*path, 0))
    elif origin in (dict, Mapping):
        yield (*path, KEY)
        yield from text_fields(args[1], (*path, {"nodes": "n1", "trainings": "default"}.get(path[-1], "k")))
    elif isinstance(kind, type) or origin is None:
        return
    elif hasattr(kind, "__metadata__"):
        yield path  # a quantity with a unit is written as text
    else:
        for each in args:
            yield from text_fields(each, path)


def assign(document, path, value):
    """Return the document with a value at a path; what is missing on the way is made."""
    changed = deepcopy(document)
    place = changed
    for step, following in pairwise(path):
        wanted = list if following == 0 else dict
        if isinstance(place, list):
            if not place or not isinstance(place[0], wanted):
                place[:] = [wanted()]
            place = place[0]
        else:
            if not isinstance(place.get(step), wanted):
                place[step] = wanted()
            place = place[step]
    last = path[-1]
    if last is KEY:
        place[value] = deepcopy(next(iter(place.values()), "x"))
    elif isinstance(place, list):
        place[:] = [value]
    else:
        place[last] = value
    return changed


FIELDS = [(kind, path) for kind in (Experiment, InventoryFile) for path in dict.fromkeys(text_fields(kind))]
CASES = [(kind, path, payload) for kind, path in FIELDS for payload in PAYLOADS]


class Watched:
    """What this process starts and runs, by the interpreter's own audit."""

    def __init__(self):
        self.on = False
        self.started = []
        sys.addaudithook(self._hear)

    def _hear(self, event, args):
        if self.on and event in (
            "subprocess.Popen",
            "os.system",
            "os.exec",
            "os.posix_spawn",
            "os.spawn",
            "os.fork",
            "pty.spawn",
            "exec",
            "compile",
        ):
            if event == "subprocess.Popen":
                self.started.append((event, [str(word) for word in args[1]]))
            elif event not in ("exec", "compile"):
                self.started.append((event, [str(args)]))
            elif event == "compile" and MARK in str(args[0]):
                self.started.append((event, [str(args[0])]))


@pytest.fixture(scope="module")
def watched():
    found = Watched()
    yield found
    found.on = False


def try_case(watched, folder, kind, path, payload):
    """Load, plan and resolve; whatever comes of it, only `ssh -G` may be started, with the payload as one word after `--` or none."""
    base = EXPERIMENT if kind is Experiment else INVENTORY
    data = json.dumps(assign(base, path, payload), indent=1).encode()
    watched.started.clear()
    watched.on = True
    try:
        source = parse_source(data, "e.yaml")
        if kind is Experiment:
            loaded = experiment_from(source)
            site = inventory_from(parse_source(json.dumps(INVENTORY).encode(), "i.yaml"))
        else:
            loaded = experiment_from(parse_source(json.dumps(EXPERIMENT).encode(), "e.yaml"))
            site = inventory_from(source)
            if path[0] == "ssh" or "address" in path or path[:2] == ("nodes", KEY):
                resolver = Resolver(site.file.ssh, folder)
                for node in list(site.nodes.values())[:2]:
                    resolver.node(node.address or node.name)
        plan(loaded, site, 1)
    except ChaosError as error:
        refused = [str(problem) for problem in getattr(error, "problems", ())]
    else:
        refused = []
    finally:
        watched.on = False
    assert all(re.match(r"e\.yaml:[0-9]+:[0-9]+: ", problem) for problem in refused)
    for event, words in watched.started:
        assert (event, words[0]) == ("subprocess.Popen", "ssh"), (path, payload[:40], words)
        holding = [number for number, word in enumerate(words) if payload not in ("", "--") and payload == word]
        assert all(number > words.index("--") or words[number - 1] in ("-F", "-l", "-p", "-o") for number in holding), words
    assert not list(folder.glob(f"**/{MARK}"))


def test_there_are_as_many_fields_and_payloads_as_promised():
    """Every text of both files is tried: from the types, so that a new one is covered; and forty payloads."""
    paths = {path for _, path in FIELDS}

    assert len(FIELDS) > 60
    assert len(PAYLOADS) >= 40
    assert {("title",), ("ssh", "user"), ("nodes", "n1", "address"), ("nodes", KEY), ("trainings", "default", "argv", 0)} <= paths


def test_a_seeded_sample_is_refused_or_stays_data(watched, tmp_path, monkeypatch):
    """Sixty of all pairs."""
    monkeypatch.chdir(tmp_path)
    for case in random.Random(3).sample(CASES, 60):  # noqa: S311 - a sample, and no secret
        try_case(watched, tmp_path, *case)


@pytest.mark.prove
def test_every_field_with_every_payload_is_refused_or_stays_data(watched, tmp_path, monkeypatch):
    """All of them; the count is printed."""
    monkeypatch.chdir(tmp_path)
    for case in CASES:
        try_case(watched, tmp_path, *case)
    print(f"{len(FIELDS)} fields x {len(PAYLOADS)} payloads")


@pytest.mark.row("S4")
@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_run_lies_in_its_folder_whatever_its_name(tmp_path, payload):
    """The run's directory comes from the experiment's name: it never leaves `--out`, and a name that no file can have is an error."""
    out = tmp_path / "runs"
    try:
        made = new_run_dir(out, payload)
    except InputError:
        return
    assert made.resolve().parent == out.resolve()
    assert Path(made).is_dir()
