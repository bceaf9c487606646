"""Edits of a thread outside of a run. An edit is a superstep in which no task runs.

The edit writes to channels in the name of a node, or as new input.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from flowpregel._core import ids, records
from flowpregel._core.barrier import (
    TaskOutput,
    barrier_of,
    check_writes,
)
from flowpregel._core.effects import Commit, Notice, StepContext
from flowpregel._core.prepared_writes import prepared_writes
from flowpregel._core.program import Options, Program
from flowpregel._core.records import (
    INPUT,
    INTERRUPT,
    RUN_TASK_ID,
    TASKS,
    Node,
    Saved,
    Task,
)
from flowpregel._core.run import Run
from flowpregel._core.run_state import RunState, Update, new_state
from flowpregel._core.start import input_writes, not_before
from flowpregel._core.stream_events import StreamEvents, finished_writes
from flowpregel._inspection.open_checkpoint import OpenCheckpoint, open_checkpoint
from flowpregel._tracebacks import give_notice
from flowpregel.context import Job, RunClient, Scope, current
from flowpregel.errors import (
    GraphInterrupt,
    InvalidUpdateError,
    ParentCommand,
)
from flowpregel.pregel.definition import END

COPY = "__copy__"
"""The special node name that requests a copy of the checkpoint."""
_SOURCES: Mapping[str, records.Source] = {COPY: "fork", INPUT: "input"}
"""The metadata value ``source`` of the checkpoint that an update creates, by the
special node name in the update.
"""


class StateUpdate(NamedTuple):
    """One update of a thread's state."""

    values: Any
    """The output of the node."""
    as_node: str | None = None
    """The node in whose name the values are written. None means the last writer."""
    task_id: str | None = None
    """The id of the task to which the writes are attributed. None means a due task of
    the node or, if none is due, a new task.
    """


def edited(
    program: Program,
    options: Options,
    saved: Saved | None,
    updates: Sequence[StateUpdate],
) -> records.Batch:
    """Return the checkpoint records that one superstep of updates adds to a thread.

    Args:
        program: The program of the thread.
        options: The location and the format of the checkpoints.
        saved: The checkpoint to edit, or None if the thread has none.
        updates: The updates, at least one.

    Raises:
        InvalidUpdateError: An update cannot be made. The message gives the reason.
    """
    first = updates[0]
    _check_single(updates)
    if saved is not None and not (saved.is_latest or _drops_tasks(first)):
        saved = _without_commands(saved)
    run, opened = _run_at(program, options, saved)
    source = _SOURCES.get(first.as_node or "", "update")
    if first.as_node == COPY:
        _copy(run, saved)
    elif first.as_node == INPUT:
        _take_input(run, first.values)
    elif _drops_tasks(first):
        _end_tasks(run, opened)
    else:
        run.apply(_node_writes(run, opened, updates))
    return _saved_edit(run, source, is_first=saved is None)


def _drops_tasks(update: StateUpdate) -> bool:
    """Return whether an update drops the tasks that are due."""
    return update.as_node == END and update.values is None


def _without_commands(saved: Saved) -> Saved:
    """Return *saved*, a checkpoint that is not the newest, without the pending writes
    that a `Command` made there.

    A later checkpoint already contains these writes. An edit of *saved* begins another
    branch of the thread, which must not contain them.
    """
    writes = [write for write in saved.writes if write.task_id != RUN_TASK_ID]
    return replace(saved, writes=tuple(writes))


def _check_single(updates: Sequence[StateUpdate]) -> None:
    """Refuse further updates in a superstep if its first update gives new input, copies
    the checkpoint, or drops the tasks that are due.
    """
    first = updates[0]
    is_special = first.as_node in (INPUT, COPY) or _drops_tasks(first)
    if is_special and len(updates) > 1:
        raise InvalidUpdateError(
            f"as_node={updates[0].as_node!r} must be the only update of its superstep"
        )


def _saved_edit(
    run: Run,
    source: records.Source,
    *,
    is_first: bool,
) -> records.Batch:
    """Return the records of an edit that has been applied.

    Args:
        run: The run that has applied the edit.
        source: The ``source`` to record in the metadata of the checkpoint.
        is_first: Whether the thread had no checkpoint.
    """
    if source != "input" or not is_first:
        run.cursor.step += 1
    commit = run.save_checkpoint(source, is_edit=True)[0]
    assert isinstance(commit, Commit)
    return commit.batch


