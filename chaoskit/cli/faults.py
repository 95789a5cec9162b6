"""`chaoskit faults`: what can be broken, and each fault's manual page, both read from the faults' own source."""

from typing import TYPE_CHECKING

import click

from chaoskit.model.units import show_duration, show_share, show_size

if TYPE_CHECKING:
    from chaoskit.faults import Description, Parameter

LIFETIMES = {
    "VOLATILE": "volatile: a reboot clears what nobody reverts",
    "PERSISTENT": "persistent: survives a reboot",
    "IRREVERSIBLE": "irreversible: cannot be undone, only waited for",
}
INDENT = " " * 4


@click.command()
@click.argument("name", required=False)
def faults(name: str | None) -> None:
    """List the faults, or show one with its parameters."""
    from chaoskit.faults import describe, discover

    rows = _page(describe(name)) if name else _listing([describe(each) for each in sorted(discover())])
    click.echo("\n".join(rows))


def _listing(known: "list[Description]") -> list[str]:
    width = max((len(fault.name) for fault in known), default=0)
    rows = [f"{fault.name:<{width}}  {'held' if fault.held else 'one shot':<8}  {fault.doc.splitlines()[0]}" for fault in known]
    return [*rows, "", "`chaoskit faults NAME` shows one with its parameters."]


def _page(fault: "Description") -> list[str]:
    rows = [f"{fault.name} ({'held' if fault.held else 'one shot'}; {LIFETIMES[fault.lifetime]})", "", *fault.doc.splitlines(), ""]
    rows += [*fault.story.splitlines(), "", "Parameters, under `with:`" if fault.parameters else "No parameters."]
    for parameter in fault.parameters:
        rows += [f"  {parameter.name}: {_kind(parameter)}", f"{INDENT}{' '.join(parameter.doc.split())}"]
    return rows


def _kind(parameter: "Parameter") -> str:
    """Return a parameter's type and default as one would write them in an experiment."""
    kinds = {"duration": "duration, such as 20s", "share": "percentage, such as 10%", "size": "size, such as 4MiB"}
    kind = kinds.get(parameter.unit, parameter.type)
    if parameter.required:
        return f"{kind}; must be given"
    return kind if parameter.default is None else f"{kind}; default {_written(parameter)}"


def _written(parameter: "Parameter") -> str:
    written = {"duration": show_duration, "share": show_share, "size": show_size}
    return written[parameter.unit](parameter.default) if parameter.unit else str(parameter.default)
