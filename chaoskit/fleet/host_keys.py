"""The check of a host's key before anything is sent to it, and what to tell a person when it fails."""

import base64
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from chaoskit.errors import HostKeyError, RefusedError
from chaoskit.fleet.known_hosts import Answer, KnownHosts, Verdict, fingerprint
from chaoskit.fleet.ssh_options import SshOptions

TRUST = "chaoskit trust"
"""The command that shows a host's key and adds it when told to, as an error text names it."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A key that a host showed, how the host is reached, what is known of the key, and the command that would add it."""

    options: SshOptions
    blob: bytes
    answer: Answer
    command: str


def check_host_key(known: KnownHosts, options: SshOptions, blob: bytes, node: str, trust: str = TRUST) -> None:
    """
    Raise HostKeyError unless known_hosts has this key for this host; the text says which line to mend or to add.

    Args:
        known: What is known.
        options: How the host is reached.
        blob: The key that it showed, and proved to have.
        node: The node, for the error; a jump host stands in brackets behind the node that it is for.
        trust: How `chaoskit trust` is called for this site.
    """
    try:
        check_bits(options, blob)
    except RefusedError as error:
        raise HostKeyError(error.what, node=node, hint=error.hint) from error
    answer = known.check(options.known_names, blob)
    if answer.verdict is not Verdict.OK:
        shown = Shown(options, blob, answer, f"{trust} {node.partition(' ')[0]}")
        what, hint = _SAYINGS[answer.verdict](shown)
        raise HostKeyError(what, node=node, hint=hint)


def check_bits(options: SshOptions, blob: bytes) -> None:
    """Raise RefusedError for an RSA key that is shorter than ssh_config allows."""
    bits = rsa_bits(blob)
    if bits and bits < options.least_rsa_bits:
        what = f"the host key of {options.known_as} has {bits} bits: {show(blob)}"
        raise RefusedError(what, hint=f"ssh_config wants {options.least_rsa_bits} (RequiredRSASize): give the node a new host key")


def _unknown(shown: Shown) -> tuple[str, str]:
    return (
        f"the host key of {shown.options.known_as} is unknown: it showed {show(shown.blob)}{_others(shown.options)}",
        f"{_compare(shown.blob)}; then `{shown.command}`, or {_add(shown)}",
    )


def _changed(shown: Shown) -> tuple[str, str]:
    lines = shown.answer.lines
    known = ", ".join(f"{show(key.blob)} at {key.position}" for key in lines)
    other_type = all(key.type != key_type(shown.blob) for key in lines)
    what = "is of a type that is not known for it" if other_type else "has changed"
    remove = shlex.join(["ssh-keygen", "-f", lines[0].file, "-R", shown.options.known_as])
    mend = f"mend {lines[0].position}: `{shown.command} --replace`, or `{remove}`"
    return (
        f"the host key of {shown.options.known_as} {what}: it showed {show(shown.blob)}, known is {known}",
        f"if the node was set up anew, {_compare(shown.blob)} and {mend}; else somebody may be in between",
    )


def _revoked(shown: Shown) -> tuple[str, str]:
    return (
        f"the host key of {shown.options.known_as} is revoked: {show(shown.blob)} at {shown.answer.lines[0].position}",
        "give the node a new host key",
    )


def _authority_only(shown: Shown) -> tuple[str, str]:
    authority = shown.answer.lines[0].position
    return (
        f"{shown.options.known_as} is known only by the certificate authority at {authority}; it showed {show(shown.blob)}",
        f"chaoskit checks no certificates: {_compare(shown.blob)}; then `{shown.command}`, or {_add(shown)}",
    )


_SAYINGS: dict[Verdict, Callable[[Shown], tuple[str, str]]] = {
    Verdict.UNKNOWN: _unknown,
    Verdict.CHANGED: _changed,
    Verdict.REVOKED: _revoked,
    Verdict.AUTHORITY_ONLY: _authority_only,
}


def key_type(blob: bytes) -> str:
    """Return the type that a public key's bytes begin with."""
    return blob[4 : 4 + int.from_bytes(blob[:4], "big")].decode("ascii", "replace")


def rsa_bits(blob: bytes) -> int:
    """Return the length of an RSA key in bits; 0 for any other."""
    if key_type(blob) != "ssh-rsa":
        return 0
    at = 11  # behind the type; then the exponent, then the modulus
    at += 4 + int.from_bytes(blob[at : at + 4], "big")
    return int.from_bytes(blob[at + 4 :], "big").bit_length()


def show(blob: bytes) -> str:
    """Return a key's type and fingerprint, as `ssh-keygen -l` has it."""
    return f"{key_type(blob)} {fingerprint(blob)}"


def known_line(name: str, blob: bytes) -> str:
    """Return the line of known_hosts that knows this key, without its end."""
    return f"{name} {key_type(blob)} {base64.b64encode(blob).decode()}"


def _compare(blob: bytes) -> str:
    kind = key_type(blob).removeprefix("ssh-").partition("-")[0]
    return f"compare that fingerprint with the node's own (ssh-keygen -lf /etc/ssh/ssh_host_{kind}_key.pub)"


def _add(shown: Shown) -> str:
    own = shown.options.own_known_hosts
    return f"add to {own[0] if own else '~/.ssh/known_hosts'}: {known_line(shown.options.known_as, shown.blob)}"


def _others(options: SshOptions) -> str:
    """Say what else ssh_config would ask about the key, which `ssh` does and chaoskit does not."""
    return f"; chaoskit does not follow {', '.join(options.other_vouchers)} of ssh_config" if options.other_vouchers else ""
