"""The commands that only look: ls, show, history, state, diff, stats, graph."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from flowpregel._core.records import Address, Saved
from flowpregel.cli.console import (
    all_option,
    flow_option,
    full_option,
    limit_option,
    note,
    print_fields,
    print_json,
    print_line,
    print_rows,
    size_of,
    store_command,
    table,
    thread_argument,
    time_of,
    wants_json,
)
from flowpregel.cli.preview import FULL, Limits, one_line, plain
from flowpregel.cli.status import Work, is_engines, status_of, values_of, work_of
from flowpregel.cli.targets import FLOW, find_checkpoint, load_flow, newest, reading
from flowpregel.errors import ConfigurationError

_CELL = Limits(depth=3, count=6, size=60, total=60)
_MOST = 100
"""Of the tasks that are done, the last ones are shown, this many, unless all are asked for."""


@store_command
@click.option(
    "--status",
    type=click.Choice(["running", "interrupted", "failed", "stopped", "idle"]),
    help="Only threads of this status.",
)
def ls(status: str | None, store: str | None) -> None:
    """List the threads of a store, the last changed first.

    A thread is running; interrupted (it waits for an answer); failed; stopped
    (a superstep had begun and was not ended: resume it); or idle.
    """
    rows = []
    with reading(store) as saver:
        for info in sorted(saver.threads(), key=lambda info: info.updated, reverse=True):
            saved = newest(saver, info.thread_id)
            row = {
                "thread_id": info.thread_id,
                "status": status_of(saved, running=info.status == "running"),
                "step": info.step,
                "created": time_of(info.created),
                "updated": time_of(info.updated),
                "flow": saved.checkpoint.metadata.get(FLOW) or None,
            }
            if status in (None, row["status"]):
                rows.append(row)
    columns = ("status", "step", "created", "updated", "flow")
    print_rows(rows, {"THREAD": "thread_id", **{name.upper(): name for name in columns}})


@store_command
@thread_argument
@flow_option("Import the flow too, to show what comes next.")
@limit_option(20, "At most N supersteps, the newest.")
@full_option
def show(thread: str, flow: str | None, limit: int, full: bool, store: str | None) -> None:
    """Show how a thread stands, and what its last run did.

    Its tasks are listed by superstep: how they ended, how long they ran, how often
    they were tried, and their result, error or question.
    """
    from flowpregel.pregel.runs import last_run  # noqa: PLC0415 - keeps --help fast

    names: dict[str, str] = {}
    with reading(store) as saver:
        saved = newest(saver, thread)
        owner = saver.owner(thread)
        facts = _facts(saved, status_of(saved, running=owner is not None))
        if owner is not None:
            facts["run by"] = str(owner)
        work = [each for item in last_run(saver, Address(thread), limit) for each in work_of(item)]
        if flow is not None:
            app = load_flow(flow).copy({"checkpointer": saver})
            state = app.get_state(thread_id=thread)
            names = {task.id: task.name for task in state.tasks}
            facts["next"] = [*state.next]
    if wants_json():
        limits = FULL if full else Limits()
        print_json({**facts, "tasks": [_work_as_json(each, names, limits) for each in work]})
        return
    print_fields({k: v if isinstance(v, str) else one_line(v) for k, v in facts.items()})
    _print_work(work, names, full=full)


def _facts(saved: Saved, status: str) -> dict[str, Any]:
    checkpoint = saved.checkpoint
    metadata = {key: value for key, value in checkpoint.metadata.items() if key != "input_digest"}
    return {
        "thread_id": saved.address.thread_id,
        "status": status,
        "checkpoint": checkpoint.id,
        "step": checkpoint.step,
        "at": time_of(checkpoint.at),
        "metadata": plain(metadata),
    }


def _work_as_json(work: Work, names: dict[str, str], limits: Limits) -> dict[str, Any]:
    ran = work.ran
    return {
        "id": work.id,
        "name": work.name or names.get(work.id),
        "step": work.step,
        "state": work.state,
        "began": None if ran is None else time_of(ran.began),
        "seconds": None if ran is None else ran.seconds,
        "attempts": None if ran is None else ran.attempts,
        "executor": None if ran is None else ran.executor,
        "pid": None if ran is None else ran.pid,
        "result": plain(work.result, limits),
        "error": None if work.error is None else plain(work.error, limits),
        "interrupts": [{"id": i.id, "value": plain(i.value, limits)} for i in work.interrupts],
    }


def _print_work(work: list[Work], names: dict[str, str], *, full: bool) -> None:
    done = [each.id for each in work if each.state == "done"]
    hidden = set() if full else {*done[:-_MOST]}
    rows = [
        (
            str(each.step),
            each.name or names.get(each.id) or f"(node's task {each.id[:8]})",
            each.state,
            "" if each.ran is None else f"{each.ran.seconds:.3f}",
            "" if each.ran is None else str(each.ran.attempts),
            _result_of(each, FULL if full else _CELL),
        )
        for each in work
        if each.id not in hidden
    ]
    if rows:
        print_line()
        table(("STEP", "TASK", "STATE", "SECONDS", "TRIES", "RESULT, ERROR OR QUESTION"), rows)
    if hidden:
        print_line(f"and {len(hidden):,} before that are done; --full shows them")


def _result_of(work: Work, limits: Limits) -> str:
    match work.state:
        case "failed":
            error = work.error
            text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
            return one_line(text, limits)
        case "waiting":
            return "; ".join(f"{i.id}: {one_line(i.value, limits)}" for i in work.interrupts)
        case "done":
            return one_line(work.result, limits)
    return ""


@store_command
@thread_argument
@limit_option(20, "At most N checkpoints.")
def history(thread: str, limit: int, store: str | None) -> None:
    """List a thread's checkpoints, newest first."""
    rows = []
    with reading(store) as saver:
        newest(saver, thread)
        for saved in saver.history(Address(thread), limit=limit):
            checkpoint = saved.checkpoint
            row = {
                "checkpoint": checkpoint.id,
                "parent": checkpoint.parent_id,
                "step": checkpoint.step,
                "source": checkpoint.source,
                "at": time_of(checkpoint.at),
                "run_id": checkpoint.metadata.get("run_id"),
                "changed": sorted(name for name in checkpoint.changed if not is_engines(name)),
                "tasks": len({write.task_id for write in saved.writes}),
            }
            rows.append(row)
    columns = ("checkpoint", "step", "source", "at", "tasks", "changed")
    print_rows(rows, {name.upper(): name for name in columns})


