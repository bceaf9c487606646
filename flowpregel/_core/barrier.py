"""The barrier: apply the writes of a superstep, and plan the next tasks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from flowpregel._core import ids, records
from flowpregel._core.commands import Send
from flowpregel._core.effects import StepContext
from flowpregel._core.prepared_writes import prepared_writes
from flowpregel._core.program import Names, Program
from flowpregel._core.records import (
    PULLED,
    TASKS,
    Delta,
    Kind,
    Node,
    Outcome,
    Raised,
    Returned,
    Task,
    Version,
    Write,
)
from flowpregel._core.run_state import RunState, Update
from flowpregel.channels import DeltaChannel
from flowpregel.channels.folding import has_overwrite
from flowpregel.errors import InvalidUpdateError, NodeError

TO_NODE = "branch:to:"
"""The prefix of the name of a channel that triggers a node of a `StateGraph`."""
PUSHED = ("__pregel_push",)
"""The trigger of a task that a `Send` has planned. It is the name of no channel, so
there is no version to record as seen by the node.
"""

# ---------------------------------------------------------------- outputs of tasks


@dataclass(slots=True)
class TaskOutput:
    """The output of one task, which the barrier applies to the channels."""

    writes: Sequence[Write]
    reader: str = ""
    """The name of the node that has now seen the versions of the triggers, or an empty
    string if the task has no triggers.
    """
    triggers: tuple[str, ...] = ()
    order: tuple[int, str] = (0, "")
    """The sort key that determines the order in which a superstep's outputs are
    applied: the kind and the path of the task.
    """


def check_writes(
    program: Program,
    author: str | Node,
    writes: Iterable[Write],
) -> None:
    """Raise an error for writes that no barrier could apply.

    Args:
        program: The program with the channels.
        author: The node or other source of the writes, for the error's message.
        writes: The writes to check.

    Raises:
        InvalidUpdateError: A channel or the target of a `Send` does not exist.
    """
    for channel, value in writes:
        if channel in program.channels:
            if channel == TASKS:
                _check_send(program, author, value)
        elif channel not in records.SILENT_WRITES:
            raise InvalidUpdateError(_unknown_channel_text(program, author, channel))


def prepared_outcome(program: Program, task: Task, outcome: Returned) -> Outcome:
    """Return *outcome* after the channels have prepared its writes (see
    `prepared_writes`). If no barrier can apply the writes, return the error instead.
    """
    claim = task.attempt.cache
    if claim is not None:
        claim.writes = outcome.writes
    try:
        check_writes(program, task.node, outcome.writes)
        if not program.preparations:
            return outcome
        writes = prepared_writes(program.preparations, task.id, outcome.writes)
    except Exception as error:  # noqa: BLE001 - the task fails with it
        return Raised(error)
    return Returned(writes)


def _unknown_channel_text(
    program: Program,
    author: str | Node,
    channel: str,
) -> str:
    """Return the message for a write to a channel that does not exist."""
    if str(channel).startswith(TO_NODE):
        nodes = sorted(name for name, node in program.nodes.items() if not node.hidden)
        return (
            f"{author} leads to node {channel.removeprefix(TO_NODE)!r}, which does "
            f"not exist; the nodes are: {', '.join(nodes)}"
        )
    channels = sorted(name for name in program.channels if name != TASKS)
    return (
        f"{author} wrote to channel {channel!r}, which does not exist; "
        f"the channels are: {', '.join(channels)}"
    )


def _check_send(
    program: Program,
    author: str | Node,
    value: Any,
) -> None:
    sends = value if isinstance(value, list) else (value,)
    for send in sends:
        if not isinstance(send, Send):
            raise InvalidUpdateError(f"{author} sent {send!r}, which is not a Send")
        if send.node not in program.nodes:
            known = ", ".join(sorted(program.nodes))
            raise InvalidUpdateError(
                f"{author} sent to node {send.node!r}, which does not exist; the nodes "
                f"are: {known}"
            )


def barrier_of(tasks: Iterable[Task]) -> list[TaskOutput]:
    """Return the outputs of *tasks*, in the order in which they are applied."""
    outputs: list[TaskOutput] = []
    for task in tasks:
        kind = task.kind
        triggers = task.triggers
        if kind is Kind.HANDLER:
            # Channels triggered the failed task, and none triggered the error handler.
            # So the triggers of the failed task are marked as seen, and the handler's
            # writes are applied at the position of the failed task.
            assert task.parent is not None
            kind = task.parent.kind
            triggers = ()
        output = TaskOutput(
            writes=task.attempt.writes,
            reader=task.node.name,
            triggers=triggers,
            order=(kind, task.path),
        )
        outputs.append(output)
    outputs.sort(key=attrgetter("order"))
    return outputs


# ---------------------------------------------------------------- changes of channels


def apply(
    program: Program,
    state: RunState,
    outputs: Sequence[TaskOutput],
    version: Version,
) -> Update:
    """Fold the outputs of tasks into the channels of *state*.

    If a channel triggered any of the tasks, this is the end of a superstep. Channels
    that change at the end of each superstep are then updated even without a write. If
    no node can run next, `finish` is called on all channels that have it.

    Raises:
        InvalidUpdateError: A channel cannot take its writes.
    """
    update = Update(version)
    triggers = _mark_seen(state, outputs)
    for name in triggers & program.consuming:
        if state.channels[name].consume():
            _mark_changed(state, name, update)
    for name, values in _writes_by_channel(outputs).items():
        channel = state.channels[name]
        previous = state.versions.get(name)
        try:
            is_changed = channel.update(values)
        except Exception as error:
            error.add_note(
                f"channel {name!r} was written by {_writers_of(name, outputs)}"
            )
            raise
        update.written.add(name)
        if is_changed:
            _mark_changed(state, name, update)
            if name in program.deltas:
                delta = Delta(previous, tuple(values))
                _add_delta(state, program.deltas[name], delta, update)
    if triggers:
        _end_superstep(program, state, update)
    return update


def _mark_seen(state: RunState, outputs: Sequence[TaskOutput]) -> set[str]:
    """Record the versions of the tasks' triggers as seen by their nodes, and return all
    triggers.
    """
    triggers: set[str] = set()
    for output in outputs:
        if not output.triggers:
            continue
        triggers.update(output.triggers)
        seen = dict(state.seen.get(output.reader, ()))
        for name in output.triggers:
            # A channel that has had its value since the start was never updated, so it
            # has no version that could be marked as seen.
            if name in state.versions:
                seen[name] = state.versions[name]
        state.seen[output.reader] = seen
    return triggers


def _writes_by_channel(outputs: Sequence[TaskOutput]) -> dict[str, list[Any]]:
    """Return the values that the outputs write, by channel."""
    values: dict[str, list[Any]] = {}
    for output in outputs:
        for name, value in output.writes:
            if name not in records.SILENT_WRITES:
                values.setdefault(name, []).append(value)
    return values


def _end_superstep(
    program: Program,
    state: RunState,
    update: Update,
) -> None:
    """Update the channels that change at the end of each superstep, even if they were
    not written. If no node can run next, call `finish` on the channels that have it.
    """
    for name in (program.ticking & state.available) - update.written:
        if state.channels[name].update(()):
            _mark_changed(state, name, update)
    if TASKS not in update.updated and update.updated.isdisjoint(program.triggers):
        for name in program.finishing:
            if state.channels[name].finish():
                _mark_changed(state, name, update)


def changing(
    program: Program,
    state: RunState,
    outputs: Sequence[TaskOutput],
) -> set[str]:
    """Return the channels that `apply` may change."""
    names: set[str] = set()
    for output in outputs:
        names.update(output.triggers)
        names.update(name for name, _ in output.writes)
    names.update(program.ticking & state.available, program.finishing)
    return names & state.channels.keys()


def _writers_of(channel: str, outputs: Sequence[TaskOutput]) -> str:
    """Return the writers of *channel*, for a message."""
    writers = []
    for output in outputs:
        if not any(name == channel for name, _ in output.writes):
            continue
        writer = "the run's own command"
        if output.reader:
            writer = repr(output.reader)
        writers.append(writer)
    return ", ".join(writers)


def _add_delta(
    state: RunState,
    channel: DeltaChannel[Any, Any],
    delta: Delta,
    update: Update,
) -> None:
    """Record *delta* for the checkpoint, unless the full value of the channel must be
    stored instead.
    """
    name = channel.key
    frequency = channel.snapshot_frequency
    count = state.updates_since_snapshot.get(name, 0) + 1
    is_due = frequency is not None and count >= frequency
    if is_due or has_overwrite(delta.writes):
        state.updates_since_snapshot[name] = 0
    else:
        state.updates_since_snapshot[name] = count
        update.deltas[name] = delta


def _mark_changed(
    state: RunState,
    name: str,
    update: Update,
) -> None:
    """Give a channel that has changed the version that the barrier gives to all changed
    channels.
    """
    channel = state.channels[name]
    if state.versions.get(name) != update.version:
        update.changed.append(name)
        state.versions[name] = update.version
        state.newest = update.version
    if channel.is_available():
        update.updated.add(name)
        state.available.add(name)
    else:
        update.updated.discard(name)
        state.available.discard(name)


# ---------------------------------------------------------------- tasks that are due


def plan(
    program: Program,
    state: RunState,
    updated: Collection[str] | None,
    step: StepContext,
    triggered: Sequence[Node] | None = None,
) -> list[Task]:
    """Return the tasks of the next superstep: PULL tasks by node name, then PUSH tasks
    by index.

    Args:
        program: The nodes and their triggers.
        state: The channels after the last barrier.
        updated: The channels that may trigger a node. If the collection is empty or
            None, any channel may.
        step: The facts about the superstep that all tasks have in common.
        triggered: The result of `triggered_nodes` if the caller has it, or None.
    """
    tasks = []
    if triggered is None:
        triggered = triggered_nodes(program, state, updated)
    for node in triggered:
        value = _input_of(node, program, state, step)
        path = f"{PULLED}{node.name}"
        tasks.append(_planned_task(node, Kind.PULL, value, path, step, node.triggers))
    for index, send in enumerate(_sends(state)):
        # A `Send` to a node that no longer exists is skipped. A run that would have to
        # execute it does not get this far, because `start` raises an error.
        if send.node in program.nodes:
            node = program.nodes[send.node]
            path = f"~__pregel_push, {index:010d}"
            task = _planned_task(node, Kind.PUSH, send.arg, path, step, PUSHED)
            task.timeout = send.timeout or task.timeout
            tasks.append(task)
    return tasks


def sent_nodes(program: Program, state: RunState) -> list[Node]:
    """Return the nodes of the PUSH tasks that `plan` would return."""
    return [
        program.nodes[send.node] for send in _sends(state) if send.node in program.nodes
    ]


def _sends(state: RunState) -> Iterable[Send]:
    """Return the values of all `Send` that wait in *state*."""
    if TASKS not in state.available:
        return ()
    sends: Iterable[Send] = state.channels[TASKS].get()
    return sends


def triggered_nodes(
    program: Program,
    state: RunState,
    updated: Collection[str] | None,
) -> list[Node]:
    """Return the nodes that are due because a channel triggers them, in order of their
    names.
    """
    candidates: set[str] = set()
    if updated:
        for channel in updated:
            candidates.update(program.triggers.get(channel, ()))
    elif state.versions:
        # A channel that holds a value from the start is never updated: the nodes that
        # it triggers run when nothing else is due.
        candidates.update(program.nodes)
    due: list[Node] = []
    for name in sorted(candidates):
        node = program.nodes[name]
        if _is_due(node, program, state):
            due.append(node)
    return due


def _is_due(node: Node, program: Program, state: RunState) -> bool:
    """Return whether the node has an input, and a trigger has a newer version than the
    node has seen.
    """
    source = node.channels
    if isinstance(source, str) and source not in state.available:
        return False
    seen: Mapping[str, Any] | None = state.seen.get(node.name)
    for trigger in node.triggers:
        if trigger not in state.available:
            continue
        version = state.versions.get(trigger)
        if version is None:
            # An initial value triggers a node once. The initial value of a DeltaChannel
            # never triggers a node.
            is_new = seen is None and trigger not in program.deltas
        else:
            is_new = seen is None or trigger not in seen or version > seen[trigger]
        if is_new:
            return True
    return False


def _input_of(
    node: Node,
    program: Program,
    state: RunState,
    step: StepContext,
) -> Any:
    """Return the input of *node*, made from the channels that it reads."""
    value: Any
    if isinstance(node.channels, str):
        channel = state.channels[node.channels]
        value = channel if node.contexts else channel.get()
    else:
        value = _values_of(node, program, state, step)
    if node.mapper is None:
        return value
    try:
        return node.mapper(value)
    except Exception as error:
        error.add_note(f"while the input of node {node.name!r} was built")
        raise


def _values_of(
    node: Node,
    program: Program,
    state: RunState,
    step: StepContext,
) -> dict[str, Any]:
    """Return the values of the channels that *node* reads, by name."""
    values: dict[str, Any] = {}
    for name in node.channels:
        if name in program.managed:
            values[name] = program.managed[name].get(step.step, step.stop)
        elif name in node.contexts:
            values[name] = state.channels[name]
        elif name in state.available:
            values[name] = state.channels[name].get()
    return values


def _planned_task(
    node: Node,
    kind: Kind,
    value: Any,
    path: str,
    step: StepContext,
    triggers: tuple[str, ...],
) -> Task:
    name = f"{step.namespace}|{node.name}" if step.namespace else node.name
    task_id = ids.task_id(step.checkpoint_id, name, step.step, path, *triggers)
    return Task(
        id=task_id,
        node=node,
        kind=kind,
        input=value,
        path=path,
        triggers=triggers,
        namespace=f"{name}:{task_id}",
        timeout=node.timeout,
    )


def handler_task(
    program: Program,
    failed: Task,
    error: BaseException,
    step: StepContext,
) -> Task:
    """Return the task of the node that handles the failure of *failed*."""
    assert failed.node.handler is not None
    node = program.nodes[failed.node.handler]
    path = f"{failed.path}, node_error_handler"
    task = _planned_task(node, Kind.HANDLER, failed.input, path, step, failed.triggers)
    task.error = NodeError(failed.name, error)
    task.parent = failed
    return task


def breaks_before(
    state: RunState,
    nodes: Iterable[Node],
    breakpoints: Names,
) -> bool:
    """Return whether a breakpoint on one of *nodes* stops the run before these nodes.

    A breakpoint at which the run stopped before does not stop it again until a channel
    changes.
    """
    if not _has_changed_since_interrupt(state):
        return False
    if breakpoints == "*":
        return any(not node.hidden for node in nodes)
    return any(node.name in breakpoints for node in nodes)


def _has_changed_since_interrupt(state: RunState) -> bool:
    """Return whether a channel has changed since the run stopped at a breakpoint."""
    seen: Mapping[str, Any] = state.seen.get(records.INTERRUPT, {})
    for name, version in state.versions.items():
        if name not in seen or version > seen[name]:
            return True
    return False
