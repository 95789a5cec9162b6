"""
Looking at host keys before they are trusted: which key each host shows, what is known of it, and adding it when told to.

A host behind jump hosts can be looked at only through them, so hosts come in levels: those that are reached directly,
then those behind them. Nobody is logged in to a host whose key is not known.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from chaoskit.errors import ChaosError, RefusedError
from chaoskit.fleet.host_keys import check_bits, known_line, show
from chaoskit.fleet.known_hosts import Answer, KnownKey, Verdict, fingerprint, hashed
from chaoskit.fleet.known_hosts_file import change, check_mendable, check_name
from chaoskit.fleet.link import Dialer
from chaoskit.fleet.ssh_options import SshOptions

AT_ONCE = 16
"""Hosts looked at together; sshd drops connections beyond its MaxStartups."""


@dataclass(frozen=True, slots=True)
class Place:
    """A host to look at, the jump hosts before it, and the name to call it by."""

    called: str
    options: SshOptions
    chain: tuple[SshOptions, ...] = ()


@dataclass(frozen=True, slots=True)
class Look:
    """
    What a look at a host found: the key that it showed and what is known of that, or why there is none.

    `obstacle` says why the key cannot be added, even if a person wants it.
    """

    place: Place
    blob: bytes = b""
    answer: Answer = Answer(Verdict.UNKNOWN)  # noqa: RUF009 - it is frozen
    failure: str = ""
    obstacle: str = ""

    @property
    def known(self) -> bool:
        """Whether the host is trusted as it is."""
        return not self.failure and self.answer.verdict is Verdict.OK

    @property
    def changed(self) -> bool:
        """Whether another key is known for it."""
        return not self.failure and self.answer.verdict is Verdict.CHANGED

    def addable(self, *, replace: bool) -> bool:
        """Say whether its key may be added, also in the place of another when that is asked for."""
        fits = self.answer.verdict in (Verdict.UNKNOWN, Verdict.AUTHORITY_ONLY) or (replace and self.changed)
        return fits and not self.failure and not self.obstacle

    @property
    def says(self) -> str:
        """Its state in one line."""
        if self.failure:
            return f"not seen {self.place.called}: {self.failure}"
        lines = ", ".join(f"{show(key.blob)} at {key.position}" for key in self.answer.lines)
        state, more = {
            Verdict.OK: ("same", ""),
            Verdict.UNKNOWN: ("new", ""),
            Verdict.AUTHORITY_ONLY: ("new", f"; known only by a certificate authority, and chaoskit checks no certificates: {lines}"),
            Verdict.CHANGED: ("CHANGED", f"; known is {lines}"),
            Verdict.REVOKED: ("REVOKED", f" at {lines}"),
        }[self.answer.verdict]
        refused = f"; {self.obstacle}" if self.obstacle else ""
        known_as = self.place.options.known_as
        called = self.place.called if self.place.called == known_as else f"{self.place.called} ({known_as})"
        return f"{state} {called}: {show(self.blob)}{more}{refused}"


def resolve(dialer: Dialer, addresses: Mapping[str, str]) -> dict[str, SshOptions]:
    """Return how hosts are reached, by their names; several are asked for at once. Raises InputError."""
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="chaoskit-trust") as pool:
        return dict(zip(addresses, pool.map(dialer.resolver.node, addresses.values()), strict=True))


def levels_of(dialer: Dialer, targets: Mapping[str, SshOptions]) -> list[list[Place]]:
    """Return every place once: level 0 is reached directly, the others through those before. Raises InputError."""
    levels: dict[int, dict[tuple[SshOptions, ...], Place]] = defaultdict(dict)
    for name, options in targets.items():
        way = (*dialer.chain(options), options)
        for depth, hop in enumerate(way[:-1]):
            levels[depth].setdefault(way[: depth + 1], Place(f"jump host {hop.name}", hop, way[:depth]))
        levels[len(way) - 1][way] = Place(name, options, way[:-1])
    return [list(levels[depth].values()) for depth in sorted(levels)]


def look_at(dialer: Dialer, places: Sequence[Place]) -> list[Look]:
    """Look at hosts at once; what went wrong with one stands in its look."""
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="chaoskit-trust") as pool:
        return list(pool.map(lambda place: _look(dialer, place), places))


def _look(dialer: Dialer, place: Place) -> Look:
    try:
        blob = dialer.show(place.options, place.chain, place.called)
        known = dialer.known(place.options, place.called)
    except ChaosError as error:
        return Look(place, failure=f"{error.what} ({error.hint})" if error.hint else error.what)
    answer = known.check(place.options.known_names, blob)
    return Look(place, blob, answer, obstacle=_obstacle(place.options, blob, answer))


def _obstacle(options: SshOptions, blob: bytes, answer: Answer) -> str:
    try:
        check_bits(options, blob)
        check_name(options.known_as)
        _own_file(options)
        if answer.verdict is Verdict.CHANGED:
            check_mendable(answer.lines, options.own_known_hosts)
    except ChaosError as error:
        return f"{error.what} ({error.hint})"
    return ""


def _own_file(options: SshOptions) -> Path:
    if not options.own_known_hosts:
        raise RefusedError("ssh_config gives no file of your own for host keys", hint="name one by UserKnownHostsFile or in the inventory")
    file = options.own_known_hosts[0]
    if file.exists() and not file.is_file():
        raise RefusedError(f"{file} is no plain file", hint="name another by UserKnownHostsFile or in the inventory")
    return file


def fingerprint_of(look: Look) -> str:
    """Return the fingerprint of the key that a host showed, as `ssh-keygen -l` has it."""
    return fingerprint(look.blob)


def files_for(looks: Sequence[Look]) -> list[Path]:
    """Return the files that adding these keys would change."""
    dropped = (Path(key.file) for look in looks if look.changed for key in look.answer.lines)
    return list(dict.fromkeys((*(_own_file(look.place.options) for look in looks), *dropped)))


def add(looks: Sequence[Look]) -> None:
    """
    Add the keys of these looks, in the place of what was known where they have changed.

    Raises:
        RefusedError: A file is not what it was, or no plain file.
        OSError: A file cannot be written.
    """
    new: dict[Path, dict[tuple[str, bytes], str]] = defaultdict(dict)
    old: dict[Path, dict[KnownKey, set[str]]] = defaultdict(lambda: defaultdict(set))
    for look in looks:
        options = look.place.options
        name = hashed(options.known_as) if options.hash_known_hosts else options.known_as
        new[_own_file(options)].setdefault((options.known_as, look.blob), known_line(name, look.blob))
        for key in look.answer.lines if look.changed else ():
            old[Path(key.file)][key].add(options.known_as)
    for file in files_for(looks):
        change(file, list(new[file].values()), old[file])