@store_command
@thread_argument
@click.argument("checkpoint", required=False)
@full_option
@all_option
def state(
    thread: str, checkpoint: str | None, full: bool, show_all: bool, store: str | None
) -> None:
    """Show what a thread's channels hold.

    CHECKPOINT is a step, an id or its beginning; by default the newest. What
    tasks of an unfinished superstep wrote is not in it: `show` lists that.
    """
    with reading(store) as saver:
        saved = find_checkpoint(saver, thread, checkpoint)
    values = values_of(saved, show_all=show_all)
    limits = FULL if full else Limits()
    if wants_json():
        shown = {name: plain(value, limits) for name, value in values.items()}
        print_json({"checkpoint": saved.checkpoint.id, "values": shown})
    else:
        table(("CHANNEL", "VALUE"), [(k, one_line(v, limits)) for k, v in values.items()])


@store_command
@thread_argument
@click.argument("old", required=False)
@click.argument("new", required=False)
@full_option
@all_option
def diff(thread: str, old: str | None, new: str | None, store: str | None, **options: Any) -> None:
    """Show what changed between two checkpoints.

    OLD and NEW are steps, ids or their beginnings; by default the newest and
    its parent.
    """
    with reading(store) as saver:
        later = find_checkpoint(saver, thread, new)
        if old is None and later.checkpoint.parent_id is None:
            raise ConfigurationError(
                f"checkpoint {later.checkpoint.id} has no parent: name the one to compare with"
            )
        earlier = find_checkpoint(saver, thread, old or later.checkpoint.parent_id)
    changes = _changes(earlier, later, show_all=options["show_all"])
    limits = FULL if options["full"] else Limits()
    if wants_json():
        shown = {
            name: {side: plain(value, limits) for side, value in sides.items()}
            for name, sides in changes.items()
        }
        ids = {"old": earlier.checkpoint.id, "new": later.checkpoint.id}
        print_json({**ids, "changes": shown})
        return
    for name, sides in changes.items():
        for side, sign in (("old", "-"), ("new", "+")):
            if side in sides:
                print_line(f"{sign} {name}: {one_line(sides[side], limits)}")


