"""Golden texts: each file in `bad/` is wrong in its own way, and the `.txt` beside it is all that a person is told."""

from pathlib import Path

import pytest

from chaoskit.errors import InputError
from chaoskit.model.load import load_experiment, load_inventory

pytestmark = pytest.mark.row("S2")

BAD = sorted((Path(__file__).parent / "bad").glob("*.yaml"))


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_bad_file_yields_all_its_errors_with_positions(path, request):
    load = load_inventory if path.stem.startswith("inv_") else load_experiment

    with pytest.raises(InputError) as caught:
        load(path)

    said = str(caught.value).replace(str(path), path.name) + "\n"
    expected = path.with_suffix(".txt")
    if request.config.getoption("--update"):
        expected.write_text(said, encoding="utf-8")
    assert said == expected.read_text(encoding="utf-8")
    assert all(problem.line >= 1 and problem.col >= 1 for problem in caught.value.problems)
    assert caught.value.exit_code == 2


def test_there_are_enough_bad_files():
    assert len(BAD) >= 25
