"""``flowpregel show``: how a thread stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from flowpregel.cli.flows import load_flow
from flowpregel.cli.options import (
    flow_option,
    full_option,
    json_option,
    store_option,
    thread_argument,
)
from flowpregel.cli.output import fields, table, tell, tell_json, time_of
from flowpregel.cli.preview import FULL, Limits, one_line, plain
from flowpregel.cli.stores import newest, reading

if TYPE_CHECKING:
    from flowpregel._core.records import Saved
    from flowpregel.cli.status import Work

_CELL = Limits(depth=3, count=6, size=60, total=60)
_MOST = 100
"""So many tasks are shown, of those that are done, unless all are asked for."""


@click.command()
@thread_argument
@flow_option("Import the flow too, to name its nodes and what comes next.")
@full_option
@store_option
@json_option
def command(thread: str, flow: str | None, full: bool, store: str | None, as_json: bool) -> None:
    """Show how a thread stands: tasks, errors, questions.

    The tasks are those of the superstep that is not over.
    """
    from flowpregel.cli.status import status_of, work_of  # noqa: PLC0415 - keeps --help fast
    from flowpregel.pregel.snapshot import snapshot  # noqa: PLC0415 - keeps --help fast

    program = None if flow is None else load_flow(flow).program
    with reading(store) as saver:
        saved = newest(saver, thread)
        info = saver.thread(thread)
    running = info is not None and info.status == "running"
    work, names, upcoming = work_of(saved), {}, None
    if program is not None:
        shown = snapshot(program, saved, live=True)
        names = {task.id: task.name for task in shown.tasks}
        upcoming = [*shown.next]
    facts = _facts(saved, status_of(saved, running=running))
    if upcoming is not None:
        facts["next"] = upcoming
    limits = FULL if full else Limits()
    if as_json:
        tell_json({**facts, "tasks": [_as_json(each, names, limits) for each in work]})
        return
    fields(
        {key: value if isinstance(value, str) else one_line(value) for key, value in facts.items()}
    )
    _print_work(work, names, FULL if full else _CELL, most=len(work) if full else _MOST)


def _facts(saved: Saved, status: str) -> dict[str, Any]:
    checkpoint = saved.checkpoint
    hidden = ("input_digest",)
    metadata = {key: value for key, value in checkpoint.metadata.items() if key not in hidden}
    return {
        "thread_id": saved.address.thread_id,
        "status": status,
        "checkpoint": checkpoint.id,
        "step": checkpoint.step,
        "at": time_of(checkpoint.at),
        "metadata": plain(metadata),
    }


def _as_json(work: Work, names: dict[str, str], limits: Limits) -> dict[str, Any]:
    asked = [{"id": i.id, "value": plain(i.value, limits)} for i in work.interrupts]
    return {
        "id": work.id,
        "name": work.name or names.get(work.id),
        "state": work.state,
        "result": plain(work.result, limits),
        "error": None if work.error is None else plain(work.error, limits),
        "interrupts": asked,
    }


def _print_work(work: list[Work], names: dict[str, str], limits: Limits, most: int) -> None:
    if not work:
        return
    done = [each for each in work if each.state == "done"]
    urgent = [each for each in work if each.state != "done"]
    rows = []
    for each in [*urgent, *done[:most]]:
        name = each.name or names.get(each.id) or f"(node's task {each.id[:8]})"
        rows.append((name, each.state, _says(each, limits)))
    tell()
    table(("TASK", "STATE", "RESULT, ERROR OR QUESTION"), rows)
    if len(done) > most:
        tell(f"and {len(done) - most:,} more that are done; --full shows them")


def _says(work: Work, limits: Limits) -> str:
    if work.state == "failed":
        return one_line(f"{type(work.error).__name__}: {work.error}", limits)
    if work.state == "waiting":
        return "; ".join(f"{item.id}: {one_line(item.value, limits)}" for item in work.interrupts)
    return one_line(work.result, limits) if work.state == "done" else ""
