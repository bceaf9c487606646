"""``flowpregel graph``: draw a flow, or what a thread's run did of it."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flowpregel.cli.flows import load_flow
from flowpregel.cli.options import json_option, store_option
from flowpregel.cli.output import note
from flowpregel.cli.stores import newest, reading

if TYPE_CHECKING:
    from flowpregel.pregel.drawing import RunDrawing


@click.command()
@click.argument("flow", metavar="MODULE:FLOW")
@click.option("--thread", metavar="THREAD", help="Draw what this thread's last run did.")
@click.option("--mermaid", is_flag=True, help="In Mermaid's language.")
@click.option("--ascii", "only_ascii", is_flag=True, help="Without line-drawing characters.")
@click.option("--xray", is_flag=True, help="Draw the graphs that are nodes too.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, writable=True),
    metavar="FILE.svg|.png",
    help="Write a picture, made by Graphviz.",
)
@store_option
@json_option
def command(flow: str, thread: str | None, output: str | None, **options: Any) -> None:
    """Draw a flow for the terminal, or with --thread what a run of it did.

    A run is a table of its supersteps: each task's end, time and trouble. As
    Mermaid and as a picture it is the flow, coloured by how its tasks ended.
    """
    store, xray = options["store"], options["xray"]
    loaded = load_flow(flow)
    drawing: Any = loaded.get_graph(xray=xray)
    if thread is not None:
        drawing = _run_of(loaded, thread, store, xray=xray)
    if output is not None:
        _write(drawing, Path(output))
    elif options["as_json"]:
        click.echo(json.dumps(drawing.to_json(), ensure_ascii=True, default=str))
    elif options["mermaid"]:
        click.echo(drawing.draw_mermaid())
    else:
        click.echo(drawing.draw_ascii(charset="ascii" if options["only_ascii"] else "unicode"))


def _run_of(flow: Any, thread: str, store: str | None, *, xray: bool) -> RunDrawing:
    """Return what the last run of *thread* did, by the store, or by the flow's own saver."""
    with nullcontext(flow.checkpointer) if store is None else reading(store) as saver:
        if store is not None:
            newest(saver, thread)
        drawing: RunDrawing = flow.copy({"checkpointer": saver}).get_run(
            thread_id=thread, xray=xray
        )
    return drawing


def _write(drawing: Any, path: Path) -> None:
    if path.suffix not in (".svg", ".png"):
        raise click.BadParameter(f"{path} must end with .svg or .png", param_hint="--output")
    if path.suffix == ".svg":
        path.write_text(drawing.draw_svg(), encoding="utf-8")
    else:
        path.write_bytes(drawing.draw_png())
    note(f"wrote {path}")
