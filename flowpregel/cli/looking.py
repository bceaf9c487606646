"""The commands that only look: ls, show, watch, history, state, diff, stats, graph, ui,
report.

How a thread stands is read from what its newest checkpoint keeps; no flow is imported
for it.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import time
import webbrowser
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from functools import partial
from typing import Any, get_args

import click

from flowpregel._core.ids import Ran
from flowpregel._core.records import Address
from flowpregel._text import in_one_line
from flowpregel.checkpoint.base import FLOW
from flowpregel.checkpoint.work import Status, Work, status_of, work_of
from flowpregel.cli import console, targets
from flowpregel.cli.console import note
from flowpregel.errors import ConfigurationError
from flowpregel.watching import preview
from flowpregel.watching.preview import (
    FULL,
    PREVIEW,
    Limits,
    json_in_one_line,
    one_line,
    question_to_json,
    to_json,
)

_MOST = 100
"""Of the tasks that are done, the last ones are shown, this many, unless all are asked
for.
"""
_PORT = click.IntRange(0, 65_535)
_limit = click.option(
    "--limit",
    type=console.COUNT,
    metavar="N",
    default=20,
    help="At most the newest N (20).",
)
_full = click.option(
    "--full",
    "limits",
    is_flag=True,
    callback=lambda _, __, value: FULL if value else PREVIEW,
    help="Print values whole, not just previews.",
)


@console.store_command(console.INTERNALS)
@click.option(
    "--status", type=click.Choice(get_args(Status)), help="Only threads of this status."
)
def ls(status: str | None, store: str | None) -> None:
    """List the threads of a store, the last changed first.

    A thread is running; waiting (for an answer, or at a breakpoint); failed; stopped
    (tasks are due: resume it); or done.
    """
    with targets.reading(store) as saver:
        rows = [
            {
                "thread_id": info.thread_id,
                "status": info.status,
                "step": _step(info.step),
                "created": console.time_of(info.created),
                "updated": console.time_of(info.updated),
                "flow": to_json(info.metadata.get(FLOW)) or None,
            }
            for info in sorted(
                saver.threads(), key=lambda info: info.updated, reverse=True
            )
            if status in (None, info.status)
        ]
    console.print_rows(
        rows, "thread_id", "status", "step", "created", "updated", "flow"
    )


@console.thread_command(console.INTERNALS)
@click.option(
    "--flow", metavar="MODULE:FLOW", help="Import it too, to show what comes next."
)
@_limit
@_full
def show(
    thread: str, flow: str | None, limit: int, limits: Limits, store: str | None
) -> None:
    """Show how a thread stands, and what its last run did.

    Its tasks are listed by superstep: how they ended, how long they ran, how often
    they were tried, and their result, error or question; then those that run now.
    """
    names: dict[str, str] = {}
    running: list[dict[str, Any]] = []
    with targets.reading(store, flow=flow is not None) as saver:
        saved = targets.newest(saver, thread)
        owner, newest = saver.owner(thread), saved.checkpoint
        facts = {
            "thread_id": thread,
            "status": status_of(saved, running=owner is not None),
            "checkpoint": newest.id,
            "step": _step(newest.step),
            "at": console.time_of(newest.at),
            "metadata": to_json(
                {k: v for k, v in newest.metadata.items() if k != "input_digest"}
            ),
        }
        if owner is not None:
            from flowpregel.cli.watching import going_on  # noqa: PLC0415 - keeps --help fast

            live = going_on(saver, thread)
            facts["run by"] = str(owner)
            facts["waiting for their turn"] = to_json(live["waiting"]) or None
            running = [_running(each, newest.step + 1) for each in live["running"]]
        if flow is not None:
            app = targets.load_flow(flow).copy({"checkpointer": saver})
            state = app.get_state(thread_id=thread)
            names = {task.id: task.name for task in state.tasks}
            facts["next"] = [*state.next]
        work = targets.work_of_last_run(saver, thread, limit)
    left = {each.id for each in work}
    tasks = [_task(each, names, limits) for each in work]
    tasks += [each for each in running if each["id"] not in left]
    done = [each.id for each in work if each.state == "done"]
    hidden = set() if limits is FULL else {*done[:-_MOST]}
    heads = ("STEP", "TASK", "STATE", "SECONDS", "TRIES", "RESULT, ERROR OR QUESTION")
    rows = [_row(task, limits) for task in tasks if task["id"] not in hidden]
    parts = [
        console.aligned(facts),
        *(["", console.table(heads, rows)] if rows else ()),
    ]
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
        **{
            name: getattr(ran, name, None)
            for name in ("seconds", "attempts", "executor", "pid")
        },
        "result": to_json(
            work.result if work.writes is None else _wrote(work.writes), limits
        ),
        "error": to_json(work.error, limits),
        "interrupts": [question_to_json(each, limits) for each in work.interrupts],
    }


def _running(task: Mapping[str, Any], step: int) -> dict[str, Any]:
    """Return a task that runs now, an item of what `going_on` returns, in that form."""
    from flowpregel.pregel.progress import how_far  # noqa: PLC0415 - keeps --help fast

    name = task["text"] or task["name"]
    seconds = max(0.0, time.time() - task["began"] / 1e9)
    ran = Ran(name, task["began"], seconds, task["attempt"], "", task["pid"])
    work = Work(
        id=task["id"],
        name=name,
        address=Address(""),
        step=step,
        state="running",
        ran=ran,
    )
    progress = None if task["done"] is None else how_far(task)
    return {**_task(work, {}, PREVIEW), "executor": None, "progress": progress}


def _row(task: Mapping[str, Any], limits: Limits) -> tuple[Any, ...]:
    """Return the cells of a task in the table of `show`."""
    told = ""
    match task:
        case {"state": "failed", "error": {"type": kind, "message": message}}:
            told = json_in_one_line(f"{kind}: {message}", limits)
        case {"state": "waiting", "interrupts": interrupts}:
            told = "; ".join(
                f"{i['id'] or '?'}: {json_in_one_line(i['value'], limits)}"
                for i in interrupts
            )
        case {"state": "running", "progress": str(progress)}:
            told = progress
        case {"state": "failed", "error": known} | {"state": "done", "result": known}:
            told = json_in_one_line(known, limits)
    name = task["name"] or f"(node's task {task['id'][:8]})"
    seconds = None if task["seconds"] is None else f"{task['seconds']:.3f}"
    return task["step"], name, task["state"], seconds, task["attempts"], told


@console.store_command()
@click.argument("thread", metavar="[ID]", required=False)
def watch(thread: str | None, store: str | None) -> console.Code:
    """Watch a run while it goes on, in whatever process.

    Without ID it is the one that changed last. Failures come first, then how many tasks
    are done and to do, how fast, how long yet, and what runs now. It ends when the run
    ends, with an exit code that says how.
    """
    from flowpregel.cli.watching import watch_run  # noqa: PLC0415 - keeps --help fast

    with targets.reading(store) as saver:
        return watch_run(saver, thread)


@console.thread_command(console.INTERNALS)
@_limit
def history(thread: str, limit: int, store: str | None) -> None:
    """List a thread's checkpoints, newest first."""
    with targets.reading(store) as saver:
        targets.newest(saver, thread)
        rows = [
            {
                "checkpoint": saved.checkpoint.id,
                "parent": saved.checkpoint.parent_id,
                "step": _step(saved.checkpoint.step),
                "source": saved.checkpoint.source,
                "at": console.time_of(saved.checkpoint.at),
                "run_id": to_json(saved.checkpoint.metadata.get("run_id")),
                "changed": [*_named(dict.fromkeys(saved.checkpoint.changed))],
                "tasks": len(work_of(saved)),
            }
            for saved in saver.history(Address(thread), limit=limit)
        ]
    console.print_rows(rows, "checkpoint", "step", "source", "at", "tasks", "changed")


