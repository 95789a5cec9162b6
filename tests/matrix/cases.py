"""
Which cases there are: from the points that undisturbed runs have passed, never from a list.

A case is a fault, a course (how its run goes on), a point, whom to stop there, and how. Each fault meets each victim at each
of its transitions; after which step of it, and by which signal, goes round the faults, so that together they meet all.
"""

import hashlib
from typing import NamedTuple

from chaoskit.agent.entry import MARKS, STATES
from chaoskit.engine.state import _TAKE

COURSES = {
    "told": "the controller ends it",
    "natural": "the node ends it, after its time",
    "away": "the lease ends it, as nobody renews",
    "orphan": "the fuse ends it, as nobody else is left",
    "debt": "heal ends it, as nobody is left",
    "lied": "the first revert does not bring it back",
    "whole-trouble": "with a training, and trouble",
    "whole-denied": "with a training, and a statement that does not hold",
    "whole-aborted": "with a training, and an abort",
}
HELD, WHOLE = ("told", "natural", "away", "orphan", "debt", "lied"), ("whole-trouble", "whole-denied", "whole-aborted")

ENDING = ("reverting", "revert", "reverted")
AFTERWARDS = {"natural": (*ENDING, "ended"), "away": ENDING, "debt": (*ENDING, "healed", "verb-heal"), "lied": ("failed",)}
"""What of a course differs from `told` even where it has the same name: who does it, or when."""

NEAR = {"server": ("server", "both"), "fuse": ("fuse",), "controller": ("controller",)}
"""Who is stopped by stopping whoever passes a point."""
IDLE = ("run", "connected", "exposed", "watched", "verdict", "verb-hello", "verb-hold", "verb-audit", "verb-prepare", "verb-exposed")
"""Where a controller is with nothing armed by it, or all of it closed: one of the node's processes is stopped there, and not each."""
VICTIMS = ("controller", "server", "fuse", "both", "channel")
WHOLE_VICTIMS = ("controller", "channel")
HOWS = {"channel": ("RST", "FIN", "SILENCE")}
ELSEWHERE = {
    "refused": "what a node refused to arm is not armed: whoever is stopped there owes nothing",
    "forgotten": "a person's word on a node that never returns, by `heal --forget`: nothing is touched by it",
    "lost": "written at the very end, of nodes that did not come back: whoever is stopped there owes nothing any more",
}
"""Records that no case comes to, and why that is right."""
AGAIN = ("planned", "lease", "verb-renew", "observed")
"""What comes again as long as a run lasts: its first time and its second are tried."""
KINDS = (*_TAKE, "connected", "watched")
"""Kinds of records that a journal can have."""


class Point(NamedTuple):
    """Where: who passes it, which transition, after which of its steps, and for which time in this run."""

    role: str
    label: str
    step: str
    nth: int

    @property
    def name(self):
        return f"{self.label}:{self.step}"


def courses_of(held, whole):
    """Return the courses of a fault."""
    return (*(HELD if held else ("told",)), *(WHOLE if whole else ()))


def unreached(found):
    """Return the transitions that the code knows and no recorded run has passed: a case for them is missing."""
    passed = {(point.role, point.label) for points in found.values() for point in points}
    lacking = [f"ledger state {state}" for state in (*STATES, *MARKS) if not {("server", state), ("fuse", state)} & passed]
    lacking += [f"journal record {kind}" for kind in KINDS if ("controller", kind) not in passed and kind not in ELSEWHERE]
    lacking += [f"{name} by the fuse" for name in ENDING if ("fuse", name) not in passed]
    return lacking + [f"request {verb}" for verb in ("renew", "heal") if ("controller", f"verb-{verb}") not in passed]


BEFORE_HARM = (
    (("server", "planned:fsync"), ("server", "inject:before")),
    (("server", "armed:fsync"), ("server", "inject:before")),
    (("server", "injecting:fsync"), ("server", "inject:before")),
    (("server", "lease:rename"), ("server", "armed:write")),
    (("server", "inject:before"), ("server", "injected:write")),
    (("controller", "planned:fsync"), ("controller", "armed:fsync")),
    (("controller", "armed:fsync"), ("controller", "verb-arm:before")),
    (("controller", "verb-arm:before"), ("controller", "verb-inject:before")),
)
"""What must be on disk before what: no kill shows a missing fsync, as only a power cut loses what was written without one."""


