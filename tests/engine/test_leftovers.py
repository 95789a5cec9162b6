"""Leftovers: audit only reads, heal pays and writes down what it paid."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest
from simulated import Kill, SimClock, SimFleet, SimNode, Slow

from chaoskit.engine.audit import Ground, audit, debt_of
from chaoskit.engine.heal import forget, heal, purged
from chaoskit.engine.journal import Journal
from chaoskit.engine.leftovers import reach, reach_each, refuse_leftovers
from chaoskit.engine.remembered import remembered
from chaoskit.engine.replay import read_state, state_of
from chaoskit.errors import InputError, RefusedError, UnreachableError
from chaoskit.model.wire import UNREADABLE, Held, LedgerEntry, Stray


class Site:
    """Two nodes, one of which still owes what a dead controller left."""

    def __init__(self, tmp_path) -> None:
        self.clock = SimClock()
        self.nodes = {name: SimNode(name, self.clock, {"slow": Slow, "kill": Kill}) for name in ("n1", "n2")}
        self.fleet = SimFleet(self.nodes)
        self.runs = tmp_path
        self.where = {}
        self.inventory = "sim"
        self.bare = Ground(("n1", "n2"))
        self.ground = Ground(("n1", "n2"), "sim", tmp_path)
        self.owe("n2")

    def owe(self, node, entry=None):
        """Let a node owe what a dead controller left."""
        entry, agent = entry or f"old/1/{node}", self.fleet.connect([node])[node]
        agent.prepare("old", entry, "slow", {}, None)
        agent.arm(entry, 1e9)
        agent.inject(entry, None)

    def pay(self):
        """Let all nodes owe nothing."""
        for node in self.nodes.values():
            node.entries.clear()

    def journal(self, *kinds):
        """Write the dead controller's journal: everything up to, and with, the given kinds."""
        (self.runs / "old").mkdir()
        book = Journal(self.runs / "old")
        book.append("run", 5.0, {"run": "old", "planned": [], "inventory": self.inventory})
        entry = {"entry": "old/1/n2", "number": 1, "node": "n2", "fault": "slow", "params": {}, "undo": {"was": "fast"}, **self.where}
        for kind in kinds:
            book.append(kind, 6.0, entry if kind == "planned" else {"entry": "old/1/n2"})
        book.close()


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


@pytest.mark.row("L46")
def test_audit_names_the_debt_and_changes_nothing(site):
    found = audit(site.fleet, site.bare)

    assert [(debt.node, debt.entry, debt.source) for debt in found.debts] == [("n2", "old/1/n2", "ledger")]
    assert site.nodes["n2"].slow


@pytest.mark.row("L4")
def test_a_node_that_cannot_be_asked_is_unknown_not_clean(site):
    site.nodes["n1"].cut_until = float("inf")

    assert set(audit(site.fleet, Ground(("n1",))).unknown) == {"n1"}
    assert not audit(site.fleet, Ground(("n1",))).clean


def test_a_node_behind_many_dead_ones_is_reached_all_the_same():
    """Sixteen are dialled at a time, and a dead one takes most of the time that there is."""
    pool = ThreadPoolExecutor(16)

    class Crowd:
        def reconnect(self, name):
            return pool.submit(self.dial, name)

        def dial(self, name):
            if name.startswith("dead"):
                time.sleep(0.4)
                raise UnreachableError("no answer", node=name)
            return name

    agents, unknown = reach(Crowd(), [*(f"dead{number}" for number in range(40)), "n1", "n2"], within=0.7)
    pool.shutdown()

    assert set(agents) == {"n1", "n2"}
    assert len(unknown) == 40


def test_one_dead_node_keeps_none_of_the_others_waiting():
    """Of a thousand nodes fifty are dead: who is behind them is dialled at once, not when each sixteen have had their time."""
    dead, dialled = Future(), []

    def reconnect(name):
        dialled.append(name)
        if len(dialled) == 40:
            dead.set_exception(UnreachableError("no answer", node="dead"))
        answered = Future()
        answered.set_result(name)
        return dead if name == "dead" else answered

    got = reach_each(reconnect, ["dead", *(f"n{number}" for number in range(39))], within=1.0)
    assert (len(got.answers), [type(error) for error in got.failures.values()]) == (39, [UnreachableError])


def test_heal_pays_once_and_then_there_is_nothing_left(site):
    done = heal(site.fleet, site.bare)

    assert ([(one.node, one.healed) for one in done.results], done.unknown, done.exit_code) == ([("n2", True)], {}, 0)
    assert not site.nodes["n2"].slow
    assert heal(site.fleet, site.bare).results == ()
    assert audit(site.fleet, site.bare).clean


