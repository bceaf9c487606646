"""The commands that only look: ls, show, history, state, diff, stats, graph."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from flowpregel._core.records import Address
from flowpregel._text import in_one_line
from flowpregel.cli import console, targets
from flowpregel.cli.preview import FULL, Limits, line_of, one_line, plain
from flowpregel.cli.status import STATUSES, Work, is_engines, status_of, values_of, work_of
from flowpregel.errors import ConfigurationError

_CELL = Limits(depth=3, count=6, size=60, total=60)
_MOST = 100
"""Of the tasks that are done, the last ones are shown, this many, unless all are asked for."""
_COUNT = click.IntRange(min=1)
_full = click.option("--full", is_flag=True, help="Print values whole, not just previews.")
_all = click.option("--all", "show_all", is_flag=True, help="Show the engine's channels too.")


@console.store_command()
@click.option("--status", type=click.Choice(STATUSES), help="Only threads of this status.")
def ls(status: str | None, store: str | None) -> None:
    """List the threads of a store, the last changed first.

    A thread is running; interrupted (it waits for an answer); failed; stopped
    (a superstep had begun and was not ended: resume it); or idle.
    """
    rows = []
    with targets.reading(store) as saver:
        for info in sorted(saver.threads(), key=lambda info: info.updated, reverse=True):
            saved = targets.newest(saver, info.thread_id)
            stands = status_of(saved, running=info.status == "running")
            if status in (None, stands):
                row = {
                    "thread_id": info.thread_id,
                    "status": stands,
                    "step": info.step,
                    "created": console.time_of(info.created),
                    "updated": console.time_of(info.updated),
                    "flow": saved.checkpoint.metadata.get(targets.FLOW) or None,
                }
                rows.append(row)
    columns = ("status", "step", "created", "updated", "flow")
    console.print_rows(rows, {"THREAD": "thread_id", **{name.upper(): name for name in columns}})


@console.store_command()
@click.argument("thread")
@click.option("--flow", metavar="MODULE:FLOW", help="Import it too, to show what comes next.")
@click.option("--limit", type=_COUNT, default=20, show_default=True, help="At most N supersteps.")
@_full
def show(thread: str, flow: str | None, limit: int, full: bool, store: str | None) -> None:
    """Show how a thread stands, and what its last run did.

    Its tasks are listed by superstep: how they ended, how long they ran, how often
    they were tried, and their result, error or question.
    """
    from flowpregel.pregel.runs import last_run  # noqa: PLC0415 - keeps --help fast

    names: dict[str, str] = {}
    with targets.reading(store) as saver:
        saved = targets.newest(saver, thread)
        owner = saver.owner(thread)
        kept = saved.checkpoint.metadata
        metadata = {key: value for key, value in kept.items() if key != "input_digest"}
        facts = {
            "thread_id": thread,
            "status": status_of(saved, running=owner is not None),
            "checkpoint": saved.checkpoint.id,
            "step": saved.checkpoint.step,
            "at": console.time_of(saved.checkpoint.at),
            "metadata": plain(metadata),
        }
        if owner is not None:
            facts["run by"] = str(owner)
        if flow is not None:
            app = targets.load_flow(flow).copy({"checkpointer": saver})
            state = app.get_state(thread_id=thread)
            names = {task.id: task.name for task in state.tasks}
            facts["next"] = [*state.next]
        work = [each for item in last_run(saver, Address(thread), limit) for each in work_of(item)]
    limits = FULL if full else Limits() if console.wants_json() else _CELL
    tasks = [_task(each, names, limits) for each in work]
    done = [each.id for each in work if each.state == "done"]
    hidden = set() if full else {*done[:-_MOST]}
    parts: list[Any] = [console.fields(facts)]
    if rows := [_row(task) for task in tasks if task["id"] not in hidden]:
        heads = ("STEP", "TASK", "STATE", "SECONDS", "TRIES", "RESULT, ERROR OR QUESTION")
        parts += ["", console.table(heads, rows)]
    if hidden:
        parts.append(f"and {len(hidden):,} before that are done; --full shows them")
    console.print_result({**facts, "tasks": tasks}, *parts)


def _task(work: Work, names: Mapping[str, str], limits: Limits) -> dict[str, Any]:
    ran = work.ran
    return {
        "id": work.id,
        "name": work.name or names.get(work.id),
        "step": work.step,
        "state": work.state,
        "began": ran and console.time_of(ran.began),
        **{name: getattr(ran, name, None) for name in ("seconds", "attempts", "executor", "pid")},
        "result": plain(work.result, limits),
        "error": plain(work.error, limits),
        "interrupts": [{"id": i.id, "value": plain(i.value, limits)} for i in work.interrupts],
    }


def _row(task: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the cells of a task in the table of `show`."""
    told = ""
    match task:
        case {"state": "failed", "error": {"type": kind, "message": message}}:
            told = one_line(f"{kind}: {message}", FULL)
        case {"state": "waiting", "interrupts": interrupts}:
            told = "; ".join(f"{each['id']}: {one_line(each['value'])}" for each in interrupts)
        case {"state": "failed", "error": known} | {"state": "done", "result": known}:
            told = one_line(known, FULL)
    name = task["name"] or f"(node's task {task['id'][:8]})"
    seconds = None if task["seconds"] is None else f"{task['seconds']:.3f}"
    return task["step"], name, task["state"], seconds, task["attempts"], told