@console.thread_command(console.INTERNALS)
@click.argument("checkpoint", required=False)
@_full
def state(
    thread: str, checkpoint: str | None, limits: Limits, store: str | None
) -> None:
    """Show what a thread's channels hold.

    CHECKPOINT is a step, an id or its beginning; by default the newest. What
    tasks of an unfinished superstep wrote is not in it: `show` lists that.
    """
    with targets.reading(store) as saver:
        saved = targets.find_checkpoint(saver, thread, checkpoint)
    held = _named(preview.channel_values(saved))
    values = {name: to_json(value, limits) for name, value in held.items()}
    rows = [(name, json_in_one_line(value, limits)) for name, value in values.items()]
    shown = {"checkpoint": saved.checkpoint.id, "values": values}
    console.print_result(shown, console.table(("CHANNEL", "VALUE"), rows))


@console.thread_command(console.INTERNALS)
@click.argument("old", required=False)
@click.argument("new", required=False)
@_full
def diff(
    thread: str, old: str | None, new: str | None, limits: Limits, store: str | None
) -> None:
    """Show what changed between two checkpoints.

    OLD and NEW are steps, ids or their beginnings; by default the newest and
    its parent.
    """
    with targets.reading(store) as saver:
        later = targets.find_checkpoint(saver, thread, new)
        if old is None and later.checkpoint.parent_id is None:
            raise ConfigurationError(
                f"checkpoint {later.checkpoint.id} has no parent: name the one to "
                "compare with"
            )
        earlier = targets.find_checkpoint(
            saver, thread, old or later.checkpoint.parent_id
        )
    before, after = (_named(preview.channel_values(each)) for each in (earlier, later))
    changes, lines = {}, []
    for name in sorted({*before, *after}):
        sides = (("old", before), ("new", after))
        held = {side: values[name] for side, values in sides if name in values}
        if len(held) == 2 and one_line(held["old"], FULL) == one_line(
            held["new"], FULL
        ):
            continue
        changes[name] = {side: to_json(value, limits) for side, value in held.items()}
        for side, value in changes[name].items():
            mark = "-" if side == "old" else "+"
            lines.append(
                f"{mark} {in_one_line(name)}: {json_in_one_line(value, limits)}"
            )
    ids = {"old": earlier.checkpoint.id, "new": later.checkpoint.id}
    console.print_result({**ids, "changes": changes}, *lines)


