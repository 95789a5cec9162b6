"""
Names that may be handed to `ssh`: hosts, accounts, and the hops of a ProxyJump, each no more than it claims to be.

None can be taken for an option, a word of a shell, a path or a percent token; what is written to mean more is refused.
"""

import re
from dataclasses import dataclass
from ipaddress import ip_address

from chaoskit.errors import InputError

HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")
ADDRESS6 = re.compile(r"([0-9A-Fa-f:.]{2,45})(%[A-Za-z0-9_.-]{1,64})?")
USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,63}")
_HOP = re.compile(r"(?:ssh://)?(?:(?P<user>[^@\[\]]+)@)?(?:\[(?P<ip6>[^\]]+)\]|(?P<host>[^:\[\]]+))(?::(?P<port>\d+))?/?")


def check_host(host: str) -> str:
    """Return `host` unless it could be taken for anything else than a host. Raises InputError."""
    if not HOST.fullmatch(host) and not _is_address6(host):
        raise InputError(f"{short(host)} is not a host name or address", hint="letters, digits, dots, hyphens; no leading hyphen")
    return host


def _is_address6(text: str) -> bool:
    found = ADDRESS6.fullmatch(text)
    try:
        return found is not None and ip_address(found[1]).version == 6
    except ValueError:
        return False


def check_user(user: str) -> str:
    """Return `user` unless it could be taken for anything else than an account. Raises InputError."""
    if not USER.fullmatch(user):
        raise InputError(f"{short(user)} is not an account name", hint="letters, digits, dots, hyphens; no leading hyphen")
    return user


def short(text: str) -> str:
    """Return a text that may be hostile, or endless, as it may stand in an error."""
    return repr(text) if len(text) <= 80 else f"{text[:60]!r} and {len(text) - 60} more characters"


@dataclass(frozen=True, slots=True)
class Hop:
    """One hop of a ProxyJump: `[user@]host[:port]`."""

    host: str
    user: str | None
    port: int | None


def parse_hop(text: str) -> Hop:
    """Read one hop of a ProxyJump. Raises InputError."""
    found = _HOP.fullmatch(text.strip())
    if not found:
        raise InputError(f"{short(text)} is not a jump host", hint="write it as user@host:port")
    user, port = found["user"], found["port"]
    return Hop(check_host(found["ip6"] or found["host"]), check_user(user) if user else None, int(port) if port else None)


def hops_of(text: str) -> tuple[str, ...]:
    """Return the hops of a ProxyJump, unread: the first to dial first, none for `none`."""
    return () if text.lower() == "none" else tuple(hop.strip() for hop in text.split(",") if hop.strip())