@console.store_command()
@click.argument("thread")
@click.option("--limit", type=_COUNT, default=20, show_default=True, help="At most N checkpoints.")
def history(thread: str, limit: int, store: str | None) -> None:
    """List a thread's checkpoints, newest first."""
    with targets.reading(store) as saver:
        targets.newest(saver, thread)
        rows = [
            {
                "checkpoint": saved.checkpoint.id,
                "parent": saved.checkpoint.parent_id,
                "step": saved.checkpoint.step,
                "source": saved.checkpoint.source,
                "at": console.time_of(saved.checkpoint.at),
                "run_id": saved.checkpoint.metadata.get("run_id"),
                "changed": sorted(n for n in saved.checkpoint.changed if not is_engines(n)),
                "tasks": len({write.task_id for write in saved.writes}),
            }
            for saved in saver.history(Address(thread), limit=limit)
        ]
    columns = ("checkpoint", "step", "source", "at", "tasks", "changed")
    console.print_rows(rows, {name.upper(): name for name in columns})


@console.store_command()
@click.argument("thread")
@click.argument("checkpoint", required=False)
@_full
@_all
def state(
    thread: str, checkpoint: str | None, full: bool, show_all: bool, store: str | None
) -> None:
    """Show what a thread's channels hold.

    CHECKPOINT is a step, an id or its beginning; by default the newest. What
    tasks of an unfinished superstep wrote is not in it: `show` lists that.
    """
    with targets.reading(store) as saver:
        saved = targets.find_checkpoint(saver, thread, checkpoint)
    limits = FULL if full else Limits()
    values = {
        name: plain(value, limits) for name, value in values_of(saved, show_all=show_all).items()
    }
    rows = [(name, line_of(value, 4 * limits.size)) for name, value in values.items()]
    shown = {"checkpoint": saved.checkpoint.id, "values": values}
    console.print_result(shown, console.table(("CHANNEL", "VALUE"), rows))