@pytest.mark.row("L46")
def test_a_new_run_refuses_to_begin_over_a_debt(site):
    with pytest.raises(RefusedError, match="old/1/n2"):
        refuse_leftovers(site.fleet, site.fleet.connect(site.nodes))


def test_a_journal_remembers_what_was_armed_and_never_proven_gone(site):
    site.journal("planned", "armed")

    assert [owed.debt["undo"] for owed in remembered(site.runs, ["n2"])["n2"]] == [{"was": "fast"}]
    assert remembered(site.runs, ["n1"]) == {}


def test_a_journals_debt_says_of_which_machine_and_boot_it_is(site):
    """A name in an inventory may mean another machine by now, and another boot may have cleared it."""
    site.where = {"boot_id": "n2-boot-1", "site": {"node": "n2", "machine_id": "0" * 32}}
    site.journal("planned", "armed")

    (owed,) = remembered(site.runs, ["n2"])["n2"]
    assert (owed.debt["boot_id"], owed.debt["site"]) == ("n2-boot-1", {"node": "n2", "machine_id": "0" * 32})


def test_what_was_only_planned_is_not_owed(site):
    site.journal("planned")

    assert remembered(site.runs, ["n2"]) == {}


def test_a_debt_that_only_the_journal_remembers_is_found(site):
    site.journal("planned", "armed")
    site.nodes["n2"].entries.clear()

    assert [debt.source for debt in audit(site.fleet, site.ground).debts] == ["journal"]


def test_a_debt_that_the_ledger_closed_is_not_dug_up_from_the_journal(site):
    site.journal("planned", "armed")
    heal(site.fleet, site.bare)

    assert audit(site.fleet, site.ground).clean


def test_what_heal_paid_is_written_into_the_journal(site):
    site.journal("planned", "armed")
    heal(site.fleet, site.ground)

    assert remembered(site.runs, ["n2"]) == {}


@pytest.mark.row("R5")
def test_a_damaged_journal_hides_no_debt_of_another_one(site):
    """The line that planned the entry was lost on a bad disk; what follows it cannot be understood."""
    site.journal("planned", "armed")
    damaged = Journal((site.runs / "zzz").mkdir() or site.runs / "zzz")
    damaged.append("run", 5.0, {"run": "zzz", "planned": []})
    damaged.append("armed", 6.0, {"entry": "zzz/1/n2"})
    damaged.close()
    site.nodes["n2"].entries.clear()

    assert [debt.entry for debt in audit(site.fleet, site.ground).debts] == ["old/1/n2"]
    assert "armed" in state_of(site.runs / "zzz")[1][0]


def test_a_journal_that_cannot_be_written_to_hides_no_healing(site):
    """A journal that is a link is read, and never written through."""
    site.journal("planned", "armed")
    journal = site.runs / "old" / "journal.jsonl"
    journal.rename(site.runs / "elsewhere")
    journal.symlink_to(site.runs / "elsewhere")
    done = heal(site.fleet, site.ground)
    (one,) = done.results

    assert (one.healed, done.unknown) == (True, {})
    assert "remembered still" in one.says
    assert not site.nodes["n2"].slow


def test_directories_without_a_journal_are_passed_over(site):
    (site.runs / "notes").mkdir()
    (site.runs / "latest").symlink_to("notes")

    assert remembered(site.runs, ["n2"]) == {}


# -- what no ledger explains ---------------------------------------------------------------------------------------


OURS = Stray("storage_slow", "nic:eth0", "our cap stands on eth0", ours=True)
FOREIGN = Stray("storage_slow", "nic:eth1", "eth1 has a queueing discipline of its own", ours=False, do="tc qdisc del")


@pytest.mark.row("L3", "L18", "L46")
def test_a_stray_of_ours_is_leaked_until_it_is_swept_and_a_foreign_one_is_only_told(site):
    """Exit 5, then 0; what is not ours is never touched, and is no reason for another exit code."""
    site.pay()
    site.nodes["n1"].strays = [OURS, FOREIGN]
    found = audit(site.fleet, site.ground)

    assert ([(one.node, one.stray) for one in found.leaked], found.exit_code) == ([("n1", OURS)], 5)
    assert [one.stray for one in found.foreign] == [FOREIGN]
    done = heal(site.fleet, site.ground)
    assert ([(one.source, one.healed) for one in done.results], done.exit_code) == ([("stray", True)], 0)
    assert site.nodes["n1"].strays == [FOREIGN]
    assert audit(site.fleet, site.ground).exit_code == 0


