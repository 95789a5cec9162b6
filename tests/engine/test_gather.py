"""What is said of many nodes at once."""

from chaoskit.engine.gather import alike, sentence
from chaoskit.errors import UnreachableError


def refused(node, where=None):
    return UnreachableError(f"no connection to {where or node}:22", node=node, hint="is it up?")


def test_one_reason_is_told_once_for_all_its_nodes():
    """A site behind a broken gateway is one sentence and not hundreds; every node is named."""
    failures = {f"gpu{number:03}": refused(f"gpu{number:03}", f"gpu{number:03}.example") for number in range(1, 17)}

    assert "gpu001: no connection to gpu001.example:22 (is it up?) (the same on gpu[002-016])" == sentence(failures)


def test_different_reasons_stand_side_by_side():
    """No reason hides another."""
    failures = {"n1": refused("n1"), "n2": UnreachableError("sudo refused", node="n2"), "n3": refused("n3")}

    assert "n1: no connection to n1:22 (is it up?) (the same on n3); n2: sudo refused" == sentence(failures)


def test_several_entries_of_one_node_are_one_node():
    """Two faults on a node that is gone fail for one reason."""
    assert "n1: no connection to n1:22 (is it up?)" == sentence({"r/0/n1": refused("n1"), "r/1/n1": refused("n1")})


def test_nothing_is_nothing():
    """No failure, no words."""
    assert "" == sentence({})
    assert [] == alike({})
