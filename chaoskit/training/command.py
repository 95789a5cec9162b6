"""
`launcher: command`: argument lists, run on the controller without a shell, start and end the training.

    start: [sbatch, --parsable, "--job-name={run}", smoke.sbatch, "{run}"]
    stop: [scancel, "--name={run}"]
    nodes_command: [squeue, --noheader, "--jobs={job}", --format=%N]
    state_command: [squeue, --noheader, "--jobs={job}", --format=%T]
    log: "/var/tmp/{run}.log"

The first line that `start` prints is the job's id and nothing else; `sbatch --parsable` prints `ID;CLUSTER`, of which the id is taken.

A job may exist whose id was never read: its command hung after the submission, or a signal ended the run in that moment.
A `stop` without `{job}` ends that one too. A job that was put back into the queue is the same job: its logs are those of
the nodes that this training may use, and each is read as soon as it is there.
"""

import re
import time
from collections.abc import Callable, Sequence

from chaoskit.errors import InputError, TrainingError
from chaoskit.judge.timeline import Observed
from chaoskit.model.hostlist import expand
from chaoskit.training.logged import LoggedTraining, Setup
from chaoskit.training.placeholders import fill, fill_all
from chaoskit.training.site_command import Command

COMMAND_WITHIN = 60.0
"""Seconds that each command but `start` may take."""
ASK_EVERY = 1.0
"""Seconds between questions for the job's nodes while it is queued."""
STATE_EVERY = 5.0
"""Seconds from one question for the job's state to the next."""
SILENT = 2
"""How many answers in a row must be empty before the job has ended: one may fall into the moment of a requeue."""
JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@\[\]-]{0,127}")
"""A job id that may stand in an argument and in a log's path."""


class CommandTraining(LoggedTraining):
    """A training that commands of the site start and end."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.job = ""
        self._nodes = setup.nodes
        self._unknown = False
        """Whether a job may exist whose id was never read."""
        self._state: JobState | None = None
        self._ended = False

    @property
    def launches(self) -> bool:
        """Whether chaoskit starts and ends it: yes."""
        return True

    @property
    def nodes(self) -> tuple[str, ...]:
        """Inventory names of the nodes that train: those of the job, once `nodes_command` has told them."""
        return self._nodes

    @property
    def run_id(self) -> str:
        """TORCHELASTIC_RUN_ID of the training, empty when unknown."""
        return fill(super().run_id, job=self.job)

    def _launch(self) -> None:
        own_file = "{job}" in self.spec.log or "{run}" in self.spec.log
        if not own_file:  # a shared log holds other runs' lines: only what comes from now on is ours
            self._follow(self.setup.log_nodes, whole=False)
        self._submit()
        if self.spec.state_command:
            self._state = JobState(lambda: self._command("state_command", self.spec.state_command), time.monotonic())
        if self.spec.nodes_command:
            self._nodes = self._job_nodes()
        if own_file:
            self._follow(self.setup.log_nodes, whole=True, job=self.job)

    def _submit(self) -> None:
        """Run `start` and learn the job's id, also where it is told and then a deadline or a signal ends the wait. Raises TrainingError."""
        command = self._command("start", self.spec.start)
        self._unknown = True
        try:
            self.job = self._job_id(command.finish(self.spec.start_within))
        except BaseException:
            self._unknown = not command.failed
            line, told, _ = command.printed.partition("\n")
            if self._unknown and told:
                self.job = _id_in(line)
            raise

    def _job_id(self, printed: str) -> str:
        if job := _id_in(printed.partition("\n")[0]):
            return job
        hint = "the first line that the command prints must be the job's id alone; with Slurm, use sbatch --parsable"
        raise TrainingError(f"expected a job id, found {printed[:80]!r}", where=f"{self.setup.where}.start", hint=hint)

    def _job_nodes(self) -> tuple[str, ...]:
        where = f"{self.setup.where}.nodes_command"
        until = time.monotonic() + self.spec.start_within
        while not (printed := self._command("nodes_command", self.spec.nodes_command).finish(COMMAND_WITHIN).strip()):
            if self._has_ended(time.monotonic()):
                raise TrainingError(f"job {self.job} ended before it had nodes", where=where, hint="run its command by hand")
            if time.monotonic() > until:
                raise TrainingError(f"the job has no nodes after {self.spec.start_within:g} s", where=where, hint="is it still queued?")
            self._meanwhile()
            time.sleep(ASK_EVERY)  # a job that waits in the queue has no nodes yet
        try:
            names = expand(",".join(printed.split()))
        except InputError as error:
            raise TrainingError(f"expected a host list, found {printed[:80]!r}: {error}", where=where) from error
        if strangers := [name for name in names if name not in self.setup.nodes]:
            hint = "let the job run on the nodes of the training's group"
            raise TrainingError(f"the job runs on nodes that this training may not use: {', '.join(strangers)}", where=where, hint=hint)
        return names

    def _has_ended(self, now: float) -> bool:
        if self._state and not self._ended and self._state.gone(now):
            self._ended = True
            self.watch.exited(now, self._state.seen, f"job {self.job} has ended")
        return self._ended

    def _over(self) -> str:
        return f"ended before its first step: job {self.job} is no more" if self._ended else ""

    def _look(self, now: float) -> Observed:
        self._has_ended(now)
        return super()._look(now)

    def _command(self, key: str, argv: Sequence[str]) -> Command:
        return Command(fill_all(argv, run=self.setup.run, job=self.job), f"{self.setup.where}.{key}")

    def stop(self) -> None:
        """
        End the job and stop following.

        Raises:
            TrainingError: The stop command failed.
        """
        self.watch.stop()
        if self._state:
            self._state.close()
        by_name = not any("{job}" in word for word in self.spec.stop)
        if self.spec.stop and not self._ended and (self.job or (self._unknown and by_name)):
            self._command("stop", self.spec.stop).finish(COMMAND_WITHIN)
            self.job, self._unknown = "", False


class JobState:
    """
    Asks now and then whether the job is still there, and never waits for the answer.

    Args:
        ask: Starts the command that prints the job's state, and nothing once it has ended.
        now: When the job was known to be there.
    """

    def __init__(self, ask: Callable[[], Command], now: float) -> None:
        self.seen = now
        """Up to when the job was there."""
        self._ask = ask
        self._asked = now
        self._command: Command | None = None
        self._silent = 0

    def gone(self, now: float) -> bool:
        """
        Look, and say whether the job has ended. A command that fails says nothing: the scheduler may be away.

        Raises:
            TrainingError: The command cannot be run.
        """
        if self._command is None:
            if now - self._asked >= STATE_EVERY:
                self._asked = now
                self._command = self._ask()
        elif not self._command.running:
            self._hear(self._command)
            self._command = None
        elif now - self._asked > COMMAND_WITHIN:
            self.close()
        return self._silent >= SILENT

    def _hear(self, command: Command) -> None:
        if not command.succeeded:
            return
        if command.printed.strip():
            self.seen, self._silent = self._asked, 0
        else:
            self._silent += 1

    def close(self) -> None:
        """Give up a question that is under way."""
        if self._command:
            self._command.kill()
            self._command = None


def _id_in(line: str) -> str:
    """Return the job id that a line consists of; empty when it is something else."""
    job = line.strip().split(";")[0]
    return job if JOB.fullmatch(job) else ""
