"""
The boot unit: one systemd unit that mends, at boot, what a reboot does not clear; there exactly while such a debt is open.

It is durable before the entry is armed, and goes when the last persistent debt is closed, whoever closes it. It runs the
copies of the agent that root has taken over, each only when its hash is the one that was armed. Where systemd is not the
init there is no unit, and `chaoskit heal` pays. Standard library only, Python 3.8.
"""

import os
import sys
from contextlib import contextmanager, suppress
from typing import Dict, Iterator, List, NamedTuple, Optional

from chaoskit.agent.contract import Lifetime
from chaoskit.agent.detach import has_systemd
from chaoskit.agent.ledger import Entry, Ledger
from chaoskit.agent.paths import Paths, fsync_directory, refuse_foreign_parents, write_atomically
from chaoskit.errors import ChaosError, RefusedError

UNITS = "/etc/systemd/system"
NAME = "chaoskit-heal.service"
WANTS = "multi-user.target.wants"

REBOOT = "the reboot"
"""Who closed an entry whose fault no reboot survives."""

BY = "the boot unit"
"""Who closed an entry that was healed at boot."""

LONGEST = 300
"""Seconds that systemd gives the unit: each debt has its turn of half a minute."""

CHECK = """
import hashlib, subprocess, sys
state, failed = sys.argv[3], 0
for agent in sys.argv[1].split(","):
    path = state + "/agent/" + agent + ".pyz"
    try:
        with open(path, "rb") as file:
            found = hashlib.sha256(file.read()).hexdigest()
    except OSError as error:
        found = str(error)
    if found != agent:
        print("chaoskit: " + path + " is not the agent that was armed, found " + found + "; run chaoskit heal", file=sys.stderr)
        failed = 1
        continue
    failed |= subprocess.call([sys.executable, "-I", "-S", path, "boot"] + sys.argv[2:])
sys.exit(1 if failed else 0)
""".strip()
"""What the unit runs: AGENT,... --state DIR ...; an archive runs only when it is the one that was armed."""


class Unit(NamedTuple):
    """Where the unit stands, and the command line of the agent's roots (`--state DIR` first)."""

    directory: str
    arguments: List[str]

    @property
    def path(self) -> str:
        """The unit's file."""
        return os.path.join(self.directory, NAME)

    @property
    def link(self) -> str:
        """What enables it."""
        return os.path.join(self.directory, WANTS, NAME)

    @property
    def there(self) -> bool:
        """True while the next boot will run it."""
        return os.path.lexists(self.link) and os.path.exists(self.path)

    def write(self, agents: List[str]) -> None:
        """Make the unit durable, and enabled, for the agents of these hashes. Raises OSError, PrivilegeError."""
        refuse_foreign_parents(self.directory)
        wants = os.path.dirname(self.link)
        with suppress(FileExistsError):
            os.mkdir(wants, 0o755)
            fsync_directory(self.directory)
        refuse_foreign_parents(wants)
        write_atomically(self.path, text(agents, self.arguments).encode(), mode=0o644, durable=True)
        if not _is_link_to(self.link, "../" + NAME):
            fresh = "{}.{}".format(self.link, os.urandom(4).hex())
            os.symlink("../" + NAME, fresh)
            os.rename(fresh, self.link)
        fsync_directory(wants)

    def remove(self) -> None:
        """Let the next boot run nothing; removes only what is there. Raises OSError."""
        for path in (self.link, self.path):
            if os.path.lexists(path):
                os.unlink(path)
                fsync_directory(os.path.dirname(path))


def unit_of(paths: Paths) -> Optional[Unit]:
    """Return where this node's unit stands, there or not; None where systemd is not the init."""
    directory = paths.units or (UNITS if has_systemd() else "")
    return Unit(directory, paths.arguments()) if directory else None


