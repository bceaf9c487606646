"""Which tasks are due: planned from channels, their versions, and the versions that nodes saw."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from flowpregel._core import ids
from flowpregel._core.asked import NOWHERE, CallRecord
from flowpregel._core.effects import BodyCalls, Call, StepContext
from flowpregel._core.program import Names, Program, State
from flowpregel._core.records import INTERRUPT, PULLED, TASKS, Kind, Node, Task
from flowpregel.channels import DeltaChannel
from flowpregel.errors import NodeError

PUSHED = ("__pregel_push",)
"""The trigger of a task that was sent: no channel, so nothing is marked as seen."""
DEEPEST = 1_000
"""How deep tasks, or graphs, may be nested: as deep as Python's own calls are by default.
In OS threads and worker processes no stack would end endless nesting."""


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
    candidates: Iterable[str]
    if updated:
        candidates = {name for key in updated for name in program.triggers.get(key, ())}
    else:
        # A channel that holds a value from the start is never updated: the nodes that it
        # triggers run when nothing else is due.
        candidates = program.nodes if state.versions else ()
    for name in sorted(candidates):
        node = program.nodes[name]
        if _is_due(node, state):
            given = _input_of(node, program, state, place)
            tasks.append(_task(node, Kind.PULL, given, f"{PULLED}{name}", place, node.triggers))
    topic = state.channels.get(TASKS)
    if topic is not None and topic.is_available():
        for index, send in enumerate(topic.get()):
            # A node may be gone since: `start` refuses to go on with the thread then.
            if send.node in program.nodes:
                node, path = program.nodes[send.node], f"~__pregel_push, {index:010d}"
                task = _task(node, Kind.PUSH, send.arg, path, place, PUSHED)
                task.timeout = send.timeout or task.timeout
                tasks.append(task)
    return tasks


def _is_due(node: Node, state: State) -> bool:
    """Return whether a trigger holds a value the node has not seen, and there is an input."""
    if isinstance(node.channels, str) and not state.channels[node.channels].is_available():
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


def _task(
    node: Node, kind: Kind, given: Any, path: str, place: StepContext, triggers: tuple[str, ...]
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


def identify_call(caller: Task, call: Call, place: StepContext) -> tuple[str, CallRecord | None]:
    """Count the next call that *caller* makes; return its id, and what is to be kept of it.

    The id is made of the caller and of what it asks for; that of a call which is not
    recorded, of its place among the calls of its caller.
    """
    body: BodyCalls = caller.body
    around, asked = (place.checkpoint_id, place.namespace, place.step, caller.id), call.asked
    body.made += 1
    if asked is None:
        return ids.task_id(*around, body.made - 1), None
    question = asked[:2]
    equal = body.equal.get(question, 0)
    body.equal[question] = equal + 1
    at = body.placed if asked.is_placed else NOWHERE
    body.placed += asked.is_placed
    return ids.task_id(*around, *question, equal), CallRecord(*asked[:4], at, body.caller)


def call_task(
    caller: Task, call: Call, place: StepContext, identity: str, record: CallRecord | None
) -> Task:
    """Return the task of the call that *caller* made last: see `identify_call`."""
    body: BodyCalls = caller.body
    node, index = call.node, body.made - 1
    known_by: tuple[object, ...] = (index,)
    if record is not None:
        known_by = (*record[:2], body.equal[record[:2]] - 1)
    if node.role == "graph":
        namespace = f"{caller.namespace}|{body.graphs}" if body.graphs else caller.namespace
        body.graphs += 1
    else:
        around = f"{place.namespace}|{node.name}" if place.namespace else node.name
        namespace = f"{around}:{identity}"
    return Task(
        identity,
        node,
        Kind.CALL,
        call.arguments,
        ids.call_path(caller.path, index),
        namespace=namespace,
        parent=caller,
        timeout=node.timeout,
        depth=caller.depth + 1,
        record=record,
        stream=(*(caller.stream or (caller.path,)), *known_by),
        variables=call.variables,
        waiting=[call],
    )


def handler_task(program: Program, failed: Task, error: BaseException, place: StepContext) -> Task:
    """Return the task of the node that handles the failure of *failed*."""
    assert failed.node.handler is not None
    node = program.nodes[failed.node.handler]
    path = f"{failed.path}, node_error_handler"
    task = _task(node, Kind.HANDLER, failed.input, path, place, failed.triggers)
    task.error = NodeError(failed.name, error)
    task.parent = failed
    return task


def too_deep(name: str) -> RecursionError:
    """Return the error for a task or a graph that is nested too deep."""
    return RecursionError(
        f"{name!r} is nested more than {DEEPEST:,} deep: does it call itself without end?"
    )


def breaks_before(state: State, tasks: Iterable[Task], where: Names) -> bool:
    """Return whether a breakpoint on one of *tasks* stops the run here.

    A breakpoint at which the run stopped before does not stop it again until a channel changes.
    """
    shown: Mapping[str, Any] = state.seen.get(INTERRUPT, {})
    if not any(
        name not in shown or version > shown[name] for name, version in state.versions.items()
    ):
        return False
    return any(not task.node.hidden if where == "*" else task.name in where for task in tasks)
