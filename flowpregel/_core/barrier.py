"""The barrier: apply what a superstep's tasks wrote to the channels, and plan the next
tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from flowpregel._core import ids, records
from flowpregel._core.commands import Send
from flowpregel._core.effects import StepContext
from flowpregel._core.program import Names, Program, State
from flowpregel._core.records import (
    PULLED,
    TASKS,
    Delta,
    Kind,
    Node,
    Task,
    Version,
    Write,
)
from flowpregel.channels import DeltaChannel
from flowpregel.channels.folding import has_overwrite
from flowpregel.errors import InvalidUpdateError, NodeError

TO_NODE = "branch:to:"
"""The start of the name of a channel that makes a node of a `StateGraph` run."""
PUSHED = ("__pregel_push",)
"""The trigger of a task that was sent: no channel, so nothing is marked as seen."""

# ---------------------------------------------------------------- what tasks wrote


@dataclass(slots=True)
class TaskOutput:
    """What one task brings to the barrier."""

    writes: Sequence[Write]
    reader: str = ""
    """The name under which its triggers count as seen; empty: it has none."""
    triggers: tuple[str, ...] = ()


@dataclass(slots=True)
class Update:
    """What a barrier did."""

    version: Version
    """The version that every changed channel now has."""
    changed: list[str] = field(default_factory=list)
    """The channels whose version moved."""
    updated: set[str] = field(default_factory=set)
    """The changed channels that hold a value, and so may trigger nodes."""
    written: set[str] = field(default_factory=set)
    """The channels that were written, changed or not."""
    deltas: dict[str, Delta] = field(default_factory=dict)

    def then(self, later: Update) -> Update:
        """Return what this barrier and *later* did, as if it were one.

        A DeltaChannel that changed in both and whose earlier change was kept in
        full is in no delta: its value is kept in full again.
        """
        deltas = {
            name: delta
            for name, delta in self.deltas.items()
            if name not in later.changed
        }
        for name, delta in later.deltas.items():
            if name not in self.changed:
                deltas[name] = delta
            elif before := self.deltas.get(name):
                deltas[name] = Delta(before.previous, (*before.writes, *delta.writes))
        changed = list(dict.fromkeys((*self.changed, *later.changed)))
        return Update(later.version, changed, later.updated, later.written, deltas)


def check_writes(program: Program, author: str | Node, writes: Iterable[Write]) -> None:
    """Refuse writes that no barrier could apply.

    Args:
        program: Whose channels are written.
        author: Who wrote them, for the message.
        writes: What is to be written.

    Raises:
        InvalidUpdateError: A channel or the target of a `Send` does not exist.
    """
    for channel, value in writes:
        if channel in program.channels:
            if channel == TASKS:
                _check_send(program, author, value)
        elif str(channel).startswith(TO_NODE):
            nodes = sorted(
                name for name, node in program.nodes.items() if not node.hidden
            )
            raise InvalidUpdateError(
                f"{author} leads to node {channel.removeprefix(TO_NODE)!r}, which does "
                "not exist; "
                f"the nodes are: {', '.join(nodes)}"
            )
        elif channel not in records.SILENT_WRITES:
            known = ", ".join(
                sorted(name for name in program.channels if name != TASKS)
            )
            raise InvalidUpdateError(
                f"{author} wrote to channel {channel!r}, which does not exist; "
                f"the channels are: {known}"
            )


def _check_send(program: Program, author: str | Node, value: Any) -> None:
    for send in value if isinstance(value, list) else (value,):
        if not isinstance(send, Send):
            raise InvalidUpdateError(f"{author} sent {send!r}, which is not a Send")
        if send.node not in program.nodes:
            known = ", ".join(sorted(program.nodes))
            raise InvalidUpdateError(
                f"{author} sent to node {send.node!r}, which does not exist; the nodes "
                f"are: {known}"
            )


def barrier_of(tasks: Iterable[Task]) -> list[TaskOutput]:
    """Return what *tasks* bring, in the order in which it is applied."""
    placed = []
    for task in tasks:
        # A handler was not triggered: the task that failed was, and has seen its
        # triggers; the handler's writes come where those of that task would have.
        handled = task.parent if task.kind is Kind.HANDLER else None
        triggers = task.triggers if handled is None else ()
        place = (handled or task).kind, task.path
        placed.append((place, TaskOutput(task.writes, task.node.name, triggers)))
    return [outputs for _, outputs in sorted(placed, key=itemgetter(0))]


def apply(
    program: Program, state: State, outputs: Sequence[TaskOutput], version: Version
) -> Update:
    """Fold the outputs of tasks into the channels of *state*.

    A barrier where some task was triggered is a superstep: channels that react to
    it are updated without a write too, and if nothing could run next, all finish.

    Raises:
        InvalidUpdateError: A channel cannot take its writes.
    """
    applied = Update(version)
    triggers, written = _gathered(state, outputs)
    for name in triggers & state.channels.keys():
        if state.channels[name].consume():
            _note_change(state, name, applied)
    for name, values in written.items():
        channel, previous = state.channels[name], state.versions.get(name)
        try:
            changed = channel.update(values)
        except Exception as error:
            error.add_note(
                f"channel {name!r} was written by {_writers_of(name, outputs)}"
            )
            raise
        applied.written.add(name)
        if changed:
            _note_change(state, name, applied)
            if isinstance(channel, DeltaChannel):
                _note_delta(state, channel, Delta(previous, tuple(values)), applied)
    if triggers:
        _end_superstep(program, state, applied)
    return applied


def _gathered(
    state: State, outputs: Sequence[TaskOutput]
) -> tuple[set[str], dict[str, list[Any]]]:
    """Note what the tasks have seen; return what triggered them, and their writes by
    channel.
    """
    triggers: set[str] = set()
    written: dict[str, list[Any]] = {}
    for item in outputs:
        if item.triggers:
            triggers.update(item.triggers)
            # A channel that held a value from the start has no version, and was seen
            # all the same.
            seen = {
                name: state.versions[name]
                for name in item.triggers
                if name in state.versions
            }
            state.seen[item.reader] = {**state.seen.get(item.reader, {}), **seen}
        for name, value in item.writes:
            if name not in records.SILENT_WRITES:
                written.setdefault(name, []).append(value)
    return triggers, written


def _end_superstep(program: Program, state: State, applied: Update) -> None:
    """Update the channels that react to silence; if no node can run next, let channels
    finish.
    """
    for name in state.tick_channels - applied.written:
        if state.channels[name].update(()):
            _note_change(state, name, applied)
    if TASKS not in applied.updated and applied.updated.isdisjoint(program.triggers):
        for name in program.finishing:
            if state.channels[name].finish():
                _note_change(state, name, applied)


def changing(program: Program, state: State, outputs: Sequence[TaskOutput]) -> set[str]:
    """Return the channels that `apply` may change."""
    names = {name for item in outputs for name in item.triggers}
    names.update(name for item in outputs for name, _ in item.writes)
    names.update(state.tick_channels, program.finishing)
    return names & state.channels.keys()


def _writers_of(channel: str, outputs: Sequence[TaskOutput]) -> str:
    """Return who wrote to *channel*, for a message."""
    return ", ".join(
        repr(item.reader) if item.reader else "the run's own command"
        for item in outputs
        if any(key == channel for key, _ in item.writes)
    )


def _note_delta(
    state: State, channel: DeltaChannel[Any, Any], delta: Delta, applied: Update
) -> None:
    """Record what was added, unless the channel's full value is to be kept instead."""
    name = channel.key
    updates = state.updates_since_snapshot.get(name, 0) + 1
    due = (
        channel.snapshot_frequency is not None and updates >= channel.snapshot_frequency
    )
    if due or has_overwrite(delta.writes):
        state.updates_since_snapshot[name] = 0
    else:
        state.updates_since_snapshot[name] = updates
        applied.deltas[name] = delta


