"""`python -m chaoskit.lab up|down|status|ssh`: the lab without the command line's other parts."""

import argparse
import sys
import time

from chaoskit.errors import ChaosError
from chaoskit.lab import control
from chaoskit.lab.plan import DEFAULT_NAME, DEFAULT_RAIL_MBIT, DEFAULT_WORKERS
from chaoskit.lab.report import status_text, up_text


def main(argv: list[str]) -> int:
    """Do what the arguments say and return the exit status."""
    args = _parser().parse_args(argv)
    try:
        return int(args.work(args))
    except ChaosError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def _up(args: argparse.Namespace) -> int:
    start = time.monotonic()
    lab = control.up(name=args.name, nodes=args.nodes, rail_mbit=args.rail_mbit)
    print(up_text(lab, time.monotonic() - start))
    return 0


def _down(args: argparse.Namespace) -> int:
    print(f"lab {args.name}: {'removed' if control.down(args.name) else 'there was none'}")
    return 0


def _status(args: argparse.Namespace) -> int:
    print(status_text(control.status(args.name)))
    return 0


def _ssh(args: argparse.Namespace) -> int:
    return control.ssh(args.name, args.node, args.argv)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chaoskit.lab", description="A cluster of real SSH hosts on this machine.")
    verbs = parser.add_subparsers(required=True)
    for name, work in (("up", _up), ("down", _down), ("status", _status), ("ssh", _ssh)):
        verb = verbs.add_parser(name)
        verb.set_defaults(work=work)
        verb.add_argument("--name", default=DEFAULT_NAME, help="name of the lab")
        if name == "up":
            verb.add_argument("--nodes", type=int, default=DEFAULT_WORKERS, help="training nodes, 2 to 16")
            verb.add_argument("--rail-mbit", type=int, default=DEFAULT_RAIL_MBIT, help="rate of each rail in Mbit/s")
        if name == "ssh":
            verb.add_argument("node")
            verb.add_argument("argv", nargs=argparse.REMAINDER)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
