"""Faults are found by their files, load from JSON, and describe themselves."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import chaoskit
from chaoskit import faults
from chaoskit.agent.contract import Fault
from chaoskit.errors import InputError
from chaoskit.faults import describe, discover, load

PACKAGE = Path(chaoskit.__file__).parent
ROOT = PACKAGE.parent


def test_every_file_is_a_fault_under_its_name():
    files = {path.stem for path in (PACKAGE / "faults").glob("*.py")} - {"__init__"}

    assert set(discover()) == files
    assert all(issubclass(kind, Fault) for kind in discover().values())


def test_a_fault_loads_from_its_parameters():
    assert load("link_flap", {"plane": "A", "down": 3}) == discover()["link_flap"](plane="A", down=3.0)


WRONG = {
    "near": (("link_flop", {}), "there is no fault 'link_flop' (did you mean link_flap?)"),
    "far": (("zzz", {}), "there is no fault 'zzz' (there are: {})".format(", ".join(sorted(discover())))),
    "parameter": (("link_flap", {"plan": "A"}), "fault link_flap has no parameter 'plan' (did you mean plane?)"),
    "type": (("link_flap", {"plane": 3}), "parameter plane of fault link_flap must be str, not 3"),
    "boolean": (("link_flap", {"rail": 0, "times": True}), "parameter times of fault link_flap must be int, not True"),
    "sense": (("link_flap", {}), "fault link_flap: give exactly one of rail and plane"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_loaded_says_what_would_be_right(case):
    (name, params), says = WRONG[case]

    with pytest.raises(InputError) as wrong:
        load(name, params)

    assert str(wrong.value) == says


@pytest.mark.parametrize("name", sorted(discover()))
def test_a_fault_describes_itself_and_every_parameter(name):
    about = describe(name)

    assert about.doc
    assert about.story
    assert all(parameter.doc for parameter in about.parameters)


def test_a_description_has_types_units_and_defaults():
    down = next(parameter for parameter in describe("link_flap").parameters if parameter.name == "down")

    assert tuple(down) == ("down", "How long the links stay down, each time.", "float", "duration", 10.0, False)
    assert (describe("link_flap").held, describe("link_flap").lifetime) == (True, "VOLATILE")
    assert (describe("rank_kill").held, describe("rank_kill").lifetime) == (False, "IRREVERSIBLE")


SHOW = """
import json
from chaoskit.faults import describe, discover
print(json.dumps([describe(name).parameters for name in sorted(discover())]))
"""


def zipapp(path, extra=()):
    with zipfile.ZipFile(path, "w") as archive:
        for part in (
            "__init__.py",
            "errors.py",
            *(file.relative_to(PACKAGE) for name in ("agent", "faults") for file in (PACKAGE / name).glob("*.py")),
        ):
            archive.write(PACKAGE / part, "chaoskit/{}".format(part))
        for name, text in extra:
            archive.writestr(name, text)
    return path


def shown(python, path, code):
    argv = [python, "-I", "-S", "-c", "import sys; sys.path.insert(0, {!r})\n{}".format(str(path), code)]
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30).stdout


def test_a_zipapp_holds_the_same_faults(python, tmp_path):
    """As on a node: no site packages, no entry points, docstrings from inside the archive."""
    path = zipapp(tmp_path / "agent.pyz")

    assert json.loads(shown(python, path, SHOW)) == json.loads(json.dumps([describe(name).parameters for name in sorted(discover())]))
    assert shown(python, path, "from chaoskit.faults import discover; discover(); print('importlib.metadata' in sys.modules)") == "False\n"


def test_the_faults_need_only_the_standard_library(python):
    """Nothing of the controller's is loaded by importing every fault."""
    code = "from chaoskit.faults import discover; discover(); print({'pydantic', 'yaml', 'paramiko'} & set(sys.modules))"

    assert shown(python, ROOT, code) == "set()\n"


def test_a_file_with_two_faults_is_refused_by_name(tmp_path):
    """One file a fault: the name must say which."""
    text = "from chaoskit.agent.contract import Fault\nclass One(Fault): pass\nclass Two(Fault): pass\n"
    path = zipapp(tmp_path / "agent.pyz", [("chaoskit/faults/both.py", text)])

    code = "from chaoskit.faults import discover\ntry: discover()\nexcept Exception as error: print(error)"

    assert shown(sys.executable, path, code) == "chaoskit.faults.both must hold exactly one fault, and holds One, Two (one file a fault)\n"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Return a function that installs a package with one entry point, as pip would lay it down."""

    def install(name, module="acme_chaos"):
        meta = tmp_path / "acme-1.0.dist-info"
        meta.mkdir()
        (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
        (meta / "entry_points.txt").write_text("[{}]\n{} = {}\n".format(faults.GROUP, name, module))
        (tmp_path / "acme_chaos.py").write_text(
            '"""A story."""\nfrom dataclasses import dataclass\nfrom chaoskit.agent.contract import Fault, seconds\n'
            '@dataclass(frozen=True)\nclass Stop(Fault):\n    """Stop."""\n    down: float = seconds(2.0)\n    """How long."""\n'
        )
        monkeypatch.syspath_prepend(str(tmp_path))

    yield install
    sys.modules.pop("acme_chaos", None)


def test_another_package_adds_a_fault(installed):
    installed("acme_stop")

    assert discover()["acme_stop"].__name__ == "Stop"
    assert describe("acme_stop").parameters[0].doc == "How long."


def test_another_package_cannot_replace_a_fault(installed):
    installed("link_flap")

    with pytest.raises(InputError, match="entry point link_flap = acme_chaos takes the name of another fault"):
        discover()