@pytest.mark.row("L4", "L28")
def test_a_look_that_failed_is_unknown_not_clean(site):
    """A GPU that hangs may be capped by us: nobody has looked."""
    site.pay()
    site.nodes["n1"].unread = ["strays of gpu_power_cap could not be looked for"]

    assert (audit(site.fleet, site.ground).exit_code, heal(site.fleet, site.ground).exit_code) == (3, 3)


@pytest.mark.row("L46")
def test_a_run_does_not_begin_over_a_stray_of_ours(site):
    """What no ledger knows of is a leftover all the same."""
    site.pay()
    site.nodes["n1"].strays = [FOREIGN]
    refuse_leftovers(site.fleet, site.fleet.connect(site.nodes))
    site.nodes["n1"].strays = [OURS]

    with pytest.raises(RefusedError, match="n1: our cap stands on eth0"):
        refuse_leftovers(site.fleet, site.fleet.connect(site.nodes))


# -- nodes that are away, and other sites' -------------------------------------------------------------------------


@pytest.mark.row("L4", "L5", "L22")
def test_what_a_node_that_cannot_be_asked_may_owe_is_owed(site):
    """Only our journal knows; unknown is never recovered."""
    site.journal("planned", "armed")
    site.nodes["n2"].cut_until = float("inf")

    for found in (audit(site.fleet, site.ground), heal(site.fleet, site.ground)):
        assert ([debt.entry for debt in found.owed], set(found.unknown), found.exit_code) == (["old/1/n2"], {"n2"}, 5)


@pytest.mark.row("L7")
def test_a_node_that_left_the_inventory_takes_no_debt_along(site):
    """Its name is no longer asked for, and what it owes is still owed."""
    site.journal("planned", "armed")
    found = audit(site.fleet, Ground(("n1",), "sim", site.runs))

    assert [(debt.node, debt.entry) for debt in found.owed] == [("n2", "old/1/n2")]
    assert "the inventory has no such node any more" in found.owed[0].says
    assert audit(site.fleet, Ground(("n1",), "another site", site.runs)).exit_code == 0


@pytest.mark.parametrize(
    ("inventory", "machine", "ours"),
    [
        ("sim", "machine-of-n2", True),
        ("sim", "another", True),
        ("another", "machine-of-n2", True),
        ("another", "another", False),
        ("another", None, True),
    ],
)
def test_two_sites_with_a_node_of_one_name_do_not_see_each_others_debts(site, inventory, machine, ours):
    """A debt is left out only where both the site and the machine are others: whatever is not known counts."""
    site.inventory, site.where = inventory, {"site": {"node": "n2", "machine_id": machine}}
    site.journal("planned", "armed")
    site.nodes["n2"].entries.clear()

    assert [debt.source for debt in audit(site.fleet, site.ground).debts] == ["journal"] * ours
    heal(site.fleet, site.ground)
    assert site.nodes["n2"].journals == ["old/1/n2"] * ours


# -- forgetting ----------------------------------------------------------------------------------------------------


@pytest.mark.row("L7", "R2")
def test_what_is_forgotten_stays_listed_and_counts_no_more(site):
    """Exit 5 until somebody says why the node never returns; who, when and why are in the journal; the run stays LEAKED."""
    site.journal("planned", "armed")
    site.nodes["n2"].cut_until = float("inf")
    assert audit(site.fleet, site.ground).exit_code == 5

    (given_up,) = forget(site.fleet, site.ground, "n2", "it burnt")
    assert given_up.entry == "old/1/n2"
    for found in (audit(site.fleet, site.ground), heal(site.fleet, site.ground)):
        assert ([debt.entry for debt in found.forgotten], found.owed, found.unknown, found.exit_code) == (["old/1/n2"], (), {}, 0)
    assert "it burnt" in found.forgotten[0].says
    assert forget(site.fleet, site.ground, "n2", "again") == (), "it is recorded once"
    (entry,) = state_of(site.runs / "old")[0].entries.values()
    assert (entry.owes, entry.forgotten["because"], "@" in entry.forgotten["who"]) == (True, "it burnt", True)


@pytest.mark.row("L7")
def test_a_forgotten_node_that_returns_owes_again(site):
    """Its own ledger says so; heal pays it, and the journal hears of that."""
    site.journal("planned", "armed")
    site.nodes["n2"].cut_until = float("inf")
    forget(site.fleet, site.ground, "n2", "it burnt")
    site.nodes["n2"].cut_until = 0.0

    assert audit(site.fleet, site.ground).exit_code == 5
    assert heal(site.fleet, site.ground).exit_code == 0
    assert remembered(site.runs, ["n2"]) == {}


