"""Tasks, channels and supersteps in the form that commands print, as JSON or text."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from flowpregel._core.ids import AttemptRecord
from flowpregel._core.records import Address
from flowpregel._inspection.call_previews import CallPreview, preview_of
from flowpregel._inspection.call_rows import NUMBER_FIELDS, CallNumber
from flowpregel._inspection.preview import (
    PREVIEW,
    PreviewLimits,
    by_public_name,
    json_in_one_line,
    question_to_json,
    to_json,
)
from flowpregel.checkpoint.work import Work
from flowpregel.cli import console
from flowpregel.cli.wording import STATE_STYLES, StyledText, number_text

_RAN_FIELDS = ("seconds", "attempts", "executor", "pid")


def task_record(
    work: Work,
    names: Mapping[str, str],
    limits: PreviewLimits,
) -> dict[str, Any]:
    """Return a task as a record for JSON.

    Args:
        work: The task.
        names: The names of the nodes, by task id. It is empty if the flow was not
            imported.
        limits: The limits of previews.
    """
    result = work.result if work.writes is None else _node_output(work.writes)
    questions = [question_to_json(interrupt, limits) for interrupt in work.interrupts]
    record: dict[str, Any] = {
        "id": work.id,
        "name": work.name or names.get(work.id),
        "step": work.step,
        "state": work.state,
        "began": None,
    }
    if work.ran is not None:
        record["began"] = console.utc_text(work.ran.began)
    ran = work.ran
    for field in _RAN_FIELDS:
        record[field] = getattr(ran, field, None)
    for field in NUMBER_FIELDS:
        # A measurement that is unknown is stored as 0.
        record[field] = getattr(ran, field, 0) or None
    preview = preview_of(ran)
    record["preview"] = preview.to_json()
    record["result"] = to_json(result, limits)
    record["error"] = to_json(work.error, limits)
    record["interrupts"] = questions
    return record


def running_task_record(
    task: Mapping[str, Any],
    step: int,
) -> dict[str, Any]:
    """Return the record of a running task, in the form that `task_record` returns.

    Args:
        task: An item of ``live_activity(...)["running"]``.
        step: The superstep of the task.
    """
    from flowpregel.pregel.progress import how_far  # noqa: PLC0415 - keeps --help fast

    name = task["text"] or task["name"]
    duration = max(0.0, time.time() - task["began"] / 1e9)
    ran = AttemptRecord(
        name=name,
        began=task["began"],
        seconds=duration,
        attempts=task["attempt"],
        executor="",
        pid=task["pid"],
    )
    work = Work(
        id=task["id"],
        name=name,
        address=Address(""),
        step=step,
        state="running",
        ran=ran,
    )
    record = task_record(work, {}, PREVIEW)
    record["executor"] = None
    record["progress"] = None if task["done"] is None else how_far(task)
    return record


def task_cells(
    task: Mapping[str, Any],
    limits: PreviewLimits,
    numbers: Sequence[CallNumber] = (),
) -> Sequence[Any]:
    """Return the cells of a task's row in the table of `show`.

    Args:
        task: The task, as `task_record` returned it.
        limits: The limits of previews.
        numbers: The measurements that have a column. The cell of an unknown one is
            empty.
    """
    short_id = task["id"][:8]
    seconds = task["seconds"]
    seconds_text = None if seconds is None else f"{seconds:.3f}"
    number_texts: list[str | None] = []
    for number in numbers:
        value = task[number.field]
        number_texts.append(None if value is None else number_text(number, value))
    return (
        task["step"],
        _task_text(task) or f"(node's task {short_id})",
        StyledText(task["state"], STATE_STYLES.get(task["state"], "")),
        seconds_text,
        task["attempts"],
        *number_texts,
        _text_with_metrics(
            task,
            limits,
        ),
    )


def _task_text(task: Mapping[str, Any]) -> str | None:
    """Return the name of a task. If a call's text has only the classes of the
    arguments, the call is shown with the fields of the arguments.
    """
    text: str | None = task["name"]
    preview = CallPreview(**task["preview"])
    if text and "<" in text:
        return preview.call_text(text)
    return text


def _text_with_metrics(
    task: Mapping[str, Any],
    limits: PreviewLimits,
) -> str:
    """Return the outcome of a task, followed by its metrics."""
    text = _outcome_text(task, limits)
    preview = CallPreview(**task["preview"])
    metrics = preview.metrics_text()
    return f"{text}  {metrics}".rstrip()


def _outcome_text(task: Mapping[str, Any], limits: PreviewLimits) -> str:
    """Return the result, error, questions or progress of a task as text."""
    match task:
        case {"state": "failed", "error": {"type": kind, "message": message}}:
            text = f"{kind}: {message}"
            return json_in_one_line(text, limits)
        case {"state": "waiting", "interrupts": questions}:
            texts: list[str] = []
            for question in questions:
                identifier = question["id"] or "?"
                text = json_in_one_line(question["value"], limits)
                texts.append(f"{identifier}: {text}")
            return "; ".join(texts)
        case {"state": "running", "progress": str(progress)}:
            return progress
        case {"state": "failed", "error": value} | {"state": "done", "result": value}:
            return json_in_one_line(value, limits)
    return ""


def for_people(channels: Mapping[str, Any]) -> dict[str, Any]:
    """Return *channels* with their public names.

    With ``--internals``, all channels are returned, with the names that they have in
    the program.
    """
    internals = console.has_flag("--internals")
    return by_public_name(channels, internals=internals)


def _node_output(writes: Mapping[str, Any]) -> Any:
    """Return the writes of a node, or the return value of an entrypoint's body."""
    channels = for_people(writes)
    if "result" in channels and "__end__" in writes:
        return writes["__end__"]
    return channels


def step_number(step: int) -> int | None:
    """Return the number of a superstep, or None for the superstep of the input.

    With ``--internals``, the superstep of the input has a number too.
    """
    if step >= 0 or console.has_flag("--internals"):
        return step
    return None
