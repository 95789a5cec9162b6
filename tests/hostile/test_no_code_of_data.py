"""What a node says is text: nowhere in chaoskit does text become code, an object, or a line for a shell."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

import chaoskit

pytestmark = pytest.mark.row("S10")

PACKAGE = Path(chaoskit.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))

RUN_CODE = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load", "yaml.full_load"}
OBJECTS = {"pickle", "marshal", "shelve", "dill", "jsonpickle", "jinja2", "code", "codeop"}
SHELLS = {"sh", "bash", "/bin/sh", "/bin/bash", "csh"}

ALLOWED = {"agent/nvml.py": ["import marshal"]}
"""Root's own compiled module, handed by root to its own child: never what came from outside."""

RULES = ("S102", "S301", "S302", "S307", "S506", "S602", "S604", "S605", "S609", "S701", "PGH001")
"""Ruff's own rules against the same: nobody may switch them off."""


def found_in(text):
    """Return what a module's text has that would make code, objects or shell lines of data."""
    found = []
    tree = ast.parse(text)
    written = {each.id for node in tree.body if isinstance(node, ast.Assign) and _is_text(node.value) for each in node.targets}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            found += [name] if name in RUN_CODE else []
            found += ["shell="] if any(word.arg == "shell" for word in node.keywords) else []
        elif isinstance(node, (ast.List, ast.Tuple)):
            found += _shell_line(node.elts, written)
        elif isinstance(node, ast.Import):
            found += [f"import {each.name}" for each in node.names if each.name.partition(".")[0] in OBJECTS]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in OBJECTS:
            found.append(f"import {node.module}")
    return found


def _is_text(node):
    """Whether it is text as written, or what a method makes of it without anything else: `"...".strip().replace("x", "y")`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return all(map(_is_text, (node.func.value, *node.args))) and not node.keywords
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _shell_line(words, written):
    """Return a finding where a shell is given a line that is not written out in the source; what varies comes after it, as words."""
    values = [one.value if isinstance(one, ast.Constant) else None for one in words]
    if len(words) < 3 or values[0] not in SHELLS or values[1] != "-c" or _is_text(words[2]):
        return []
    if isinstance(words[2], ast.Name) and words[2].id in written:
        return []
    return [f"{values[0]} -c {ast.unparse(words[2])}"]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_no_module_makes_code_of_data(path):
    assert found_in(path.read_text(encoding="utf-8")) == ALLOWED.get(path.relative_to(PACKAGE).as_posix(), [])


@pytest.mark.parametrize(
    "text",
    [
        "eval(x)",
        "exec(x)",
        "compile(x, '', 'exec')",
        "os.system(x)",
        "os.popen(x)",
        "run(x, shell=True)",
        "run(['sh', '-c', f'ls {x}'])",
        "run(('bash', '-c', x))",
        "run(('bash', '-c', 'ls {}'.format(x)))",
        "import pickle",
        "from marshal import loads",
        "yaml.load(x)",
    ],
)
def test_the_search_finds_what_it_looks_for(text):
    """Or it would say nothing."""
    assert found_in(text)


def test_the_linters_own_rules_against_it_are_on():
    root = PACKAGE.parent
    lint = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]["lint"]
    assert lint["select"] == ["ALL"]
    off = [*lint["ignore"], *(rule for glob, rules in lint["per-file-ignores"].items() if not glob.startswith("tests") for rule in rules)]
    assert [] == [rule for rule in RULES for prefix in off if rule.startswith(prefix)]
    silenced = [
        (path.name, rule) for path in SOURCES for rule in RULES if re.search(rf"noqa:.*\b{rule}\b", path.read_text(encoding="utf-8"))
    ]
    assert silenced == []
