"""A living server tries again what it could not revert: nobody else would, as long as it lives."""

import json
import os
import time

import pytest

from chaoskit.agent.reverting import GRACE

pytestmark = pytest.mark.row("R12", "L3")


def states(agent):
    """Return what the ledger of the one entry tells, line by line."""
    (file,) = (agent.root / "state" / "ledger").glob("*.jsonl")
    return [json.loads(line)["state"] for line in file.read_text().splitlines()]


@pytest.fixture
def failed(agent, harm, until):
    """A file that was harmed, whose revert has failed at the end of its span, and what makes it fail."""
    path, stuck = agent.file(), agent.file("stuck")
    harm(agent.connect(), path, fault="toy_stays", down=0.2, stuck=str(stuck))
    until(lambda: "failed" in states(agent), seconds=20.0)
    assert path.read_text() == "harmed"
    return path, stuck


def test_what_failed_is_reverted_once_it_can_be(agent, failed, until):
    """By the server itself, with a connection or without, and soon."""
    path, stuck = failed
    stuck.unlink()

    until(lambda: states(agent)[-1] == "reverted", seconds=20.0)
    assert path.read_text() == "whole"
    assert agent.connect().ask("audit")["debts"] == []


def test_what_is_back_by_itself_is_closed_by_a_look(agent, failed, until):
    """Somebody else has mended it: the entry is closed though its revert still fails, and the ledger says by whom."""
    path, stuck = failed
    path.write_text("whole")

    until(lambda: states(agent)[-1] == "reverted", seconds=20.0)
    assert stuck.exists()


def test_what_goes_on_failing_is_tried_with_growing_pauses(agent, failed, until):
    """Again and again, and the disk is not filled with it."""
    path, stuck = failed
    until(lambda: states(agent).count("failed") >= 3, seconds=30.0)
    stuck.unlink()
    until(lambda: path.read_text() == "whole", seconds=30.0)
    assert states(agent).count("failed") < 10


@pytest.mark.prove
def test_a_try_that_hangs_is_ended_by_the_fuse(agent, failed, until):
    """Though it was told before that the revert had failed: the next try, or the look before it, may have no end."""
    path, stuck = failed
    path.unlink()
    os.mkfifo(path)  # whoever opens it to read waits for ever

    def hangs():
        told = states(agent)
        time.sleep(3.0)
        return told[-1] == "reverting" and states(agent) == told

    until(hangs, seconds=30.0)
    path.unlink()
    path.write_text("harmed")
    stuck.unlink()
    until(lambda: path.read_text() == "whole", seconds=GRACE + 15.0)
    until(lambda: states(agent)[-1] == "reverted")
