"""Which life a step belongs to: a new session exactly when the training's processes are new."""

from hypothesis import given
from hypothesis import strategies as st

from chaoskit.judge.timeline import MarkKind
from chaoskit.model.interval import Interval
from chaoskit.training.events import EventKind, LogEvent
from chaoskit.training.lives import Lives

BORN, STEP, GONE, DETECT = EventKind.BORN, EventKind.STEP, EventKind.OLD_GONE, EventKind.DETECT


class Story:
    """Feeds events one second apart; `marks` and `samples` are what came of them."""

    def __init__(self):
        self.lives = Lives()
        self.now = 0.0

    def __call__(self, node, kind, **values):
        self.now += 1
        return self.lives.feed(node, LogEvent(kind, **values), Interval.at(self.now, 0.01))

    def start(self, *nodes):
        for rank, node in enumerate(nodes):
            self(node, BORN, rank=rank, by_agent=True)
            self(node, BORN, rank=rank)

    def steps(self, node, *steps, **values):
        for step in steps:
            self(node, STEP, step=step, **values)

    @property
    def samples(self):
        return [(sample.session, sample.step) for sample in self.lives.told.samples]

    def marks(self, kind):
        return [mark for mark in self.lives.told.marks if mark.kind is kind]


def test_one_start_of_all_ranks_is_one_life_and_the_next_start_another():
    story = Story()
    story.start("n1", "n2", "n3")
    story.steps("n1", 1, 2)
    for node in ("n2", "n1", "n3"):
        story(node, DETECT)
        story(node, GONE)
    story.start("n1", "n2", "n3")
    story.steps("n1", 1, 2)
    assert story.samples == [("n1#1", 1), ("n1#1", 2), ("n1#2", 1), ("n1#2", 2)]
    assert [mark.session for mark in story.marks(MarkKind.BORN)] == ["n1#1", "n1#2"]
    assert {mark.session for mark in story.marks(MarkKind.DETECT)} == {"n1#1"}
    [gone] = story.marks(MarkKind.OLD_GONE)
    assert (gone.session, gone.node) == ("n1#1", "n3")


def test_a_storm_is_counted_by_its_births():
    story = Story()
    for _ in range(3):
        story.start("n1", "n2")
        story("n2", DETECT)
        story("n2", DETECT)  # a traceback has many lines; the first failure tells all
        story("n1", DETECT)
    story.start("n1", "n2")
    story.steps("n1", 41)
    assert [mark.session for mark in story.marks(MarkKind.BORN)] == ["n1#1", "n1#2", "n1#3", "n1#4"]
    assert story.samples == [("n1#4", 41)]
    assert [mark.session for mark in story.marks(MarkKind.DETECT)] == ["n1#1", "n1#1", "n1#2", "n1#2", "n1#3", "n1#3"]


def test_a_failure_that_is_read_late_belongs_to_the_life_of_its_time():
    story = Story()
    story.start("n1", "n2")
    died = story.now + 1
    story.steps("n1", 1)
    story.start("n1")
    story.lives.feed("n2", LogEvent(DETECT), Interval.at(died, 0.01))
    assert [mark.session for mark in story.marks(MarkKind.DETECT)] == ["n1#1"]


def test_a_false_alarm_does_not_hide_the_real_one():
    story = Story()
    story.start("n1")
    story("n1", DETECT)
    story.steps("n1", 1)
    story("n1", DETECT)
    story("n1", DETECT)
    assert len(story.marks(MarkKind.DETECT)) == 2


def test_rank_0_may_move_to_another_node():
    story = Story()
    story.start("n1", "n2")
    story.steps("n1", 1)
    story.start("n2", "n3")
    story.steps("n2", 1)
    assert story.samples == [("n1#1", 1), ("n2#1", 1)]


def test_old_workers_are_gone_when_the_last_log_says_so_or_the_next_life_begins():
    story = Story()
    story.start("n1", "n2")
    story("n1", GONE)
    assert not story.marks(MarkKind.OLD_GONE)
    story("n2", GONE)
    [gone] = story.marks(MarkKind.OLD_GONE)
    assert (gone.node, gone.t.mid) == ("n2", story.now)
    story.start("n1", "n2")
    story("n1", GONE)
    at = story.now
    story.start("n1")  # n2 was killed with its node and says nothing more
    assert [mark.t.mid for mark in story.marks(MarkKind.OLD_GONE)][1:] == [at]


