"""Waiting that ends in time, and jobs that may not."""

import threading

from fair_watch import FairWatch

from chaoskit.agent.wakeup import Wakeup, run_within


def test_set_before_or_while_waiting_wakes_once():
    """Any number of sets is one waking; unset, the time runs out."""
    flag = Wakeup()
    flag.set()
    flag.set()
    assert flag.wait(5.0)
    assert not flag.wait(0.01)

    threading.Timer(0.05, flag.set).start()
    watch = FairWatch()
    assert flag.wait(5.0)
    assert watch.took() < 4.0
    flag.close()


def test_a_job_that_hangs_is_left_to_itself():
    """The caller goes on after the time it gave; a job that ends, ends it at once."""
    release, done = threading.Event(), []

    assert not run_within(release.wait, 0.05, "hangs")
    assert run_within(lambda: done.append(1), 5.0, "ends")
    assert done == [1]
    release.set()
