"""What audit and heal print: alike nodes share a line, foreign text is harmless, and JSON has a stable shape."""

import json
import socket
import subprocess
from dataclasses import replace

import pytest

from chaoskit.agent.identity import Process
from chaoskit.engine.audit import Audit, Debt, NodeStray
from chaoskit.engine.heal import Healed, Healing
from chaoskit.model.controller import this_controller
from chaoskit.model.wire import Held, Stray
from chaoskit.report.leftovers import audit_closing, audit_document, audit_lines, heal_closing, heal_document, heal_lines

HELD = Held("run9", "ada@laptop:7", 1764547200.0, 12.0)


def found(**more):
    return Audit(**{"nodes": 64, "debts": (), **more})


def test_sixty_four_nodes_that_are_alike_share_a_line():
    """Each entry names its node, and the line is one all the same."""
    debts = tuple(Debt(f"n{number}", f"r/1/n{number}", "link_flap", "injected, never proven gone", "ledger") for number in range(1, 65))

    assert audit_lines(found(debts=debts)) == [
        "  owed       n1: r/1/n1: link_flap: injected, never proven gone (the same on n[2-64])",
    ]
    assert audit_closing("site", found(debts=debts)) == "LEAKED: site: 64 owed; `chaoskit heal` pays it"


def test_what_stands_alike_on_several_devices_of_several_nodes_is_told_in_one_line():
    """A rate limit on each rail of a site is worth one line; another one is another."""

    def limit(name, what="tbf 1:"):
        return Stray("storage_slow", f"nic:{name}", f"a queueing discipline that is not ours ({what}) stands on {name}", ours=False)

    rails = [NodeStray(f"n{number}", limit(f"rail{rail}")) for number in range(1, 5) for rail in range(2)]
    strays = (*rails, NodeStray("n4", limit("on", "fq 8:")), NodeStray("n4", Stray("f", "gpu:0", "GPU 0 is not as GPU 0 was", ours=False)))

    assert audit_lines(found(strays=strays)) == [
        "  foreign    n1: a queueing discipline that is not ours (tbf 1:) stands on rail0, rail1 (the same on n[2-4])",
        "  foreign    n4: a queueing discipline that is not ours (fq 8:) stands on on",
        "  foreign    n4: GPU 0 is not as GPU 0 was",
    ]
    assert len(audit_document("s", found(strays=strays))["foreign"]) == len(strays)


def test_each_kind_of_thing_has_its_word_and_counts_as_it_should():
    """Foreign and forgotten things are told, and count for nothing."""
    ours, theirs = (
        Stray("f", "nic:a", "our cap stands on a", ours=True),
        Stray("f", "nic:b", "b has its own", ours=False, do="tc qdisc del"),
    )
    told = found(
        debts=(Debt("n1", "r/1/n1", "f", "injected", "ledger", HELD),),
        forgotten=(Debt("n2", "r/1/n2", "f", "forgotten by ada", "journal"),),
        strays=(NodeStray("n3", ours), NodeStray("n3", theirs)),
        notes=(("n4", "a note"),),
        unknown={"n5": "n5: no answer"},
        unread=(("n6", "strays of f could not be looked for"),),
    )

    assert [line.split()[0] for line in audit_lines(told)] == ["leaked", "held", "unknown", "unknown", "forgotten", "foreign", "note"]
    assert "run run9 of ada@laptop:7 since 2025-12-01 00:00:00 UTC; 12 s of its lease are left" in "\n".join(audit_lines(told))
    parts = ("1 leaked", "1 held by a run that goes on", "1 of 64 nodes could not be asked", "1 nodes not wholly looked at")
    last = f"LEAKED: s: {', '.join(parts)}; `chaoskit heal` pays it"
    assert audit_closing("s", told) == last


