"""What is due and when, for any spans."""

import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaoskit.agent.agenda import Act, agenda
from chaoskit.agent.contract import Evidence, Site
from chaoskit.agent.entries import Reply, Slot
from chaoskit.agent.host import Host
from chaoskit.agent.ledger import Entry, Ledger
from chaoskit.agent.wakeup import Wakeup

spans = st.lists(st.floats(0.01, 10.0), min_size=2, max_size=12).map(
    lambda steps: [[sum(steps[:i]), sum(steps[: i + 1])] for i in range(0, len(steps) - 1, 2)]
)


@given(spans, st.floats(0, 1e6))
def test_harm_and_mending_alternate_in_time(holds, t0):
    """Each span begins before it ends, and the last act is the last span's end."""
    acts = agenda(holds, t0)

    assert [act.at for act in acts] == sorted(act.at for act in acts)
    assert [act.harm for act in acts] == [True, False] * len(holds)
    assert acts[-1].last
    assert acts[-1].at == t0 + holds[-1][1]


def test_a_one_shot_fault_is_one_act():
    """It has no end."""
    assert agenda([], 5.0) == [Act(5.0, True, 0, True)]


class Hard:
    """A fault whose harm goes out by SystemExit, and whose first `fails` reverts do."""

    takes_agent_away = False

    def __init__(self, fails):
        self.fails, self.harmed = fails, False

    def inject(self, host, undo):
        """Harm, and leave."""
        self.harmed = True
        sys.exit("enough")

    def revert(self, host, undo):
        """Leave, or mend."""
        self.fails -= 1
        if self.fails >= 0:
            sys.exit("enough")
        self.harmed = False

    def gone(self, host, undo):
        """Say whether it is mended."""
        return Evidence(not self.harmed, "harmed: {}".format(self.harmed))


class Heard(Reply):
    """Keeps the error."""

    def __init__(self):
        self.came, self.failed = Wakeup(), None

    def error(self, error):
        self.failed = error
        self.came.set()


@pytest.mark.row("R12", "L3")
@pytest.mark.parametrize("fails", [0, 1, 5])
def test_an_entrys_thread_outlives_whatever_its_jobs_raise(tmp_path, fails, capfd):
    """Even SystemExit: whoever asked is answered, and a later revert finds the thread there."""
    ledger = Ledger(str(tmp_path / "ledger"))
    entry = ledger.plan(Entry("run/1/n1", "run", "hard", {}, {}, {"node": "n1"}, holds=[[0.0, 60.0]]))
    ledger.append(entry.entry, "armed", lease=1.0)
    fault, heard, done = Hard(fails), Heard(), Wakeup()
    slot = Slot(replace(entry, state="armed"), fault, Host(Site("n1")), ledger, lambda run, at: None)

    slot.ask(heard, lambda: slot.inject(None, heard))
    assert heard.came.wait(20.0)
    slot.post(lambda: 1 / 0)
    slot.post(lambda: slot.revert("again"))
    slot.post(done.set)

    assert done.wait(20.0)
    assert isinstance(heard.failed, SystemExit)
    assert (fault.harmed, slot.open, ledger.read("run/1/n1").open) == (False, False, False)
    assert "ZeroDivisionError" in capfd.readouterr().err
