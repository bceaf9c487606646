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
"""So many tasks are shown, the last of those that are done, unless all are asked for."""


@click.command()
@thread_argument
@flow_option("Import the flow too, to say what comes next.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="At most so many supersteps.",
)
@full_option
@store_option
@json_option
def command(
    thread: str, flow: str | None, limit: int, full: bool, store: str | None, as_json: bool
) -> None:
    """Show how a thread stands, and what its last run did.

    Its tasks are listed by superstep: how they ended, how long they ran, how often
    they were tried, and their result, error or question.
    """
    from flowpregel._core.records import Address  # noqa: PLC0415 - keeps --help fast
    from flowpregel.cli.status import status_of, work_of  # noqa: PLC0415 - keeps --help fast
    from flowpregel.pregel.runs import last_run  # noqa: PLC0415 - keeps --help fast
    from flowpregel.pregel.snapshot import snapshot  # noqa: PLC0415 - keeps --help fast

    program = None if flow is None else load_flow(flow).program
    with reading(store) as saver:
        saved = newest(saver, thread)
        owner = saver.owner(thread)
        history = last_run(saver, Address(thread), limit)
    facts = _facts(saved, status_of(saved, running=owner is not None))
    if owner is not None:
        facts["run by"] = str(owner)
    work, names = [each for item in history for each in work_of(item)], {}
    if program is not None:
        shown = snapshot(program, saved, live=True)
        names = {task.id: task.name for task in shown.tasks}
        facts["next"] = [*shown.next]
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
        "interrupts": asked,
    }


def _print_work(work: list[Work], names: dict[str, str], limits: Limits, most: int) -> None:
    if not work:
        return
    done = [each for each in work if each.state == "done"]
    hidden = {each.id for each in done[:-most]} if len(done) > most else set()
    rows = [
        (
            str(each.step),
            each.name or names.get(each.id) or f"(node's task {each.id[:8]})",
            each.state,
            "" if each.ran is None else f"{each.ran.seconds:.3f}",
            "" if each.ran is None else str(each.ran.attempts),
            _says(each, limits),
        )
        for each in work
        if each.id not in hidden
    ]
    tell()
    table(("STEP", "TASK", "STATE", "SECONDS", "TRIES", "RESULT, ERROR OR QUESTION"), rows)
    if hidden:
        tell(f"and {len(hidden):,} before that are done; --full shows them")


def _says(work: Work, limits: Limits) -> str:
    if work.state == "failed":
        error = work.error
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        return one_line(text, limits)
    if work.state == "waiting":
        return "; ".join(f"{item.id}: {one_line(item.value, limits)}" for item in work.interrupts)
    return one_line(work.result, limits) if work.state == "done" else ""