@pytest.mark.parametrize(
    ("told", "code", "word"),
    [
        ({}, 0, "PASSED"),
        ({"forgotten": (Debt("n", "e", "f", "s", "journal"),)}, 0, "PASSED"),
        ({"strays": (NodeStray("n", Stray("f", "r", "s", ours=False)),)}, 0, "PASSED"),
        ({"debts": (Debt("n", "e", "f", "s", "ledger", HELD),)}, 3, "INCONCLUSIVE"),
        ({"unread": (("n", "s"),)}, 3, "INCONCLUSIVE"),
        ({"unknown": {"n": "s"}, "debts": (Debt("n", "e", "f", "s", "unreadable"),)}, 5, "LEAKED"),
    ],
)
def test_exit_code_last_line_and_json_never_disagree(told, code, word):
    """Whatever was found."""
    document = audit_document("s", found(**told))
    assert (document["exit_code"], document["outcome"], audit_closing("s", found(**told)).split(":")[0]) == (code, word, word)
    assert json.loads(json.dumps(document)) == document


@pytest.mark.row("S10", "S11")
def test_text_from_a_node_is_data():
    """Terminal escapes, CI commands and other nodes' names in it do nothing."""
    evil = "\x1b]0;owned\x07::set-output name=a::b\nPASSED: s: all is well"
    lines = audit_lines(found(debts=(Debt("n1", evil, evil, evil, "ledger"),), notes=(("n1", evil),)))
    done = heal_lines(Healing(1, (Healed("n1", evil, evil, "ledger", False, evil),)))

    for line in [*lines, *done]:
        assert "\x1b" not in line
        assert "\n" not in line
        assert line.startswith("  ")
    document = json.dumps(audit_document(evil, found(debts=(Debt("n1", evil, evil, evil, "ledger"),))))
    assert "\\u001b" not in document


@pytest.mark.row("R12", "L5", "L16")
def test_a_healing_that_failed_somewhere_is_leaked_and_names_it():
    """One unrecovered target is red; what was left to a run that goes on is not."""
    results = (
        Healed("n1", "r/1/n1", "f", "ledger", True, "back"),
        Healed("n2", "r/1/n2", "f", "ledger", False, "still there"),
        Healed("n3", "r/1/n3", "f", "ledger", False, "left alone", held=True),
    )
    done = Healing(3, results, unknown={"n4": "no answer"})

    assert [line.split(":")[0].strip() for line in heal_lines(done)] == ["gone       n1", "NOT GONE   n2", "held       n3", "unknown    n4"]
    assert heal_closing("s", done).startswith("LEAKED: s: 1 not proven gone, 1 left to a run that goes on (`--live` ends it), 1 of 3 nodes")
    assert (heal_document("s", done)["exit_code"], Healing(3, results[:1]).exit_code, Healing(3, results[2:]).exit_code) == (5, 0, 3)


def test_what_a_dead_controller_holds_is_no_run_that_goes_on():
    """It is said so, and when to ask again."""
    ended = subprocess.Popen(["true"])
    name = f"ada@{socket.gethostname()}:{ended.pid}.{Process.of(ended.pid).start_time}.{this_controller().rpartition('.')[2]}"
    ended.wait()
    told = found(debts=(Debt("n1", "r/1/n1", "f", "injected", "ledger", replace(HELD, controller=name)),))

    assert "its controller is dead, so that the node heals itself then: ask again" in audit_lines(told)[0]
    assert audit_closing("s", told) == "INCONCLUSIVE: s: 1 held for 12 s yet by a run whose controller is dead: ask again then"
    assert "dead" not in audit_lines(found(debts=(replace(told.debts[0], held=HELD),)))[0]


def test_what_a_purge_did_is_a_short_line_and_names_the_node_once():
    """The JSON has every name."""
    removed = (
        "server of agent 01 (process 7)",
        "/run/chaoskit",
        "/var/lib/chaoskit",
        *(f"/root/.cache/{number}.pyz" for number in range(30)),
    )
    done = Healing(2, (), purged={"n1": removed, "n3": removed[1:]}, unpurged={"n2": "n2: n2: a training still runs"})

    assert heal_lines(done) == [
        "  purged     n1: /run/chaoskit, /var/lib/chaoskit, 31 processes and files of the agent",
        "  purged     n3: /run/chaoskit, /var/lib/chaoskit, 30 processes and files of the agent",
        "  NOT PURGED n2: a training still runs",
    ]
    assert heal_document("s", done)["purged"]["n1"] == list(removed)