def test_births_without_a_rank_are_one_life_until_a_log_is_born_twice_or_a_step_is_done():
    story = Story()
    for _ in range(2):
        for node in ("n1", "n2", "n3"):
            story(node, BORN)
    assert [mark.session for mark in story.marks(MarkKind.BORN)] == ["n1#1", "n1#2"]
    story.steps("n2", 1)
    story("n2", BORN)
    assert story.marks(MarkKind.BORN)[-1].session == "n2#1"


def test_what_every_rank_prints_counts_once_and_a_falling_step_counts_from_its_first_writer_alone():
    story = Story()
    story.start("n1", "n2")
    story.steps("n1", 1, 2)
    story.steps("n2", 1, 2, 3)
    story.steps("n1", 3, 3)
    story.steps("n1", 3, source="rank1")
    story.steps("n1", 2)
    assert story.samples == [("n1#1", 1), ("n1#1", 2), ("n1#1", 3), ("n1#1", 2)]


def test_a_rank_whose_lines_are_read_late_has_not_fallen_back():
    """Another rank's log was read three steps ahead of the lead's: what the lead then tells is known, and no new life."""
    story = Story()
    story.start("n1", "n2")
    story.steps("n1", 1)
    story.steps("n2", 1, 2, 3, 4)
    story.steps("n1", 2, 3, 4, 5)
    assert [step for _, step in story.samples] == [1, 2, 3, 4, 5]


def test_a_line_may_name_its_life_itself():
    story = Story()
    story.steps("log", 1, 2, session="a1")
    story.steps("log", 1, session="a2")
    story("log", EventKind.LOADED, step=0, session="a2")
    assert story.samples == [("a1", 1), ("a1", 2), ("a2", 1)]
    assert [mark.session for mark in story.marks(MarkKind.BORN)] == ["a1", "a2"]


def test_batch_and_world_are_kept_by_life():
    story = Story()
    story.start("n1")
    story("n1", EventKind.GROUP_UP, world=4)
    story.steps("n1", 1, batch=32)
    assert (story.lives.told.world, story.lives.told.batch) == ({"n1#1": 4}, {"n1#1": 32})


def test_workers_are_known_idle_from_a_failure_to_the_next_birth_anywhere():
    story = Story()
    story.start("n1", "n2")
    story.steps("n1", 1)
    assert story.lives.idle == []
    story("n2", DETECT)
    began = story.now
    story("n2", GONE)
    story("n2", BORN, rank=1, by_agent=True)
    [(lo, hi)] = story.lives.idle
    assert (round(lo), round(hi)) == (began, story.now)
    story.lives.exited(Interval.at(story.now + 1), "over")
    assert story.lives.idle[-1][1] == float("inf")
    assert story.marks(MarkKind.EXIT)[0].session == "n1#1"


@given(st.lists(st.sampled_from(["n1", "n2", "n3"]), min_size=1, max_size=30), st.data())
def test_sessions_change_exactly_at_births_of_rank_0(owners, data):
    """Over any history of lives whose rank 0 is anywhere, with other ranks' births and failures in any order between."""
    story, expected = Story(), []
    for number, owner in enumerate(owners):
        others = data.draw(st.permutations([node for node in ("n1", "n2", "n3") if node != owner]))
        for node in data.draw(st.permutations([owner, *others])):
            story(node, BORN, rank=0 if node == owner else 1, by_agent=True)
        count = data.draw(st.integers(0, 3))
        story.steps(owner, *range(1, count + 1))
        expected += [(number, step) for step in range(1, count + 1)]
        for node in data.draw(st.permutations(["n1", "n2", "n3"])):
            story(node, data.draw(st.sampled_from([DETECT, GONE])))
    births = [mark.session for mark in story.marks(MarkKind.BORN)]
    assert len(set(births)) == len(owners)
    assert [(births.index(session), step) for session, step in story.samples] == expected
