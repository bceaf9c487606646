"""``flowpregel graph``: draw a flow."""

from __future__ import annotations

import json

import click

from flowpregel.cli.flows import load_flow
from flowpregel.cli.options import json_option


@click.command()
@click.argument("flow", metavar="MODULE:FLOW")
@click.option("--mermaid", is_flag=True, help="In Mermaid's language.")
@click.option("--ascii", "only_ascii", is_flag=True, help="Without line-drawing characters.")
@click.option("--xray", is_flag=True, help="Draw the graphs that are nodes too.")
@json_option
def command(flow: str, mermaid: bool, only_ascii: bool, xray: bool, as_json: bool) -> None:
    """Draw a flow for the terminal."""
    drawing = load_flow(flow).get_graph(xray=xray)
    if as_json:
        click.echo(json.dumps(drawing.to_json(), ensure_ascii=True, default=str))
    elif mermaid:
        click.echo(drawing.draw_mermaid())
    else:
        click.echo(drawing.draw_ascii(charset="ascii" if only_ascii else "unicode"))
