"""What the light commands load."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {"paramiko", "fabric", "invoke", "cryptography", "torch", "numpy", "rich", "junitparser", "pytest", "asyncio"}

LOADED = """
import sys
from chaoskit.cli.main import main
code = main({argv!r})
print("\\n" + " ".join(sorted({{name.partition(".")[0] for name in sys.modules}})))
sys.exit(code)
"""


@pytest.mark.parametrize(
    "argv",
    [
        ["--help"],
        ["run", "--help"],
        ["lab", "--help"],
        ["doctor", "--help"],
        ["stop", "--help"],
        ["faults"],
        ["faults", "link_flap"],
        ["plan", "experiments/plane_loss.yaml", "-i", "staging-example"],
        ["schema", "experiment"],
    ],
)
def test_light_commands_load_nothing_heavy(argv):
    """Neither SSH nor torch nor rich is on the path of what people type all day."""
    done = subprocess.run([sys.executable, "-c", LOADED.format(argv=argv)], capture_output=True, text=True, check=False, cwd=ROOT)

    loaded = set(done.stdout.splitlines()[-1].split())
    assert (0, set()) == (done.returncode, loaded & HEAVY), done.stderr


def test_the_plugin_loads_nothing_heavy():
    """pytest's own start stays what it is."""
    told = "import sys, pytest; before = set(sys.modules); import chaoskit.pytest_plugin; print(*sorted(set(sys.modules) - before))"

    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True, cwd=ROOT)

    assert {"chaoskit", *(f"chaoskit.pytest_plugin{part}" for part in ("", ".items", ".keys"))} == set(done.stdout.split())