@console.store_command()
@click.argument("thread")
@click.argument("old", required=False)
@click.argument("new", required=False)
@_full
@_all
def diff(thread: str, old: str | None, new: str | None, store: str | None, **options: bool) -> None:
    """Show what changed between two checkpoints.

    OLD and NEW are steps, ids or their beginnings; by default the newest and
    its parent.
    """
    with targets.reading(store) as saver:
        later = targets.find_checkpoint(saver, thread, new)
        if old is None and later.checkpoint.parent_id is None:
            raise ConfigurationError(
                f"checkpoint {later.checkpoint.id} has no parent: name the one to compare with"
            )
        earlier = targets.find_checkpoint(saver, thread, old or later.checkpoint.parent_id)
    limits = FULL if options["full"] else Limits()
    ends = {
        side: values_of(saved, show_all=options["show_all"])
        for side, saved in (("old", earlier), ("new", later))
    }
    changes: dict[str, dict[str, Any]] = {}
    for name in sorted({*ends["old"], *ends["new"]}):
        held = {side: values[name] for side, values in ends.items() if name in values}
        # What is shown is compared: `==` of a user's class may raise, or return no bool.
        if len(held) == 1 or plain(held["old"], FULL) != plain(held["new"], FULL):
            changes[name] = {side: plain(value, limits) for side, value in held.items()}
    marks = {"old": "-", "new": "+"}
    lines = [
        f"{marks[side]} {in_one_line(name)}: {line_of(value, 4 * limits.size)}"
        for name, sides in changes.items()
        for side, value in sides.items()
    ]
    ids = {"old": earlier.checkpoint.id, "new": later.checkpoint.id}
    console.print_result({**ids, "changes": changes}, *lines)


@console.store_command()
def stats(store: str | None) -> None:
    """Show how much a store keeps, and for what."""
    with targets.reading(store) as saver:
        found, path = saver.stats(), saver.path
    shown = {
        "store": path,
        "threads": f"{found.threads:,}",
        "namespaces": f"{found.namespaces:,}",
        "checkpoints": f"{found.checkpoints:,}",
        "file": console.size_of(found.bytes),
        "in checkpoints": console.size_of(found.bytes_of_checkpoints),
        "in pending writes": console.size_of(found.bytes_of_writes),
    }
    parts: list[Any] = [console.fields(shown)]
    if found.bytes_of_channels:
        largest = sorted(found.bytes_of_channels.items(), key=lambda item: -item[1])
        rows = [(name, f"{count:,}") for name, count in largest]
        parts += ["", console.table(("CHANNEL", "BYTES"), rows)]
    console.print_result({"path": path, **asdict(found)}, *parts)


@console.store_command()
@click.argument("flow", metavar="MODULE:FLOW")
@click.option("--thread", metavar="THREAD", help="Draw what this thread's last run did.")
@click.option("--mermaid", is_flag=True, help="In Mermaid's language.")
@click.option("--ascii", "only_ascii", is_flag=True, help="Without line-drawing characters.")
@click.option("--xray", is_flag=True, help="Draw the graphs that are nodes too.")
@click.option("--output", metavar="FILE.svg|.png", help="Write a picture, made by Graphviz.")
def graph(flow: str, thread: str | None, output: str | None, **options: Any) -> None:
    """Draw a flow, or with --thread what a run of it did.

    A flow is a list of its nodes and their edges, a run a table of its supersteps:
    each task's end, time and trouble. As Mermaid and as a picture a run is the flow,
    coloured by how its tasks ended.
    """
    drawing = _drawing(flow, thread, options["store"], xray=options["xray"])
    if output is not None:
        _write(drawing, Path(output))
    elif console.wants_json():
        click.echo(json.dumps(drawing.to_json(), ensure_ascii=True, default=str))
    elif options["mermaid"]:
        click.echo(drawing.draw_mermaid())
    else:
        click.echo(drawing.draw_ascii(charset="ascii" if options["only_ascii"] else "unicode"))


def _drawing(name: str, thread: str | None, store: str | None, *, xray: bool) -> Any:
    """Return the drawing of a flow, or of the last run of a thread in a store or its own."""
    flow = targets.load_flow(name)
    if thread is None:
        return flow.get_graph(xray=xray)
    if store is None:
        return flow.get_run(thread_id=thread, xray=xray)
    with targets.reading(store) as saver:
        targets.newest(saver, thread)
        return flow.copy({"checkpointer": saver}).get_run(thread_id=thread, xray=xray)


def _write(drawing: Any, path: Path) -> None:
    match path.suffix:
        case ".svg":
            path.write_text(drawing.draw_svg(), "utf-8")
        case ".png":
            path.write_bytes(drawing.draw_png())
        case _:
            raise click.BadParameter(f"{path} must end with .svg or .png", param_hint="--output")
    console.note(f"wrote {path}")