def text(agents: List[str], arguments: List[str]) -> str:
    """Return the unit's text."""
    state = arguments[1]
    command = [sys.executable or "/usr/bin/python3", "-I", "-S", "-c", CHECK, ",".join(agents), *arguments]
    return "\n".join(
        (
            "# Written by chaoskit while this node owes an undo that a reboot does not clear; `chaoskit heal` pays it and removes this.",
            "[Unit]",
            "Description=chaoskit: undo what a fault injection left",
            "ConditionPathExists={}".format(_plain(state + "/ledger")),
            "RequiresMountsFor={}".format(_plain(state)),
            "After=local-fs.target",
            # Who brings work to this node waits until it is whole.
            "Before=slurmd.service kubelet.service",
            "",
            "[Service]",
            "Type=oneshot",
            "TimeoutStartSec={}".format(LONGEST),
            "ExecStart={}".format(" ".join(_word(word) for word in command)),
            "",
            "[Install]",
            "WantedBy=multi-user.target",
            "",
        )
    )


def _word(word: str) -> str:
    """Return one argument as systemd reads it back: quoted, with its specifiers, variables and escapes taken literally."""
    for plain, written in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("%", "%%"), ("$", "$$")):
        word = word.replace(plain, written)
    return '"{}"'.format(word)


def _plain(path: str) -> str:
    return path.replace("%", "%%")


def _is_link_to(path: str, target: str) -> bool:
    return os.path.islink(path) and os.readlink(path) == target


def persists(entry: Entry) -> bool:
    """Say whether a reboot leaves an entry's harm as it is."""
    return entry.lifetime == Lifetime.PERSISTENT.value


@contextmanager
def announced(ledger: Ledger, entry: Entry) -> Iterator[None]:
    """
    Arm `entry` inside: before that the unit is durable, where the entry persists and systemd is there.

    Raises:
        RefusedError: The unit cannot be written, so that nobody would mend the node at boot.
    """
    unit = ledger.unit
    if unit is None or not persists(entry):
        yield
        return
    with ledger.unit_lock():
        try:
            unit.write(_agents(ledger, entry))
        except (OSError, ChaosError) as error:
            raise RefusedError(
                "{} persists, and the unit that would mend this node at boot cannot be written: {}".format(entry.fault, error),
                where=unit.path,
            ) from error
        try:
            yield
        except BaseException:
            _match(ledger, unit)
            raise


def _agents(ledger: Ledger, entry: Optional[Entry] = None) -> List[str]:
    """Return the hashes of the agents that armed what persists and is owed, newest first; `entry` is one more."""
    owing = [one for one in ledger.open_entries() if persists(one)] + ([entry] if entry is not None else [])
    return list(dict.fromkeys(one.agent for one in reversed(owing)))


def match(ledger: Ledger) -> None:
    """Remove the unit unless something that persists is owed; a disk that does not let us leaves it, and the next boot removes it."""
    if ledger.unit is not None:
        with suppress(OSError, ChaosError), ledger.unit_lock():
            _match(ledger, ledger.unit)


def _match(ledger: Ledger, unit: Unit) -> None:
    with suppress(OSError, ChaosError):
        if not _agents(ledger):
            unit.remove()


def prospects(entry: Entry, boot_id: str, live: bool, unit: Optional[Unit]) -> str:
    """Return what will become of an open entry if nobody does anything, and who can mend it."""
    if live:
        return "its lease ends it"
    if not persists(entry):
        return "waits for `chaoskit heal`" if entry.boot_id == boot_id else "the reboot did not clear it: waits for `chaoskit heal`"
    if unit is None or not unit.there:
        return "persists: waits for `chaoskit heal`"
    if entry.boot_id == boot_id:
        return "persists: healed by {} at the next boot, or by `chaoskit heal`".format(NAME)
    return "persists: {} has not healed it{}; waits for `chaoskit heal`".format(NAME, ": " + entry.says if entry.says else "")


def settlements(entries: List[Entry], boot_id: str) -> List[Dict[str, str]]:
    """Return which entries of earlier boots were closed in this boot, and by what."""
    words = {REBOOT: "cleared by reboot", BY: "healed at boot"}
    return [
        {"entry": entry.entry, "fault": entry.fault, "says": words.get(entry.by, "healed after a reboot by {}".format(entry.by))}
        for entry in entries
        if entry.state == "reverted" and entry.settled == boot_id and entry.boot_id not in ("", boot_id)
    ]
