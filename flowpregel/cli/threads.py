"""The commands that show the states of runs: ls, show, watch.

The status of a thread is read from its newest checkpoint, without importing a flow.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from operator import attrgetter
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, get_args

import click

from flowpregel._core.records import DRAWING, DURABILITY, Saved
from flowpregel._inspection.call_rows import CALL_NUMBERS, CallNumber
from flowpregel._inspection.preview import FULL, PreviewLimits, to_json
from flowpregel.checkpoint.base import FLOW, QUEUE
from flowpregel.checkpoint.maintenance import places
from flowpregel.checkpoint.queue import QueuePosition
from flowpregel.checkpoint.work import Status, status_of
from flowpregel.cli import console, targets
from flowpregel.cli.consumers import consumer_text, consumers_of, refusals
from flowpregel.cli.diagnosis import ExplainedRun, Explanation, explain_run
from flowpregel.cli.looking import full_option, limit_option
from flowpregel.cli.outputs import add_outputs, output_file_lines
from flowpregel.cli.rows import (
    running_task_record,
    step_number,
    task_cells,
    task_record,
)
from flowpregel.cli.wording import (
    SITUATION_STYLES,
    StyledText,
    cut_in_middle,
    duration_text,
    relative_time,
)
from flowpregel.cli.worker_counts import pools_text

if TYPE_CHECKING:
    from flowpregel._inspection.reader import StoreReader
    from flowpregel._inspection.run_list import StripRun
    from flowpregel._inspection.run_status import Counting
    from flowpregel._inspection.situations import StatusText
    from flowpregel._inspection.tasks import RunRow
    from flowpregel.checkpoint.durable import DurableSaver
    from flowpregel.pregel.snapshot import StateSnapshot

_MOST_DONE = 100
"""The number of finished tasks, the last ones, in a table without ``--full``."""
_MOST_COUNTED = 20
"""The number of finished runs whose failed calls `ls` counts, so that a list of many
runs takes little time. The failed calls are counted for the runs that changed last.
"""
_MOST_STEPS = 100
"""The greatest number of supersteps that `ls` reads to find the beginning of a run."""
_SHORTEST_ID = 12
"""The number of characters to which an id is cut on a very narrow terminal."""
_THREAD_COLUMNS = (
    "THREAD",
    "STATUS",
    "BEGAN",
    "TOOK",
    "FLOW",
)
_FLOW_COLUMNS = (
    "FLOW",
    "LAST RUNS",
    "RUNS",
    "FAILED",
    "MEDIAN",
    "CHANGED",
)
_SIGNS: Mapping[Status, str] = {
    "running": "▶",
    "waiting": "?",
    "failed": "✗",
    "stopped": "■",
    "enqueued": "…",
    "done": "✓",
}
"""The sign for each status, in the list of the last runs of a flow."""
_SOME_FAILED = "!"
"""The sign for a run that is done, although calls of it failed."""
_RESULT_COLUMN = "RESULT, ERROR OR QUESTION"
_TASK_COLUMNS = (
    "STEP",
    "TASK",
    "STATE",
    "SECONDS",
    "TRIES",
)


@console.store_command("ls", console.INTERNALS)
@click.option(
    "--status",
    type=click.Choice(get_args(Status)),
    help="Show only threads with this status.",
)
@click.option(
    "--by-flow",
    is_flag=True,
    help="List the flows, each with its last runs and the median of their durations.",
)
def ls_command(status: str | None, by_flow: bool, store: str | None) -> None:
    """List the threads of a store, the last changed first.

    A thread is running; waiting (for an answer, a time or a signal, or at a
    breakpoint); failed; stopped (tasks are due: resume it); or done. The list tells a
    run that was stopped from one that was killed, and names what a run waits for. TOOK
    is the time from the beginning to the end of the run. It includes the time in which
    the run waited for an answer, or was stopped. If a workflow had made calls before,
    `show --time` lists that time separately. A terminal cuts long texts; --json has
    them whole.
    """
    # The import is done here, so that ``--help`` stays fast.
    from flowpregel._inspection.reader import StoreReader  # noqa: PLC0415

    now = time.time_ns()
    records: list[dict[str, Any]] = []
    rows: list[Sequence[Any]] = []
    with (
        targets.open_to_read(store) as saver,
        closing(StoreReader(saver)) as reader,
    ):
        if by_flow:
            _print_flows(reader, status, now)
            return
        selected = [run for run in reader.runs() if status in (None, run.status)]
        runs = reader.in_snapshots(selected, attrgetter("thread_id"))
        for run, text in _described(runs, reader):
            records.append(_run_record(run, text))
            rows.append(_run_cells(run, text, _took(run, reader, now)))
    table = console.make_table(_THREAD_COLUMNS, rows, flexible=("STATUS", "FLOW"))
    console.print_result(records, table)


def _print_flows(reader: StoreReader, status: str | None, now: int) -> None:
    """Print the flows of a store, the last changed first.

    Args:
        reader: The reader of the store.
        status: The status of the runs to count, or None for all runs.
        now: The present time, in wall-clock nanoseconds.
    """
    # The import is done here, so that ``--help`` stays fast.
    from flowpregel._inspection.run_list import RunList, RunQuery  # noqa: PLC0415

    statuses = frozenset(() if status is None else (status,))
    flows = RunList(reader).flows(RunQuery(statuses=statuses), now)
    rows = [
        (
            flow.flow or "(not recorded)",
            "".join(map(_sign_of, flow.strip)),
            f"{flow.runs:,}",
            f"{flow.states.get('failed', 0):,}",
            "" if flow.median is None else duration_text(flow.median),
            relative_time(flow.updated, now),
        )
        for flow in flows
    ]
    table = console.make_table(_FLOW_COLUMNS, rows, flexible=("FLOW",))
    console.print_result([flow._asdict() for flow in flows], table)


def _sign_of(run: StripRun) -> str:
    """Return the sign for a run in the list of the last runs of a flow."""
    if run.status == "done" and run.failed:
        return _SOME_FAILED
    return _SIGNS[run.status]


def _described(
    runs: Iterable[RunRow],
    reader: StoreReader,
) -> Iterator[tuple[RunRow, StatusText]]:
    """Yield each run with its status in words."""
    counted = 0
    for run in runs:
        counting: Counting = "no"
        if run.status == "done" and counted < _MOST_COUNTED:
            counted += 1
            counting = "some"
        text = reader.status(run.thread_id, counting=counting)
        # A thread that was deleted since the list was read has no status.
        if text is not None:
            yield run, text


def _run_record(run: RunRow, text: StatusText) -> dict[str, Any]:
    """Return the record of a run for JSON."""
    return {
        "thread_id": run.thread_id,
        "status": run.status,
        "step": step_number(run.step),
        "created": console.utc_text(run.created),
        "updated": console.utc_text(run.updated),
        "flow": run.flow or None,
        "situation": text.situation,
        "short": text.short,
    }


def _run_cells(
    run: RunRow,
    text: StatusText,
    times: tuple[str, str],
) -> Sequence[Any]:
    """Return the cells of a run's row.

    Args:
        run: The run.
        text: The status of the run in words.
        times: The beginning and the duration of the run.
    """
    thread_id = run.thread_id
    if sys.stdout.isatty():
        columns = get_terminal_size().columns
        thread_id = cut_in_middle(thread_id, max(_SHORTEST_ID, columns * 3 // 10))
    return (
        thread_id,
        StyledText(text.short, SITUATION_STYLES[text.situation]),
        *times,
        run.flow or None,
    )


def _took(run: RunRow, reader: StoreReader, now: int) -> tuple[str, str]:
    """Return the beginning and the duration of a run, as strings.

    The duration is empty if the run has neither finished nor is running, because its
    end is not recorded.
    """
    began = _began_at(run.thread_id, reader)
    if began is None:
        return "", ""
    ended: Mapping[str, int] = {"running": now, "done": run.updated}
    end = ended.get(run.status)
    took = "" if end is None else duration_text((end - began) / 1e9)
    return relative_time(began, now), took


def _began_at(thread_id: str, reader: StoreReader) -> int | None:
    """Return the wall-clock nanoseconds at which a thread's last run began.

    None is returned if it is unknown, or if the run was enqueued and no task has ended.
    """
    steps = reader.steps(thread_id, _MOST_STEPS, of_last_run=True)
    run_input = next((step for step in steps if step.source == "input"), None)
    if run_input is None:
        return None
    if not run_input.was_enqueued:
        return run_input.at
    # Imported here to keep `flowpregel --help` fast.
    from flowpregel._inspection.run_list import first_call  # noqa: PLC0415

    return first_call(reader, thread_id)


# ---------------------------------------------------------------- one run


@console.thread_command("show", console.INTERNALS)
@click.option(
    "--flow",
    metavar="MODULE:FLOW",
    help="Also import the flow, to show what comes next.",
)
@limit_option
@full_option
@click.option(
    "--time",
    "with_time",
    is_flag=True,
    help="Also show where the time went, and what each task used.",
)
def show_command(
    thread: str,
    flow: str | None,
    limit: int,
    limits: PreviewLimits,
    with_time: bool,
    store: str | None,
) -> None:
    """Show how a thread stands, and what its last run did.

    A sentence describes the status, with the command for the next step. The tasks are
    listed by superstep: how they ended, how long they ran, how often they were tried,
    and their result, error or question; then the tasks that run now, and the output
    files. The failed calls follow by kind of error, with the arguments that only they
    have; --full adds a traceback of each kind.
    """
    # The import is done here, so that ``--help`` stays fast.
    from flowpregel._inspection.run_tasks import work_of_last_run  # noqa: PLC0415

    names: dict[str, str] = {}
    with targets.open_to_read(store, flow=flow is not None) as saver:
        saved = targets.newest_checkpoint(saver, thread)
        facts, live = _facts_and_activity(saver, saved)
        if flow is not None:
            state = _state_of_flow(saver, thread, flow)
            names.update((task.id, task.name) for task in state.tasks)
            facts["next"] = list(state.next)
        work = work_of_last_run(saver, thread, limit)
        text = _status_text(saver, thread, live)
        run = ExplainedRun(
            thread=thread,
            store=store,
            has_failures=any(task.state == "failed" for task in work),
            with_time=with_time,
            with_tracebacks=limits is FULL,
        )
        explanation = _explanation(saver, run)
    tasks = [task_record(task, names, limits) for task in work]
    add_outputs(tasks, work, saver)
    tasks += _running_tasks(live, saved, {task.id for task in work})
    record = {**facts, **text.to_json(store), "tasks": tasks, **explanation.record}
    console.print_result(
        record,
        *_status_parts(text, store),
        *_fact_parts(facts, saved),
        *_task_parts(tasks, limits, CALL_NUMBERS if with_time else ()),
        *output_file_lines(tasks),
        *explanation.parts,
    )


def _state_of_flow(
    saver: DurableSaver,
    thread: str,
    flow: str,
) -> StateSnapshot:
    """Return the state of a thread, with the tasks that come next.

    Args:
        saver: The store.
        thread: The id of the thread.
        flow: The flow to import.
    """
    app = targets.load_flow(flow).copy({"checkpointer": saver})
    state: StateSnapshot = app.get_state(thread_id=thread)
    return state


def _facts_and_activity(
    saver: DurableSaver,
    saved: Saved,
) -> tuple[dict[str, Any], Mapping[str, Any] | None]:
    """Return the facts about a thread, and what its run does now, if it is running."""
    thread = saved.address.thread_id
    owner = saver.owner(thread)
    facts = _thread_facts(saved, running=owner is not None)
    if facts["status"] == "enqueued":
        facts["queue"] = _queue_facts(saver, thread, saved)
        consumers = consumers_of(saver, saved.checkpoint.metadata.get(FLOW))
        facts["taken by"] = consumer_text(consumers) or "no process of `work`"
        facts["refused"] = "; ".join(refusals(consumers, thread)) or None
    live = None
    if owner is not None:
        live = _live_activity(saver, thread)
        facts["run by"] = str(owner)
        facts["waiting for their turn"] = _waiting_calls(live)
        pools = (live or {}).get("pools")
        if pools:
            facts["pool"] = pools_text(pools)
    return facts, live


def _explanation(saver: DurableSaver, run: ExplainedRun) -> Explanation:
    """Return the errors of a run by kind, and where its time went, if the user asked
    for them.
    """
    from flowpregel._inspection.reader import StoreReader  # noqa: PLC0415

    with closing(StoreReader(saver)) as reader:
        return explain_run(reader, run)


def _live_activity(saver: DurableSaver, thread: str) -> Mapping[str, Any] | None:
    """Return the current activity of a run, or None if its process does not answer."""
    from flowpregel.cli.watching import live_activity  # noqa: PLC0415

    return live_activity(saver, thread)


def _status_text(
    saver: DurableSaver,
    thread: str,
    live: Mapping[str, Any] | None,
) -> StatusText:
    """Return the status of a thread in words.

    Args:
        saver: The open store.
        thread: The id of the thread.
        live: The current activity of the run, or None.
    """
    from flowpregel._inspection.reader import StoreReader  # noqa: PLC0415

    with closing(StoreReader(saver)) as reader:
        text = reader.status(thread, live)
    if text is None:
        raise targets.unknown_thread(saver, thread)
    return text


def _status_parts(text: StatusText, store: str | None) -> list[Any]:
    """Return the status of a run in words, and the next step, for a terminal."""
    parts: list[Any] = [StyledText(text.sentence, SITUATION_STYLES[text.situation])]
    if text.command:
        parts.append(f"{text.next_step}: {text.command_line(store)}")
    parts.append("")
    return parts


def _fact_parts(facts: Mapping[str, Any], saved: Saved) -> list[Any]:
    """Return the facts about a thread for a terminal, with relative times."""
    age = relative_time(saved.checkpoint.at, time.time_ns())
    texts = {**facts, "at": f"{facts['at']} ({age})"}
    queue = facts.get("queue")
    if queue is not None:
        texts["queue"] = _queue_text(queue)
    return [console.aligned(texts)]


def _queue_facts(saver: DurableSaver, thread: str, saved: Saved) -> dict[str, Any]:
    """Return the position of an enqueued run among all enqueued runs."""
    order = places(saver.threads(), time.time())
    position = QueuePosition.of(saved.checkpoint.metadata) or QueuePosition()
    moment = None
    if position.not_before:
        moment = console.utc_text(int(position.not_before * 1e9))
    return {
        "place": order.index(thread) + 1 if thread in order else None,
        "length": len(order),
        "priority": position.priority,
        "not_before": moment,
    }


def _queue_text(queue: Mapping[str, Any]) -> str:
    """Return a line about the position of an enqueued run in the queue."""
    text = f"place {queue['place'] or '?'} of {queue['length']:,}"
    text += f", priority {queue['priority']}"
    return text + (f", not before {queue['not_before']}" if queue["not_before"] else "")


def _task_parts(
    tasks: Sequence[Mapping[str, Any]],
    limits: PreviewLimits,
    numbers: Sequence[CallNumber],
) -> list[Any]:
    """Return the table of a run's tasks for a terminal.

    Without ``--full``, only the last of the finished tasks are in the table.

    Args:
        tasks: The tasks, as `task_record` returned them.
        limits: The limits of previews.
        numbers: The measurements that have a column.
    """
    # With --full, long values are wrapped and not cut.
    hidden: set[str] = set()
    flexible: Sequence[str] = ()
    if limits is not FULL:
        hidden = _early_done_ids(tasks)
        flexible = ("TASK", _RESULT_COLUMN)
    shown_tasks = [task for task in tasks if task["id"] not in hidden]
    rows = [task_cells(task, limits, numbers) for task in shown_tasks]
    headings = [number.heading.upper() for number in numbers]
    columns = (*_TASK_COLUMNS, *headings, _RESULT_COLUMN)
    parts: list[Any] = []
    if rows:
        parts.append("")
        parts.append(console.make_table(columns, rows, flexible=flexible))
    if hidden:
        parts.append(f"{len(hidden):,} earlier tasks are done; --full shows them")
    return parts


def _thread_facts(saved: Saved, *, running: bool) -> dict[str, Any]:
    """Return the facts about a thread that are in its newest checkpoint."""
    checkpoint = saved.checkpoint
    metadata = dict(checkpoint.metadata)
    metadata.pop("input_digest", None)
    metadata.pop(DRAWING, None)
    durability = metadata.pop(DURABILITY, None)
    if QueuePosition.of(metadata) is not None:
        del metadata[QUEUE]
        # The process that begins the run chooses its durability, so an enqueued run has
        # none yet.
        durability = None
    return {
        "thread_id": saved.address.thread_id,
        "status": status_of(saved, running=running),
        "checkpoint": checkpoint.id,
        "step": step_number(checkpoint.step),
        "at": console.utc_text(checkpoint.at),
        "durability": to_json(durability),
        "metadata": to_json(metadata),
    }


def _waiting_calls(live: Mapping[str, Any] | None) -> Any:
    """Return the number of a run's waiting calls, by the name of the task, or None."""
    if live is None:
        return None
    return to_json(live["waiting"]) or None


def _running_tasks(
    live: Mapping[str, Any] | None,
    saved: Saved,
    recorded_ids: Collection[str],
) -> list[dict[str, Any]]:
    """Return the records of the tasks that run now and have no record yet."""
    if live is None:
        return []
    step = saved.checkpoint.step + 1
    return [
        running_task_record(task, step)
        for task in live["running"]
        if task["id"] not in recorded_ids
    ]


def _early_done_ids(tasks: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the ids of the finished tasks that a table leaves out."""
    ids = [task["id"] for task in tasks if task["state"] == "done"]
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
        return watch_run(saver, thread, store)
