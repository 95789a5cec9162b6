"""`chaoskit schema`: the JSON Schema of what users write, for editors and CI."""

import json
from typing import Literal

import click


@click.command()
@click.argument("kind", type=click.Choice(["experiment", "inventory"]))
def schema(kind: Literal["experiment", "inventory"]) -> None:
    """Print the JSON Schema of experiment or inventory files."""
    from chaoskit.model.schema import schema as schema_of

    click.echo(json.dumps(schema_of(kind), indent=2))
