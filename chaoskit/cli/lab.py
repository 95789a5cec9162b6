"""`chaoskit lab`: the embedded cluster, real hosts on this machine."""

import os
import time

import click

from chaoskit.errors import RefusedError

DEFAULT_NAME = "lab"
NAME = click.option("--name", default=DEFAULT_NAME, show_default=True, help="Name of the lab.")


@click.group()
def lab() -> None:
    """A cluster of real SSH hosts on this machine, to try everything on."""


@lab.command()
@NAME
@click.option("--nodes", type=click.IntRange(2, 16), default=4, show_default=True, help="Training nodes.")
@click.option("--rail-mbit", type=int, help="Rate of each rail in Mbit/s; slow enough that a lost plane is felt, when not given.")
def up(name: str, nodes: int, rail_mbit: int | None) -> None:
    """Start a lab, find it up, or boot those of its nodes that are down."""
    from chaoskit.lab import control
    from chaoskit.lab.plan import DEFAULT_RAIL_MBIT
    from chaoskit.lab.report import up_text

    start = time.monotonic()
    made = control.up(name=name, nodes=nodes, rail_mbit=DEFAULT_RAIL_MBIT if rail_mbit is None else rail_mbit)
    click.echo(up_text(made, time.monotonic() - start))


@lab.command()
@NAME
def down(name: str) -> None:
    """Remove a lab, in whatever state it is; nothing of it stays."""
    from chaoskit.lab import control

    if os.geteuid() != 0:  # before anything of it is touched: half a removal helps nobody
        raise RefusedError("to remove a lab needs root, as to start it did", where=f"lab {name}", hint="run it with sudo")
    click.echo(f"lab {name}: {'removed' if control.down(name) else 'there was none'}")


@lab.command()
@click.option("--name", help="Name of the lab; every lab when not given.")
def status(name: str | None) -> None:
    """Say what a lab and its nodes are doing."""
    from chaoskit.lab import control
    from chaoskit.lab.report import status_text

    names = (name,) if name else control.names() or (DEFAULT_NAME,)
    click.echo("\n".join(status_text(control.status(each)) for each in names))


@lab.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@NAME
@click.argument("node")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def ssh(name: str, node: str, command: tuple[str, ...]) -> int:
    """Open a shell on NODE, or run COMMAND there; exits with its status."""
    from chaoskit.lab import control

    return control.ssh(name, node, command)
