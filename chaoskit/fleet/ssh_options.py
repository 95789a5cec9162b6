"""
How a host is reached, as OpenSSH itself resolves it: `ssh -G` reads the user's ssh_config, so that we never disagree.

    followed    HostName, Port, User, ProxyJump, ProxyCommand (without shell syntax), AddressFamily, BindAddress,
                BindInterface, ConnectTimeout; UserKnownHostsFile, GlobalKnownHostsFile, HostKeyAlias, HashKnownHosts;
                HostKeyAlgorithms, KexAlgorithms, Ciphers, MACs, PubkeyAcceptedAlgorithms, RequiredRSASize;
                IdentityFile, IdentityAgent, IdentitiesOnly. `ssh` itself does Include, Match and CanonicalizeHostname.
    refused     what would mean another connection than the user asked for: shell syntax in ProxyCommand,
                ProxyUseFdpass, no public keys allowed, RevokedHostKeys (in `link`).
    said        what may be why a login or a host key fails here and not with `ssh`: see LOGINS and VOUCHERS.
    not read    what is ours to decide: StrictHostKeyChecking (host keys are always checked), keepalives, rekeying,
                compression, multiplexing, and everything about terminals and forwarding.
"""

import getpass
import os
import re
import shlex
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from chaoskit.errors import InputError
from chaoskit.fleet.proxy import words_of
from chaoskit.model.inventory import Ssh
from chaoskit.model.ssh_names import Hop, check_host, check_user, hops_of, parse_hop, short

CONNECT_TIMEOUT = 10.0
"""Seconds to reach a host, unless ssh_config says otherwise."""
RESOLVE_TIMEOUT = 10.0
"""Seconds for `ssh -G`; a `Match exec` of the user's runs inside it."""

_TOKEN = re.compile(r"%([%a-zA-Z])|\$\{(\w+)\}")
_PERCENT = re.compile(r"%([%a-zA-Z])")
_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}

LOGINS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "gssapiauthentication": (("yes",), "GSSAPIAuthentication (Kerberos)"),
    "hostbasedauthentication": (("yes",), "HostbasedAuthentication"),
    "pkcs11provider": ((), "PKCS11Provider (smart cards; a card in ssh-agent works)"),
    "securitykeyprovider": ((), "SecurityKeyProvider"),
    "certificatefile": ((), "CertificateFile (one beside its key, KEY-cert.pub, works)"),
}
"""Ways to log in that ssh_config may ask for and chaoskit cannot: keyword -> its values (any when empty), what to call it."""
VOUCHERS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "knownhostscommand": ((), "KnownHostsCommand"),
    "verifyhostkeydns": (("true", "yes", "ask"), "VerifyHostKeyDNS"),
    "nohostauthenticationforlocalhost": (("yes",), "NoHostAuthenticationForLocalhost"),
}
"""Ways to vouch for a host key that ssh_config may ask for and chaoskit does not follow, in the same form."""
_UNSAID = {"none", "internal"}


@dataclass(frozen=True, slots=True)
class SshOptions:
    """
    How one host is reached.

    `name` is what was asked for, `hostname` the address or DNS name to connect to; `jumps` the hops before it, first
    hop first; `known_hosts` the files of known host keys, of which the user's own, `own_known_hosts`, may be written to;
    `connect_timeout` is in seconds. Of algorithms, an empty tuple stands for every one; `other_logins` and
    `other_vouchers` name what ssh_config asks for and chaoskit does not do.
    """

    name: str
    hostname: str
    port: int
    user: str
    identity_files: tuple[Path, ...]
    known_hosts: tuple[Path, ...]
    own_known_hosts: tuple[Path, ...] = ()
    hash_known_hosts: bool = False
    identities_only: bool = False
    identity_agent: str | None = None
    host_key_alias: str | None = None
    revoked_keys: str | None = None
    jumps: tuple[str, ...] = ()
    proxy: tuple[str, ...] = ()
    connect_timeout: float = CONNECT_TIMEOUT
    family: socket.AddressFamily = socket.AF_UNSPEC
    bind_address: str | None = None
    bind_interface: str | None = None
    host_key_algorithms: tuple[str, ...] = ()
    kex_algorithms: tuple[str, ...] = ()
    ciphers: tuple[str, ...] = ()
    macs: tuple[str, ...] = ()
    accepted_keys: tuple[str, ...] = ()
    least_rsa_bits: int = 0
    other_logins: tuple[str, ...] = ()
    other_vouchers: tuple[str, ...] = ()

    @property
    def known_as(self) -> str:
        """The name under which known_hosts lists this host: its alias, or `host`, or `[host]:port`."""
        return self.known_names[0]

    @property
    def known_names(self) -> tuple[str, ...]:
        """The names to look for: on another port also the plain one, whose key is good on any port, as `ssh` has it."""
        if self.host_key_alias:
            return (self.host_key_alias,)
        return (self.hostname,) if self.port == 22 else (f"[{self.hostname}]:{self.port}", self.hostname)


