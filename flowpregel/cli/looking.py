"""The commands that only read: ls, show, watch, history, state, diff, stats, graph.

The status of a thread is read from its newest checkpoint, without importing a flow.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, get_args

import click

from flowpregel._core.records import Address, Saved
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
from flowpregel.checkpoint.base import FLOW
from flowpregel.checkpoint.work import Status, Work, status_of, work_of
from flowpregel.cli import console, targets
from flowpregel.cli.rows import (
    for_people,
    running_task_record,
    step_number,
    task_cells,
    task_record,
)
from flowpregel.errors import ConfigurationError

if TYPE_CHECKING:
    from flowpregel.checkpoint.durable import DurableSaver

_MOST_DONE = 100
"""The number of finished tasks in a table without ``--full``. They are the last."""
_TASK_COLUMNS = (
    "STEP",
    "TASK",
    "STATE",
    "SECONDS",
    "TRIES",
    "RESULT, ERROR OR QUESTION",
)


def _limits(
    _: click.Context,
    __: click.Parameter,
    is_full: bool,
) -> PreviewLimits:
    """Return the limits of previews, which depend on ``--full``."""
    return FULL if is_full else PREVIEW


_limit = click.option(
    "--limit",
    type=console.COUNT,
    metavar="N",
    default=20,
    help="Show at most the newest N (20).",
)
_full = click.option(
    "--full",
    "limits",
    is_flag=True,
    callback=_limits,
    help="Print values whole, not just previews.",
)


@console.store_command("ls", console.INTERNALS)
@click.option(
    "--status",
    type=click.Choice(get_args(Status)),
    help="Show only threads with this status.",
)
def ls_command(status: str | None, store: str | None) -> None:
    """List the threads of a store, the last changed first.

    A thread is running; waiting (for an answer, or at a breakpoint); failed; stopped
    (tasks are due: resume it); or done.
    """
    rows: list[dict[str, Any]] = []
    with targets.open_to_read(store) as saver:
        threads = sorted(
            saver.threads(),
            key=lambda thread: thread.updated,
            reverse=True,
        )
        for thread in threads:
            if status is not None and thread.status != status:
                continue
            row = {
                "thread_id": thread.thread_id,
                "status": thread.status,
                "step": step_number(thread.step),
                "created": console.utc_text(thread.created),
                "updated": console.utc_text(thread.updated),
                "flow": to_json(thread.metadata.get(FLOW)) or None,
            }
            rows.append(row)
    console.print_rows(
        rows,
        "thread_id",
        "status",
        "step",
        "created",
        "updated",
        "flow",
    )


# ---------------------------------------------------------------- one run


@console.thread_command("show", console.INTERNALS)
@click.option(
    "--flow",
    metavar="MODULE:FLOW",
    help="Also import the flow, to show what comes next.",
)
@_limit
@_full
def show_command(
    thread: str,
    flow: str | None,
    limit: int,
    limits: PreviewLimits,
    store: str | None,
) -> None:
    """Show how a thread stands, and what its last run did.

    The tasks are listed by superstep: how they ended, how long they ran, how often they
    were tried, and their result, error or question; then the tasks that run now.
    """
    # The import is done here, so that ``--help`` stays fast.
    from flowpregel._inspection.run_tasks import work_of_last_run  # noqa: PLC0415

    names: dict[str, str] = {}
    running: list[dict[str, Any]] = []
    with targets.open_to_read(store, flow=flow is not None) as saver:
        saved = targets.newest_checkpoint(saver, thread)
        owner = saver.owner(thread)
        facts = _thread_facts(saved, running=owner is not None)
        if owner is not None:
            facts["run by"] = str(owner)
            waiting, running = _activity(saver, saved)
            facts["waiting for their turn"] = waiting
        if flow is not None:
            app = targets.load_flow(flow).copy({"checkpointer": saver})
            state = app.get_state(thread_id=thread)
            names = {task.id: task.name for task in state.tasks}
            facts["next"] = list(state.next)
        work = work_of_last_run(saver, thread, limit)
    tasks = [task_record(task, names, limits) for task in work]
    recorded_ids = {task.id for task in work}
    tasks += [task for task in running if task["id"] not in recorded_ids]
    hidden_ids = set() if limits is FULL else _early_done_ids(work)
    rows = [task_cells(task, limits) for task in tasks if task["id"] not in hidden_ids]
    _print_thread(
        facts,
        tasks,
        rows,
        hidden=len(hidden_ids),
    )


def _print_thread(
    facts: Mapping[str, Any],
    tasks: Sequence[Mapping[str, Any]],
    rows: Sequence[Sequence[Any]],
    *,
    hidden: int,
) -> None:
    """Print a thread.

    Args:
        facts: The facts about the thread.
        tasks: All tasks, for the output as JSON.
        rows: The rows of the table, for other output.
        hidden: The number of tasks that the table leaves out.
    """
    parts: list[Any] = [console.aligned(facts)]
    if rows:
        parts.append("")
        parts.append(console.make_table(_TASK_COLUMNS, rows))
    if hidden:
        parts.append(f"{hidden:,} earlier tasks are done; --full shows them")
    console.print_result({**facts, "tasks": tasks}, *parts)


def _thread_facts(saved: Saved, *, running: bool) -> dict[str, Any]:
    """Return the facts about a thread that are in its newest checkpoint."""
    checkpoint = saved.checkpoint
    metadata = dict(checkpoint.metadata)
    metadata.pop("input_digest", None)
    return {
        "thread_id": saved.address.thread_id,
        "status": status_of(saved, running=running),
        "checkpoint": checkpoint.id,
        "step": step_number(checkpoint.step),
        "at": console.utc_text(checkpoint.at),
        "metadata": to_json(metadata),
    }


def _activity(
    saver: DurableSaver,
    saved: Saved,
) -> tuple[Any, list[dict[str, Any]]]:
    """Return the number of a run's waiting calls, by the name of the task, and the
    records of the running tasks.
    """
    from flowpregel.cli.watching import live_activity  # noqa: PLC0415

    live = live_activity(saver, saved.address.thread_id)
    step = saved.checkpoint.step + 1
    tasks = [running_task_record(task, step) for task in live["running"]]
    return to_json(live["waiting"]) or None, tasks


def _early_done_ids(work: Iterable[Work]) -> set[str]:
    """Return the ids of the finished tasks that a table leaves out."""
    ids = [task.id for task in work if task.state == "done"]
    return set(ids[:-_MOST_DONE])


@console.store_command("watch")
@click.argument(
    "thread",
    metavar="[ID]",
    required=False,
)
def watch_command(
    thread: str | None,
    store: str | None,
) -> console.Code:
    """Watch a run in any process.

    Without ID it is the run that changed last. Failures come first, then how many tasks
    are done and to do, how fast, the time that is left, and what runs now. The command
    ends when the run ends, with an exit code for the status.
    """
    from flowpregel.cli.watching import watch_run  # noqa: PLC0415 - keeps --help fast

    with targets.open_to_read(store) as saver:
        return watch_run(saver, thread)


# ---------------------------------------------------------------- checkpoints


@console.thread_command("history", console.INTERNALS)
@_limit
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
@_full
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
@_full
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
    """Show how much a store holds, and for what."""
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
    the end, the time and the trouble of each task. Only a flow can be drawn in
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