def _note_change(state: State, name: str, applied: Update) -> None:
    """Move a changed channel to the barrier's version."""
    channel = state.channels[name]
    if state.versions.get(name) != applied.version:
        applied.changed.append(name)
        state.versions[name] = state.newest = applied.version
    if channel.is_available():
        applied.updated.add(name)
        if channel.reacts_to_silence:
            state.tick_channels.add(name)
    else:
        applied.updated.discard(name)
        state.tick_channels.discard(name)


# ---------------------------------------------------------------- which tasks are due


def plan(
    program: Program, state: State, updated: Collection[str] | None, place: StepContext
) -> list[Task]:
    """Return the tasks of the next superstep: PULL by node name, then PUSH by index.

    Args:
        program: The nodes and what triggers them.
        state: The channels as the last barrier left them.
        updated: The channels that may trigger a node; none, or None: any may.
        place: The superstep.
    """
    tasks = []
    for node in _pulled(program, state, updated):
        given = _input_of(node, program, state, place)
        path = f"{PULLED}{node.name}"
        tasks.append(_planned_task(node, Kind.PULL, given, path, place, node.triggers))
    topic = state.channels.get(TASKS)
    if topic is not None and topic.is_available():
        for index, send in enumerate(topic.get()):
            # A node may be gone since: `start` refuses to go on with the thread then.
            if send.node in program.nodes:
                node, path = program.nodes[send.node], f"~__pregel_push, {index:010d}"
                task = _planned_task(node, Kind.PUSH, send.arg, path, place, PUSHED)
                task.timeout = send.timeout or task.timeout
                tasks.append(task)
    return tasks


