"""Writes each thing that happens to the journal, then to the state, then to whoever watches: in that order."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chaoskit.engine.events import Event, Listener
from chaoskit.engine.journal import Journal, JournalError
from chaoskit.engine.ports import Clock, Observed
from chaoskit.engine.state import RunState
from chaoskit.judge.timeline import Mark
from chaoskit.model.secrets import redacted_json

AS_IT_IS = {"planned": ("undo", "params", "site")}
"""What `heal` needs of a record, by its kind: it is written as it is, since a value that is hidden there reverts nothing."""


class Recorder:
    """
    The only writer of a run's journal and state.

    When the disk refuses a record the refusal is raised, so that nothing more is injected, and so is whatever the
    listener fails with. Once `must_go_on` is set neither is: reverts, proofs and the verdict reach the state at least, a
    terminal that was closed cannot keep them from happening, and `notes` say what the journal or the watcher lacks.
    """

    def __init__(self, journal: Journal, clock: Clock, listener: Listener) -> None:
        self.state = RunState()
        self.broken = ""
        self.unheard = ""
        self.must_go_on = False
        self._journal = journal
        self._clock = clock
        self._listener = listener
        self._began = clock.now()

    @property
    def run_dir(self) -> Path:
        """The run's directory."""
        return self._journal.path.parent

    def record(self, kind: str, fields: Mapping[str, Any], *, at: float | None = None, durable: bool = True) -> None:
        """Append a record, of now unless `at` says otherwise. Raises JournalError when the disk refuses it and the run need not go on."""
        at = self._clock.now() if at is None else at
        fields = {**redacted_json(fields), **{name: fields[name] for name in AS_IT_IS.get(kind, ()) if name in fields}}
        failure = None if self.broken else self._append(kind, at, fields, durable=durable)
        self.state.apply({"at": at, "kind": kind, **fields})
        if failure is not None and not self.must_go_on:
            raise failure

    def record_all(self, kind: str, every: Sequence[Mapping[str, Any]]) -> None:
        """Append records of one kind, all on the disk when it returns; many cost no more waits for it than one. Raises as `record`."""
        for number, fields in enumerate(every, 1):
            self.record(kind, fields, durable=number == len(every))

    def _append(self, kind: str, at: float, fields: Mapping[str, Any], *, durable: bool) -> JournalError | None:
        try:
            self._journal.append(kind, at, fields, durable=durable)
        except JournalError as error:
            self.broken = str(error)
            return error
        return None

    def observe(self, observed: Observed, now: float) -> None:
        """
        Record what the training's logs told when they were looked at, if they told anything.

        A blind span that goes on ends with the look itself, so the record and the watch must bear its very moment: else
        the observer would seem to have seen again in between.
        """
        fields = {
            "samples": [[sample.t.lo, sample.t.hi, sample.step, sample.session] for sample in observed.samples],
            "marks": [_mark(mark) for mark in observed.marks],
            "blind": [list(span) for span in observed.blind],
            "batch": dict(observed.batch or {}),
            "gpus": dict(observed.gpus or {}),
        }
        told = {key: value for key, value in fields.items() if value}
        if told:
            self.record("observed", told, at=now, durable=False)
        self.state.watched_until = max(self.state.watched_until, now)
        for mark in observed.marks:
            self.say("mark", f"{mark.kind.value}: {mark.says}" if mark.says else mark.kind.value, node=mark.node)
        if observed.samples:
            last = observed.samples[-1]
            self.say("sample", f"step {last.step}", step=last.step)

    def say(self, kind: str, says: str, **data: Any) -> None:
        """Tell whoever watches, if anybody still does."""
        if self.unheard:
            return
        try:
            self._listener(Event(self._clock.now() - self._began, kind, says, data))
        except Exception as error:
            if not self.must_go_on:
                raise
            self.unheard = f"the run could not be shown to its end: {type(error).__name__}: {error}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What went wrong with the record and the showing of this run, as sentences."""
        return tuple(said for said in (self.broken, self.unheard) if said)


def _mark(mark: Mark) -> dict[str, Any]:
    return {
        "t": [mark.t.lo, mark.t.hi],
        "kind": mark.kind.value,
        "session": mark.session,
        "step": mark.step,
        "node": mark.node,
        "says": mark.says,
    }