@pytest.mark.row("L7")
def test_what_answers_is_not_forgotten(site):
    """It can be healed; without a reason, or without a debt, nothing is forgotten either."""
    site.journal("planned", "armed")
    with pytest.raises(RefusedError, match="n2 answers"):
        forget(site.fleet, site.ground, "n2", "lazy")
    with pytest.raises(InputError, match="without a reason"):
        forget(site.fleet, site.ground, "n2", " ")
    with pytest.raises(InputError, match=r"no journal in .* remembers a debt of 'n9'"):
        forget(site.fleet, site.ground, "n9", "who?")
    assert remembered(site.runs, ["n2"])["n2"][0].forgotten is None


def test_the_debt_of_a_machine_that_was_replaced_can_be_forgotten(site):
    """Another machine answers by its name now, and cannot pay what it does not owe."""
    site.where = {"site": {"node": "n2", "machine_id": "the old one"}}
    site.journal("planned", "armed")
    site.nodes["n2"].entries.clear()

    assert audit(site.fleet, site.ground).exit_code == 5
    forget(site.fleet, site.ground, "n2", "scrapped")
    assert audit(site.fleet, site.ground).exit_code == 0


@pytest.mark.row("L4", "L5", "R2")
@pytest.mark.parametrize("verb", ["entries", "audit"])
def test_what_a_ledger_does_not_answer_hides_no_debt_of_a_journal(site, verb):
    """Whether the ledger has it is unknown, so it is owed; heal has the node pay it from the journal, and is not at ease."""
    site.journal("planned", "armed")
    site.nodes["n2"].entries.clear()
    site.nodes["n2"].refuses, site.nodes["n2"].refuses_at = "the answer would be too long", verb
    found = audit(site.fleet, site.ground)

    assert ([debt.entry for debt in found.owed], set(found.unknown), found.exit_code) == (["old/1/n2"], {"n2"}, 5)
    assert "too long" in found.unknown["n2"]
    done = heal(site.fleet, site.ground)
    assert ([(one.entry, one.healed) for one in done.results], set(done.unknown)) == ([("old/1/n2", True)], {"n2"})
    assert (site.nodes["n2"].journals, done.exit_code) == (["old/1/n2"], 3)


def test_a_debt_of_both_the_ledger_and_the_journal_is_told_once(site):
    """The ledger says it better."""
    site.journal("planned", "armed")
    site.nodes["n2"].refuses, site.nodes["n2"].refuses_at = "the disk is slow", "entries"

    assert [(debt.entry, debt.source) for debt in audit(site.fleet, site.ground).owed] == [("old/1/n2", "ledger")]
    assert [(one.entry, one.source, one.healed) for one in heal(site.fleet, site.ground).results] == [("old/1/n2", "ledger", True)]


@pytest.mark.row("L5", "R12")
def test_heal_sweeps_though_the_audit_failed(site):
    """What stands there without an entry has nothing to do with the ledger."""
    site.pay()
    site.nodes["n1"].refuses, site.nodes["n1"].refuses_at = "the disk is dead", "audit"
    site.nodes["n1"].strays = [OURS]
    done = heal(site.fleet, site.ground)

    assert ([(one.source, one.healed) for one in done.results], set(done.unknown), done.exit_code) == ([("stray", True)], {"n1"}, 3)


def test_each_journal_is_read_once(site, monkeypatch):
    """A directory of a thousand runs is read in seconds, not in minutes."""
    site.journal("planned", "armed")
    site.nodes["n2"].entries.clear()
    read = []
    monkeypatch.setattr("chaoskit.engine.remembered.read_state", lambda path: read.append(path.name) or read_state(path))

    audit(site.fleet, site.ground)
    assert read == ["old"]
    heal(site.fleet, site.ground)
    assert read == ["old", "old"]


@pytest.mark.row("R5", "L2")
def test_what_nobody_can_read_is_told_with_its_file_and_how_to_let_go_of_it():
    """Otherwise nothing would ever clear it: runs are refused, and so is purge."""
    entry = LedgerEntry("r/1/n1", UNREADABLE, None, None, {"path": "/var/lib/x y/r,1,n1.jsonl"}, says="its plan is damaged")

    assert "`mv '/var/lib/x y/r,1,n1.jsonl' '/var/lib/x y/r,1,n1.jsonl'.damaged`" in debt_of("n1", entry).says