@console.store_command(console.INTERNALS)
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
    largest = sorted(_named(found.bytes_of_channels).items(), key=lambda item: -item[1])
    sizes = console.table(("CHANNEL", "BYTES"), [(k, f"{v:,}") for k, v in largest])
    console.print_result(
        {"path": path, **asdict(found)}, console.aligned(shown), "", sizes
    )


@console.store_command()
@click.argument("flow", metavar="MODULE:FLOW")
@click.option(
    "--thread", metavar="THREAD", help="Draw what this thread's last run did."
)
@click.option("--mermaid", is_flag=True, help="In Mermaid's language.")
@click.option(
    "--ascii", "only_ascii", is_flag=True, help="Without line-drawing characters."
)
@click.option("--xray", is_flag=True, help="Draw the graphs that are nodes too.")
@click.option(
    "--dot", is_flag=True, help="In Graphviz's language: dot -Tsvg makes a picture."
)
def graph(flow: str, thread: str | None, **options: Any) -> None:
    """Draw a flow, or with --thread what a run of it did.

    A flow is a list of its nodes and their edges, a run a table of its supersteps: each
    task's end, time and trouble. In Mermaid's and Graphviz's language there are flows
    alone.
    """
    xray, store = options["xray"], options["store"]
    if thread is not None and (options["mermaid"] or options["dot"]):
        raise click.UsageError(
            "what a run did is drawn as a table: leave out --mermaid and --dot"
        )
    app: Any = targets.load_flow(flow)
    if thread is None:
        drawing = app.get_graph(xray=xray)
    elif store is None:
        drawing = app.get_run(thread_id=thread, xray=xray)
    else:
        with targets.reading(store, flow=True) as saver:
            targets.newest(saver, thread)
            drawing = app.copy({"checkpointer": saver}).get_run(
                thread_id=thread, xray=xray
            )
    if console.is_asked("--json"):
        click.echo(json.dumps(drawing.to_json(), ensure_ascii=True, default=str))
    elif options["mermaid"]:
        click.echo(drawing.draw_mermaid())
    elif options["dot"]:
        click.echo(drawing.draw_dot())
    else:
        click.echo(
            drawing.draw_ascii(charset="ascii" if options["only_ascii"] else "unicode")
        )


