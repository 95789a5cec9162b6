"""
JSON Schema of experiment and inventory files, for editors and for checks in CI.

Generated from the types themselves: descriptions are their docstrings, and an injection's `with` is checked against
the parameters of the fault that it names. `python -m chaoskit.model.schema` writes the two files that stand beside
this one, which the first line of each shipped YAML names.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from chaoskit.agent.contract import Fault, FaultTypes
from chaoskit.faults import discover
from chaoskit.model.experiment import CONFIG, Experiment
from chaoskit.model.inventory import InventoryFile
from chaoskit.model.typed import key_of
from chaoskit.model.units import DURATION_UNIT, SHARE_UNIT, SIZE_UNIT, UNITS, show_duration, show_share, show_size

Kind = Literal["experiment", "inventory"]
KINDS: Mapping[Kind, type] = {"experiment": Experiment, "inventory": InventoryFile}


def schema(kind: Kind, faults: FaultTypes | None = None) -> dict[str, Any]:
    """Return the JSON Schema of a kind of file; `faults` are the known faults, those discovered when not given."""
    made: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema", **_described(KINDS[kind])}
    made["title"] = f"chaoskit {kind}"
    if kind == "experiment":
        _add_faults(made["$defs"], discover() if faults is None else faults)
        made["$defs"]["Target"]["oneOf"] = [{"required": ["group"]}, {"required": ["nodes"]}]
    _tidy(made)
    return made


def text(kind: Kind) -> str:
    """Return the schema as the file beside this module holds it."""
    return json.dumps(schema(kind), indent=2, ensure_ascii=False) + "\n"


def file_of(kind: Kind) -> Path:
    """Return where the generated schema stands."""
    return Path(__file__).with_name(f"{kind}.schema.json")


def _described(kind: type) -> dict[str, Any]:
    """
    Return the schema of a type, with its attributes' docstrings as descriptions.

    pydantic reads those from the source again for each class, which would cost every `plan` 60 ms; so only here.
    """
    configs = (CONFIG, Fault.__pydantic_config__)
    for config in configs:
        config["use_attribute_docstrings"] = True
    try:
        return TypeAdapter(kind).json_schema()
    finally:
        for config in configs:
            del config["use_attribute_docstrings"]


def _add_faults(definitions: dict[str, Any], faults: FaultTypes) -> None:
    """Let an injection's `fault` be one of the known ones, and its `with` what that one takes."""
    injection = definitions["Injection"]
    names = sorted(faults)
    injection["properties"]["fault"]["enum"] = names
    injection["allOf"] = []
    for name in names:
        definitions[f"with_{name}"] = _parameters(faults[name])
        condition = {"properties": {"fault": {"const": name}}, "required": ["fault"]}
        taken: dict[str, Any] = {"properties": {"with": {"$ref": f"#/$defs/with_{name}"}}}
        if definitions[f"with_{name}"].get("required"):
            taken["required"] = ["with"]
        injection["allOf"].append({"if": condition, "then": taken})


def _parameters(kind: type) -> dict[str, Any]:
    made = _described(kind)
    for item in fields(kind):
        if unit := UNITS.get(item.metadata.get("unit", "")):
            old = made["properties"][item.name]
            made["properties"][item.name] = {**unit.json_schema, **{key: old[key] for key in ("description", "default") if key in old}}
    return made


def _tidy(part: Any) -> None:
    """All through the schema: name keys as the file does, give each default its unit, drop titles that only repeat the key."""
    if isinstance(part, list):
        for item in part:
            _tidy(item)
    elif isinstance(part, dict):
        if isinstance(part.get("default"), float):
            part["default"] = _with_unit(part)
        if "properties" in part:
            part["properties"] = {key_of(name): value for name, value in part["properties"].items()}
        for value in part.get("properties", {}).values():
            value.pop("title", None)
        for value in part.values():
            _tidy(value)


def _with_unit(part: Mapping[str, Any]) -> float | str:
    default = float(part["default"])
    if part.get("anyOf") == DURATION_UNIT.json_schema["anyOf"]:
        return show_duration(default)
    shown = {SHARE_UNIT.json_schema["pattern"]: show_share, SIZE_UNIT.json_schema["pattern"]: show_size}
    return shown[part["pattern"]](default) if part.get("pattern") in shown else default


if __name__ == "__main__":
    for each in KINDS:
        file_of(each).write_text(text(each), encoding="utf-8")