@pytest.mark.row("L4", "L28")
def test_a_run_does_not_begin_where_the_look_for_its_own_fault_failed(site):
    """Of the others it is said, in a note."""
    site.pay()
    site.nodes["n1"].unread = ["strays of slow could not be looked for: it hangs"]
    agents = site.fleet.connect(site.nodes)

    assert refuse_leftovers(site.fleet, agents, faults=["kill"]) == ["n1: strays of slow could not be looked for: it hangs"]
    with pytest.raises(RefusedError, match="n1: strays of slow could not be looked for"):
        refuse_leftovers(site.fleet, agents, faults=["kill", "slow"])


# -- healing goes on -----------------------------------------------------------------------------------------------


@pytest.mark.row("R12", "L5")
def test_a_node_that_fails_keeps_no_other_from_being_healed(site):
    """One unrecovered target is red, by name; the others are paid."""
    site.owe("n1")
    site.nodes["n1"].never_gone = True
    done = heal(site.fleet, site.ground)

    assert {(one.node, one.healed) for one in done.results} == {("n1", False), ("n2", True)}
    assert (done.exit_code, [one.node for one in done.failed]) == (5, ["n1"])
    assert not site.nodes["n2"].slow


@pytest.mark.row("R12", "L24")
def test_a_debt_whose_payment_never_ends_keeps_no_other_from_being_paid(site):
    """It is unknown, so not healed; the older ones of the same node have their turn."""
    site.owe("n2", "old/2/n2")
    site.nodes["n2"].hangs_on = "old/2/n2"
    done = heal(site.fleet, site.ground)

    assert [(one.entry, one.healed) for one in done.results] == [("old/2/n2", False), ("old/1/n2", True)]
    assert (done.exit_code, done.failed[0].says) == (5, "no answer within 60 s; whether it took effect is unknown")


@pytest.mark.row("L2", "L15")
def test_debts_are_paid_newest_first(site):
    """What was done last is undone first."""
    for number in (2, 3):
        site.owe("n2", f"old/{number}/n2")

    assert [one.entry for one in heal(site.fleet, site.ground).results] == ["old/3/n2", "old/2/n2", "old/1/n2"]


def test_a_journal_longer_than_a_line_of_the_wire_is_paid(site):
    """Each debt is a request of its own."""
    site.journal("planned", "armed")
    site.nodes["n2"].entries.clear()
    book = Journal(site.runs / "old", new=False)
    for number in range(2, 50):
        entry = {"entry": f"old/{number}/n2", "number": number, "node": "n2", "fault": "slow", "params": {}, "undo": {"was": "x" * 50_000}}
        book.append("planned", 6.0, entry)
        book.append("armed", 6.0, {"entry": entry["entry"]})
    book.close()

    assert len(heal(site.fleet, site.ground).results) == 49
    assert remembered(site.runs, ["n2"]) == {}


def test_purge_takes_the_agent_off_the_nodes_that_owe_nothing(site):
    """One that owes keeps its agent, which is what will mend it."""
    site.nodes["n2"].never_gone = True
    site.nodes["n2"].entries["old/1/n2"].state = "armed"
    done = purged(site.fleet, site.ground, heal(site.fleet, Ground(("n1",))))

    assert dict(done.purged) == {"n1": ("/var/lib/chaoskit", "/home/n1/agent.pyz")}
    assert "still owed" in done.unpurged["n2"]
    assert done.exit_code == 3


TRAINING = Stray("training", "training:training-old", "processes of training-old still run", ours=True)


@pytest.mark.row("L46")
def test_a_training_that_a_killed_controller_left_is_red_refused_beside_and_ended(site):
    """It would be measured with the next run's: audit is LEAKED, a run does not begin beside it, heal ends it."""
    site.pay()
    for node in site.nodes.values():
        node.strays = [TRAINING]

    found = audit(site.fleet, site.bare)
    assert ([one.stray for one in found.leaked], found.exit_code) == ([TRAINING] * 2, 5)
    with pytest.raises(RefusedError, match=r"left over on n\[1-2\]: processes of training-old still run.*`chaoskit heal` ends it"):
        refuse_leftovers(site.fleet, site.fleet.connect(site.nodes))
    assert heal(site.fleet, site.bare).exit_code == 0
    assert audit(site.fleet, site.bare).clean


def test_the_training_of_a_run_that_goes_on_is_no_leftover(site):
    """It is told, whose it is, and nothing is clean yet."""
    site.pay()
    site.nodes["n1"].strays = [replace(TRAINING, held=Held("old", "ada@laptop:7", 0.0, 12.0))]

    found = audit(site.fleet, site.bare)
    assert (found.leaked, len(found.live), found.exit_code) == ((), 1, 3)
