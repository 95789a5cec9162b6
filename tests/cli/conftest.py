"""A working directory with an experiment and an inventory, and a way to run the command line in it."""

import shutil
from pathlib import Path

import pytest

from chaoskit.cli.main import main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    """Return an empty directory that is current, with our experiments and inventories in it."""
    for name in ("experiments", "inventories"):
        shutil.copytree(ROOT / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CHAOSKIT_INVENTORY", raising=False)
    return tmp_path


@pytest.fixture
def chaoskit(workdir, capsys):
    """Return a function that runs a command line here, in this process: exit code, standard output, standard error."""

    def run(*argv: str) -> tuple[int, str, str]:
        code = main([str(arg) for arg in argv])
        out, err = capsys.readouterr()
        return code, out, err

    return run
