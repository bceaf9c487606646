"""The commands that show checkpoints, sizes and drawings: history, state, diff, stats,
graph.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import click

from flowpregel._core.records import Address
from flowpregel._inspection.preview import (
    FULL,
    PREVIEW,
    PreviewLimits,
    channel_values,
    json_in_one_line,
    one_line,
    to_json,
)
from flowpregel._text import in_one_line, size_text
from flowpregel.checkpoint.work import work_of
from flowpregel.cli import console, targets
from flowpregel.cli.rows import for_people, step_number
from flowpregel.errors import ConfigurationError


def _limits(
    _: click.Context,
    __: click.Parameter,
    is_full: bool,
) -> PreviewLimits:
    """Return the limits of previews, which depend on ``--full``."""
    return FULL if is_full else PREVIEW


limit_option: Callable[[Any], Any] = click.option(
    "--limit",
    type=console.COUNT,
    metavar="N",
    default=20,
    help="Show at most the newest N (20).",
)
full_option: Callable[[Any], Any] = click.option(
    "--full",
    "limits",
    is_flag=True,
    callback=_limits,
    help="Print values whole, not just previews.",
)


# ---------------------------------------------------------------- checkpoints


@console.thread_command("history", console.INTERNALS)
@limit_option
def history_command(
    thread: str,
    limit: int,
    store: str | None,
) -> None:
    """List a thread's checkpoints, newest first."""
    rows: list[dict[str, Any]] = []
    with targets.open_to_read(store) as saver:
        targets.newest_checkpoint(saver, thread)
        for saved in saver.history(Address(thread), limit=limit):
            checkpoint = saved.checkpoint
            changed = for_people(dict.fromkeys(checkpoint.changed))
            row = {
                "checkpoint": checkpoint.id,
                "parent": checkpoint.parent_id,
                "step": step_number(checkpoint.step),
                "source": checkpoint.source,
                "at": console.utc_text(checkpoint.at),
                "run_id": to_json(checkpoint.metadata.get("run_id")),
                "changed": list(changed),
                "tasks": len(work_of(saved)),
            }
            rows.append(row)
    console.print_rows(
        rows,
        "checkpoint",
        "step",
        "source",
        "at",
        "tasks",
        "changed",
    )


@console.thread_command("state", console.INTERNALS)
@click.argument("checkpoint", required=False)
@full_option
def state_command(
    thread: str,
    checkpoint: str | None,
    limits: PreviewLimits,
    store: str | None,
) -> None:
    """Show the values of a thread's channels.

    CHECKPOINT is a step, an id or its beginning; by default the newest. The writes of
    tasks of an unfinished superstep are not included: `show` lists them.
    """
    with targets.open_to_read(store) as saver:
        saved = targets.find_checkpoint(saver, thread, checkpoint)
    channels = for_people(channel_values(saved))
    values = {name: to_json(value, limits) for name, value in channels.items()}
    rows = [(name, json_in_one_line(value, limits)) for name, value in values.items()]
    table = console.make_table(("CHANNEL", "VALUE"), rows)
    console.print_result(
        {"checkpoint": saved.checkpoint.id, "values": values},
        table,
    )


@console.thread_command("diff", console.INTERNALS)
@click.argument("old", required=False)
@click.argument("new", required=False)
@full_option
def diff_command(
    thread: str,
    old: str | None,
    new: str | None,
    limits: PreviewLimits,
    store: str | None,
) -> None:
    """Show what changed between two checkpoints.

    OLD and NEW are steps, ids or their beginnings; by default the newest and its
    parent.
    """
    with targets.open_to_read(store) as saver:
        new_saved = targets.find_checkpoint(saver, thread, new)
        checkpoint = new_saved.checkpoint
        if old is None and checkpoint.parent_id is None:
            raise ConfigurationError(
                f"checkpoint {checkpoint.id} has no parent: "
                "name the one to compare with"
            )
        old_name = old or checkpoint.parent_id
        old_saved = targets.find_checkpoint(saver, thread, old_name)
    before = for_people(channel_values(old_saved))
    after = for_people(channel_values(new_saved))
    changes: dict[str, dict[str, Any]] = {}
    lines: list[str] = []
    for name in sorted({*before, *after}):
        if _is_unchanged(name, before, after):
            continue
        sides: dict[str, Any] = {}
        for side, mark, channels in (("old", "-", before), ("new", "+", after)):
            if name in channels:
                sides[side] = to_json(channels[name], limits)
                text = json_in_one_line(sides[side], limits)
                lines.append(f"{mark} {in_one_line(name)}: {text}")
        changes[name] = sides
    console.print_result(
        {
            "old": old_saved.checkpoint.id,
            "new": checkpoint.id,
            "changes": changes,
        },
        *lines,
    )


