"""The JSON Schemas: up to date, true of every shipped file, and as strict as the loader where a schema can be."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from chaoskit.errors import InputError
from chaoskit.faults import discover
from chaoskit.model.load import experiment_from, inventory_from, parse_source
from chaoskit.model.schema import file_of, schema, text
from chaoskit.model.yaml_source import read_source

ROOT = Path(__file__).parents[2]
SHIPPED = [
    *(("experiment", path) for path in sorted((ROOT / "experiments").glob("*.yaml"))),
    *(("inventory", path) for path in sorted((ROOT / "inventories").glob("*.yaml"))),
]


@pytest.mark.parametrize("kind", ["experiment", "inventory"])
def test_the_generated_files_are_up_to_date(kind):
    assert file_of(kind).read_text(encoding="utf-8") == text(kind), "run: python -m chaoskit.model.schema"


@pytest.mark.parametrize("kind", ["experiment", "inventory"])
def test_each_schema_is_one(kind):
    Draft202012Validator.check_schema(schema(kind))


@pytest.mark.parametrize(("kind", "path"), SHIPPED, ids=lambda value: getattr(value, "stem", value))
def test_every_shipped_file_names_its_schema_in_the_first_line(kind, path):
    first = path.read_text(encoding="utf-8").splitlines()[0]

    assert first == f"# yaml-language-server: $schema=../chaoskit/model/{kind}.schema.json"
    assert (path.parent / first.partition("=")[2]).resolve() == file_of(kind).resolve()


@pytest.mark.parametrize("kind", ["experiment", "inventory"])
def test_check_jsonschema_accepts_every_shipped_file(kind):
    files = [str(path) for other, path in SHIPPED if other == kind]
    tool = Path(sys.executable).with_name("check-jsonschema")

    done = subprocess.run([tool, "--schemafile", str(file_of(kind)), *files], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


BASE = {"title": "t", "method": [{"fault": "link_flap", "target": {"group": "g"}, "with": {"plane": "B", "down": "20s"}}]}


def _with(**parameters):
    return {**BASE, "method": [{**BASE["method"][0], "with": parameters}]}


@pytest.mark.parametrize(
    "wrong",
    [
        _with(plane="B", down=20),
        _with(plane="B", dwn="20s"),
        _with(plane="B", times="two"),
        {**BASE, "titel": "x"},
        {**BASE, "budgets": {"throughput_during": 0.4}},
        {**BASE, "budgets": {"lost_steps": -1}},
        {**BASE, "method": [{"fault": "link_flip", "target": {"group": "g"}}]},
        {**BASE, "method": [{"fault": "rank_kill", "target": {}}]},
        {**BASE, "method": [{"fault": "rank_kill", "target": {"group": "g", "nodes": "n1"}}]},
        {**BASE, "method": [{"fault": "rank_kill", "target": {"group": "g"}, "with": {"plane": "B"}}]},
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(wrong):
    validator = Draft202012Validator(schema("experiment"))

    assert validator.is_valid(BASE)
    assert not validator.is_valid(wrong)


def test_every_key_is_described_and_every_default_has_its_unit():
    made = schema("experiment")

    for name, definition in made["$defs"].items():
        for key, value in definition.get("properties", {}).items():
            assert value.get("description"), f"{name}.{key}"
    assert made["$defs"]["Band"]["properties"]["for"]["default"] == "10s"
    assert made["$defs"]["with_link_flap"]["properties"]["down"]["default"] == "10s"
    assert json.loads(text("inventory"))["properties"]["lease"]["default"] == "30s"


def test_a_fault_of_another_package_is_in_the_schema_too():
    made = schema("experiment", {"acme_flap": discover()["link_flap"]})

    assert made["$defs"]["Injection"]["properties"]["fault"]["enum"] == ["acme_flap"]
    assert "with_acme_flap" in made["$defs"]


def test_the_reader_of_the_shipped_files_is_no_other_than_yamls():
    """What our rules make of the shipped files is what any YAML reader makes of them."""
    for _, path in SHIPPED:
        assert read_source(path).value == yaml.safe_load(path.read_text(encoding="utf-8"))


GOOD = {kind: [path.read_text(encoding="utf-8") for other, path in SHIPPED if other == kind] for kind in ("experiment", "inventory")}
VALIDATORS = {kind: Draft202012Validator(schema(kind)) for kind in ("experiment", "inventory")}
READERS = {"experiment": experiment_from, "inventory": inventory_from}


@pytest.mark.parametrize("kind", ["experiment", "inventory"])
@given(data=st.data())
@settings(deadline=None)
def test_the_schema_is_never_stricter_than_the_loader(kind, data):
    """An editor must not mark red what runs."""
    good = data.draw(st.sampled_from(GOOD[kind]))
    start = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(start, min(start + 6, len(good))))
    middle = data.draw(st.text("0123456789abs%mx:[]{}\"' \n", max_size=4))
    source = parse_source((good[:start] + middle + good[end:]).encode(), "x.yaml")
    try:
        READERS[kind](source)
    except InputError:
        return

    assert [error.message for error in VALIDATORS[kind].iter_errors(source.value)] == []
