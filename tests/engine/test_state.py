"""What a journal's records say of an injection on several nodes."""

import pytest

from chaoskit.engine.state import RunState

PLANNED = {"number": 0, "fault": "toy", "detail": "", "targets": ["n1", "n2"], "one_shot": False}
ENTRY = {"number": 0, "fault": "toy", "params": {}, "undo": {}}


def facts(kind, *answers):
    """Return what is known of an injection whose nodes answered so."""
    state = RunState()
    state.apply({"kind": "run", "at": 0.0, "planned": [PLANNED]})
    for number, answer in enumerate(answers):
        entry = f"r/0/n{number}"
        state.apply({**ENTRY, "kind": "planned", "at": 1.0, "entry": entry, "node": f"n{number}"})
        state.apply({"kind": "armed", "at": 2.0, "entry": entry})
        evidence = None if answer is None else {"holds": answer, "says": f"{number}", "readings": {}}
        state.apply({"kind": kind, "at": 3.0, "entry": entry, "evidence": evidence, "what": "silent"})
    (found,) = state.timeline().injections
    return found


@pytest.mark.parametrize(
    ("answers", "holds", "says"),
    [
        ((), None, "never injected"),
        ((False,), False, "0"),
        ((False, False), False, "0"),
        ((False, None), None, "silent"),
        ((None, True), True, "1"),
        ((False, True, None), True, "1"),
    ],
)
def test_one_node_on_which_the_training_used_it_is_enough(answers, holds, says):
    """Without one, a node that cannot say leaves it unknown."""
    exposed = facts("exposed", *answers).exposed

    assert (exposed.holds, exposed.says) == (holds, says)


@pytest.mark.parametrize("kind", ["witness", "ended"])
@pytest.mark.parametrize(
    ("answers", "holds", "says"),
    [((True, True), True, "0"), ((True, False, None), False, "1"), ((None, True), None, "silent"), ((), None, "never injected")],
)
def test_every_node_must_have_it_and_have_it_gone(kind, answers, holds, says):
    """One no makes it no, one unknown makes it unknown."""
    found = facts(kind, *answers)
    fact = found.present if kind == "witness" else found.gone

    assert (fact.holds, fact.says) == (holds, says)