def disordered(raw):
    """Return which of `BEFORE_HARM` a recording does not keep."""
    first = {}
    for at, (role, name, _) in enumerate(raw):
        first.setdefault((role, name), at)
    return [
        f"{role} {name} before {' '.join(later)}"
        for (role, name), later in BEFORE_HARM
        if later in first and first.get((role, name), first[later]) >= first[later]
    ]


def points_of(raw):
    """Return the points of a recording that are worth a stop: without the ends that are a step's too, and the many in between."""
    points = [Point(role, *name.rsplit(":", 1), nth) for role, name, nth in raw]
    stepped = {(point.role, point.label) for point in points if point.step not in ("before", "after")}
    last = {(point.role, point.name): point.nth for point in points}
    return [
        point
        for point in points
        if point.label != "verb-clock"
        and not (point.step == "after" and (point.role, point.label) in stepped)
        and not (point.label.startswith("verb-") and point.step == "before" and point.label not in ("verb-arm", "verb-inject"))
        and (point.nth == 1 or point.nth == (2 if point.label in AGAIN else last[point.role, point.name]))
        and (point.nth == 1 or point.label in AGAIN or not point.label.startswith("verb-"))
    ]


def of_course(course, points, told):
    """Return those points of a course that `told` does not have already."""
    if course == "told":
        return points
    if course == "orphan":
        return [point for point in points if point.role == "fuse"]
    known = {(point.role, point.label) for point in told}
    apart = AFTERWARDS.get(course, ())
    return [point for point in points if point.label in apart or ((point.role, point.label) not in known and course != "debt")]


def victims_of(course):
    """Return who can be stopped in a course."""
    return {"away": ("server", "fuse", "both"), "orphan": ("fuse",), "debt": ("controller", "server", "channel")}.get(
        course, WHOLE_VICTIMS if course in WHOLE else VICTIMS
    )


def cases(found):
    """
    Return all cases, as dicts without an id.

    Args:
        found: (fault, course) -> the points of its recording.
    """
    made, whole, faults = [], set(), sorted({fault for fault, _ in found})
    for (fault, course), points in found.items():
        own = of_course(course, points, found[fault, "told"])
        if course.startswith("whole"):
            own = [point for point in own if point.role == "controller" and point.label not in whole]
            whole |= {point.label for point in own}
        transitions = {}
        for point in own:
            transitions.setdefault((point.role, point.label, point.nth), []).append(point)
        for (_, label, nth), steps in transitions.items():
            turn = faults.index(fault) + _number(label, str(nth))
            for victim in _stopped_at(label, course, turn):
                at, hows = turn + VICTIMS.index(victim), HOWS.get(victim, ("KILL", "STOP"))
                made.append(_case(fault, course, steps[at % len(steps)], victim, hows[at // len(steps) % len(hows)]))
    return made + _left_over(found, made)


def _left_over(found, made):
    """Return cases for the steps that the round has left out, where few faults have the transition: whoever passes them is stopped."""
    tried = {(case["role"], case["victim"], case["point"], case["how"]) for case in made}
    more = []
    for (fault, course), points in found.items():
        for point in of_course(course, points, found[fault, "told"]):
            for victim, how in ((victim, how) for victim in NEAR[point.role] for how in ("KILL", "STOP")):
                allowed = victim in victims_of(course) and not (course in WHOLE and point.role != "controller")
                if allowed and (point.role, victim, point.name, how) not in tried:
                    tried.add((point.role, victim, point.name, how))
                    more.append(_case(fault, course, point, victim, how))
    return more


def _stopped_at(label, course, turn):
    """Return whom to stop at a transition."""
    victims = victims_of(course)
    if label not in IDLE:
        return victims
    local = [victim for victim in victims if victim in ("server", "fuse", "both")]
    return [victim for victim in victims if victim not in local or victim == local[turn % len(local)]]


def _case(fault, course, point, victim, how):
    return {"fault": fault, "course": course, "role": point.role, "point": point.name, "nth": point.nth, "victim": victim, "how": how}


def _number(*words):
    """Return a number that is the same each time."""
    return int.from_bytes(hashlib.sha256(" ".join(words).encode()).digest()[:4], "big")
