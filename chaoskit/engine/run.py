"""
Running one experiment file: connect -> training up or attached -> baseline -> inject in time -> watch -> judge.

`chaoskit.engine.session` has the stages, and reverts whatever becomes of them.
"""

from pathlib import Path

from chaoskit.engine.events import Listener
from chaoskit.engine.plan import Plan
from chaoskit.engine.ports import Clock, Fleet, Training
from chaoskit.engine.result import RunInfo, RunResult
from chaoskit.engine.session import Session, parts_of
from chaoskit.errors import AbortedError, ChaosError, RefusedError

LONGEST = 300
"""Characters of an error that is none of ours which become the reason."""


def run_experiment(
    plan: Plan,
    info: RunInfo,
    fleet: Fleet,
    training: Training,
    *,
    run_dir: Path,
    clock: Clock | None = None,
    listener: Listener = lambda _: None,
) -> RunResult:
    """
    Run an experiment to its verdict.

    Args:
        plan: What to do.
        info: The head of the run.
        fleet: The nodes; the caller closes it.
        training: The run under test.
        run_dir: An existing, empty directory; gets the journal.
        clock: The controller's clock.
        listener: Told of everything that happens.

    Returns:
        The result; what went wrong in setting up, watching or reverting stands in its verdict.

    Raises:
        JournalError: The journal could not even be created.
        InputError: The same, for a bad directory.
        BaseException: Whatever else ended it, a defect of ours for one; the journal's verdict says so.
    """
    session = Session(plan, info, parts_of(fleet, training, clock), run_dir=run_dir, listener=listener)
    try:
        play(session)
    except ChaosError as error:
        session.end_early(error)
    except BaseException as error:
        session.end_early(unforeseen(error))
        raise
    finally:
        session.close()
    return session.result


def unforeseen(error: BaseException) -> ChaosError:
    """Return what a verdict says of an end that is no ChaosError, which is raised on: a defect, an interrupt, a test's time limit."""
    if isinstance(error, KeyboardInterrupt):
        return AbortedError("ended by KeyboardInterrupt")
    words = " ".join(str(error).split())[:LONGEST]
    return RefusedError(f"ended by {type(error).__name__}: {words}" if words else f"ended by {type(error).__name__}")


def play(session: Session) -> None:
    """Take a session through all of its stages up to the verdict, which is `close`'s. Raises ChaosError."""
    session.connect()
    session.start()
    session.await_steady()
    _inject(session)
    longest = max((planned.duration for planned in session.plan.planned), default=0.0)
    session.watch(longest + session.plan.watch)


def _inject(session: Session) -> None:
    """Begin each injection when its time has come; a training that has ended is not hit again."""
    for planned in sorted(session.plan.planned, key=lambda planned: planned.after):
        while session.clock.now() < session.steady_at + planned.after:
            session.tick()
        if session.judge().phase == "dead":
            session.recorder.say("stage", "the training has ended: nothing more is injected")
            break
        session.inject(planned)