def due_nodes(
    program: Program, state: State, updated: Collection[str] | None
) -> Iterator[Node]:
    """Yield the nodes of the tasks that `plan` would return; none of their inputs is
    made.
    """
    yield from _pulled(program, state, updated)
    topic = state.channels.get(TASKS)
    if topic is not None and topic.is_available():
        for send in topic.get():
            if send.node in program.nodes:
                yield program.nodes[send.node]


def _pulled(
    program: Program, state: State, updated: Collection[str] | None
) -> Iterator[Node]:
    """Yield the nodes that a channel triggers, by name."""
    candidates: Iterable[str]
    if updated:
        candidates = {name for key in updated for name in program.triggers.get(key, ())}
    else:
        # A channel that holds a value from the start is never updated: the nodes that
        # it triggers run when nothing else is due.
        candidates = program.nodes if state.versions else ()
    for name in sorted(candidates):
        node = program.nodes[name]
        if _is_due(node, state):
            yield node


def _is_due(node: Node, state: State) -> bool:
    """Return whether a trigger holds a value the node has not seen, and there is an
    input.
    """
    if (
        isinstance(node.channels, str)
        and not state.channels[node.channels].is_available()
    ):
        return False
    seen: Mapping[str, Any] | None = state.seen.get(node.name)
    for trigger in node.triggers:
        if (channel := state.channels[trigger]).is_available():
            version = state.versions.get(trigger)
            if version is None and isinstance(channel, DeltaChannel):
                continue  # what it starts with is nobody's news
            if seen is None:
                return True
            if version is not None and (trigger not in seen or version > seen[trigger]):
                return True
    return False


def _input_of(node: Node, program: Program, state: State, place: StepContext) -> Any:
    """Return what *node* is given."""
    value: Any
    if isinstance(node.channels, str):
        channel = state.channels[node.channels]
        value = channel if node.contexts else channel.get()
    else:
        value = {}
        for name in node.channels:
            if name in program.managed:
                value[name] = program.managed[name].get(place.step, place.stop)
            elif name in node.contexts:
                value[name] = state.channels[name]
            elif state.channels[name].is_available():
                value[name] = state.channels[name].get()
    if node.mapper is None:
        return value
    try:
        return node.mapper(value)
    except Exception as error:
        error.add_note(f"while the input of node {node.name!r} was made")
        raise


def _planned_task(
    node: Node,
    kind: Kind,
    given: Any,
    path: str,
    place: StepContext,
    triggers: tuple[str, ...],
) -> Task:
    around = f"{place.namespace}|{node.name}" if place.namespace else node.name
    identity = ids.task_id(place.checkpoint_id, around, place.step, path, *triggers)
    return Task(
        identity,
        node,
        kind,
        given,
        path,
        triggers,
        namespace=f"{around}:{identity}",
        timeout=node.timeout,
    )


def handler_task(
    program: Program, failed: Task, error: BaseException, place: StepContext
) -> Task:
    """Return the task of the node that handles the failure of *failed*."""
    assert failed.node.handler is not None
    node = program.nodes[failed.node.handler]
    path = f"{failed.path}, node_error_handler"
    task = _planned_task(node, Kind.HANDLER, failed.input, path, place, failed.triggers)
    task.error = NodeError(failed.name, error)
    task.parent = failed
    return task


def breaks_before(state: State, nodes: Iterable[Node], where: Names) -> bool:
    """Return whether a breakpoint on one of *nodes* stops the run here.

    A breakpoint at which the run stopped before does not stop it again until a channel
    changes.
    """
    shown: Mapping[str, Any] = state.seen.get(records.INTERRUPT, {})
    if not any(
        name not in shown or version > shown[name]
        for name, version in state.versions.items()
    ):
        return False
    return any(
        not node.hidden if where == "*" else node.name in where for node in nodes
    )