def _run_at(
    program: Program,
    options: Options,
    saved: Saved | None,
) -> tuple[Run, OpenCheckpoint | None]:
    """Return a run that is at the checkpoint *saved*, and that checkpoint with its
    channels loaded.
    """
    events = StreamEvents(frozenset(), (), ())
    if saved is None:
        state = new_state(program)
        return Run(
            program,
            options,
            events,
            state,
            options.now,
        ), None
    at = not_before(options.now, saved)
    opened = open_checkpoint(
        program,
        saved,
        options.next_version,
        at,
    )
    run = Run(
        program,
        options,
        events,
        opened.state,
        at,
    )
    run.cursor.checkpoint_id = saved.checkpoint.id
    run.cursor.stored_id = saved.checkpoint.id
    run.cursor.step = saved.checkpoint.step
    # If a `Command` has made writes at this checkpoint, they were only pending: no
    # checkpoint contains them yet. The next one must store them, so they are marked as
    # unsaved.
    if opened.applied is not None:
        earlier = run.state.unsaved
        applied = opened.applied
        run.state.unsaved = applied if earlier is None else earlier.then(applied)
    return run, opened


def _copy(
    run: Run,
    saved: Saved | None,
) -> None:
    """Make the checkpoint of *run* a copy of *saved*, with the same parent."""
    if saved is None:
        raise InvalidUpdateError("there is no checkpoint to copy on this thread")
    run.cursor.stored_id = saved.checkpoint.parent_id
    if not run.options.keeps_deltas:
        # A saver may read unchanged channels from the parent of the new checkpoint, and
        # that parent has older values than *saved*. So all channels are marked as not
        # saved.
        versions = saved.checkpoint.channel_versions
        channels = run.state.channels.keys() & versions.keys()
        run.state.unsaved = Update(0, sorted(channels))


def _take_input(
    run: Run,
    values: Any,
) -> None:
    """Apply *values* as new input."""
    writes = input_writes(run, values)
    if not writes:
        raise InvalidUpdateError(
            f"the update as input has nothing for {run.program.input_channels}"
        )
    run.apply([TaskOutput(writes, INPUT)])


def _end_tasks(run: Run, opened: OpenCheckpoint | None) -> None:
    """Apply the writes of the finished tasks, and drop the other tasks."""
    if opened is None:
        return
    for task in opened.tasks:
        pending = opened.pending.get(task.id, ())
        task.attempt.writes = tuple(finished_writes(pending))
    run.apply(barrier_of(opened.tasks))


def _node_writes(
    run: Run,
    opened: OpenCheckpoint | None,
    updates: Sequence[StateUpdate],
) -> list[TaskOutput]:
    """Return the writes that *updates* make in the names of nodes.

    If the edited checkpoint is the thread's latest, the writes are also saved as the
    writes of those nodes' tasks.
    """
    due_ids = _ids_by_node(opened)
    node_writes: list[TaskOutput] = []
    for index, update in enumerate(updates):
        if update.as_node is None and len(updates) > 1:
            raise InvalidUpdateError(
                "as_node is required when applying multiple updates"
            )
        node = _node_of(run.program, run.state, update.as_node)
        writes = _update_writes(run, node, update.values, index)
        node_writes.append(TaskOutput(writes, node.name, (INTERRUPT,)))
        if opened is None or not opened.saved.is_latest:
            continue
        task_id = update.task_id or _next_id(due_ids[node.name])
        if task_id is None:
            task_id = ids.task_id(run.cursor.checkpoint_id, INTERRUPT, index)
        stored = [write for write in writes if write[0] != TASKS]
        run.store_writes(task_id, f"~{INTERRUPT}, {index:010d}", stored)
    return node_writes


def _update_writes(
    run: Run,
    node: Node,
    values: Any,
    index: int,
) -> Sequence[records.Write]:
    """Return the writes of an update. A channel may prepare (change) the values that
    are written to it, for example to give messages ids.

    Args:
        run: The run that applies the update.
        node: The node in whose name the update writes.
        values: The output of the node.
        index: The position of the update in its superstep.
    """
    author = f"{run.cursor.checkpoint_id}, {INTERRUPT}, {index}, {run.now}"
    kind = records.Kind.PULL
    task = Task(author, node, kind, values, "", namespace=node.name)
    writes = tuple(_run_writers(run.program, task, run.state))
    check_writes(run.program, f"the update as {node.name!r}", writes)
    return prepared_writes(run.program.preparations, author, writes)


