"""Which algorithms a transport offers: what ssh_config allows of paramiko's, the fast ones and the known host keys first."""

from collections.abc import Sequence

import paramiko

from chaoskit.errors import InputError
from chaoskit.fleet.ssh_options import SshOptions

_KEX = ("curve25519-sha256@libssh.org", "ecdh-sha2-nistp256", "ecdh-sha2-nistp384", "ecdh-sha2-nistp521")
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr")
_MACS = ("hmac-sha2-256-etm@openssh.com", "hmac-sha2-512-etm@openssh.com", "hmac-sha2-256", "hmac-sha2-512", "hmac-sha1")
_RSA = ("rsa-sha2-512", "rsa-sha2-256")  # the algorithms of a key of the type ssh-rsa


def offer(transport: paramiko.Transport, options: SshOptions, known_types: Sequence[str]) -> None:
    """
    Tell a transport what to offer.

    Args:
        transport: One that has not begun.
        options: What ssh_config allows; this only narrows.
        known_types: The types of key that known_hosts has for this host; `ssh` asks for these first, too.

    Raises:
        InputError: ssh_config allows nothing that chaoskit has.
    """
    security = transport.get_security_options()
    security.kex = _allowed("KexAlgorithms", (*_KEX, *security.kex), options.kex_algorithms)
    security.ciphers = _allowed("Ciphers", _CIPHERS, options.ciphers)
    security.digests = _allowed("MACs", _MACS, options.macs)
    wanted = [name for type_ in known_types for name in algorithms_of(type_) if name in security.key_types]
    security.key_types = _allowed("HostKeyAlgorithms", (*wanted, *security.key_types), options.host_key_algorithms)


def algorithms_of(key_type: str) -> tuple[str, ...]:
    """Return the signature algorithms of a type of key."""
    return _RSA if key_type == "ssh-rsa" else (key_type,)


def _allowed(keyword: str, ours: Sequence[str], allowed: Sequence[str]) -> tuple[str, ...]:
    ours = tuple(dict.fromkeys(ours))
    found = tuple(name for name in ours if name in allowed) if allowed else ours
    if not found:
        raise InputError(f"ssh_config's {keyword} allows none that chaoskit has", hint=f"allow one of: {', '.join(ours)}")
    return found