def _changes(old: Saved, new: Saved, *, show_all: bool) -> dict[str, dict[str, Any]]:
    """Return, for each channel that differs, what each side holds; empty sides are left out."""
    held = {"old": values_of(old, show_all=show_all), "new": values_of(new, show_all=show_all)}
    changes = {}
    for name in sorted(held["old"].keys() | held["new"].keys()):
        sides = {side: values[name] for side, values in held.items() if name in values}
        # What is shown is compared: `==` of a user's class may raise, or return no bool.
        if len(sides) == 1 or plain(sides["old"], FULL) != plain(sides["new"], FULL):
            changes[name] = sides
    return changes


@store_command
def stats(store: str | None) -> None:
    """Show how much a store keeps, and for what."""
    with reading(store) as saver:
        found, path = saver.stats(), saver.path
    if wants_json():
        print_json({"path": path, **asdict(found)})
        return
    print_fields(
        {
            "store": path,
            "file": size_of(found.bytes),
            "threads": f"{found.threads:,}",
            "namespaces": f"{found.namespaces:,}",
            "checkpoints": f"{found.checkpoints:,} ({size_of(found.bytes_of_checkpoints)})",
            "pending writes": size_of(found.bytes_of_writes),
        }
    )
    if found.bytes_of_channels:
        largest = sorted(found.bytes_of_channels.items(), key=lambda item: -item[1])
        print_line()
        table(("CHANNEL", "BYTES"), [(name, f"{size:,}") for name, size in largest])


@store_command
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
def graph(flow: str, thread: str | None, output: str | None, **options: Any) -> None:
    """Draw a flow for the terminal, or with --thread what a run of it did.

    A flow is a list of its nodes and their edges, a run a table of its supersteps:
    each task's end, time and trouble. As Mermaid and as a picture a run is the flow,
    coloured by how its tasks ended.
    """
    drawing = _drawing(flow, thread, options["store"], xray=options["xray"])
    if output is not None:
        _write(drawing, Path(output))
    elif wants_json():
        click.echo(json.dumps(drawing.to_json(), ensure_ascii=True, default=str))
    elif options["mermaid"]:
        click.echo(drawing.draw_mermaid())
    else:
        click.echo(drawing.draw_ascii(charset="ascii" if options["only_ascii"] else "unicode"))


def _drawing(name: str, thread: str | None, store: str | None, *, xray: bool) -> Any:
    """Return the drawing of a flow, or of the last run of a thread in a store or its own."""
    flow = load_flow(name)
    if thread is None:
        return flow.get_graph(xray=xray)
    if store is None:
        return flow.get_run(thread_id=thread, xray=xray)
    with reading(store) as saver:
        newest(saver, thread)
        return flow.copy({"checkpointer": saver}).get_run(thread_id=thread, xray=xray)


def _write(drawing: Any, path: Path) -> None:
    if path.suffix not in (".svg", ".png"):
        raise click.BadParameter(f"{path} must end with .svg or .png", param_hint="--output")
    if path.suffix == ".svg":
        path.write_text(drawing.draw_svg(), encoding="utf-8")
    else:
        path.write_bytes(drawing.draw_png())
    note(f"wrote {path}")