def _next_id(task_ids: deque[str]) -> str | None:
    """Remove and return the first of *task_ids*, or return None if there is none."""
    return task_ids.popleft() if task_ids else None


def _node_of(
    program: Program,
    state: RunState,
    as_node: str | None,
) -> Node:
    """Return the node in whose name an update writes."""
    name = _last_writer(program, state) if as_node is None else as_node
    if name is None:
        raise InvalidUpdateError(
            "Ambiguous update, specify as_node: several nodes wrote last, or none did"
        )
    node = program.nodes.get(name)
    if node is None:
        raise InvalidUpdateError(
            f"Node {name!r} does not exist; the nodes are: "
            f"{', '.join(sorted(program.nodes))}"
        )
    if not node.writers:
        raise InvalidUpdateError(
            f"Node {name!r} has no writers, so it cannot update the state"
        )
    return node


def _ids_by_node(opened: OpenCheckpoint | None) -> dict[str, deque[str]]:
    """Return the ids of the due tasks, by the names of their nodes."""
    by_node: dict[str, deque[str]] = defaultdict(deque)
    if opened is not None:
        for task in opened.tasks:
            by_node[task.name].append(task.id)
    return by_node


def _last_writer(
    program: Program,
    state: RunState,
) -> str | None:
    """Return the name of the node that ran last, or None if several nodes ran last or
    no node ran.
    """
    if len(program.nodes) == 1:
        return next(iter(program.nodes))
    runs = [
        (version, name)
        for name, versions in state.seen.items()
        if name in program.nodes
        for version in versions.values()
    ]
    if not runs:
        channels = program.input_channels
        is_node = isinstance(channels, str) and channels in program.nodes
        return str(channels) if is_node else None
    runs.sort()
    last_version, name = runs[-1]
    is_tie = len(runs) > 1 and runs[-2][0] == last_version
    return None if is_tie else name


def copy_updates(
    program: Program,
    saved: Saved,
    items: Sequence[Any],
) -> Iterator[list[StateUpdate]]:
    """Yield the updates that follow the copy of a checkpoint, as one superstep. Yield
    nothing if there are no updates.

    Each update gets the id of a due task of the node in whose name it writes.

    Args:
        program: The program of the thread.
        saved: The copied checkpoint.
        items: Pairs of values and a node name.
    """
    due_ids = _ids_by_node(open_checkpoint(program, saved))
    by_node: dict[str | None, list[StateUpdate]] = defaultdict(list)
    for item in items:
        is_pair = isinstance(item, Sequence) and not isinstance(item, str)
        if not is_pair or len(item) < 2:
            raise InvalidUpdateError(
                f"an update of a copy is (values, as_node), not {item!r}"
            )
        name = item[1]
        task_id = _next_id(due_ids[name])
        by_node[name].append(StateUpdate(item[0], name, task_id))
    if by_node:
        yield [update for updates in by_node.values() for update in updates]


def _warn_of(emitted: Any) -> None:
    """Emit a warning if a writer has emitted a notice. Other emitted items are dropped,
    since an edit has no stream.
    """
    if isinstance(emitted, Notice):
        give_notice(emitted.text)


def _run_writers(
    program: Program,
    task: Task,
    state: RunState,
) -> Sequence[records.Write]:
    """Return the writes that the writers of the node of *task* make, outside of any
    run. The task's ``input`` is what the writers get: the node's output.
    """
    import asyncio  # noqa: PLC0415 - kept out of `import flowpregel`

    node = task.node
    step = StepContext("", "", 0, 2, channels=state.channels, managed=program.managed)
    scope = Scope(Job(task, step), RunClient(emit=_warn_of))
    token = current.set(scope)
    try:
        for writer in node.writers:
            writes = writer(task.input, scope)
            if hasattr(writes, "__await__"):
                writes = asyncio.run(writes)
            scope.writes.extend(writes)
    except ParentCommand:
        raise InvalidUpdateError(
            "There is no parent graph: Command.PARENT in an update"
        ) from None
    except GraphInterrupt as question:
        raise InvalidUpdateError(
            f"the writers of node {node.name!r} cannot call interrupt() in an update: "
            f"{question.interrupts}"
        ) from None
    finally:
        current.reset(token)
    return scope.writes
