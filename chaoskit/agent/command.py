"""
The zipapp's command line: `VERB [--state DIR] [--run DIR] [--etc DIR] [--units DIR] ...`. Each verb imports only what it needs.

    bridge   connect standard input and output to the server, starting it when there is none
    serve    the server                    fuse     the watch over a server
    tail     follow a file (a child)       launch   start a process of its own (a child)
    examine  look at the node (a child)    boot     pay what a reboot did not clear (systemd's, see `boot`)

Standard library only, Python 3.8.
"""

import hashlib
import os
import sys
from typing import Dict, List

from chaoskit.agent.paths import ETC, RUN, STATE, Paths
from chaoskit.errors import ChaosError, NodeError, PrivilegeError, ProtocolError

# ruff: noqa: PLC0415 - a bridge must be up in a blink, so each verb imports its own part


def main(argv: List[str], archive: str) -> int:
    """Run a verb; returns the exit status."""
    try:
        verb, options = parse(argv)
        _run(verb, options, os.path.abspath(archive))
    except ChaosError as error:
        return _tell(argv, error)
    except (BrokenPipeError, ConnectionResetError):
        return 0  # the other side went away: nothing on the node changes by it
    except OSError as error:  # a disk that is full or read-only: its path and words, not the way to them
        return _tell(argv, NodeError("the agent cannot work on this node: {}".format(error), hint="free or mend that place"))
    return 0


def _tell(argv: List[str], error: ChaosError) -> int:
    """Tell an error where it is read, and return the exit status."""
    if argv[:1] in ([], ["bridge"]):
        from chaoskit.agent.bridge import report

        report(error)
    else:
        print(error, file=sys.stderr)
    return error.exit_code


def parse(argv: List[str]) -> "tuple[str, Dict[str, str]]":
    """Return the verb and its options. Raises ProtocolError."""
    verb, rest = (argv[0], argv[1:]) if argv else ("bridge", [])
    if len(rest) % 2 or any(not name.startswith("--") for name in rest[::2]):
        raise ProtocolError("expected VERB [--option VALUE]..., got {}".format(" ".join(argv)))
    return verb, {name[2:]: value for name, value in zip(rest[::2], rest[1::2])}


def _run(verb: str, options: Dict[str, str], archive: str) -> None:
    if verb == "tail":
        from chaoskit.agent.tail import main as tail

        tail()
    elif verb == "launch":
        from chaoskit.agent.launch import main as launch

        launch()
    elif verb == "examine":
        from chaoskit.agent.examine import main as examine

        examine()
    else:
        _run_as_root(verb, options, archive)


def _run_as_root(verb: str, options: Dict[str, str], archive: str) -> None:
    if os.geteuid() != 0:
        raise PrivilegeError("the agent runs as root only, this is uid {}".format(os.geteuid()), hint="use sudo")
    os.umask(0o077)
    defaults = (("state", STATE), ("run", RUN), ("etc", ETC), ("units", ""))
    paths = Paths(*(_root(options.get(name, default)) for name, default in defaults))
    if verb == "bridge":
        from chaoskit.agent.bridge import bridge

        return bridge(archive, paths, hash_of(archive))
    if verb == "boot":
        from chaoskit.agent.debts import pay_at_boot

        return pay_at_boot(paths)
    if verb == "serve":
        return _serve(archive, paths, options["name"])
    if verb == "fuse":
        return _fuse(archive, paths, options)
    raise ProtocolError("verb {!r} is not known".format(verb), hint="bridge, serve, fuse, boot, tail, launch or examine")


def _root(path: str) -> str:
    return os.path.abspath(path) if path else ""


def _serve(archive: str, paths: Paths, name: str) -> None:
    from chaoskit.agent.detach import settle_in
    from chaoskit.agent.memory import harden
    from chaoskit.agent.server import serve

    agent = hash_of(archive)
    notes = settle_in(name, paths.server(agent).log)
    serve(archive, paths, agent, name, notes, harden())


def _fuse(archive: str, paths: Paths, options: Dict[str, str]) -> None:
    from chaoskit.agent import cgroups
    from chaoskit.agent.detach import settle_in
    from chaoskit.agent.fuse import Fuse
    from chaoskit.agent.identity import Process
    from chaoskit.agent.memory import harden

    pid, start_time, group = options["server"].split(":", 2)
    files = paths.server(hash_of(archive))
    settle_in(options["name"], files.log)
    fuse = Fuse(paths, files, Process(int(pid), int(start_time)), group)
    harden()
    fuse.run()
    cgroups.leave(options["name"])


def hash_of(archive: str) -> str:
    """Return the sha256 of the file that runs: what this agent is, by its own reading."""
    with open(archive, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()