@click.command
@click.argument("store", envvar="FLOWPREGEL_STORE")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="The address to listen on."
)
@click.option(
    "--port",
    type=_PORT,
    default=0,
    help="The port to listen on; by default a free one.",
)
@click.option(
    "--actions", is_flag=True, help="Allow to answer, cancel, retry, redo and fork."
)
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser.")
def ui(store: str, host: str, port: int, actions: bool, opens: bool) -> None:
    """Show the runs of a store in a browser, live, until Ctrl-C.

    The address that is printed holds a secret: whoever has it sees the runs. Only
    programs of this machine can ask, unless --host says otherwise. Nothing of the runs'
    code is imported here; with --actions the buttons of the page start this command's
    own siblings.
    """
    from flowpregel.ui import app as page  # noqa: PLC0415 - an extra
    from flowpregel.ui.guard import LOOPBACK, RequestGuard  # noqa: PLC0415 - an extra
    from flowpregel.ui.pages import Pages  # noqa: PLC0415 - keeps --help fast

    with targets.reading(store) as saver, closing(Pages(saver)) as pages:
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = socket.create_server((host, port), family=family)
        except OSError as error:
            text = f"{host} port {port} cannot be listened on: {error}"
            raise ConfigurationError(text) from error
        port = listener.getsockname()[1]
        is_local = host in LOOPBACK
        guard = RequestGuard(
            hosts=LOOPBACK if is_local else (*LOOPBACK, host, socket.gethostname()),
            writes=page.ACTION_PATHS if actions else (),
            cookie=f"flowpregel-{port}",
        )
        trust = ["--trust"] if console.is_asked("--trust") else []
        started = page.Actions(saver.location, trust) if actions else None
        server = page.server_of(pages, started, guard)
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{port}/?token={guard.token}"
        note(f"the runs of {saver.path}, until Ctrl-C:")
        click.echo(address)
        if not is_local:
            note(
                "other machines can reach this, and what they are sent is not encrypted"
            )
        if opens:
            webbrowser.open(address)
        server.run(sockets=[listener])


ui.params.append(console.TRUST)


@console.thread_command()
@click.option(
    "--output", metavar="FILE", default="run.html", show_default=True, help="Where to."
)
def report(thread: str, output: str, store: str | None) -> None:
    """Write the page of a thread's last run as one HTML file.

    It needs no server and no network, and runs nothing of the user's. Only you may read
    the file: it shows arguments and results.
    """
    from flowpregel.ui.pages import report as report_of  # noqa: PLC0415 - keeps --help fast

    with targets.reading(store) as saver:
        page = report_of(saver, thread).encode()
    try:
        with open(output, "wb", opener=partial(os.open, mode=0o600)) as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                os.fchmod(file.fileno(), 0o600)  # it may have been there before
            file.write(page)
    except OSError as error:
        raise ConfigurationError(f"--output: {error}") from error
    told = {"thread_id": thread, "output": output, "bytes": len(page)}
    console.print_result(told, f"{output}: {console.size_of(len(page))}")


# ---------------------------------------------------------------- names for people


def _named(found: Mapping[str, Any]) -> dict[str, Any]:
    return preview.by_public_name(found, internals=console.is_asked("--internals"))


def _wrote(written: Mapping[str, Any]) -> Any:
    """Return what a node wrote; of an entrypoint's body just what it returned."""
    known = _named(written)
    return written["__end__"] if "result" in known and "__end__" in written else known


def _step(step: int) -> int | None:
    """Return the number of a superstep; the one that takes the input in has none for
    people.
    """
    return step if step >= 0 or console.is_asked("--internals") else None
