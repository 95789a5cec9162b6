"""
Values that nobody may read: a token in a training's environment, or in ours.

They are taken out by value where text leaves us (the journal, every report, a traceback), since whoever brought them there, a
training that prints its environment for one, did not ask us. What is a secret is told by the name of its variable.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

NAME = re.compile(r"(^|_)(API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|AUTH)(_|$)", re.IGNORECASE)
"""Names of variables that hold secrets."""
SHORTEST = 8
"""Characters of a value that is looked for: a shorter one would be found in harmless words."""
SHOWN = "[hidden]"

_hidden: set[str] = set()


def hide(variables: Mapping[str, str]) -> None:
    """Hide the values of those variables whose name says that they are secret, from now on."""
    hide_values(value for name, value in variables.items() if NAME.search(name))


def hide_values(values: Iterable[str]) -> None:
    """Hide these values, from now on."""
    _hidden.update(value for value in values if len(value) >= SHORTEST)


def redacted(text: str) -> str:
    """Return the text without any hidden value, also as JSON or a shell would write it."""
    for value in sorted(_hidden, key=len, reverse=True):
        for form in {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}:
            text = text.replace(form, SHOWN)
    return text


def redacted_json(value: Any) -> Any:
    """Return a JSON value without any hidden value in its texts; the names in it are ours."""
    if not _hidden:
        return value
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return {name: redacted_json(one) for name, one in value.items()}
    return [redacted_json(one) for one in value] if isinstance(value, list | tuple) else value
