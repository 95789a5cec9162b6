"""Faults of other packages: found by entry point, and carried to the nodes by the agent."""

import subprocess
import sys
import zipfile

from chaoskit.agent.bundle import build

FAULT = '''
"""A fault of another package."""
from dataclasses import dataclass
from chaoskit.agent.contract import Fault


@dataclass(frozen=True)
class Nothing(Fault):
    """Do nothing."""
'''

LIST = "from chaoskit.faults import discover, installed_files; print('nothing' in discover(), installed_files()['nothing'])"


def test_an_installed_fault_is_found_and_its_file_is_known(tmp_path):
    (tmp_path / "elsewhere.py").write_text(FAULT)
    info = tmp_path / "elsewhere-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[chaoskit.faults]\nnothing = elsewhere\n")
    listed = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {LIST}"], capture_output=True, text=True, check=True
    )

    assert listed.stdout.split() == ["True", str(tmp_path / "elsewhere.py")]


def test_the_agent_carries_it(tmp_path):
    (tmp_path / "elsewhere.py").write_text(FAULT)
    bundle = build(extra={"nothing": tmp_path / "elsewhere.py"})

    assert any(name.endswith("/nothing.py") for name in zipfile.ZipFile(bundle.path).namelist())
