"""`chaoskit trust`: see which host keys nodes show, and add them to known_hosts when told to."""

import re
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from chaoskit.cli.site import chosen, inventory_option
from chaoskit.errors import EXIT_ABORTED, EXIT_INCONCLUSIVE, EXIT_PASSED, AbortedError, InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chaoskit.fleet.link import Dialer
    from chaoskit.fleet.ssh_options import SshOptions
    from chaoskit.fleet.trust import Look

_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")


@click.command(short_help="See the host keys of nodes, and add them when told to.")
@click.argument("hosts", required=False)
@inventory_option
@click.option("--replace", is_flag=True, help="Let a key that has changed take the place of the known one.")
@click.option(
    "--fingerprints",
    type=click.File("r"),
    help="Add exactly the keys whose fingerprints stand in this file (`-`: standard input), such as the output of "
    "`ssh-keygen -lf` on the nodes, and ask nothing: for scripts.",
)
def trust(hosts: str | None, inventory: str | None, replace: bool, fingerprints: IO[str] | None) -> int:
    """
    Show the host keys of HOSTS, say which are new, the same or changed, and add them when told to.

    HOSTS is a list such as `node[1-16]`: names of the inventory when one is given, else of ssh_config. Without HOSTS it is
    every node of the inventory. The jump hosts before them come along.

    A key is added to the first file of the inventory's `ssh.known_hosts`, else of ssh_config's UserKnownHostsFile, in the
    form that `ssh` itself would write. Compare the fingerprints with the nodes' own before you agree: what a host shows
    over the network proves nothing yet.

    Exits 0 when every host is known at the end, 3 when one is not, 4 when you declined, 2 when there is no terminal to ask on.
    """
    accepted = None if fingerprints is None else _read(fingerprints)
    dialer, targets = _targets(hosts, inventory)
    try:
        left = _settle(dialer, targets, accepted, replace=replace)
    except AbortedError as declined:
        click.echo(f"ABORTED: {declined}")  # the last line carries the word of the exit code
        return EXIT_ABORTED
    finally:
        dialer.close()
    return _close(len(targets), left, replace=replace)


def _settle(dialer: "Dialer", targets: "Mapping[str, SshOptions]", accepted: frozenset[str] | None, *, replace: bool) -> "list[Look]":
    """Look at every host, those behind jump hosts after these, and add what may be added; return those not known then."""
    from chaoskit.fleet.trust import add, fingerprint_of, levels_of, look_at
    from chaoskit.report.sanitise import line

    left: list[Look] = []
    warned: set[str] = set()
    for places in levels_of(dialer, targets):
        looks = look_at(dialer, places)
        wanted = [look for look in looks if look.addable(replace=replace)]
        unlisted = [look for look in wanted if accepted is not None and fingerprint_of(look) not in accepted]
        for look in looks:
            click.echo("  " + line(f"{look.says}{'; its fingerprint is not in the file' if look in unlisted else ''}"))
        wanted = [look for look in wanted if look not in unlisted]
        if wanted and accepted is None:
            _ask(wanted)
        add(wanted)
        warned.update(dialer.warnings)
        dialer.reread()
        left += [look for look in looks if not look.known and look not in wanted]
    for warning in sorted(warned):
        click.echo(line(warning), err=True)
    return left


def _read(file: IO[str]) -> frozenset[str]:
    found = frozenset(_FINGERPRINT.findall(file.read()))
    if not found:
        hint = "they look like SHA256:... and 43 more characters, as `ssh-keygen -lf` prints them"
        raise InputError("no fingerprints in it", where="--fingerprints", hint=hint)
    return found


def _targets(hosts: str | None, inventory: str | None) -> "tuple[Dialer, Mapping[str, SshOptions]]":
    """Return how each host is reached that was asked for."""
    from chaoskit.fleet.link import Dialer
    from chaoskit.fleet.ssh_options import Resolver
    from chaoskit.fleet.trust import resolve
    from chaoskit.model.hostlist import expand
    from chaoskit.model.inventory import Ssh
    from chaoskit.model.typed import did_you_mean

    names = expand(hosts) if hosts is not None else ()
    if names and inventory is None:
        dialer = Dialer(Resolver(Ssh(), Path.cwd()))
        return dialer, resolve(dialer, {name: name for name in names})
    site = chosen(inventory)
    if missing := [name for name in names if name not in site.nodes]:
        raise InputError(f"{missing[0]} is not a node of {site.path}", hint=did_you_mean(missing[0], list(site.nodes), "nodes"))
    dialer = Dialer(Resolver(site.file.ssh, Path(site.path).resolve().parent))
    return dialer, resolve(dialer, {name: site.nodes[name].address or name for name in names or site.nodes})


def _ask(wanted: "Sequence[Look]") -> None:
    """Ask whether to add these keys. Raises InputError where nobody can be asked, AbortedError for a no."""
    from chaoskit.fleet.trust import files_for

    what = f"{len(wanted)} keys to {', '.join(map(str, files_for(wanted)))}"
    if not sys.stdin.isatty():
        hint = "in a script, give the fingerprints that you know the nodes by: --fingerprints FILE"
        raise InputError(f"no terminal to ask on whether to add {what}; they were not added", hint=hint)
    try:
        agreed = click.confirm(f"Have you compared the fingerprints, and shall I add {what}?")
    except click.Abort:  # Ctrl-C, or the end of the input
        agreed = False
        click.echo()
    if not agreed:
        raise AbortedError(f"{what} were not added")


def _close(targets: int, left: "Sequence[Look]", *, replace: bool) -> int:
    from chaoskit.report.sanitise import line

    if not left:
        click.echo(f"PASSED: {targets} hosts are known")
        return EXIT_PASSED
    names = ", ".join(look.place.called for look in left[:8]) + (f" and {len(left) - 8} others" if len(left) > 8 else "")
    hint = "; --replace lets a key that has changed take the place of the known one" if any(look.changed for look in left) else ""
    click.echo(line(f"INCONCLUSIVE: not trusted: {names}{'' if replace else hint}"))
    return EXIT_INCONCLUSIVE
