"""
Debts that the journals of earlier runs remember: undos that were owed and never proven gone, paid or not, forgotten or not.

A node's own ledger comes first; a journal counts where that is lost, or the node cannot be asked.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chaoskit.agent import lines
from chaoskit.engine.journal import NAME, Journal
from chaoskit.engine.replay import read_state
from chaoskit.engine.state import RunState
from chaoskit.errors import InputError


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Who gave a debt up, when and why: its node never returns."""

    who: str
    when: str
    because: str

    def __str__(self) -> str:
        return f"forgotten by {self.who} at {self.when}: {self.because}"


@dataclass(frozen=True)
class Remembered:
    """
    A debt that a journal remembers: its run directory and site, and what the node's `heal` needs to pay it.

    `ended` is the run's own last moment, in seconds of its controller's clock.
    """

    run_dir: Path
    debt: Mapping[str, Any]
    inventory: str = ""
    forgotten: Forgotten | None = None
    ended: float = 0.0

    @property
    def entry(self) -> str:
        """The entry's name."""
        return str(self.debt["entry"])

    @property
    def run(self) -> str:
        """The run's name."""
        return str(self.debt["run"])

    @property
    def fault(self) -> str:
        """The fault's name."""
        return str(self.debt["fault"])

    @property
    def machine_id(self) -> str:
        """The machine that it is of; empty when that was never known."""
        site = self.debt.get("site")
        return str((site.get("machine_id") if isinstance(site, dict) else None) or "")

    def of_another_site(self, inventory: str, machine_id: str) -> bool:
        """Whether it is a debt of another site's node of the same name: both the site and the machine are others."""
        named = bool(self.inventory and inventory) and self.inventory != inventory
        return named and bool(self.machine_id and machine_id) and self.machine_id != machine_id

    def paid(self, says: str, *, itself: bool = False) -> None:
        """Write into that run's journal that it is paid, by the node `itself` or by us. Raises JournalError, InputError."""
        self._write("healed", {"says": says, "itself": itself})

    def forget(self, given_up: Forgotten) -> None:
        """Write into that run's journal that nobody will pay it. Raises JournalError, InputError."""
        self._write("forgotten", {"who": given_up.who, "when": given_up.when, "because": given_up.because})

    def _write(self, kind: str, fields: Mapping[str, Any]) -> None:
        book = Journal(self.run_dir, new=False)
        try:
            # At the run's own last moment: the clock of the machine that heals need not be the one that ran.
            book.append(kind, self.ended, {"entry": self.entry, **fields})
        finally:
            book.close()


def remembered(
    runs: Path, nodes: Iterable[str] | None, inventory: str = "", machines: Mapping[str, str] | None = None
) -> dict[str, list[Remembered]]:
    """
    Return the debts that the journals below `runs` remember as never proven gone, by node, newest first.

    A directory without a readable journal is passed over: there is nothing to remember in it. One that has lost its head is
    heard as far as it goes (`headless` tells of it).

    Args:
        runs: The directory of run directories.
        nodes: Names of nodes; None for all that there are debts of.
        inventory: The site whose nodes these are; debts of another site's nodes are left out where the machine shows it.
        machines: The machine ids of these nodes, as far as they are known.
    """
    wanted = None if nodes is None else set(nodes)
    debts: dict[str, list[Remembered]] = {}
    for run_dir in _run_dirs(runs):
        try:
            state, _ = read_state(run_dir)
        except InputError:
            continue
        for node, owed in _owed(run_dir, state):
            if (wanted is None or node in wanted) and not owed.of_another_site(inventory, (machines or {}).get(node, "")):
                debts.setdefault(node, []).append(owed)
    return debts


def headless(runs: Path) -> list[tuple[str, str]]:
    """Return the journals below `runs` whose head cannot be read though more stands there, each with a sentence."""
    told = []
    for run_dir in _run_dirs(runs):
        try:
            with (run_dir / NAME).open("rb") as file:
                if _is_head(file.readline()):
                    continue
            state, notes = read_state(run_dir)
        except (OSError, InputError):
            continue
        if "run" not in state.head and (state.entries or len(notes) > 1):
            says = f"its journal has lost its head, and {len(notes)} lines cannot be read: what these owed, nobody can say from here"
            told.append((run_dir.name, says))
    return told


def _is_head(line: bytes) -> bool:
    try:
        record = lines.unseal(line.strip())
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and record.get("kind") == "run"


def _run_dirs(runs: Path) -> list[Path]:
    """Newest first."""
    return sorted((path for path in runs.glob("*") if path.is_dir() and not path.is_symlink()), reverse=True)


def _owed(run_dir: Path, state: RunState) -> Iterable[tuple[str, Remembered]]:
    inventory = str(state.head.get("inventory", ""))
    for entry in reversed(state.entries.values()):
        if entry.owes:
            given_up = Forgotten(**entry.forgotten) if entry.forgotten else None
            yield entry.node, Remembered(run_dir, entry.debt(entry.name.split("/")[0]), inventory, given_up, state.watched_until)


def now() -> str:
    """Return the wall clock's time as a record has it."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