class Resolver:
    """
    Resolves hosts by `ssh -G`, with what the inventory's `ssh:` section adds; once for each host, safe from any thread.

    Args:
        ssh: The inventory's `ssh:` section.
        base: The inventory's folder; relative paths in it start there.
    """

    def __init__(self, ssh: Ssh, base: Path) -> None:
        self._ssh = ssh
        self._base = base
        self._lock = threading.Lock()
        self._resolved: dict[Hop, Future[SshOptions]] = {}

    def node(self, host: str) -> SshOptions:
        """Return how a node is reached. Raises InputError."""
        options = self._resolve(Hop(check_host(host), self._ssh.user, self._ssh.port))
        if self._ssh.jump is not None:
            options = replace(options, jumps=hops_of(self._ssh.jump), proxy=())
        return options

    def jump(self, text: str) -> SshOptions:
        """Return how a hop of a ProxyJump is reached; account and port of the nodes do not apply to it. Raises InputError."""
        return self._resolve(parse_hop(text))

    def _resolve(self, hop: Hop) -> SshOptions:
        """Return what is known of a hop, or find it out; whoever else asks meanwhile waits for that answer."""
        with self._lock:
            found = self._resolved.get(hop)
            first = found is None
            if found is None:
                found = self._resolved[hop] = Future()
        if first:
            try:
                found.set_result(self._ask_ssh(hop))
            except BaseException as error:  # noqa: BLE001 - it is raised below, here and to everybody who waits
                found.set_exception(error)
                if not isinstance(error, InputError):  # that stays true; anything else may be over the next time
                    del self._resolved[hop]
        try:
            return found.result()
        except InputError as error:
            raise InputError(error.what, hint=error.hint) from error  # one object must not be raised in several threads

    def _ask_ssh(self, hop: Hop) -> SshOptions:
        options = parse_resolved(hop.host, _ssh_g(self._argv(hop), hop.host))
        if self._ssh.key is not None:
            options = replace(options, identity_files=(self._path(self._ssh.key), *options.identity_files))
        if self._ssh.known_hosts:
            files = tuple(map(self._path, self._ssh.known_hosts))
            options = replace(options, known_hosts=files, own_known_hosts=files)
        return options

    def _argv(self, hop: Hop) -> list[str]:
        argv = ["ssh", "-G"]
        if self._ssh.config is not None:
            config = self._path(self._ssh.config)
            if not _readable(config):
                raise InputError(
                    f"the inventory's ssh.config {short(str(config))} does not exist", hint="that of a lab is made by `chaoskit lab up`"
                )
            argv += ["-F", str(config)]
        if hop.user is not None:
            argv += ["-l", check_user(hop.user)]
        if hop.port is not None:
            argv += ["-p", str(hop.port)]
        return [*argv, "--", hop.host]

    def _path(self, text: str) -> Path:
        try:
            return self._base / Path(text).expanduser()
        except RuntimeError as error:
            raise InputError(f"{short(text)}: {error}", hint="write the path out") from error


def _readable(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long, or a folder that is closed to us
        return False


def _ssh_g(argv: Sequence[str], host: str) -> str:
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=RESOLVE_TIMEOUT, check=False)
    except FileNotFoundError as error:
        raise InputError("the program `ssh` is not installed here", hint="install the OpenSSH client") from error
    except OSError as error:
        raise InputError(f"the program `ssh` cannot be run: {error.strerror}", hint="try: ssh -V") from error
    except subprocess.TimeoutExpired as error:
        raise InputError(f"ssh_config gave no answer for {host} in {RESOLVE_TIMEOUT:g} s", hint="look for a slow `Match exec`") from error
    if done.returncode != 0:
        said = done.stderr[:2000].decode(errors="replace").strip()
        raise InputError(f"ssh_config cannot be used for {host}: {said}", hint=f"try: {shlex.join(argv)}")
    return done.stdout.decode(errors="surrogateescape")