def _is_unchanged(
    name: str,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
) -> bool:
    """Return whether the value of a channel has the same text before and after."""
    if name not in before or name not in after:
        return False
    return one_line(before[name], FULL) == one_line(after[name], FULL)


@console.store_command("stats", console.INTERNALS)
def stats_command(store: str | None) -> None:
    """Show what a store contains, and how much space each part takes."""
    with targets.open_to_read(store) as saver:
        stats = saver.stats()
        path = saver.path
    facts = {
        "store": path,
        "threads": f"{stats.threads:,}",
        "namespaces": f"{stats.namespaces:,}",
        "checkpoints": f"{stats.checkpoints:,}",
        "file": size_text(stats.bytes),
        "in checkpoints": size_text(stats.bytes_of_checkpoints),
        "in pending writes": size_text(stats.bytes_of_writes),
    }
    sizes = for_people(stats.bytes_of_channels).items()
    largest_first = sorted(
        sizes,
        key=lambda item: item[1],
        reverse=True,
    )
    rows = [(name, f"{size:,}") for name, size in largest_first]
    console.print_result(
        {"path": path, **asdict(stats)},
        console.aligned(facts),
        "",
        console.make_table(("CHANNEL", "BYTES"), rows),
    )


# ---------------------------------------------------------------- drawings


@console.store_command("graph")
@click.argument("flow", metavar="MODULE:FLOW")
@click.option(
    "--thread",
    metavar="THREAD",
    help="Draw what this thread's last run did.",
)
@click.option(
    "--mermaid",
    is_flag=True,
    help="In Mermaid's language.",
)
@click.option(
    "--ascii",
    "only_ascii",
    is_flag=True,
    help="Without line-drawing characters.",
)
@click.option(
    "--xray",
    is_flag=True,
    help="Also draw the graphs that are nodes of the graph.",
)
@click.option(
    "--dot",
    is_flag=True,
    help="Print Graphviz source; dot -Tsvg turns it into a picture.",
)
def graph_command(
    flow: str,
    thread: str | None,
    **options: Any,
) -> None:
    """Draw a flow, or with --thread a run of the flow.

    A flow is drawn as a list of nodes and edges, a run as a table of supersteps with
    the outcome, the duration and the error of each task. Only a flow can be drawn in
    Mermaid's or Graphviz's language.
    """
    has_language = options["mermaid"] or options["dot"]
    if thread is not None and has_language:
        raise click.UsageError(
            "a run is drawn as a table: leave out --mermaid and --dot"
        )
    drawing = _drawing(
        flow,
        thread,
        options["store"],
        xray=options["xray"],
    )
    click.echo(_drawing_text(drawing, options))


def _drawing_text(drawing: Any, options: Mapping[str, Any]) -> str:
    """Return the text of a drawing, in the format that the options of `graph` name."""
    text: str
    if console.has_flag("--json"):
        text = json.dumps(
            drawing.to_json(),
            ensure_ascii=True,
            default=str,
        )
    elif options["mermaid"]:
        text = drawing.draw_mermaid()
    elif options["dot"]:
        text = drawing.draw_dot()
    else:
        charset = "ascii" if options["only_ascii"] else "unicode"
        text = drawing.draw_ascii(charset=charset)
    return text


def _drawing(
    flow: str,
    thread: str | None,
    store: str | None,
    *,
    xray: bool,
) -> Any:
    """Return the drawing of a flow, or of the last run of a *thread*."""
    app: Any = targets.load_flow(flow)
    if thread is None:
        return app.get_graph(xray=xray)
    if store is None:
        return app.get_run(thread_id=thread, xray=xray)
    with targets.open_to_read(store, flow=True) as saver:
        targets.newest_checkpoint(saver, thread)
        app_on_store = app.copy({"checkpointer": saver})
        return app_on_store.get_run(thread_id=thread, xray=xray)
