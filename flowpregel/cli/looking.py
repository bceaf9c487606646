"""The commands that only look: ls, show, history, state, diff, stats, graph.

How a thread stands is read from what its newest checkpoint keeps; no flow is imported
for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from flowpregel._core import records
from flowpregel._core.asked import Ran
from flowpregel._core.records import Address, Saved
from flowpregel._text import in_one_line
from flowpregel.checkpoint.base import FLOW
from flowpregel.cli import console, targets
from flowpregel.cli.console import FULL, PREVIEW, Limits, line_of, plain
from flowpregel.errors import ConfigurationError

STATUSES = ("running", "interrupted", "failed", "stopped", "idle")
_MOST = 100
"""Of the tasks that are done, the last ones are shown, this many, unless all are asked for."""
_limit = click.option(
    "--limit", type=console.COUNT, default=20, show_default=True, help="At most the newest N."
)
_full = click.option(
    "--full",
    "limits",
    is_flag=True,
    callback=lambda _, __, value: FULL if value else PREVIEW,
    help="Print values whole, not just previews.",
)
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
            row = {
                "thread_id": info.thread_id,
                "status": status_of(saved, running=info.status == "running"),
                "step": info.step,
                "created": console.time_of(info.created),
                "updated": console.time_of(info.updated),
                "flow": saved.checkpoint.metadata.get(FLOW) or None,
            }
            if status in (None, row["status"]):
                rows.append(row)
    console.print_rows(rows, "thread_id", "status", "step", "created", "updated", "flow")


@console.store_command()
@click.argument("thread")
@click.option("--flow", metavar="MODULE:FLOW", help="Import it too, to show what comes next.")
@_limit
@_full
def show(thread: str, flow: str | None, limit: int, limits: Limits, store: str | None) -> None:
    """Show how a thread stands, and what its last run did.

    Its tasks are listed by superstep: how they ended, how long they ran, how often
    they were tried, and their result, error or question.
    """
    from flowpregel.pregel.runs import last_run  # noqa: PLC0415 - keeps --help fast

    names: dict[str, str] = {}
    with targets.reading(store) as saver:
        saved = targets.newest(saver, thread)
        owner, newest = saver.owner(thread), saved.checkpoint
        facts = {
            "thread_id": thread,
            "status": status_of(saved, running=owner is not None),
            "checkpoint": newest.id,
            "step": newest.step,
            "at": console.time_of(newest.at),
            "metadata": plain({k: v for k, v in newest.metadata.items() if k != "input_digest"}),
        }
        if owner is not None:
            facts["run by"] = str(owner)
        if flow is not None:
            app = targets.load_flow(flow).copy({"checkpointer": saver})
            state = app.get_state(thread_id=thread)
            names = {task.id: task.name for task in state.tasks}
            facts["next"] = [*state.next]
        work = [each for item in last_run(saver, Address(thread), limit) for each in work_of(item)]
    tasks = [_task(each, names, limits) for each in work]
    done = [each.id for each in work if each.state == "done"]
    hidden = set() if limits is FULL else {*done[:-_MOST]}
    heads = ("STEP", "TASK", "STATE", "SECONDS", "TRIES", "RESULT, ERROR OR QUESTION")
    rows = [_row(task, limits) for task in tasks if task["id"] not in hidden]
    parts = [console.aligned(facts), *(["", console.table(heads, rows)] if rows else ())]
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


def _row(task: Mapping[str, Any], limits: Limits) -> tuple[Any, ...]:
    """Return the cells of a task in the table of `show`."""
    told = ""
    match task:
        case {"state": "failed", "error": {"type": kind, "message": message}}:
            told = line_of(f"{kind}: {message}", limits)
        case {"state": "waiting", "interrupts": interrupts}:
            told = "; ".join(f"{i['id']}: {line_of(i['value'], limits)}" for i in interrupts)
        case {"state": "failed", "error": known} | {"state": "done", "result": known}:
            told = line_of(known, limits)
    name = task["name"] or f"(node's task {task['id'][:8]})"
    seconds = None if task["seconds"] is None else f"{task['seconds']:.3f}"
    return task["step"], name, task["state"], seconds, task["attempts"], told


@console.store_command()
@click.argument("thread")
@_limit
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
                "changed": [n for n in sorted(saved.checkpoint.changed) if not _is_engines(n)],
                "tasks": len({write.task_id for write in saved.writes}),
            }
            for saved in saver.history(Address(thread), limit=limit)
        ]
    console.print_rows(rows, "checkpoint", "step", "source", "at", "tasks", "changed")


@console.store_command()
@click.argument("thread")
@click.argument("checkpoint", required=False)
@_full
@_all
def state(
    thread: str, checkpoint: str | None, limits: Limits, show_all: bool, store: str | None
) -> None:
    """Show what a thread's channels hold.

    CHECKPOINT is a step, an id or its beginning; by default the newest. What
    tasks of an unfinished superstep wrote is not in it: `show` lists that.
    """
    with targets.reading(store) as saver:
        saved = targets.find_checkpoint(saver, thread, checkpoint)
    values = {name: plain(value, limits) for name, value in values_of(saved, show_all).items()}
    rows = [(name, line_of(value, limits)) for name, value in values.items()]
    shown = {"checkpoint": saved.checkpoint.id, "values": values}
    console.print_result(shown, console.table(("CHANNEL", "VALUE"), rows))


@console.store_command()
@click.argument("thread")
@click.argument("old", required=False)
@click.argument("new", required=False)
@_full
@_all
def diff(thread: str, old: str | None, new: str | None, store: str | None, **options: Any) -> None:
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
    limits, show_all = options["limits"], options["show_all"]
    before, after = values_of(earlier, show_all), values_of(later, show_all)
    changes, lines = {}, []
    for name in sorted({*before, *after}):
        sides = {"old": before, "new": after}
        held = {side: values[name] for side, values in sides.items() if name in values}
        # What is shown is compared: `==` of a user's class may raise, or return no bool.
        if len(held) == 2 and plain(held["old"], FULL) == plain(held["new"], FULL):
            continue
        changes[name] = {side: plain(value, limits) for side, value in held.items()}
        for side, value in changes[name].items():
            mark = "-" if side == "old" else "+"
            lines.append(f"{mark} {in_one_line(name)}: {line_of(value, limits)}")
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
    largest = sorted(found.bytes_of_channels.items(), key=lambda item: -item[1])
    channels = console.table(("CHANNEL", "BYTES"), [(k, f"{v:,}") for k, v in largest])
    console.print_result({"path": path, **asdict(found)}, console.aligned(shown), "", channels)


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
    xray, store = options["xray"], options["store"]
    app = targets.load_flow(flow)
    if thread is None:
        drawing = app.get_graph(xray=xray)
    elif store is None:
        drawing = app.get_run(thread_id=thread, xray=xray)
    else:
        with targets.reading(store) as saver:
            targets.newest(saver, thread)
            drawing = app.copy({"checkpointer": saver}).get_run(thread_id=thread, xray=xray)
    if output is not None:
        _write(drawing, Path(output))
    elif console.wants_json():
        click.echo(json.dumps(drawing.to_json(), ensure_ascii=True, default=str))
    elif options["mermaid"]:
        click.echo(drawing.draw_mermaid())
    else:
        click.echo(drawing.draw_ascii(charset="ascii" if options["only_ascii"] else "unicode"))


def _write(drawing: Any, path: Path) -> None:
    match path.suffix:
        case ".svg":
            path.write_text(drawing.draw_svg(), "utf-8")
        case ".png":
            path.write_bytes(drawing.draw_png())
        case _:
            raise click.BadParameter(f"{path} must end with .svg or .png", param_hint="--output")
    console.note(f"wrote {path}")


# ---------------------------------------------------------------- what is kept


@dataclass(frozen=True, kw_only=True)
class Work:
    """A task, by what it has left on the checkpoint it started from."""

    id: str
    name: str | None
    """The call it is, or the node; None if only its flow knows."""
    step: int
    """Its superstep."""
    state: str = "unfinished"
    """``done``, ``failed``, ``waiting`` or ``unfinished``."""
    error: Any = None
    interrupts: tuple[Any, ...] = ()
    result: Any = None
    ran: Ran | None = None
    """When, where and how often it ran, if that was kept."""


def work_of(saved: Saved) -> list[Work]:
    """Return the tasks that have left something on a checkpoint, in order."""
    of_task: dict[str, dict[str, Any]] = {}
    for write in saved.writes:
        if write.task_id != records.RUN_TASK_ID:
            # A control write of None takes an earlier one back.
            of_task.setdefault(write.task_id, {})[write.channel] = write.value
    ran = {task_id: ran for task_id, _, ran in saved.ran}
    step = saved.checkpoint.step + 1
    made = [_work(task_id, kept, step, ran.get(task_id)) for task_id, kept in of_task.items()]
    # What takes in the input is no node of the user's.
    return [work for work in made if work.name != "__start__"]


def _work(task_id: str, kept: dict[str, Any], step: int, ran: Ran | None) -> Work:
    called = kept.get(records.CALLED)
    name = str(called[3]) if isinstance(called, tuple) else ran and (ran.call or ran.name)
    work = Work(id=task_id, name=name, step=step, ran=ran)
    values = {k: value for k, value in kept.items() if k not in records.CONTROL_WRITES}
    if values:
        values.pop(records.NO_WRITES, None)
        return replace(work, state="done", result=values.get(records.RETURN, values))
    # An error that is to be tried again is taken back, but for its text.
    if error := kept.get(records.ERROR) or (ran and ran.error):
        return replace(work, state="failed", error=error)
    asked = kept.get(records.INTERRUPT)
    if isinstance(asked, list | tuple) and asked:
        return replace(work, state="waiting", interrupts=tuple(asked))
    return work


def status_of(saved: Saved, *, running: bool) -> str:
    """Return how the thread stands whose newest checkpoint is *saved*.

    *stopped* means that its superstep had begun and was not ended; *idle*, that
    nothing is in flight.
    """
    states = {work.state for work in work_of(saved)}
    if running:
        return "running"
    if "waiting" in states:
        return "interrupted"
    if "failed" in states:
        return "failed"
    return "stopped" if states or saved.checkpoint.source == "input" else "idle"


def values_of(saved: Saved, show_all: bool) -> dict[str, Any]:
    """Return what the channels hold, without those that the engine made for itself."""
    # Only the flow knows how to fold deltas.
    deltas = {
        name: {"seed": history.seed, "deltas": (*history.writes,)}
        for name, history in saved.deltas.items()
    }
    held = {**saved.checkpoint.values, **deltas}
    return {k: v for k, v in sorted(held.items()) if show_all or not _is_engines(k)}


def _is_engines(channel: str) -> bool:
    return channel.startswith(("branch:to:", "join:", records.TASKS))