def parse_resolved(name: str, text: str) -> SshOptions:
    """
    Read the output of `ssh -G`.

    Args:
        name: The host as it was asked for.
        text: Lines of `keyword value`, keywords in lower case.
    """
    values: dict[str, list[str]] = {}
    for line in text.split("\n"):
        keyword, _, value = line.partition(" ")
        values.setdefault(keyword, []).append(value)
    one = {keyword: found[0] for keyword, found in values.items()}
    if not one.get("hostname") or not one.get("port", "").isdecimal() or not one.get("user"):
        raise InputError(f"`ssh -G` gave no host, port and account for {name}", hint=f"try: ssh -G -- {name}")
    alias = _given(one.get("hostkeyalias"))
    tokens = _tokens(name, one, alias)
    own = _files(one.get("userknownhostsfile", ""), tokens)
    _refuse_what_would_differ(name, one)
    return SshOptions(
        name=name,
        hostname=check_host(one["hostname"]),
        port=int(one["port"]),
        user=check_user(one["user"]),
        identity_files=tuple(_file(value, tokens) for value in values.get("identityfile", ()) if value != "none"),
        known_hosts=(*own, *_files(one.get("globalknownhostsfile", ""), tokens)),
        own_known_hosts=own,
        hash_known_hosts=one.get("hashknownhosts") == "yes",
        identities_only=one.get("identitiesonly") == "yes",
        identity_agent=_given(one.get("identityagent"), none="none"),
        host_key_alias=alias,
        revoked_keys=_given(one.get("revokedhostkeys")),
        jumps=hops_of(one.get("proxyjump", "")),
        proxy=_proxy(name, _given(one.get("proxycommand")), tokens),
        connect_timeout=_timeout(one.get("connecttimeout")),
        family=_FAMILIES.get(one.get("addressfamily", ""), socket.AF_UNSPEC),
        bind_address=_given(one.get("bindaddress")),
        bind_interface=_given(one.get("bindinterface")),
        host_key_algorithms=_names(one.get("hostkeyalgorithms")),
        kex_algorithms=_names(one.get("kexalgorithms")),
        ciphers=_names(one.get("ciphers")),
        macs=_names(one.get("macs")),
        accepted_keys=_names(one.get("pubkeyacceptedalgorithms", one.get("pubkeyacceptedkeytypes"))),
        least_rsa_bits=int(bits) if (bits := one.get("requiredrsasize", "")).isdecimal() else 0,
        other_logins=_asked_for(one, LOGINS),
        other_vouchers=_asked_for(one, VOUCHERS),
    )


def _refuse_what_would_differ(name: str, one: Mapping[str, str]) -> None:
    """Raise InputError for what would make our connection another one than the user's `ssh` has."""
    methods = _names(one.get("preferredauthentications"))
    if one.get("pubkeyauthentication") in ("no", "false") or (methods and "publickey" not in methods):
        raise InputError(
            f"ssh_config allows no login by public key for {name} (PubkeyAuthentication, PreferredAuthentications)",
            hint="chaoskit logs in by public key only: allow it for this host",
        )
    if one.get("proxyusefdpass") == "yes":
        raise InputError(
            f"ssh_config says ProxyUseFdpass for {name}, which chaoskit cannot do", hint="use a ProxyJump or a plain ProxyCommand"
        )


def _asked_for(one: Mapping[str, str], table: Mapping[str, tuple[tuple[str, ...], str]]) -> tuple[str, ...]:
    found = []
    for keyword, (values, called) in table.items():
        value = one.get(keyword, "none").lower()
        if value in values or (not values and value not in _UNSAID):
            found.append(called)
    return tuple(found)


def _given(value: str | None, none: str | None = None) -> str | None:
    return none if value is not None and value.lower() == "none" else value


def _names(value: str | None) -> tuple[str, ...]:
    return tuple(filter(None, (value or "").split(",")))


def _timeout(value: str | None) -> float:
    return float(value) if value is not None and value.isdigit() and int(value) > 0 else CONNECT_TIMEOUT


def _tokens(name: str, one: Mapping[str, str], alias: str | None) -> dict[str, str]:
    """Return the percent tokens of ssh_config(5) that `ssh -G` leaves in paths and in ProxyCommand."""
    host = socket.gethostname()
    return {
        "%": "%",
        "d": str(Path.home()),
        "h": one["hostname"],
        "i": str(os.getuid()),
        "k": alias or name,
        "L": host.split(".")[0],
        "l": host,
        "n": name,
        "p": one["port"],
        "r": one["user"],
        "u": getpass.getuser(),
    }


def _expander(tokens: Mapping[str, str]) -> Callable[[re.Match[str]], str]:
    return lambda found: os.environ.get(found[2], "") if found[2] else tokens.get(found[1], found[0])


def _file(value: str, tokens: Mapping[str, str]) -> Path:
    path = Path(_TOKEN.sub(_expander(tokens), value))
    try:
        return path.expanduser()
    except RuntimeError:  # the home of an account that there is not: no such file, then
        return path


def _files(value: str, tokens: Mapping[str, str]) -> tuple[Path, ...]:
    """Read a list of files. `ssh -G` prints it without quotes: of several readings, that of the longest names that exist counts."""
    words = value.split(" ")
    found: list[Path] = []
    while words:
        sizes = (size for size in range(len(words), 1, -1) if _file(" ".join(words[:size]), tokens).is_file())
        size = next(sizes, 1)
        found.append(_file(" ".join(words[:size]), tokens))
        words = words[size:]
    return tuple(path for path in found if str(path) not in ("none", "."))


def _proxy(name: str, template: str | None, tokens: Mapping[str, str]) -> tuple[str, ...]:
    """Fill in the tokens of a ProxyCommand word by word, so that no value can become a word or an operator of its own."""
    if template is None:
        return ()
    try:
        words = words_of(template)
    except ValueError as error:
        raise InputError(f"chaoskit cannot use the ProxyCommand of {name}: {error}", hint="put it into a script, and name that") from error
    return tuple(_PERCENT.sub(lambda found: tokens.get(found[1], found[0]), word) for word in words)
